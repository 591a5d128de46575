"""The commands of the project; each does its own set-up and keeps it for the next time."""

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests"]

_PROJECT = nox.project.load_toml("pyproject.toml")


def _install(session: nox.Session, *groups: str) -> None:
    """What the project and the groups need. The project itself runs from its folder.

    Installing it too would build it anew each time; so the second run installs nothing.
    """
    needed = _PROJECT["project"]["dependencies"]
    session.install(*needed, *nox.project.dependency_groups(_PROJECT, *groups))


def _pytest(session: nox.Session, *arguments: str) -> None:
    """Pytest with the arguments and those after `--`.

    Ctrl-C reaches nox too, which would soon kill pytest while it still stops its servers.
    """
    session.run(
        *("python", "-m", "pytest", *arguments, *session.posargs),
        interrupt_timeout=60.0,
        terminate_timeout=30.0,
    )


@nox.session
def tests(session: nox.Session) -> None:
    """The project's own tests: no engine, no GPU, about three minutes."""
    _install(session, "tests")
    _pytest(session, "tests/unit", "tests/plugin", "-n", "2", "--dist=worksteal")


@nox.session
def selftest(session: nox.Session) -> None:
    """Plants known changes and simulates identical nights: are the verdicts' error rates kept?"""
    _install(session)
    session.run("python", "-m", "specreg", "selftest", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style and types."""
    _install(session, "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")


@nox.session
def cpu_perf(session: nox.Session) -> None:
    """The suite on a real engine without a GPU, with tiny models: about six minutes."""
    _install(session)
    _pytest(session, "tests/perf", "--specreg-tier=cpu")


@nox.session
def gpu_perf(session: nox.Session) -> None:
    """The suite on a machine with a GPU; fails at once where there is none."""
    _install(session)
    session.install(*_PROJECT["project"]["optional-dependencies"]["datasets"])
    _pytest(session, "tests/perf", "--specreg-tier=gpu", "--specreg-require-tier")


@nox.session
def sglang_cpu(session: nox.Session) -> None:
    """Real SGLang beside real vLLM without a GPU: acceptance alone."""
    _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/contract/test_engines_agree.py")
    _pytest(session, "tests/perf", "--specreg-tier=sglang_cpu")


@nox.session
def reference(session: nox.Session) -> None:
    """The reference engine, the lightest real one, and its own tests: acceptance alone."""
    _install(session, "tests")
    session.run("python", "-m", "pytest", "tests/reference")
    _pytest(session, "tests/perf", "--specreg-tier=reference", "--specreg-oracle")


@nox.session
def oracle(session: nox.Session) -> None:
    """Holds real vLLM's text and steps against what its models give: about six minutes."""
    _install(session)
    files = ("tests/perf/test_lossless.py", "tests/perf/test_oracle.py")
    _pytest(session, *files, "--specreg-tier=cpu", "--specreg-oracle")


@nox.session
def triton(session: nox.Session) -> None:
    """A real tritonserver on the repository that specreg writes: about three minutes."""
    _install(session, "tests")
    _pytest(session, "tests/contract/test_triton.py")


@nox.session
def datasets(session: nox.Session) -> None:
    """The toy prompts in the form of each dataset, on real vLLM: about three minutes."""
    _install(session, "tests")
    _pytest(session, "tests/contract/test_datasets.py")


@nox.session
def contract(session: nox.Session) -> None:
    """Measures a real engine whose acceptance is known beforehand: about three minutes."""
    _install(session, "tests")
    _pytest(session, "tests/contract/test_meter.py", "tests/contract/test_cross_check.py")


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
    """Measures the client itself beside two plain ones, and the judging: about seven minutes."""
    _install(session, "tests")
    session.run("python", "-m", "tests.bench.run")


@nox.session
def gate(session: nox.Session) -> None:
    """May we upgrade? `nox -s gate -- vllm==0.31.0 vllm==0.32.0`; docs/gate.md says more."""
    _install(session)
    # Ctrl-C reaches it too; it stops its server and keeps what was measured.
    session.run(
        *("python", "-m", "specreg", "gate", *session.posargs),
        interrupt_timeout=60.0,
        terminate_timeout=30.0,
    )


@nox.session
def gate_tests(session: nox.Session) -> None:
    """The gate's command on sides with planted faults; with real vLLM about fifteen minutes."""
    _install(session, "tests")
    _pytest(session, "tests/gate")


@nox.session
def faults(session: nox.Session) -> None:
    """Plants faults in a real engine and sees the right cases turn red: about eleven minutes."""
    _install(session, "tests")
    _pytest(session, "tests/faults")
