"""Sides: what somebody typed in, an engine and where to get it out.

    side  = engine | engine "==" version | [engine "@"] place
    place = a wheel | the folder of a git checkout | git+URL | a Python interpreter

`vllm==0.31.0`, `vllm@dist/vllm-0.33.0-py3-none-any.whl`, `sglang@../sglang/python`,
`vllm@git+https://github.com/vllm-project/vllm@v0.32.0`, `vllm@/opt/vllm/bin/python`. On a machine
without a GPU `vllm` is its build for CPUs.
"""

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.version import InvalidVersion, Version

from specreg.core.errors import UnsupportedError
from specreg.engines.engine import Requirement
from specreg.engines.registry import ENGINES, engine_named

_REQUIREMENT = re.compile(r"(?P<engine>[\w.-]+)(==(?P<version>\S+))?")
_OF_ENGINE = re.compile(r"(?P<engine>[\w-]+)@(?P<place>.+)")
_GRAMMAR = (
    "give ENGINE, ENGINE==VERSION, or [ENGINE@]PLACE, a place being a wheel, the folder of a git"
    " checkout, git+URL or a Python interpreter"
)


class Kind(StrEnum):
    """Where an engine comes from."""

    VERSION = "version"
    WHEEL = "wheel"
    CHECKOUT = "checkout"
    GIT = "git"
    PYTHON = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two.

    Attributes:
        text: as it was typed; engine: its name, empty for that of the cases.
        kind: where it comes from; place: a version (empty for the one that specreg knows best), a
            path or a URL.
    """

    text: str
    engine: str
    kind: Kind
    place: str


def parse_side(text: str) -> Side:
    """A side as it was typed.

    Raises:
        UnsupportedError: it can't be read, or nothing is at its place.
        UnknownNameError: nobody declared its engine.
    """
    of_engine = _OF_ENGINE.fullmatch(text)
    if of_engine and of_engine["engine"] != "git" and not Path(text).exists():
        engine = _engine_of(of_engine["engine"])
        return _at_place(text, engine, of_engine["place"])
    required = _REQUIREMENT.fullmatch(text)
    if required and not _is_place(text):
        engine, version = _engine_of(required["engine"]), required["version"] or ""
        try:
            Version(version or "0")
        except InvalidVersion as error:
            message = f"side '{text}': '{version}' is no version; {_GRAMMAR}"
            raise UnsupportedError(message) from error
        return Side(text=text, engine=engine, kind=Kind.VERSION, place=version)
    return _at_place(text, "", text)


def _is_place(text: str) -> bool:
    return "/" in text or Path(text).exists()


def _engine_of(name: str) -> str:
    """An engine by its own name, or by that of its package on either kind of machine."""
    by_package = {
        requirement.package: engine.name
        for engine in ENGINES.values()
        for requirement in _requirements(engine.name)
    }
    return engine_named(by_package.get(name, name)).name


def _requirements(engine: str) -> list[Requirement]:
    found = []
    for on_gpu in (True, False):
        try:
            found.append(engine_named(engine).requirement(on_gpu=on_gpu))
        except UnsupportedError:
            continue
    return found


def _at_place(text: str, engine: str, place: str) -> Side:
    if place.startswith("git+"):
        return Side(text=text, engine=engine, kind=Kind.GIT, place=place)
    try:
        path = Path(place).expanduser()
    except RuntimeError:  # nobody of that name has a home here
        path = Path(place)
    if path.suffix == ".whl" and path.is_file():
        kind = Kind.WHEEL
    elif path.is_dir() and (path / "bin" / "python").exists():
        path, kind = path / "bin" / "python", Kind.PYTHON
    elif path.is_dir() and any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
        kind = Kind.CHECKOUT
    elif path.is_file() and os.access(path, os.X_OK):
        kind = Kind.PYTHON
    else:
        message = f"side '{text}': nothing that can be installed or run is at '{place}'; {_GRAMMAR}"
        raise UnsupportedError(message)
    # Of an interpreter the link is the environment.
    return Side(text=text, engine=engine, kind=kind, place=str(path.absolute()))
