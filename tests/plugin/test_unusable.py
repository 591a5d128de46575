"""What a run can't use is named at once, in one line, before any server starts."""

import errno
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specreg.telemetry.identity import current_environment
from tests.plugin.conftest import MATRIX, ROOT, Suite, run_here
from tests.plugin.preloaded import PreloadedPython

_WITHOUT_OVERRIDE = (
    *("setpriv", "--bounding-set=-dac_override,-dac_read_search"),
    "--inh-caps=-dac_override,-dac_read_search",
)
"""Starts a program that rights of files hold for, though it runs as root."""
CHOSEN = ("tests/perf", "-q", "-k", "acceptance and eagle3 and c1")


@pytest.fixture(scope="module")
def rights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreloadedPython]:
    """A process that the rights of files hold for, and the forks that it runs commands in."""
    starter = _WITHOUT_OVERRIDE if os.geteuid() == 0 else ()
    process = PreloadedPython(tmp_path_factory.mktemp("rights"), starter=starter)
    yield process
    process.close()


@pytest.fixture
def bound_suite(tmp_path: Path, rights: PreloadedPython) -> Suite:
    """A suite that the rights of files hold for."""
    return Suite(tmp_path, rights)


def refusal_of(suite: Suite) -> str:
    """Run the suite, insist that it is refused at once, and return what it says."""
    done = suite.run(*CHOSEN)
    output = done.stdout + done.stderr
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, output
    assert "INTERNALERROR" not in output
    assert "Traceback" not in output
    assert "starting" not in output
    (line,) = (line for line in output.splitlines() if line.startswith("ERROR: "))
    return line


NO_LOCKS = ("ENOSYS", "ENOLCK", "EOPNOTSUPP")
LOCKLESS = ROOT / "tests/doubles/lockless"


@pytest.mark.parametrize("error", NO_LOCKS)
def test_a_file_system_without_locks_is_named_with_the_option(tmp_path: Path, error: str) -> None:
    suite = Suite(tmp_path)
    suite.python_path = LOCKLESS
    suite.variables["FLOCK_ERRNO"] = str(getattr(errno, error))
    line = refusal_of(suite)
    assert re.search(r"file system, \S+ at '/.*', has no locks", line)
    assert os.strerror(getattr(errno, error)) in line
    assert "--specreg-runs" in line


def test_doctor_tries_a_lock(suite: Suite) -> None:
    suite.python_path = LOCKLESS
    command = (sys.executable, "-m", "specreg", "doctor", "--tier=cpu")
    for number, state in (("0", "ok"), (str(errno.ENOSYS), "in the way")):
        done = run_here(*command, env=suite.environment() | {"FLOCK_ERRNO": number})
        rows = [line for line in done.stdout.splitlines() if " locks " in line]
        assert rows, done.stdout + done.stderr
        assert all(row.startswith(state) for row in rows)


def test_a_warning_is_an_error_in_our_tests_and_not_in_a_users_run(suite: Suite) -> None:
    with pytest.raises(UserWarning, match="old"):
        warnings.warn("old", UserWarning, stacklevel=1)
    (suite.folder / "warning_plugin.py").write_text(
        "import warnings\n"
        "def pytest_collection_modifyitems():\n    warnings.warn('old', UserWarning)\n"
    )
    suite.python_path = suite.folder
    collect = (*CHOSEN, "--collect-only", "-p", "warning_plugin")
    done = suite.run(*collect)
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
    assert suite.run(*collect, "-W", "error").returncode == pytest.ExitCode.INTERNAL_ERROR


def lock_folder(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0)


def lock_environment(folder: Path) -> None:
    lock_folder(folder / current_environment(gpus=0).name)


def lock_names_only(folder: Path) -> None:
    """Let the names of the files be listed, and none of them be read."""
    environment = folder / current_environment(gpus=0).name
    environment.mkdir(parents=True)
    (environment / "vllm-eagle3-tiny-toy-c1.json").touch()
    environment.chmod(0o600)


def unlock(folder: Path) -> None:
    """Let pytest remove a folder and those in it."""
    folder.chmod(0o700)
    for path in folder.iterdir() if folder.is_dir() else ():
        path.chmod(0o700)


def write_file(folder: Path) -> None:
    folder.write_text("no folder")


@pytest.mark.parametrize("spoil", [lock_folder, lock_environment, lock_names_only, write_file])
def test_a_folder_of_baselines_that_cannot_be_read(
    bound_suite: Suite, spoil: Callable[[Path], None]
) -> None:
    """No baseline would be found in it, as if there were none."""
    spoil(bound_suite.baselines)
    try:
        line = refusal_of(bound_suite)
    finally:
        unlock(bound_suite.baselines)
    assert line.startswith(f"ERROR: baselines '{bound_suite.baselines}")
    assert "can't be read, " in line
    assert "; repair its rights, or name another folder with --specreg-baselines" in line


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('engine_env = { A = "b\\u0000c" }', "$.cases[0].engine_env.A has a NUL character"),
        ('engine_env = { "A\\u0000" = "b" }', "a key of $.cases[0].engine_env has a NUL character"),
        ('engine_args = ["a", "\\u0000"]', "$.cases[0].engine_args[1] has a NUL character"),
        ('dtype = "\\u0000"', "$.cases[0].dtype has a NUL character"),
        ('engine_env = { "A=B" = "c" }', "engine_env: 'A=B' isn't the name of a variable"),
        ('engine_env = { "" = "c" }', "engine_env: '' isn't the name of a variable"),
    ],
)
def test_a_setting_that_no_process_can_be_started_with(
    suite: Suite, setting: str, words: str
) -> None:
    suite.write_tier(MATRIX.replace("prompts = 10", f"prompts = 10\n    {setting}"))
    assert words in refusal_of(suite)


def test_a_model_with_a_nul_character(suite: Suite) -> None:
    tier = MATRIX.replace('"fixtures/models/tiny/target"', '"fixtures\\u0000"')
    suite.write_tier(tier)
    assert "$.models.tiny.target has a NUL character; remove it" in refusal_of(suite)


@pytest.mark.parametrize("spoil", [lock_folder, write_file])
@pytest.mark.parametrize("setting", ["padding_layers = 12", 'widen = "30m"'])
def test_a_cache_that_cannot_be_written(
    bound_suite: Suite, setting: str, spoil: Callable[[Path], None]
) -> None:
    """The models that a case has made larger lie in it."""
    cache = bound_suite.folder / "cache"
    spoil(cache)
    head = '    target = "fixtures/models/tiny/target"'
    bound_suite.write_tier(MATRIX.replace(head, f"{head}\n    {setting}"))
    bound_suite.variables = {"SPECREG_CACHE": str(cache)}
    line = refusal_of(bound_suite)
    assert "can't be written, " in line
    assert "SPECREG_CACHE" in line


def test_a_cache_that_cannot_be_written_in_a_run_with_baselines(tmp_path: Path) -> None:
    """Those of the tier `cpu` are of padded models, which are made to estimate the run's time."""
    cache = tmp_path / "cache"
    cache.touch()
    command = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/perf")
    options = ("--specreg-tier=cpu", "-k", "ngram", f"--specreg-runs={tmp_path}")
    done = run_here(*command, *options, env=os.environ | {"SPECREG_CACHE": str(cache)})
    output = done.stdout + done.stderr
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, output
    assert "INTERNALERROR" not in output
    assert "can't be written, Not a directory; make room, or name another cache" in output
