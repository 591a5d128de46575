"""Write the files that a repository needs to measure with specreg: `specreg init`."""

import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path

from specreg import __version__
from specreg.cli import DEFAULT_OPTIONS, HERE, RootOption, say
from specreg.core.errors import SpecregError
from specreg.core.files import OWN_REPOSITORY, cause_of, replace_file

_COPIED = (
    "conftest.py",
    "tests/perf/*.py",
    "fixtures/*.py",
    "fixtures/matrix/cpu.toml",
    "fixtures/models/pairs.toml",
    ".github/workflows/gpu_perf.yml",
    ".ci/nox.txt",
)
"""The files of specreg's own repository that are copied unchanged."""
_TO_FILL_IN = "docs/examples/init/gpu.toml"
"""A tier for a machine with a GPU, to which users add their own models."""
_KEPT = re.compile(
    r"(@nox\.session\(.*\)\n)?def (_pytest|_suite|_specreg|cpu_perf|gpu_perf|gate)\("
)
"""The functions of specreg's noxfile.py that are copied into the new one."""
_NOXFILE = '''"""The sessions of specreg; each does its own set-up, once."""

import shlex
from collections.abc import Sequence

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["cpu_perf"]

SPECREG = "specreg[{}]<origin>"
"""What pip installs specreg from. Change it to a source that every machine reaches, and keep {}."""


def _install(session: nox.Session, *, extras: Sequence[str] = ()) -> None:
    """Install specreg with some of its extras."""
    if "{}" not in SPECREG:
        session.error(
            f"SPECREG in noxfile.py: '{SPECREG}' has no {{}}, in which a session puts the extras"
            " that it needs; write specreg[{}] before its version or URL"
        )
    session.install(SPECREG.replace("{}", ",".join(extras)))'''
_PYTEST = """# This file marks the root: pytest knows specreg's options in all folders below it.
[pytest]
pythonpath = ["."]
"""
_SETTINGS = re.compile(r"^\[(tool[.:])?pytest\b", re.MULTILINE)
_IGNORED = ".nox/\n__pycache__/\n.benchmarks/\n.specreg/\n"
_LAST_LINE_NEEDED = ("conftest.py", "pytest.toml", ".gitignore")
"""If such a file exists already, the user has to add the last line of the new one to it."""
_NEXT = """
what next:
  pytest -k eagle3 --specreg-tier=cpu
      real vLLM without a GPU, on specreg's tiny models
  pytest -k eagle3 --specreg-tier=cpu --update-baselines
      records this machine's baselines; commit baselines/
  nox -s gpu_perf
      on a machine with a GPU: the cases of fixtures/matrix/gpu.toml, once you have filled it in
nox comes with: pip install "nox[uv]\""""


def init(root: RootOption = HERE) -> None:
    """Write what a repository needs to measure with specreg; existing files are left alone.

    These are the suite's tests and fixtures, a tier for a machine without a GPU, a tier for GPUs to
    fill in, sessions of nox, and a workflow that runs each night. The tiny models and their prompts
    stay in specreg.
    """
    for name, content in _files():
        existing = _existing_path(root, name)
        needed = content.splitlines()[-1] if name in _LAST_LINE_NEEDED else ""
        try:
            if existing is None:
                replace_file(root / name, content.encode())
                done = f"wrote {name}"
            else:
                lacks = needed and needed not in existing.read_text()
                done = f"left {existing.relative_to(root)} as it was"
                if lacks:
                    done += f"; it needs {needed}"
        except (OSError, UnicodeDecodeError) as error:
            message = f"repository '{root}': {name}: {cause_of(error)}"
            raise SpecregError(f"{message}; give --root a folder to write into") from error
        say(done)
    say(_NEXT)


def _existing_path(root: Path, name: str) -> Path | None:
    """Return the path because of which a file isn't written; None if it is to be written.

    The path is that of the file itself, of the folder of a `.gitkeep`, or of a file that already
    has pytest's settings, so that no `pytest.toml` is needed.
    """
    paths = [root / name.removesuffix("/.gitkeep")]
    if name == "pytest.toml":
        names = ("pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg")
        files = (root / file for file in names if (root / file).is_file())
        paths += [path for path in files if _SETTINGS.search(path.read_text())]
    return next((path for path in paths if path.exists()), None)


def _files() -> Iterator[tuple[str, str]]:
    """Yield each file that a repository needs: its path relative to the root, and its content."""
    for pattern in _COPIED:
        for path in sorted(OWN_REPOSITORY.glob(pattern)):
            yield str(path.relative_to(OWN_REPOSITORY)), path.read_text()
    yield f"{DEFAULT_OPTIONS.matrix}/gpu.toml", (OWN_REPOSITORY / _TO_FILL_IN).read_text()
    yield f"{DEFAULT_OPTIONS.baselines}/.gitkeep", ""
    yield "pytest.toml", _PYTEST
    yield ".gitignore", _IGNORED

    # In formatted code, two empty lines separate the functions of a module.
    parts = (OWN_REPOSITORY / "noxfile.py").read_text().split("\n\n\n")
    head = _NOXFILE.replace("<origin>", _origin())
    yield "noxfile.py", "\n\n\n".join((head, *filter(_KEPT.match, parts))) + "\n"


def _origin() -> str:
    """Return the end of a requirement of this specreg, after its name: a URL or a version."""
    try:
        origin = importlib.metadata.distribution("specreg").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        origin = None

    if origin is None:
        return f"=={__version__}"
    source = json.loads(origin)
    vcs = source.get("vcs_info")
    return f" @ {vcs['vcs']}+{source['url']}@{vcs['commit_id']}" if vcs else f" @ {source['url']}"
