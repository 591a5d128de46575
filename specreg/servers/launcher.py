"""Start the processes of a server, or attach to a server that others have started."""

import contextlib
import itertools
import os
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specreg.core.address import Address
from specreg.core.errors import ServerStartError
from specreg.core.files import cause_and_path_of, remedy_of, replace_file
from specreg.core.processes import new_temporary, start_process, stop_process
from specreg.core.readable import readable_line
from specreg.core.redaction import hide
from specreg.core.timeline import Phase, Timeline
from specreg.engines.engine import Site
from specreg.engines.launch_facts import NONE, LaunchFacts, inherited_variables
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.models import config_of, served_models, widen_models
from specreg.servers.attach import attach_server
from specreg.servers.containers import Invocation, new_container_name
from specreg.servers.gpu_lease import lease_gpus
from specreg.servers.images import home_of
from specreg.servers.installer import installed_packages, version_in
from specreg.servers.invocation import command_in_container, inside_container, native_invocation
from specreg.servers.launch import numbered, weights_log
from specreg.servers.memory import gpu_memory
from specreg.servers.provision import Provision
from specreg.servers.server import Server, StartingServer
from specreg.servers.toolkit import toolkit_release
from specreg.telemetry.identity import find_gpus
from specreg.telemetry.sensor import Device

_NONCE_DIGITS = 8


