"""The whole command against the scripted server: sides that differ by what their scripts say."""

import re
import signal
import sys
from pathlib import Path

import pytest

from specreg.correctness.checks import LOSSLESS
from specreg.verdicts.verdict import Outcome
from tests.doubles.vllm.script import BEFORE_ROUNDS, Fault, Script
from tests.plugin.preloaded import PreloadedPython
from tests.unit.builders.gate_command import PROMPTS, Gate

EAGLE3 = "vllm-eagle3-tiny-toy-c1"
SERVER = "vllm-eagle3-tiny"


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_what_accepts_less_is_refused_for_its_acceptance(
    gate: Gate, preloaded: PreloadedPython
) -> None:
    gate.write_tier(speed=False)
    worse = Script(acceptance_probs=(0.6, 0.5, 0.4))
    stdout, _ = gate.run(preloaded, "--launches", "2", status=1, b=worse)
    assert "accepts " in stdout.partition("fewer drafts")[0]
    assert "Don't switch to " in stdout


def test_a_side_that_cant_start_is_said_before_anything_is_measured(
    gate: Gate, preloaded: PreloadedPython
) -> None:
    planted = Script(fault=Fault.EXIT_AT_START, exit_log="error: unrecognized arguments: --nope")
    _, stderr = gate.run(preloaded, status=10, b=planted)
    assert f"side B ('{sys.executable}'): SERVER_NOT_STARTED: server 'vllm-none-tiny'" in stderr
    assert "unknown or refused argument" in stderr
    assert not (gate.out / "ledger.jsonl").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_ends_it_with_its_servers_and_what_it_had_is_told(
    gate: Gate, number: signal.Signals
) -> None:
    started = gate.start("--launches", "2", "--case", EAGLE3)
    assert started.stderr is not None
    lines = (line for line in started.stderr if line.startswith("launch"))
    assert next(lines) == f"launch 1, sides A, B: {SERVER}\n"
    assert next(lines).startswith(f"launch 1, {EAGLE3}: acceptance length holds, ")
    assert next(lines) == f"launch 2, sides B, A: {SERVER}\n"
    started.send_signal(number)
    stdout, stderr = started.communicate(timeout=60)
    assert started.returncode == 130, stdout + stderr
    assert "to continue, type the same command with --resume --out" in stdout
    assert gate.launches() == 2
    assert gate.report().run.exit_status == 130
    assert gate.servers() == []


def test_identical_sides_may_be_exchanged_with_one_server_up_at_a_time(gate: Gate) -> None:
    gate.write_tier(speed=False)
    outputs = []
    with gate.start("--launches", "2", "--in-turn") as started:
        assert started.stderr is not None
        assert started.stdout is not None
        for line in started.stderr:
            outputs += [line.split(":")[0]] if line.startswith("launch 1, side") else []
            assert len(gate.servers()) <= 1
        assert "✓ Switch to " in started.stdout.read()
    assert started.returncode == 0
    assert outputs == [f"launch 1, side {side}" for side in ("A", "B")]
    assert gate.launches() == 2
    report = gate.report()
    assert (report.control, report.run.complete) == ((), True)
    assert {verdict.metric: verdict.outcome for verdict in report.run.verdicts} == {
        "acceptance_length_tokens": Outcome.PASS,
        LOSSLESS: Outcome.PASS,
    }
    for name in ("report.json", "report.md", "report.html"):
        assert (gate.out / name).exists()


def test_what_is_undecided_names_the_folder_to_go_on_with(
    gate: Gate, preloaded: PreloadedPython
) -> None:
    stdout, _ = gate.run(preloaded, "--case", EAGLE3, "--launches", "1", status=10)
    typed = re.search(r"type the same command with --resume --out (\S+) --launches \d+;", stdout)
    assert typed, stdout
    assert typed[1] == str(gate.out)


def test_a_disk_that_refuses_ends_it_with_no_answer(gate: Gate, preloaded: PreloadedPython) -> None:
    gate.write_tier(speed=False)
    gate.out.mkdir(parents=True)
    path = gate.out / "logs"
    path.write_text("no folder")
    stdout, stderr = gate.run(preloaded, "--launches", "4", status=10)
    assert str(path) in stderr
    assert "to continue, type the same command with --resume" in stdout


def test_what_dies_on_one_side_is_told_and_tried_again_where_it_is_resumed(
    gate: Gate, preloaded: PreloadedPython
) -> None:
    gate.write_tier(speed=False)
    planted = Script(fault=Fault.CRASH_MID_RUN, fault_after_requests=BEFORE_ROUNDS + PROMPTS // 2)
    stdout, _ = gate.run(preloaded, "--launches", "2", status=10, b=planted)
    assert "side B: SERVER_DIED: server 'vllm-eagle3-tiny': ended with status 1" in stdout
    stdout, _ = gate.run(preloaded, "--launches", "2", "--resume", status=0, b=Script())
    assert "✓ Switch to " in stdout


def test_a_step_that_takes_longer_is_found_and_called_so(
    gate: Gate, preloaded: PreloadedPython
) -> None:
    slow = Script(step_ms=12.0)
    stdout, _ = gate.run(preloaded, "--case", EAGLE3, "--launches", "8", status=1, b=slow)
    assert "the cost of a step" in stdout.partition("\n")[0]
    judged = {verdict.metric: verdict for verdict in gate.report().run.verdicts}
    assert judged["acceptance_length_tokens"].outcome is Outcome.PASS
    assert judged["throughput_tokens_per_s"].outcome is Outcome.REGRESSED
    assert judged["step_p50_ms"].outcome is Outcome.MEASURED
    cause = judged["throughput_tokens_per_s"].cause
    assert cause is not None
    assert cause.parts[0][0] == "the cost of a step"
