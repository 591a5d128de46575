"""The sessions of the project. Each installs what it needs, once, and keeps it for the next time.

`nox -l` shows them by group, and `nox -t GROUP` runs all sessions of a group:

    use      what a user of specreg types: measure, compare, keep under load
    develop  what every change has to pass, without an engine
    engines  real engines without a GPU
    stress   planted faults, many processes, long simulations
    upkeep   what rewrites files of the repository, or measures specreg itself

CONTRIBUTING.md says which workflow runs which session.
"""

import itertools
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests"]

_PROJECT = nox.project.load_toml("pyproject.toml")
_EXTRAS = _PROJECT["project"]["optional-dependencies"]
_LOCK = "constraints.txt"
_LOCKED_EXTRAS = ("benchmark", "datasets", "png", "ray", "xdist", "yaml")
"""The extras that the lock covers beside all dependency groups.

The extras of engines aren't among them: each engine has an environment of its own.
"""


def _install(
    session: nox.Session, *groups: str, extras: Sequence[str] = (), project: bool = True
) -> None:
    """Install the dependencies of the project, of groups and of extras in their locked versions.

    Every download must have a checksum of the lock. The project itself runs from its folder:
    installing it would build it anew each time, so that no run could skip the installation.
    """
    needed = [*_PROJECT["project"]["dependencies"]] if project else []
    needed += nox.project.dependency_groups(_PROJECT, *groups)
    for extra in extras:
        needed += _EXTRAS[extra]
    session.install("-c", _LOCK, *needed)


def _pytest(session: nox.Session, *arguments: str) -> None:
    """Run pytest with the arguments, and with those that the user typed after `--`.

    Ctrl-C reaches nox too, which would soon kill pytest while it still stops its servers.
    """
    session.run(
        *("python", "-m", "pytest", *arguments, *session.posargs),
        # The tests start hundreds of processes, and one that compiles its modules takes twice as
        # long.
        env={"PYTHONDONTWRITEBYTECODE": None},
        interrupt_timeout=60.0,
        terminate_timeout=30.0,
    )


def _suite(session: nox.Session, *arguments: str) -> None:
    """Run the suite.

    The commands in its hints name this session, and leave out the options that the session gives.
    """
    session.env["SPECREG_LAUNCHER"] = f"nox -s {session.name} --"
    session.env["SPECREG_LAUNCHER_OPTIONS"] = shlex.join(arguments)
    _pytest(session, *arguments)


def _specreg(session: nox.Session, *arguments: str) -> None:
    """Run a command of specreg. Ctrl-C reaches it too: it stops its servers and keeps its files."""
    session.env["SPECREG_LAUNCHER"] = f"nox -s {session.name} --"
    session.run(
        *("python", "-m", "specreg", *arguments), interrupt_timeout=60.0, terminate_timeout=30.0
    )


def _has_chromium() -> bool:
    """Return whether the machine has a Chromium, so that Playwright's own isn't fetched."""
    names = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
    return "SPECREG_CHROMIUM" in os.environ or any(map(shutil.which, names))


@nox.session(tags=["use"])
def cpu_perf(session: nox.Session) -> None:
    """Run the suite on real vLLM without a GPU, on tiny models; about four minutes."""
    _install(session, extras=["benchmark"])
    _suite(session, "tests/perf", "--specreg-tier=cpu")


@nox.session(tags=["use"])
def gpu_perf(session: nox.Session) -> None:
    """Run the suite on a machine with a GPU; without one it fails at once."""
    _install(session, extras=["benchmark", "datasets", "xdist"])
    _suite(session, "tests/perf", "--specreg-tier=gpu", "--specreg-require-tier")


@nox.session(tags=["use"])
def gate(session: nox.Session) -> None:
    """Compare two versions of an engine, `nox -s gate -- vllm==0.31.0 vllm==0.32.0`."""
    _install(session)
    _specreg(session, "gate", *session.posargs)


@nox.session(tags=["use"])
def soak(session: nox.Session) -> None:
    """Keep a server under load and watch it for drift, `nox -s soak -- --minutes 10`."""
    _install(session)
    _specreg(session, "soak", *session.posargs)


