"""Write the command of a server for a shell, as a run would start it."""

import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.models import served_models, widened_folders
from specreg.servers.launcher import server_variables, start_site
from specreg.servers.provision import Provision, environment_exists, interpreter_of

_PORT = 8000
_END = "END"


def shell_command(root: Path, spec: ServerSpec, provision: Provision) -> str:
    """Return what starts a server in a shell: its files, its variables and its command.

    Args:
        root: The root of the repository.
        spec: The server.
        provision: Where its engine comes from.

    Raises:
        UnsupportedError: The engine doesn't run on this kind of machine.
        ModelError: As in `served_models`.
        OSError: The links to a CUDA toolkit can't be written.
    """
    return "\n".join(_lines(root, spec, provision))


def _lines(root: Path, spec: ServerSpec, provision: Provision) -> Iterator[str]:
    engine = engine_named(spec.engine)
    requirement = provision.requirement(spec)
    python = ""
    if engine.program is None:
        python = str(interpreter_of(requirement))
        if not environment_exists(requirement):
            yield f"# {requirement.pin} isn't installed yet; the first run installs it"
    if any(not folder.is_dir() for folder, _ in widened_folders(root, spec)):
        yield "# its widened models aren't made yet; the first run makes them"
    # The port and the name are chosen anew for each start. Here they stay, for who pastes them.
    site = start_site(
        spec,
        served_models(root, spec),
        port=_PORT,
        folder=Path(tempfile.gettempdir(), "specreg", spec.id),
        on_gpu=provision.on_gpu,
        version=requirement.version,
        served_name=spec.id,
    )
    for name, text in engine.files(spec, site).items():
        path = shlex.quote(str(site.folder / name))
        yield f"mkdir -p {shlex.quote(str((site.folder / name).parent))}"
        yield f"cat > {path} <<'{_END}'\n{text}\n{_END}"
    variables = server_variables(spec, python, site, os.environ)
    for name, value in variables.items():
        # The shell has the other variables already.
        if value != os.environ.get(name):
            yield f"{name}={shlex.quote(value)} \\"
    yield shlex.join(engine.command(Path(python), spec, site))
