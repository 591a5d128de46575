"""NVIDIA's tritonserver for tests, without its container: a folder for the front of PATH out.

The PyPI package nvidia-pytriton carries the binary (2.51.0 in 0.7.0) and its Python backend. Beside
them goes our backend `vllm`, so that the `tritonserver` in the folder serves the very repositories
that the vendor's does, with the vLLM that SPECREG_VLLM_PYTHON names, else specreg's own. By hand:
`python -m tests.doubles.triton_server.install` prints the folder.
"""

import shlex
import shutil
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import filelock

from specreg.engines.engine import Requirement
from specreg.engines.registry import engine_named
from specreg.servers.provision import engine_environment

_WHEEL = Requirement(package="nvidia-pytriton", version="0.7.0")
_MODEL = Path(__file__).with_name("model.py")


def install_tritonserver(show: Callable[[str], None]) -> Path:
    """The folder that holds a `tritonserver` ready to run, in specreg's cache.

    Args:
        show: is told what goes on, a line at a time.

    Raises:
        EnvironmentSetupError: it, or vLLM, could not be installed.
        FileNotFoundError: it has no Python backend for the Python that runs this.
    """
    environment = Path(engine_environment(_WHEEL, show=show)).parents[1]
    wheel = next(environment.glob("lib/python*/site-packages/pytriton/tritonserver"))
    command = environment / "server" / "tritonserver"
    vllm = engine_environment(engine_named("vllm").requirement(on_gpu=False), show=show)
    with filelock.FileLock(environment.with_suffix(".server.lock")):
        if not command.exists():
            _arrange(wheel)
        # Each time: they may have changed.
        shutil.copy(_MODEL, wheel / "backends" / "vllm")
        command.parent.mkdir(exist_ok=True)
        command.write_text(_script(environment, wheel, vllm))
        command.chmod(0o755)
    return command.parent


def _arrange(wheel: Path) -> None:
    backends = wheel / "backends"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel / "python_backend_stubs" / python / "triton_python_backend_stub"
    shutil.copy(stub, backends / "python")
    (backends / "vllm").mkdir(exist_ok=True)


def _script(environment: Path, wheel: Path, vllm: str) -> str:
    """The stub is linked to libpython and takes its packages from the `python3` on PATH."""
    libraries = sysconfig.get_config_var("LIBDIR")
    return f"""#!/bin/sh
export LD_LIBRARY_PATH={shlex.quote(libraries)}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
export PATH={shlex.quote(str(environment / "bin"))}:$PATH
[ -n "$SPECREG_VLLM_PYTHON" ] || export SPECREG_VLLM_PYTHON={shlex.quote(vllm)}
exec {shlex.quote(str(wheel / "bin" / "tritonserver"))} \\
    --backend-directory {shlex.quote(str(wheel / "backends"))} "$@"
"""


if __name__ == "__main__":
    print(install_tritonserver(lambda line: print(line, file=sys.stderr)))  # noqa: T201
