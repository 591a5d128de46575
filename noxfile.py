"""The commands of the project; each does its own set-up and keeps it for the next time."""

import itertools
import os
import shutil
from collections.abc import Sequence

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests"]

_PROJECT = nox.project.load_toml("pyproject.toml")
_EXTRAS = _PROJECT["project"]["optional-dependencies"]
_LOCK = "constraints.txt"
_LOCKED_EXTRAS = ("benchmark", "datasets", "ray", "report", "xdist")
"""What it holds beside all groups; engines have environments of their own."""


def _install(
    session: nox.Session, *groups: str, extras: Sequence[str] = (), project: bool = True
) -> None:
    """What the project, the groups and the extras need, as they are locked.

    What is fetched must have a checksum that stands there. The project itself runs from its folder.
    Installing it too would build it anew each time; so the second run installs nothing.
    """
    needed = _PROJECT["project"]["dependencies"] if project else []
    needed = [*needed, *nox.project.dependency_groups(_PROJECT, *groups)]
    needed += [one for extra in extras for one in _EXTRAS[extra]]
    session.install("-c", _LOCK, *needed)


def _pytest(session: nox.Session, *arguments: str) -> None:
    """Pytest with the arguments and those after `--`.

    Ctrl-C reaches nox too, which would soon kill pytest while it still stops its servers.
    """
    session.run(
        *("python", "-m", "pytest", *arguments, *session.posargs),
        # Hundreds of processes are started: one that compiles its modules takes twice as long.
        env={"PYTHONDONTWRITEBYTECODE": None},
        interrupt_timeout=60.0,
        terminate_timeout=30.0,
    )


def _suite(session: nox.Session, *arguments: str) -> None:
    """The suite, which is told what to type to run it again."""
    session.env["SPECREG_LAUNCHER"] = f"nox -s {session.name} --"
    _pytest(session, *arguments)


def _specreg(session: nox.Session, *arguments: str) -> None:
    """One of specreg's commands. Ctrl-C reaches it too: it stops its server and keeps its lines."""
    session.env["SPECREG_LAUNCHER"] = f"nox -s {session.name} --"
    session.run(
        *("python", "-m", "specreg", *arguments), interrupt_timeout=60.0, terminate_timeout=30.0
    )


def _finds_chromium() -> bool:
    """Whether there is one already: distributions package it, and Playwright's is 150 MB."""
    names = ("chromium", "chromium-browser", "google-chrome", "chromium-headless-shell")
    return "SPECREG_CHROMIUM" in os.environ or any(map(shutil.which, names))


@nox.session
def tests(session: nox.Session) -> None:
    """The project's own tests: no engine, no GPU, about five minutes on two cores.

    Those that take longest go first, and a file to one worker, as its tests share what was recorded
    for them. One worker more than there are cores, since they wait for servers and clocks.
    """
    _install(session, "tests")
    folders = ("tests/plugin", "tests/gate/test_gate_command.py", "tests/unit", "tests/fuzz")
    _pytest(session, *folders, "-n", "3", "--dist=loadfile", "--no-loadscope-reorder")


