"""Write the command of a server for a shell, as a run would start it."""

import os
import shlex
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from specreg.core.errors import SensorError, UnsupportedError
from specreg.engines.engine import Site
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.models import served_models, widened_folders
from specreg.servers.containers import ALL_GPUS, Image, Invocation, Runtime
from specreg.servers.images import find_image
from specreg.servers.invocation import command_in_container, inside_container, server_variables
from specreg.servers.launcher import start_site
from specreg.servers.provision import Provision, environment_exists, interpreter_of

_PORT = 8000
_END = "END"
_PYTHON_OF_IMAGES = "python3"


def shell_command(root: Path, spec: ServerSpec, provision: Provision) -> str:
    """Return what starts a server in a shell: its files, its variables and its command.

    Args:
        root: the root of the repository.
        provision: where its engine comes from.

    Raises:
        UnsupportedError: the engine doesn't run on this kind of machine.
        ModelError: as in `served_models`.
        OSError: the links to a CUDA toolkit can't be written.
    """
    return "\n".join(_lines(root, spec, provision))


def _lines(root: Path, spec: ServerSpec, provision: Provision) -> Iterator[str]:
    engine = engine_named(spec.engine)
    image = provision.image_of(spec)
    python = ""
    version = ""
    if image:
        if _image_here(provision, image) is None:
            yield f"# {image} isn't here yet; the first run pulls it"
        else:
            version = provision.requirement(spec).version
    else:
        requirement = provision.requirement(spec)
        version = requirement.version
        if engine.program is None:
            python = str(interpreter_of(requirement))
            if not environment_exists(requirement):
                yield f"# {requirement.pin} isn't installed yet; the first run installs it"

    if any(not folder.is_dir() for folder, _ in widened_folders(root, spec)):
        yield "# its widened models aren't made yet; the first run makes them"

    # The port and the name are chosen anew for each start. Here they stay, for who pastes them.
    folder = Path(tempfile.gettempdir(), "specreg", spec.id)
    site = start_site(
        spec,
        served_models(root, spec),
        port=_PORT,
        folder=folder,
        on_gpu=provision.on_gpu,
        version=version,
        served_name=spec.id,
    )
    for name, text in engine.files(spec, site).items():
        path = shlex.quote(str(folder / name))
        yield f"mkdir -p {shlex.quote(str((folder / name).parent))}"
        yield f"cat > {path} <<'{_END}'\n{text}\n{_END}"

    if image:
        yield f"mkdir -p {shlex.quote(str(folder))}"
        invocation = _in_container(root, spec, provision, site)
    else:
        invocation = Invocation(
            command=engine.command(Path(python), spec, site),
            variables=server_variables(spec, python, site, os.environ),
        )

    for name, value in invocation.variables.items():
        # The shell has the other variables already.
        if value != os.environ.get(name):
            yield f"{name}={shlex.quote(value)} \\"

    yield shlex.join(invocation.command)


def _image_here(provision: Provision, name: str) -> Image | None:
    """Return an image; None if it isn't on this machine, or nothing here runs containers."""
    try:
        return find_image(provision.runtime, name)
    except UnsupportedError:
        return None


def _in_container(root: Path, spec: ServerSpec, provision: Provision, site: Site) -> Invocation:
    """Return what starts a server's container: with docker, if nothing here runs containers."""
    try:
        runtime = provision.runtime
    except UnsupportedError:
        runtime = Runtime(program=("docker",))

    name = provision.image_of(spec)
    gpu_ids: Sequence[str] = ()
    if site.on_gpu:
        try:
            gpu_ids = [device.id for device in provision.devices(spec)]
        except SensorError:
            gpu_ids = ALL_GPUS

    # Here the home lies in the temporary folder. A run keeps it for each image.
    inside = inside_container(
        spec, site, root=root, folders=(site.folder, site.folder), gpu_ids=gpu_ids
    )
    command = command_in_container(spec, _PYTHON_OF_IMAGES, site)
    return runtime.wrap(Image(name=name, digest="", source=name), command, inside)
