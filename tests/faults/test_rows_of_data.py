"""The faults of what comes in: answers, counters, baselines, prompts; named by their rows.

On the scripted server, through the whole suite as a user runs it.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from specreg.telemetry.identity import current_environment
from tests.doubles.vllm.script import BEFORE_ROUNDS, SLOWING, Fault, Script
from tests.faults.running import CASES, Hurt

REQUESTS_OF_A_PART = 4
"""Acceptance alone is looked at in five parts."""


@pytest.fixture
def run(run: Hurt) -> Hurt:
    """No request may take long."""
    run.settings = "request_timeout_s = 2.0"
    return run


def reasons(run: Hurt) -> Mapping[str, str]:
    return {
        verdict.case_id: f"{verdict.outcome}: {verdict.reason}"
        for verdict in run.verdict().verdicts
    }


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault.TRUNCATED_STREAM, "ReadError: "),
        (Fault.HALF_OPEN, "no end within request_timeout_s = 2; "),
        (Fault.HTTP_429, "HTTP_ERROR: HTTP 429 from /v1/chat/completions: "),
        (Fault.HTTP_500, "HTTP_ERROR: HTTP 500 from /v1/chat/completions: "),
        (Fault.SLOW_FIRST_TOKEN, "no end within request_timeout_s = 2; "),
        (Fault.ENDLESS_LINE, "EVENT_UNREADABLE: "),
    ],
)
def test_row_10_a_request_that_fails(run: Hurt, fault: Fault, words: str) -> None:
    """It would go well if it were sent again: the fault hits one."""
    # Of steps that come at once a warm-up has no times, and goes on.
    run.script = Script(
        fault=fault, fault_after_requests=BEFORE_ROUNDS + 2, step_ms=4.0, stretches=SLOWING
    )
    done = run.run()
    by_case = reasons(run)
    failed = (
        f"INVALID: REQUEST_FAILED: 1 of {REQUESTS_OF_A_PART} requests failed, the first on prompt '"
    )
    assert by_case[CASES[0]].startswith(failed), done.stdout
    assert f"': {words}" in by_case[CASES[0]]
    assert by_case[CASES[0]].endswith("look at the server's log")
    assert by_case[CASES[0]].partition(": ")[2] in done.stdout.replace("\n", " ")
    assert [by_case[case].partition(":")[0] for case in CASES[1:]] == ["NO_BASELINE"] * 2
    assert [run.attempts(case) for case in CASES] == [1, 1, 1]
    assert len(run.logs()) == 1


@pytest.mark.parametrize(
    ("fault", "looked_for", "there"),
    [
        (
            Fault.COUNTERS_MISSING,
            "METRICS_MISSING: the server's counters can't be read",
            "HTTP 404 from /metrics",
        ),
        (
            Fault.COUNTERS_RENAMED,
            "DRAFTS_UNCOUNTED: the server counts tokens, and has no speculation counters: ",
            "than vllm:spec_decode_num_…; /metrics has vllm:speculation_num_drafts_total, ",
        ),
        (
            Fault.COUNTERS_NAN,
            "METRICS_UNREADABLE: vllm:spec_decode_num_",
            "_total is nan, which is no count; look at /metrics",
        ),
    ],
)
def test_row_11_counters_that_cannot_be_read(
    run: Hurt, fault: Fault, looked_for: str, there: str
) -> None:
    run.script = Script(fault=fault)
    done = run.run()
    by_case = reasons(run)
    assert set(by_case) == set(CASES), done.stdout
    for reason in by_case.values():
        assert reason.startswith(f"INVALID: {looked_for}"), done.stdout
        assert there in reason


def test_row_11_counters_that_begin_again(run: Hurt) -> None:
    run.script = Script(
        fault=Fault.COUNTERS_RESET,
        fault_after_requests=BEFORE_ROUNDS + 6,
        step_ms=4.0,
        stretches=SLOWING,
    )
    done = run.run()
    by_case = reasons(run)
    fall = "INVALID: COUNTERS_FELL: steps, accepted, drafted changed by -"
    assert by_case[CASES[0]].startswith(fall), done.stdout
    assert "the server was restarted meanwhile" in by_case[CASES[0]]
    assert [by_case[case].partition(":")[0] for case in CASES[1:]] == ["NO_BASELINE"] * 2


CONFLICT = "{\n<<<<<<< ours\n}\n=======\n>>>>>>> theirs\n}\n"
BASELINES = (
    ('{"schema_version": 2,\n "case": }\n', "JSON is malformed", "restore it with"),
    ('{"schema_version": 99}', "schema version 99, ", "use a newer"),
    (CONFLICT, "holds both sides of a merge conflict, from line 2 on", "restore it with git"),
)


def test_row_16_baselines_that_are_corrupt_newer_or_conflicted(run: Hurt) -> None:
    run.settings = "speed = false"  # whose launches a busy machine would drive apart
    environment = current_environment(gpus=0).name
    paths = [run.folder / "baselines" / environment / f"{case}.json" for case in CASES]
    for path, (content, _, _) in zip(paths, BASELINES, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    for done in (run.run(), run.run("--update-baselines", "--specreg-launches=2")):
        assert done.returncode == 11, done.stdout
        for path, (content, location, remedy) in zip(paths, BASELINES, strict=True):
            (message,) = (line for line in done.stdout.splitlines() if str(path) in line)
            assert message.startswith(f"baseline '{path}': {location}")
            assert f"; {remedy}" in message
            assert path.read_text() == content


ROW = {"id": "a", "category": "c", "turns": ["Hello."]}
OTHER = {**ROW, "id": "b"}


def prepared(folder: Path, *rows: str) -> Path:
    """Prompts of GSM8K as `specreg prepare` leaves them, and a record that says so."""
    path = folder / "gsm8k.jsonl"
    path.write_text("".join(f"{row}\n" for row in rows))
    record: Mapping[str, object] = {
        **dict.fromkeys(("source", "revision", "licence", "source_sha256"), ""),
        **dict.fromkeys(("rows", "left_out", "prompts"), len(rows)),
        "dataset": "gsm8k",
        "categories": {},
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    (folder / "gsm8k.json").write_text(json.dumps(record))
    return path


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (json.dumps({**OTHER, "turns": [""]}), "prompt 'b' has an empty turn, no turn at all, or"),
        ('{"id": "b", "category": ', "Input data was truncated; correct the row, or remove it"),
        (json.dumps({"id": "b", "turns": ["Hello."]}), "Object missing required field `category`"),
    ],
    ids=["empty", "wrong-json", "missing-column"],
)
def test_row_24_prompts_that_cannot_be_asked(run: Hurt, second: str, words: str) -> None:
    path = prepared(run.folder, json.dumps(ROW), second)
    run.dataset = "gsm8k"
    run.variables = {"SPECREG_DATA": str(run.folder)}
    done = run.run()
    assert done.returncode == 4, done.stdout
    assert f"ERROR: {path}:2: {words}" in done.stdout
    assert run.logs() == []


def test_row_24_a_prompt_that_is_longer_than_the_context(run: Hurt) -> None:
    run.settings = "max_model_len_tokens = 80"
    done = run.run()
    assert done.returncode == 4, done.stdout
    assert "ERROR: dataset 'toy': prompt '" in done.stdout
    assert f"'{CASES[0]}' has 80, and " in done.stdout
    assert "of its prompts don't fit; raise max_model_len_tokens to " in done.stdout
    assert run.logs() == []