@nox.session(tags=["develop"])
def tests(session: nox.Session) -> None:
    """Run the project's own tests, without an engine or a GPU; four to six minutes.

    The longest tests go first, and a file goes to one worker, because its tests share recordings.
    There are six workers even on two cores, because many tests wait for servers and clocks.
    """
    _install(session, "tests")
    folders = ("tests/plugin", "tests/gate/test_gate_command.py", "tests/unit", "tests/fuzz")
    _pytest(session, *folders, "-n", "6", "--dist=loadfile", "--no-loadscope-reorder")


@nox.session(tags=["develop"])
def lint(session: nox.Session) -> None:
    """Check style, types, workflows, and which package imports which; a quarter of a minute."""
    _install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")
    session.run("zizmor", "--offline", "--quiet", ".github")
    if shutil.which("actionlint") is not None:
        session.run("actionlint", external=True)
    else:
        # Its package on PyPI fetches a program from elsewhere, so it isn't a dependency.
        session.warn("actionlint isn't installed: nobody looked for its errors in the workflows")


@nox.session(tags=["develop"])
def docs(session: nox.Session) -> None:
    """Build the site; a broken link is an error. `-- linkcheck` follows web links too."""
    _install(session, "docs", project=False)
    builder = session.posargs or ["html"]
    site = Path("dist/site", builder[0])
    session.run("sphinx-build", "-W", "-b", *builder, "docs", str(site))
    if builder[0] == "html":
        # Sphinx would offer the pages of runs as downloads; the front page links to them as pages.
        for name in ("cpu_perf", "planted_faults"):
            page = site / "examples" / name / "report.html"
            page.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(f"docs/examples/{name}/report.html", page)


@nox.session(tags=["develop"])
def readme(session: nox.Session) -> None:
    """Type the commands of the README and of the guides in a fresh clone; two minutes.

    `-- --real` runs the README's five lines instead of asking whether they are understood.
    """
    session.run("python", ".ci/readme.py", *session.posargs)


@nox.session(tags=["develop"])
def power(session: nox.Session) -> None:
    """Sample scripted GPUs whose true energy is known; three minutes, needs gcc."""
    _install(session, "tests")
    _pytest(session, "tests/power")


@nox.session(tags=["develop"])
def selftest(session: nox.Session) -> None:
    """Plant known changes and simulate nights: do verdicts keep their error rates?"""
    _install(session)
    session.run("python", "-m", "specreg", "selftest", *session.posargs)


@nox.session(tags=["develop"])
def exports(session: nox.Session) -> None:
    """Read each export with the tool that it is made for; a minute, needs promtool."""
    _install(session, "exports")
    _pytest(session, "tests/exports")


@nox.session(tags=["develop"])
def browser(session: nox.Session) -> None:
    """Click through the page of a run in Chromium; SPECREG_CHROMIUM names another browser."""
    _install(session, "browser")
    if not _has_chromium():
        session.run("playwright", "install", "--with-deps", "chromium")
    _pytest(session, "tests/browser")


@nox.session(tags=["develop"])
def package(session: nox.Session) -> None:
    """Build wheel and sdist twice, compare and check them, and start the command from the wheel."""
    _install(session, "package")
    # Build twice, and compare the builds byte by byte.
    builds = [Path(session.create_tmp()) / name for name in ("first", "second")]
    for folder in builds:
        shutil.rmtree(folder, ignore_errors=True)
        # Packed files get the time of the commit, so that later builds of the commit are equal.
        epoch = session.run("git", "log", "-1", "--format=%ct", external=True, silent=True)
        command = ("uv", "build", "--quiet", "--out-dir", str(folder))
        session.run(*command, env={"SOURCE_DATE_EPOCH": str(epoch).strip()})
    first, second = ({path.name: path.read_bytes() for path in build.iterdir()} for build in builds)
    if first != second:
        session.error(
            "package: two builds of one commit differ; find what was built with another time"
        )
    # Check the files, and start the command from the wheel alone.
    files = sorted(map(str, builds[0].glob("specreg-*")))
    (wheel,) = (name for name in files if name.endswith(".whl"))
    session.run("twine", "check", "--strict", *files)
    session.run("check-wheel-contents", wheel)
    session.run("uv", "tool", "run", "--from", wheel, "specreg", "--help")
    # Keep the files for a release, without the hidden ones that uv adds.
    shutil.rmtree("dist/package", ignore_errors=True)
    shutil.copytree(builds[0], "dist/package", ignore=shutil.ignore_patterns(".*"))