@nox.session
def nights(session: nox.Session) -> None:
    """Records the tier `cpu` here and runs it unchanged: `-- 10` times; none may be red."""
    _install(session, "tests")
    session.run("python", "-m", "tests.bench.nights", *session.posargs)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Answers of servers and files with something wrong in them: `-- --cases 10000` for more."""
    _install(session, "tests")
    _pytest(session, "tests/fuzz", "-n", "2", "--cases=1000")


@nox.session
def selftest(session: nox.Session) -> None:
    """Plants known changes and simulates identical nights: are the verdicts' error rates kept?"""
    _install(session)
    session.run("python", "-m", "specreg", "selftest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, types, and which room imports which."""
    _install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports")


@nox.session
def lock(session: nox.Session) -> None:
    """Writes the lock anew: what sessions install, with checksums. `-- --upgrade` for newer.

    For every Python that is supported; what stands there and still fits is kept. Where it came from
    isn't written, so that a mirror does.
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


@nox.session
def audit(session: nox.Session) -> None:
    """Looks what is locked up among the known vulnerabilities; red where that is unknown, too."""
    _install(session, "audit", project=False)
    session.run("python", ".ci/audit.py", _LOCK, *session.posargs)


@nox.session
def readme(session: nox.Session) -> None:
    """Types what README.md says in a fresh clone: two minutes; `-- --real` runs the five lines."""
    session.run("python", ".ci/readme.py", *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Clicks through the page of a run in a real browser; SPECREG_CHROMIUM names one."""
    _install(session, "browser")
    if not _finds_chromium():
        session.run("playwright", "install", "--with-deps", "chromium")
    _pytest(session, "tests/browser")


@nox.session
def exports(session: nox.Session) -> None:
    """Has each form of a run read back by the tool it is for: a minute, once fetched."""
    _install(session, "exports")
    _pytest(session, "tests/exports")


@nox.session
def examples(session: nox.Session) -> None:
    """Makes docs/examples anew from real runs, on a quiet machine."""
    _install(session, "browser")
    session.run("python", "docs/examples/make.py", *session.posargs, env={"PYTHONPATH": "."})


@nox.session
def docs(session: nox.Session) -> None:
    """Makes the site; a link that leads nowhere is an error. `-- linkcheck` asks the web too."""
    _install(session, "docs", project=False)
    builder = session.posargs or ["html"]
    session.run("sphinx-build", "-W", "-b", *builder, "docs", f"dist/site/{builder[0]}")


@nox.session
def cpu_perf(session: nox.Session) -> None:
    """The suite on a real engine without a GPU, with tiny models: about four minutes."""
    _install(session, extras=["benchmark", "report"])
    _suite(session, "tests/perf", "--specreg-tier=cpu")


@nox.session
def gpu_perf(session: nox.Session) -> None:
    """The suite on a machine with a GPU; fails at once where there is none."""
    _install(session, extras=["benchmark", "datasets", "report", "xdist"])
    _suite(session, "tests/perf", "--specreg-tier=gpu", "--specreg-require-tier")


@nox.session
def sglang_cpu(session: nox.Session) -> None:
    """Real SGLang beside real vLLM without a GPU: acceptance alone."""
    _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/contract/test_engines_agree.py")
    _suite(session, "tests/perf", "--specreg-tier=sglang_cpu")


@nox.session
def cpu_methods(session: nox.Session) -> None:
    """Every further method that vLLM has on a CPU, held against the oracle."""
    _install(session, extras=["benchmark"])
    _suite(session, "tests/perf", "--specreg-tier=cpu_methods", "--specreg-oracle")


@nox.session
def cpu_loads(session: nox.Session) -> None:
    """Real vLLM under rates, bursts, a ramp and conversations: about four minutes."""
    _install(session, extras=["benchmark"])
    _suite(session, "tests/perf", "--specreg-tier=cpu_loads")


@nox.session
def reference(session: nox.Session) -> None:
    """The reference engine, the lightest real one, and its own tests: acceptance alone."""
    _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/reference")
    _suite(session, "tests/perf", "--specreg-tier=reference", "--specreg-oracle")


@nox.session
def oracle(session: nox.Session) -> None:
    """Holds real vLLM's text and steps against what its models give: about six minutes."""
    _install(session)
    files = ("tests/perf/test_lossless.py", "tests/perf/test_oracle.py")
    _suite(session, *files, "--specreg-tier=cpu", "--specreg-oracle")


@nox.session
def triton(session: nox.Session) -> None:
    """A real tritonserver around real vLLM, on its own and in its tier: about eight minutes."""
    _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/contract/test_triton.py")
    install = ("python", "-m", "tests.doubles.triton_server.install")
    folder = str(session.run(*install, silent=True)).splitlines()[-1]
    session.env["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    _suite(session, "tests/perf", "--specreg-tier=triton", "--specreg-require-tier")


@nox.session
def datasets(session: nox.Session) -> None:
    """The toy prompts in the form of each dataset, on real vLLM: about three minutes."""
    _install(session, "tests")
    _pytest(session, "tests/contract/test_datasets.py")


@nox.session
def power(session: nox.Session) -> None:
    """Samples scripted GPUs whose true energy is known, and judges a case on one: three minutes."""
    _install(session, "tests")
    _pytest(session, "tests/power")


@nox.session
def contract(session: nox.Session) -> None:
    """Measures a real engine whose acceptance is known beforehand: about three minutes."""
    _install(session, "tests")
    names = ("meter", "cross_check", "widening")
    _pytest(session, *(f"tests/contract/test_{name}.py" for name in names))


@nox.session
def flags(session: nox.Session) -> None:
    """Has each engine's own parser read every command line that specreg writes."""
    _install(session, "tests")
    _pytest(session, "tests/contract/test_command_lines.py")


@nox.session
def record(session: nox.Session) -> None:
    """Records what real engines say: `nox -s record -- vllm==0.31.0`, about a minute each."""
    _install(session)
    session.run(
        *("python", "fixtures/recordings/record.py", *session.posargs), env={"PYTHONPATH": "."}
    )


@nox.session
def bench(session: nox.Session) -> None:
    """Measures the client beside a plain one: five minutes."""
    _install(session, "tests")
    session.run("python", "-m", "tests.bench.run")


@nox.session
def gate(session: nox.Session) -> None:
    """May we upgrade? `nox -s gate -- vllm==0.31.0 vllm==0.32.0`; `-- --help` says more."""
    _install(session)
    _specreg(session, "gate", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Keeps a server under load: `nox -s soak -- --minutes 10`; `-- --help` says more."""
    _install(session)
    _specreg(session, "soak", *session.posargs)


@nox.session
def gate_tests(session: nox.Session) -> None:
    """The gate's command on sides with planted faults; with real vLLM, a long one."""
    _install(session, "tests")
    _pytest(session, "tests/gate")


@nox.session
def shards(session: nox.Session) -> None:
    """Runs in shards, on eight scripted GPUs and on a Ray cluster on this machine; a long one."""
    _install(session, "tests", extras=["ray"])
    _pytest(session, "tests/shards")


@nox.session
def faults(session: nox.Session) -> None:
    """Plants faults in a real engine, hurts servers and runs; a long one.

    `-- -k "not row"` leaves the hurt ones out, `-- -m "not vllm"` those on a real engine.
    """
    _install(session, "tests")
    _pytest(session, "tests/faults")
