"""Where the servers of a side come from: a release, a wheel, a checkout, an interpreter.

    side  = engine | engine "==" version | [engine "@"] place
    place = a wheel | the folder of a git checkout | a Python interpreter, or its environment

`vllm==0.31.0`, `vllm@dist/vllm-0.33.0-py3-none-any.whl`, `sglang@../sglang/python`,
`vllm@/opt/vllm/bin/python`. On a machine without a GPU `vllm` is its build for CPUs.
"""

import json
import os
import re
import subprocess
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import uv
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from specreg.core.errors import EnvironmentSetupError, UnsupportedError
from specreg.core.files import file_sha256
from specreg.engines.engine import Requirement
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.servers.provision import Provision

_REQUIREMENT = re.compile(r"(?P<engine>[\w.-]+)(==(?P<version>\S+))?")
_OF_ENGINE = re.compile(r"(?P<engine>[\w-]+)@(?P<place>.+)")
_GRAMMAR = (
    "give ENGINE, ENGINE==VERSION, or [ENGINE@]PLACE, a place being a wheel, the folder of a git"
    " checkout or a Python interpreter"
)
_ERROR_LINES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an engine comes from: one of the last three, or else the version known best.

    Attributes:
        text: as it was typed; engine: its name, empty for that of the cases.
        version: of a release; python: an interpreter; source: a wheel or a checkout to build.
    """

    text: str
    engine: str = ""
    version: str = ""
    python: str = ""
    source: str = ""


def parse_origin(text: str) -> Origin:
    """A side as it was typed; an UnsupportedError or UnknownNameError of what can't be read."""
    engine, place = "", text
    if not Path(text).exists():
        if required := _REQUIREMENT.fullmatch(text):
            engine, version = engine_named(required["engine"]).name, required["version"] or ""
            try:
                Version(version or "0")
            except InvalidVersion as error:
                message = f"side '{text}': '{version}' is no version; {_GRAMMAR}"
                raise UnsupportedError(message) from error
            return Origin(text=text, engine=engine, version=version)
        if of_engine := _OF_ENGINE.fullmatch(text):
            engine, place = engine_named(of_engine["engine"]).name, of_engine["place"]
    path = Path(os.path.expanduser(place)).absolute()  # noqa: PTH111 - Path's fails without a home
    python = path / "bin" / "python"  # the link: it is the environment
    if python.exists():
        return Origin(text=text, engine=engine, python=str(python))
    is_wheel = path.suffix == ".whl" and path.is_file()
    if is_wheel or any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
        return Origin(text=text, engine=engine, source=str(path))
    if path.is_file() and os.access(path, os.X_OK):
        return Origin(text=text, engine=engine, python=str(path))
    message = f"side '{text}': nothing that can be installed or run is at '{place}'; {_GRAMMAR}"
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
    why_not = "what was measured couldn't be told; commit it, or build a wheel"
    git = ("git", "-C", source)
    try:
        commit, changed = (
            subprocess.run((*git, *command), check=True, capture_output=True, text=True).stdout  # noqa: S603
            for command in (("rev-parse", "HEAD"), ("status", "--porcelain", "--", "."))
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnsupportedError(f"'{source}' is no git checkout, so {why_not}") from error
    if changed:
        first = changed.splitlines()[0][3:]
        raise UnsupportedError(f"'{source}' has files of no commit, '{first}', so {why_not}")
    return Requirement(package="", version=commit[:12], source=source)


def provision_side(
    origin: Origin, cases: Collection[Case], *, on_gpu: bool, show: Callable[[str], None]
) -> Provision:
    """Return where a side's servers come from; a checkout or wheel is read only once.

    UnsupportedError where a case can't be measured, as far as that is known before installing.
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
    """All versions that pip would install; an EnvironmentSetupError where no index lists them."""
    command = (uv.find_uv_bin(), "tool", "run", "pip", "index", "versions", package, "--json")
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    try:
        return tuple(json.loads(done.stdout)["versions"])
    except (ValueError, KeyError) as error:
        words = "\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
        raise EnvironmentSetupError(
            f"releases of '{package}': the index doesn't list them; check the network, or name them"
            f" with --versions\n{words}"
        ) from error