@nox.session(tags=["develop"])
def audit(session: nox.Session) -> None:
    """Look for known vulnerabilities in what is locked, and in the oldest versions that users get.

    It fails if they can't be looked up.
    """
    _install(session, "audit", project=False)
    floors = str(Path(session.create_tmp()) / "floors.txt")
    extras = [("--extra", name) for name in _LOCKED_EXTRAS]
    session.run(
        *("uv", "pip", "compile", "pyproject.toml", "--output-file", floors, "--quiet"),
        *itertools.chain.from_iterable(extras),
        *("--resolution", "lowest-direct", "--python-version", "3.11", "--generate-hashes"),
    )
    session.run("python", ".ci/audit.py", _LOCK, floors, "--", *session.posargs)


@nox.session(tags=["engines"])
def reference(session: nox.Session) -> None:
    """Run the reference engine's own tests and its tier; acceptance only."""
    _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/reference")
    _suite(session, "tests/perf", "--specreg-tier=reference", "--specreg-oracle")


@nox.session(tags=["engines"])
def oracle(session: nox.Session) -> None:
    """Check real vLLM's answers and steps against its models; about six minutes."""
    _install(session)
    files = ("tests/perf/test_lossless.py", "tests/perf/test_oracle.py")
    _suite(session, *files, "--specreg-tier=cpu", "--specreg-oracle")


@nox.session(tags=["engines"])
def cpu_methods(session: nox.Session) -> None:
    """Run vLLM's further methods on tiny heads, checked against the oracle."""
    _install(session, extras=["benchmark"])
    _suite(session, "tests/perf", "--specreg-tier=cpu_methods", "--specreg-oracle")


@nox.session(tags=["engines"])
def cpu_loads(session: nox.Session) -> None:
    """Run real vLLM under rates, bursts, a ramp and conversations, and sampled."""
    _install(session, extras=["benchmark"])
    _suite(session, "tests/perf", "--specreg-tier=cpu_loads")
    _suite(session, "tests/perf", "--specreg-tier=cpu_sampled")


@nox.session(tags=["engines"])
def sglang_cpu(session: nox.Session) -> None:
    """Run real SGLang beside real vLLM; acceptance only, needs g++."""
    _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/contract/test_engines_agree.py")
    _suite(session, "tests/perf", "--specreg-tier=sglang_cpu")