def free_port() -> int:
    """Return a local port that was free a moment ago; another program may still take it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLauncher:
    """Starts servers on this machine, or attaches to the one at a URL.

    Attributes:
        provision: gives the engine's environment, the GPUs and the URL.
        root: the root of the repository, which relative model paths start from.
        ready_within_s: how long a server may take to generate its first token, in seconds.
        timeline: records how long installing and fetching take.
        choose_port: returns a free port.
    """

    provision: Provision
    root: Path
    ready_within_s: float
    timeline: Timeline = field(default_factory=Timeline)
    choose_port: Callable[[], int] = free_port

    def prepare(self, spec: ServerSpec, log_path: Path) -> None:
        """Install a server's engine and fetch its models, as far as they are missing.

        Raises:
            SpecregError: the environment can't be made, or a model can't be fetched or widened.
        """
        if self.provision.attached is not None:
            return
        with self.timeline.during(Phase.INSTALLING, of=spec.engine):
            self.provision.environment(spec)
        with self.timeline.during(Phase.FETCHING, of=log_path.stem):
            self.provision.fetch_models(spec, weights_log(log_path))
        widen_models(self.root, spec, show=self.provision.show)

    @contextlib.contextmanager
    def reserve(self, spec: ServerSpec) -> Iterator[None]:
        """Lock the GPUs of a server while the context lasts, in which it starts and ends.

        Raises:
            SpecregError: as in `lease_gpus`.
        """
        provision = self.provision
        devices: Sequence[Device] = ()
        if provision.on_gpu and provision.attached is None:
            devices = provision.devices(spec)
        with lease_gpus(devices, waits=provision.waits, tell=provision.tell):
            if provision.attached is None:
                provision.show(f"starting {spec.id}")
            yield

    @contextlib.contextmanager
    def start(self, spec: ServerSpec, log_path: Path) -> Iterator[StartingServer | Server]:
        """Start a server once; all of its processes end with the context.

        Args:
            log_path: the file that gets its output. If it exists, the output goes to a numbered
                file.

        Yields:
            The server that isn't ready yet, or the ready one to which it has attached.

        Raises:
            SpecregError: on entry, its command can't be run, or the server at the URL isn't the
                one of the case. On exit, it can't be killed.
        """
        if self.provision.attached is not None:
            address = self.provision.attached_at(spec)
            yield attach_server(spec, address, root=self.root, ready_within_s=self.ready_within_s)
            return

        python, installed = self.provision.environment(spec)
        temporary = new_temporary()

        # Choose the port, and find the models.
        port = self.choose_port()
        engine = engine_named(spec.engine)
        target, draft = served_models(self.root, spec)
        site = start_site(
            spec,
            (target, draft),
            port=port,
            folder=temporary / f"files-{port}",
            on_gpu=self.provision.on_gpu,
            version=installed.version,
            # The name is unique, so that a request that reaches another server fails there.
            served_name=f"{spec.id}-{uuid.uuid4().hex[:_NONCE_DIGITS]}",
        )

        # Find a new name for the log, so that the logs of earlier attempts stay.
        free_log_path = log_path
        numbers = itertools.count(2)
        while free_log_path.exists():
            free_log_path = numbered(log_path, next(numbers))

        # Start the process, and note what is known of the server.
        files = engine.files(spec, site)
        with _mapped_errors(spec, free_log_path):
            invocation = self._invocation(spec, python, site, temporary)
            _keep_files(files, free_log_path)
            process = start_process(
                invocation.command,
                environment=invocation.variables,
                log_path=free_log_path,
                cwd=self.root,
                temporary=temporary,
                files={site.folder / name: text for name, text in files.items()},
                outside=invocation.outside,
            )

        with contextlib.ExitStack() as stack:
            stack.callback(stop_process, process)
            packages: tuple[str, ...] = ()
            if self.provision.image_of(spec):
                packages = self.provision.packages(spec)
            elif python:
                module_path = invocation.variables.get("PYTHONPATH", "")
                packages = installed_packages(python, module_path)
            yield StartingServer(
                spec=spec,
                engine=engine,
                address=Address(f"http://127.0.0.1:{port}"),
                model=site.served_name,
                target=target,
                draft=draft,
                packages=packages,
                facts=self._facts(spec, site, invocation.variables, packages),
                process=process,
                deadline_s=time.monotonic() + self.ready_within_s,
            )

    def _invocation(self, spec: ServerSpec, python: str, site: Site, temporary: Path) -> Invocation:
        """Return what starts a server: its own command, or that of its container.

        Args:
            python: the interpreter of the engine's environment; empty if the engine is a program.
            site: what only its start knows.
            temporary: its temporary folder.

        Raises:
            OSError: a folder can't be made.
            SpecregError: its image or its GPUs aren't available.
        """
        container = self.provision.container(spec)
        if container is None:
            return native_invocation(spec, python, site, temporary)
        runtime, image = container
        home = home_of(image)
        home.mkdir(parents=True, exist_ok=True)
        gpu_ids: Sequence[str] = ()
        if site.on_gpu:
            gpu_ids = [device.id for device in self.provision.devices(spec)]
        inside = inside_container(
            spec, site, root=self.root, folders=(temporary, home), gpu_ids=gpu_ids
        )
        command = command_in_container(spec, python, site)
        return runtime.wrap(image, command, inside, new_container_name())

    def _facts(
        self, spec: ServerSpec, site: Site, variables: Mapping[str, str], packages: Sequence[str]
    ) -> LaunchFacts:
        """Return the facts about a launch that are known before its server is ready.

        Args:
            site: what only its start knows.
            variables: all of its variables.
            packages: the packages of its environment; empty if they aren't known.
        """
        flashinfer = ""
        if site.on_gpu and packages:
            flashinfer = version_in(packages, "flashinfer-python") or NONE
        container = self.provision.container(spec)
        if container is not None:
            # It inherits nothing from the shell, and its toolkit is the image's.
            _, image = container
            name = readable_line(image.name, 128)
            return LaunchFacts(
                image=name, image_digest=image.digest, flashinfer=flashinfer, variables=()
            )

        own_variables = {*engine_named(spec.engine).environment(spec, site), *dict(spec.engine_env)}
        inherited = inherited_variables(os.environ, own_variables)
        if not site.on_gpu:
            return LaunchFacts(variables=inherited)
        return LaunchFacts(
            flashinfer=flashinfer, cuda_toolkit=toolkit_release(variables), variables=inherited
        )


@contextlib.contextmanager
def _mapped_errors(spec: ServerSpec, log_path: Path) -> Iterator[None]:
    """Raise an OSError of a start as a ServerStartError."""
    try:
        yield
    except OSError as error:
        problem = f"can't be started, {cause_and_path_of(error)}"
        advice = remedy_of(
            error,
            of_file="make room there, repair its rights, or delete the engine's environment in"
            " specreg's cache",
        )
        raise ServerStartError(f"server '{spec.id}'", problem, advice, log_path, "") from error


def _keep_files(files: Mapping[str, str], log_path: Path) -> None:
    """Keep the files that a server reads next to its log, without secrets.

    Raises:
        OSError: a file can't be written.
    """
    # The folder from which the server reads them is removed.
    log_path.parent.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        replace_file(log_path.with_suffix("") / name, hide(text).encode())


def start_site(  # noqa: PLR0913 - these are what differs between two starts
    spec: ServerSpec,
    models: tuple[str, str | None],
    *,
    port: int,
    folder: Path,
    on_gpu: bool,
    version: str,
    served_name: str,
) -> Site:
    """Return what only one start of a server knows.

    Args:
        models: the folders or hub ids of its target and draft, as the engine gets them.
        port: the port that it listens on.
        folder: an empty folder for the files that the engine reads.
        on_gpu: True if it runs on a GPU.
        version: the version of the engine; empty if it isn't known.
        served_name: the name under which the target is served.
    """
    target, draft = models
    memory = None
    if on_gpu:
        memory = gpu_memory(spec, find_gpus().memory_gib)
    variables = {**os.environ, **dict(spec.engine_env)}
    return Site(
        port=port,
        folder=folder,
        on_gpu=on_gpu,
        version=version,
        served_name=served_name,
        target=target,
        draft=draft,
        target_config=config_of(target, spec.target_revision, variables),
        offline=all(Path(model).is_dir() for model in models if model),
        memory=memory,
    )
