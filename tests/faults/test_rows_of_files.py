"""The faults of what is written, said and listened to; each test is named by its row."""

import contextlib
import datetime as dt
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specreg.baselines.record import record_baseline
from specreg.core.bounded_log import KEPT_BYTES
from specreg.core.errors import ServerDiedError, SpecregError
from specreg.core.files import append_lines, replace_file
from specreg.engines.engine import Engine
from specreg.engines.registry import ENGINES
from specreg.report.document import began_at
from specreg.report.files import load_report, record_document
from specreg.verdicts.history import record_history
from tests.doubles.vllm.script import Fault, Script
from tests.faults.running import CASES, ROOT, Hurt, lives, wait_until
from tests.plugin.preloaded import PreloadedPython
from tests.unit import builders
from tests.unit.builders import reports
from tests.unit.builders.gate_command import Gate
from tests.unit.builders.identities import RECORDED_SGLANG, answers
from tests.unit.builders.started_servers import left_of, start

WHOLE = 3_000_000
# Writes a file over and over, all A or all B, until it is killed.
WRITING = """
import itertools, pathlib, sys
from specreg.core.files import append_lines, replace_file
for letter in itertools.cycle("AB"):
    replace_file(pathlib.Path(sys.argv[1]), letter.encode() * int(sys.argv[2]))
    print(letter, flush=True)
"""


@contextlib.contextmanager
def disk_full_at(size_bytes: int) -> Iterator[None]:
    """Lets this process write no file beyond a size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


WRITERS: dict[str, Callable[[Path], object]] = {
    "verdict": lambda path: record_document(path, reports.REPORT.run),
    "report": lambda path: record_document(path, reports.REPORT),
    "baseline": lambda path: record_baseline(path, builders.baseline({"tpot_p50_ms": 1.0})),
    "history": lambda path: record_history(path, [reports.past_run(1, tpot_p50_ms=1.0)]),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_row_13_a_full_disk_leaves_the_old_file(tmp_path: Path, writer: str) -> None:
    path = tmp_path / "folder" / "file"
    WRITERS[writer](path)
    before = path.read_bytes()
    with (
        disk_full_at(len(before) + 50 if writer == "history" else 50),
        pytest.raises(SpecregError, match="File too large; make room or repair its rights"),
    ):
        WRITERS[writer](path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("write", [replace_file, append_lines])
def test_row_13_the_file_for_which_there_is_no_room_is_named(
    tmp_path: Path, write: Callable[[Path, bytes], None]
) -> None:
    path = tmp_path / "file"
    with disk_full_at(50), pytest.raises(OSError, match="File too large") as refused:
        write(path, b"x" * 100)
    assert refused.value.filename == str(path)


def test_row_13_killed_while_writing(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "file"
    seen = set()
    for kill in range(20):
        with subprocess.Popen(
            (sys.executable, "-c", WRITING, str(path), str(WHOLE)), cwd=ROOT, stdout=subprocess.PIPE
        ) as writing:
            assert writing.stdout is not None
            writing.stdout.readline()
            time.sleep(0.002 * kill)
            writing.kill()
        content = path.read_bytes()
        assert content in {b"A" * WHOLE, b"B" * WHOLE}
        seen.add(content[:1])
    assert seen == {b"A", b"B"}
    replace_file(path, b"new")
    assert [file.name for file in path.parent.iterdir()] == ["file"], "what they left goes too"


PLANTED = {
    "HF_TOKEN": "hf_plantedinvariables",
    "OPENAI_API_KEY": 'planted"in/quotes',
    "PIP_INDEX_URL": "https://me:planted-in-a-url@127.0.0.1:9/simple",
}
SECRETS = ("hf_plantedinvariables", 'planted"in/quotes', 'planted\\"in/quotes', "planted-in-a-url")
ARGUMENTS = ("--api-key", "planted-in-arguments", "--seed", "12345678")
SAYING = "INFO 'Authorization': 'Bearer planted-in-arguments', GET /x?token=hf_plantedinvariables"
ALL = (*SECRETS, "planted-in-arguments")


def leaks(folder: Path, *texts_shown: str) -> list[str]:
    """Where secrets stand, of all that was written below a folder or said."""
    expected_files = {"cpu.toml", "scripted_server.json"}
    files = [
        path for path in folder.rglob("*") if path.is_file() and path.name not in expected_files
    ]
    texts = {str(path): path.read_bytes() for path in files} | {
        "output": "".join(texts_shown).encode()
    }
    assert len(texts) > 3, "something was written"
    leaks_found = [
        (secret, name) for name in texts for secret in ALL if secret.encode() in texts[name]
    ]
    return [f"{secret} in {name}" for secret, name in leaks_found]


def test_row_17_no_secret_is_written(run: Hurt) -> None:
    run.variables = dict(PLANTED)
    run.engine_args = ARGUMENTS
    run.script = Script(step_ms=8.0, says_secrets=True, shares_memory=True)
    junit = run.folder / "junit.xml"
    with run.start(f"--junitxml={junit}", "-rA") as pytest_run:
        wait_until(run.is_measuring())
        run.server().kill()
        output, _ = pytest_run.communicate(timeout=120)
    assert {verdict.outcome for verdict in run.verdict().verdicts} == {"NO_BASELINE"}, output
    assert junit.exists()
    assert leaks(run.folder, output) == []
    (log, _) = (path.read_text() for path in sorted(run.runs.glob("*/logs/*.log")))
    assert "HIDDEN" in log
    assert all(
        argument in log for argument in ("fixtures/models/tiny/target", "'--seed', '12345678'")
    )


def test_row_17_no_secret_is_in_the_words_of_a_server_that_fails(run: Hurt) -> None:
    run.variables = dict(PLANTED)
    run.engine_args = ARGUMENTS
    run.script = Script(
        fault=Fault.EXIT_AT_START, says_secrets=True, exit_log=f"{SAYING}\nRuntimeError: 401"
    )
    done = run.run()
    assert "'Bearer HIDDEN', GET /x?token=HIDDEN" in done.stdout
    assert "RuntimeError: 401" in done.stdout
    assert leaks(run.folder, done.stdout) == []


def test_row_15_a_killed_run_is_continued(run: Hurt) -> None:
    """Row 17 too: it knows its cases by what they hide."""
    run.variables = dict(PLANTED)
    run.engine_args = ARGUMENTS
    with run.start() as pytest_run:
        wait_until(run.is_measuring(CASES[1]))
        pytest_run.kill()
        wait_until(lambda: run.left() == [])
    done = run.run("--specreg-resume")
    assert f"taken over from the interrupted run: {CASES[0]}\n" in done.stdout
    assert [run.attempts(case) for case in CASES] == [1, 2, 1]
    assert leaks(run.folder, done.stdout) == []


def test_row_17_no_secret_is_in_the_files_of_a_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preloaded: PreloadedPython
) -> None:
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    gate = Gate(tmp_path)
    gate.write_tier(speed=False)
    both = ("--a", "engine_env.MY_TOKEN=planted-in-arguments")
    arguments = ("--launches", "2", *both, "--b", both[1])
    b = Script(says_secrets=True)
    output = gate.run(preloaded, *arguments, status=0, b=b)
    assert gate.report().run.complete, output
    assert leaks(gate.out, *output) == []
    assert gate.servers() == []
    gate.run(preloaded, *arguments, "--resume", status=0, b=b)


def test_row_17_no_secret_of_a_servers_settings_is_taken() -> None:
    """SGLang tells all of them to whoever asks what it is; another form of them isn't quoted."""
    settings = json.loads(RECORDED_SGLANG["/server_info"])
    secrets = {name: f"planted-in-{name}" for name in ("api_key", "admin_api_key")}
    for info in ({**settings, **secrets}, {**settings, **secrets, "speculative_algorithm": [1]}):
        answered = answers({**RECORDED_SGLANG, "/server_info": json.dumps(info).encode()}, "sglang")
        assert "planted" not in repr(answered)
        assert answered.target == settings["model_path"]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)