@nox.session(tags=["engines"])
def triton(session: nox.Session) -> None:
    """Run a real tritonserver around real vLLM; about eight minutes."""
    _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/contract/test_triton.py")
    install = ("python", "-m", "tests.doubles.triton_server.install")
    folder = str(session.run(*install, silent=True)).splitlines()[-1]
    session.env["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    _suite(session, "tests/perf", "--specreg-tier=triton", "--specreg-require-tier")


@nox.session(tags=["engines"])
def contract(session: nox.Session) -> None:
    """Measure real vLLM with a known acceptance, and beside vLLM's own benchmark."""
    _install(session, "tests")
    names = ("meter", "cross_check", "widening", "sampling", "serve_command")
    _pytest(session, *(f"tests/contract/test_{name}.py" for name in names))


@nox.session(tags=["engines"])
def datasets(session: nox.Session) -> None:
    """Replay prompts in the form of each dataset on real vLLM; about three minutes."""
    _install(session, "tests")
    _pytest(session, "tests/contract/test_datasets.py")


@nox.session(tags=["engines"])
def flags(session: nox.Session) -> None:
    """Have each engine's own parser read every command line that specreg writes."""
    _install(session, "tests")
    _pytest(session, "tests/contract/test_command_lines.py")


@nox.session(tags=["engines"])
def toolkit(session: nox.Session) -> None:
    """Compile FlashInfer with the CUDA toolkit of the engines' packages, without a GPU."""
    _install(session, "tests")
    _pytest(session, "tests/contract/test_toolkit.py")


@nox.session(tags=["stress"])
def faults(session: nox.Session) -> None:
    """Plant faults in a real engine, and kill servers and runs; a long session.

    `-- -k "not row"` runs only the planted faults, and `-- -m "not vllm"` starts no real engine.
    """
    _install(session, "tests")
    _pytest(session, "tests/faults")


@nox.session(tags=["stress"])
def gate_tests(session: nox.Session) -> None:
    """Run the gate's command on sides with planted faults, also on real vLLM; long."""
    _install(session, "tests")
    _pytest(session, "tests/gate")


@nox.session(tags=["stress"])
def containers(session: nox.Session) -> None:
    """Run servers in containers of docker and podman, and kill runs and runtimes in each phase.

    It needs docker's daemon, or root and podman or dockerd. `-- -m "not vllm"` starts no real
    engine.
    """
    _install(session, "tests")
    _pytest(session, "tests/containers")


@nox.session(tags=["stress"])
def shards(session: nox.Session) -> None:
    """Run shards on eight scripted GPUs and on a local Ray cluster; a long session."""
    _install(session, "tests", extras=["ray"])
    _pytest(session, "tests/shards")


@nox.session(tags=["stress"])
def fuzz(session: nox.Session) -> None:
    """Feed broken answers and files to every parser; `-- --cases 10000` for more."""
    _install(session, "tests")
    _pytest(session, "tests/fuzz", "-n", "2", "--cases=1000")


@nox.session(tags=["stress"])
def nights(session: nox.Session) -> None:
    """Record the tier `cpu` and run it unchanged, `-- 10` times; none may be red."""
    _install(session, "tests")
    session.run("python", "-m", "tests.bench.nights", *session.posargs)


@nox.session(tags=["stress"])
def nightly(session: nox.Session) -> None:
    """Run all of nightly.yml in order; hours. `-- 1/2` runs half, `-- flags fuzz` some."""
    _install(session, "tests")
    command = ("python", ".ci/nightly.py", sys.executable, *session.posargs)
    session.run(*command, interrupt_timeout=120.0, terminate_timeout=30.0)


@nox.session(tags=["upkeep"])
def write_reference(session: nox.Session) -> None:
    """Write docs/reference from the code; the tests fail where it isn't current."""
    _install(session)
    session.run("python", "-m", "docs.write_reference")


@nox.session(tags=["upkeep"])
def lock(session: nox.Session) -> None:
    """Write constraints.txt and the locks of the engines; `-- --upgrade` for newer versions.

    The lock of the project covers every Python that is supported, and keeps the versions that still
    fit. It doesn't say which index they came from, so a mirror will do.
    """
    _install(session)
    parts = [("--group", name) for name in _PROJECT["dependency-groups"]]
    parts += [("--extra", name) for name in _LOCKED_EXTRAS]
    session.run(
        *("uv", "pip", "compile", "pyproject.toml", "--output-file", _LOCK, "--quiet"),
        *itertools.chain.from_iterable(parts),
        *("--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate"),
        *("--custom-compile-command", "nox -s lock", *session.posargs),
    )
    # What installs nox itself, where a workflow has nothing yet.
    session.run(
        *("uv", "pip", "compile", ".ci/nox.in", "--output-file", ".ci/nox.txt", "--quiet"),
        *("--constraint", _LOCK, "--universal", "--python-version", "3.11", "--generate-hashes"),
        *("--no-annotate", "--custom-compile-command", "nox -s lock", *session.posargs),
    )
    # What is installed with each engine, in the environments that the suite makes.
    session.run("python", ".ci/lock_engines.py", *session.posargs, env={"PYTHONPATH": "."})


@nox.session(tags=["upkeep"])
def examples(session: nox.Session) -> None:
    """Make docs/examples from real runs, on a quiet machine; `-- --render` draws again."""
    _install(session, "browser")
    session.run("python", "docs/examples/make.py", *session.posargs, env={"PYTHONPATH": "."})


@nox.session(tags=["upkeep"])
def record(session: nox.Session) -> None:
    """Record what a real engine answers, `-- vllm==0.31.0`; about a minute each."""
    _install(session)
    session.run(
        *("python", "fixtures/recordings/record.py", *session.posargs), env={"PYTHONPATH": "."}
    )


@nox.session(tags=["upkeep"])
def bench(session: nox.Session) -> None:
    """Measure specreg's client beside a plain one; five minutes."""
    _install(session, "tests")
    session.run("python", "-m", "tests.bench.run")
