"""The command and the variables that start a server: on this machine itself, or in a container."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from specreg.core.files import cache_dir
from specreg.core.probes import SAFE_PATH
from specreg.datasets.hub import hub_cache_dir
from specreg.engines.engine import Site
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.servers.containers import Inside, Invocation
from specreg.servers.toolkit import toolkit_variables

_SOCKET_FOLDER_BYTES = 64
"""The longest path of a temporary folder. Servers make Unix sockets in it, whose paths Linux limits
to 107 bytes, and the names of vLLM's sockets take 37 bytes or more."""
_GPU_CHOICE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""The variables that choose among GPUs. A container is given its GPUs, and counts them anew."""


def native_invocation(spec: ServerSpec, python: str, site: Site, temporary: Path) -> Invocation:
    """Return what starts a server on this machine itself.

    Args:
        python: the interpreter of the engine's environment; empty if the engine is a program.
        site: what only its start knows.
        temporary: its temporary folder.

    Raises:
        OSError: the links to a CUDA toolkit can't be written.
    """
    variables = dict(os.environ)

    # A killed server leaves sockets in its temporary folder, so the server gets a folder that is
    # removed. PyTorch's compiled code would be in it too, but the next start needs that code again.
    # So the code gets a folder that stays.
    if len(os.fsencode(temporary)) <= _SOCKET_FOLDER_BYTES:
        variables.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "torchinductor"))
        variables["TMPDIR"] = str(temporary)
    return Invocation(
        command=engine_named(spec.engine).command(Path(python), spec, site),
        variables=server_variables(spec, python, site, variables),
    )


def command_in_container(spec: ServerSpec, python: str, site: Site) -> tuple[str, ...]:
    """Return the command that starts a server in its container.

    Args:
        python: the interpreter of its image.
        site: what only its start knows.
    """
    program, *arguments = engine_named(spec.engine).command(Path(python), spec, site)
    # A program of the engine needn't be in the folder of the image's interpreter.
    if program != python:
        program = Path(program).name
    return (program, *arguments)


def inside_container(
    spec: ServerSpec, site: Site, *, root: Path, folders: tuple[Path, Path], gpu_ids: Sequence[str]
) -> Inside:
    """Return what the container of a server is given.

    Args:
        site: what only its start knows.
        root: the root of the repository.
        folders: its temporary folder and its home.
        gpu_ids: the UUIDs of its GPUs.
    """
    temporary, home = folders
    hub_cache = hub_cache_dir().absolute()

    # A user without an entry in the image's /etc/passwd has no home and no name.
    own_variables = {
        "HOME": str(home),
        "USER": "specreg",
        "LOGNAME": "specreg",
        "TMPDIR": str(temporary),
        "HF_HUB_CACHE": str(hub_cache),
        # The models have been fetched, and their folder can't be written.
        "HF_HUB_OFFLINE": "1",
    }
    variables = server_variables(spec, "", site, own_variables)
    for name in _GPU_CHOICE:
        variables.pop(name, None)
    paths = [site.target, site.draft or "", *variables.get("PYTHONPATH", "").split(":")]
    read_only = [Path(path) for path in paths if path.startswith("/")]
    read_only += _paths_in(spec.engine_args)
    if hub_cache.is_dir():
        read_only.append(hub_cache)
    return Inside(
        variables=variables, folder=root, read_only=read_only, writable=folders, gpu_ids=gpu_ids
    )


def _paths_in(engine_args: Sequence[str]) -> list[Path]:
    """Return the files and folders of this machine that arguments name, such as a tokenizer.

    Folders such as /tmp, directly in the root, are left as the image has them.
    """
    paths = [Path(argument.rpartition("=")[2]) for argument in engine_args]
    return [
        path
        for path in paths
        if path.is_absolute() and len(path.parents) > 1 and os.access(path, os.F_OK)
    ]


def server_variables(
    spec: ServerSpec, python: str, site: Site, inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment variables of a server.

    The engine's variables replace the inherited ones, and the case's variables replace both.

    Args:
        python: the interpreter of the engine's environment; empty if the engine is a program.
        site: what only its start knows.
        inherited: the variables of the process that starts it.

    Raises:
        OSError: the links to a CUDA toolkit can't be written.
    """
    engine = engine_named(spec.engine)
    variables = {SAFE_PATH: "1", **inherited}
    if python:
        # SGLang calls ninja, which is among the environment's programs. It finds ninja only if
        # their folder is on PATH.
        folders = (str(Path(python).parent), inherited.get("PATH", ""))
        variables["PATH"] = os.pathsep.join(folders)

    engine_variables = engine.environment(spec, site)
    case_variables = dict(spec.engine_env)

    # Both the engine and the case may add folders of modules. These are joined, because the server
    # needs all of them.
    module_folders = [
        source["PYTHONPATH"]
        for source in (engine_variables, case_variables)
        if "PYTHONPATH" in source
    ]
    variables |= engine_variables
    variables |= case_variables
    if module_folders:
        variables["PYTHONPATH"] = os.pathsep.join(module_folders)
    if engine.compiles and site.on_gpu and python:
        variables |= toolkit_variables(Path(python), variables)
    return variables
