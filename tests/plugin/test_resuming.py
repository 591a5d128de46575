"""A run that was cut off goes on where it was: what it finished isn't measured again."""

import shutil
import signal

import msgspec
import pytest

from tests.doubles.vllm.script import Script
from tests.plugin.conftest import Suite
from tests.plugin.test_interrupting import start, wait_until


def figures(suite: Suite) -> set[str]:
    """The launches of cases that have figures."""
    return {path.stem for path in suite.runs.glob("*/figures/*.json")}


def lines(suite: Suite) -> list[dict[str, object]]:
    """The journal of the only run."""
    (journal,) = suite.runs.glob("*/journal.jsonl")
    whole = journal.read_bytes().rpartition(b"\n")[0]  # the last line may be on its way
    return [msgspec.json.decode(line) for line in whole.splitlines()]


def begun(suite: Suite) -> list[str]:
    """The cases that the journal begins to measure, in order."""
    keys = (line["key"] for line in lines(suite) if line["type"] == "Begun")
    return [key["case_id"] for key in keys if isinstance(key, dict)]


@pytest.fixture
def timeless_suite(suite: Suite) -> Suite:
    """A suite with baselines of acceptance alone: on a busy machine speeds can't be recorded."""
    tier = suite.folder / "cpu.toml"
    suite.write_tier(tier.read_text().partition("[cases.tolerances]")[0] + "speed = false\n")
    suite.record("-k", "eagle3")
    return suite


def test_a_run_that_was_cut_off_goes_on_where_it_was(timeless_suite: Suite) -> None:
    suite = timeless_suite
    shutil.rmtree(suite.runs)  # that of the baselines
    suite.script = Script(step_ms=32.0)  # so that the second case outlasts whoever watches
    first, second = "vllm-eagle3-tiny-toy-c1", "vllm-eagle3-tiny-toy-c4"
    with start(suite, "-k", "acceptance") as run:
        wait_until(lambda: figures(suite) == {first} and begun(suite) == [first, second])
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=60)
    assert "type the same again with --specreg-resume" in output
    assert figures(suite) == {first}

    suite.script = Script()
    resume = ("tests/perf", "-q", "--specreg-resume", "-k", "acceptance")
    done = suite.run(*resume)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASS") == 10
    assert f"taken over from the run that was cut off: {first}\n" in done.stdout
    assert begun(suite) == [first, second, second]
    assert figures(suite) == {first, second}

    # All is there now: no server is started.
    (logs,) = suite.runs.glob("*/logs")
    for log in logs.iterdir():
        log.unlink()
    again = suite.run(*resume)
    assert again.returncode == 0, again.stdout
    assert again.stdout.count("PASS") == 10
    assert f"taken over from the run that was cut off: {first}, {second}\n" in again.stdout
    assert begun(suite) == [first, second, second]
    assert list(logs.iterdir()) == []