def test_row_18_a_server_is_told_to_listen_here_alone(engine: Engine) -> None:
    command = engine.command(Path("/python"), *builders.start_of())
    hosts = [
        command[i + 1] for i, word in enumerate(command) if word in {"--host", "--http-address"}
    ]
    # The reference engine is ours: it listens there and has no flag for elsewhere.
    assert hosts == ([] if engine.name == "reference" else ["127.0.0.1"])
    assert not [word for word in command if "0.0.0.0" in word]  # noqa: S104 - none is wanted


def test_row_20_the_wall_clock_jumps(run: Hurt, tmp_path: Path) -> None:
    """By hours, five times a second, in the run and in its servers."""
    source = Path(__file__).with_name("jumping.c")
    library = tmp_path / "jumping.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)  # noqa: S607 - any gcc
    run.variables = {"LD_PRELOAD": str(library)}
    started = time.monotonic()
    done = run.run()
    took_s = time.monotonic() - started
    assert {verdict.outcome for verdict in run.verdict().verdicts} == {"NO_BASELINE"}, done.stdout
    report = load_report(next(run.runs.glob("*/report.json")))
    began = began_at(report.run.run)
    assert began is not None
    lasted_s = (dt.datetime.fromisoformat(report.ended_at) - began).total_seconds()
    assert 0 <= lasted_s <= took_s + 1
    for case in report.cases:
        assert case.figures is not None
        timing = case.figures.timing
        assert timing is not None
        assert timing.tpot_ms is not None
        assert 1 < timing.tpot_ms.p50 < 20, "a step takes 8 ms and gives two or three tokens"


FLOOD_BYTES = 2 * 2**30


@pytest.mark.usefixtures("empty_afterwards")
def test_row_21_a_log_of_two_gigabytes_of_noise(tmp_path: Path) -> None:
    with start(tmp_path, Script(flood_bytes=FLOOD_BYTES), ready_within_s=120.0) as server:
        server.process.popen.kill()
        server.process.popen.wait()
        with pytest.raises(ServerDiedError) as error:
            server.check_alive()
    assert "last words" in str(error.value)
    assert len(str(error.value)) < 50_000
    assert all(character.isprintable() or character in "\t\n" for character in str(error.value))
    content = server.log_path.read_bytes()
    assert len(content) < 4 * KEPT_BYTES
    head, _, tail = content.partition(b"\n[specreg: ")
    assert b"first words\n" in head[:1000]
    assert len(head) == KEPT_BYTES
    assert int(tail.partition(b" bytes are left out here]")[0]) > FLOOD_BYTES - 4 * KEPT_BYTES
    assert b"\nlast words\n" in tail[-1000:]
    assert left_of(tmp_path) == []


def test_row_21_a_server_that_floods_dies_with_its_run(run: Hurt) -> None:
    """And what it said until then is there."""
    run.script = Script(step_ms=8.0, flood_bytes=64 * 2**20, survivor_s=600, fault=Fault.SURVIVOR)
    with run.start() as pytest_run:
        wait_until(run.is_measuring())
        server = run.server()
        pytest_run.kill()
        took_s = wait_until(lambda: run.left() == [])
    assert took_s < 5
    assert not lives(server)
    (log,) = run.runs.glob("*/logs/*.log")
    content = log.read_bytes()
    assert b"first words" in content
    assert b"last words" in content
    assert b"bytes are left out here" in content
