"""Builds: a wheel, a checkout or a git URL in; what tells it from others out."""

import functools
import hashlib
import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit, urlunsplit

from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from specreg.compare.gate.side import Kind, Side
from specreg.core.errors import UnsupportedError
from specreg.core.files import cache_dir, passing_folder

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What a side is built from.

    Attributes:
        package: the distribution's name, empty for the engine's own.
        version: what tells this build from others; source: what the installer is given.
    """

    package: str
    version: str
    source: str


def build_of(side: Side) -> Build | None:
    """What a side would be built from now; None for one that isn't built.

    Raises:
        UnsupportedError: a wheel without its name, a folder that is no checkout, or a revision
            that its repository doesn't have; the message names the side.
    """
    try:
        return _BUILDS[side.kind](side.place) if side.kind in _BUILDS else None
    except UnsupportedError as error:
        raise UnsupportedError(f"side '{side.text}': {error}") from error


def _of_wheel(place: str) -> Build:
    path = Path(place)
    try:
        name, version, *_ = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise UnsupportedError(f"{error}; give the wheel the name it was built with") from error
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    return Build(package=str(name), version=f"{version}-{content[:12]}", source=place)


def _of_checkout(place: str) -> Build:
    """By its commit and, where its files are others, by the tree that they would make."""
    advice = (
        "is no git checkout, so nobody could say what was measured; commit it, or build a wheel"
    )
    git = functools.partial(_git, advice, "-C", place)
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
        git("read-tree", "HEAD", variables=apart)
        git("add", "--all", variables=apart)
        now = git("write-tree", variables=apart).strip()
    changed = "" if now == tree else f"-{now[:8]}"
    return Build(package="", version=f"{commit[:12]}{changed}", source=place)


def _of_git(place: str) -> Build:
    """By its commit: a branch or tag may move before all is installed."""
    try:
        url = urlsplit(place.removeprefix("git+"))
    except ValueError as error:
        raise UnsupportedError(f"is no URL, {error}; check it") from error
    path, at, revision = url.path.rpartition("@")
    path, revision = (path, revision) if at else (url.path, "HEAD")
    if not _COMMIT.fullmatch(revision):
        advice = "can't be asked; check the URL, and your rights there"
        bare = urlunsplit(url._replace(path=path, fragment=""))
        said = _git(advice, "ls-remote", bare, revision, f"{revision}^{{}}").split()
        commits = dict(zip(said[1::2], said[::2], strict=True))
        # A tag may be an object of its own; then what it points to.
        names = (f"refs/tags/{revision}^{{}}", f"refs/tags/{revision}", f"refs/heads/{revision}")
        found = [commits[name] for name in (*names, revision) if name in commits]
        if not found:
            message = f"has no branch or tag '{revision}'; give one, or a whole commit"
            raise UnsupportedError(message)
        revision = found[0]
    source = "git+" + urlunsplit(url._replace(path=f"{path}@{revision}"))
    return Build(package="", version=revision[:12], source=source)


_BUILDS: Mapping[Kind, Callable[[str], Build]] = MappingProxyType(
    {Kind.WHEEL: _of_wheel, Kind.CHECKOUT: _of_checkout, Kind.GIT: _of_git}
)


def _git(why_not: str, *arguments: str, variables: Mapping[str, str] = MappingProxyType({})) -> str:
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
