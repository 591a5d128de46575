"""The whole command against the scripted server: sides that differ by what their scripts say."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from specreg.correctness.checks import LOSSLESS
from specreg.report.document import Report, load_report
from specreg.verdicts.verdict import Outcome
from tests.doubles.vllm.script import BEFORE_ROUNDS, Fault, Script, record_script

ROOT = Path(__file__).parents[2]

MATRIX = """
needs_gpus = 0

[models.tiny]
target = "fixtures/models/tiny/target"
drafts = { eagle3 = "fixtures/models/tiny/eagle3" }

[[cases]]
engine = "vllm"
methods = ["none", "eagle3"]
models = "tiny"
dataset = "toy"
concurrency = [1]
prompts = PROMPTS
output_cap_tokens = 32
speed = SPEED
"""
EAGLE3 = "vllm-eagle3-tiny-toy-c1"
SERVER = "vllm-eagle3-tiny"
PROMPTS = 10


class Gate:
    """A tier of two cases and a script for each side."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "gate"
        self.write_tier(speed=True)

    def write_tier(self, *, speed: bool) -> None:
        text = MATRIX.replace("SPEED", str(speed).lower()).replace("PROMPTS", str(PROMPTS))
        (self.folder / "cpu.toml").write_text(text)

    def script(self, name: str, script: Script) -> str:
        """The path of one side's script."""
        (self.folder / name).mkdir(exist_ok=True)
        self.environment = record_script(script, self.folder / name)
        return self.environment["SCRIPTED_SERVER"]

    def start(self, *arguments: str, b: Script | None = None) -> subprocess.Popen[str]:
        """The command; `b` is what side B does otherwise."""
        both = self.script("both", Script())
        planted = self.script("b", b) if b is not None else both
        return subprocess.Popen(
            (
                *(sys.executable, "-m", "specreg", "gate", sys.executable, sys.executable),
                *("--root", str(ROOT), "--matrix", str(self.folder), "--tier", "cpu"),
                *("--out", str(self.out), "--a", f"engine_env.SCRIPTED_SERVER={both}"),
                *("--b", f"engine_env.SCRIPTED_SERVER={planted}"),
                *("--seconds", "1"),
                *arguments,
            ),
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": self.environment["PYTHONPATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, status: int, b: Script | None = None) -> tuple[str, str]:
        """What it said, once it has ended with a status: on stdout, and on stderr."""
        started = self.start(*arguments, b=b)
        stdout, stderr = started.communicate(timeout=300)
        assert started.returncode == status, stdout + stderr
        return stdout, stderr

    def servers(self) -> list[psutil.Process]:
        """Those of its processes that live."""
        found = []
        for process in psutil.process_iter():
            try:
                if str(self.folder) in process.environ().get("SCRIPTED_SERVER", ""):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def report(self) -> Report:
        return load_report(self.out / "report.json")

    def launches(self) -> int:
        """How many servers were measured."""
        lines = (self.out / "journal.jsonl").read_bytes().splitlines()
        return sum(b'"Ended"' in line for line in lines)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path)


def test_what_accepts_less_is_refused_for_its_acceptance(gate: Gate) -> None:
    gate.write_tier(speed=False)
    less = Script(acceptance_probs=(0.6, 0.5, 0.4))
    stdout, _ = gate.run("--launches", "2", status=1, b=less)
    assert f"{EAGLE3} is worse by acceptance" in stdout
    assert "DON'T: B is worse than A" in stdout


def test_a_side_that_cant_start_is_said_before_anything_is_measured(gate: Gate) -> None:
    planted = Script(fault=Fault.EXIT_AT_START, exit_log="error: unrecognized arguments: --nope")
    _, stderr = gate.run(status=10, b=planted)
    assert f"side B ('{sys.executable}'): SERVER_NOT_STARTED: server 'vllm-none-tiny'" in stderr
    assert "unknown or refused argument" in stderr
    assert not (gate.out / "journal.jsonl").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_a_signal_ends_it_with_its_servers_and_what_it_had_is_told(
    gate: Gate, number: signal.Signals
) -> None:
    started = gate.start("--launches", "2", "--case", EAGLE3)
    assert started.stderr is not None
    said = (line for line in started.stderr if line.startswith("launch"))
    assert next(said) == f"launch 1, sides A, B: {SERVER}\n"
    assert next(said) == f"launch 2, sides B, A: {SERVER}\n"
    started.send_signal(number)
    stdout, stderr = started.communicate(timeout=60)
    assert started.returncode == 130, stdout + stderr
    assert "go on: type the same with --resume --out" in stdout
    assert gate.launches() == 2
    assert gate.report().run.exit_status == 130
    assert gate.servers() == []


def test_identical_sides_may_be_exchanged_and_in_turn_one_server_is_up_at_a_time(
    gate: Gate,
) -> None:
    gate.write_tier(speed=False)
    said = []
    with gate.start("--launches", "2", "--in-turn") as started:
        assert started.stderr is not None
        assert started.stdout is not None
        for line in started.stderr:
            said += [line.split(":")[0]] if line.startswith("launch") else []
            assert len(gate.servers()) <= 1
        assert "UPGRADE: B is as good as A" in started.stdout.read()
    assert started.returncode == 0
    assert said == [f"launch 1, side {side}" for side in ("A", "B")]
    assert gate.launches() == 2
    report = gate.report()
    assert (report.control, report.run.complete) == ((), True)
    assert {one.metric: one.outcome for one in report.run.verdicts} == {
        "acceptance_length_tokens": Outcome.PASS,
        LOSSLESS: Outcome.PASS,
    }
    for name in ("report.json", "report.md", "report.html"):
        assert (gate.out / name).exists()


def test_what_is_undecided_names_the_folder_to_go_on_with(gate: Gate) -> None:
    stdout, _ = gate.run("--case", EAGLE3, "--launches", "1", status=10)
    typed = re.search(r"type the same with --resume --out (\S+) --launches \d+;", stdout)
    assert typed, stdout
    assert typed[1] == str(gate.out)


def test_a_disk_that_refuses_ends_it_with_no_answer(gate: Gate) -> None:
    gate.write_tier(speed=False)
    path = gate.out / "answers.json"
    path.mkdir(parents=True)
    stdout, stderr = gate.run("--launches", "4", status=10)
    assert "Is a directory" in stderr
    assert f"'{path}'; make room or mend its rights" in stderr
    assert "go on: type the same with --resume" in stdout


def test_what_dies_on_one_side_is_told_and_tried_again_where_it_is_resumed(gate: Gate) -> None:
    gate.write_tier(speed=False)
    planted = Script(fault=Fault.CRASH_MID_RUN, fault_after_requests=BEFORE_ROUNDS + PROMPTS // 2)
    stdout, _ = gate.run("--launches", "2", status=10, b=planted)
    assert "side B: SERVER_DIED: server 'vllm-eagle3-tiny': ended with status 1" in stdout
    stdout, _ = gate.run("--launches", "2", "--resume", status=0, b=Script())
    assert "UPGRADE: " in stdout


def test_a_step_that_takes_longer_is_found_and_called_so(gate: Gate) -> None:
    slow = Script(step_ms=12.0)
    stdout, _ = gate.run("--case", EAGLE3, "--launches", "8", status=1, b=slow)
    assert f"{EAGLE3} is worse by the cost of a step" in stdout
    judged = {one.metric: one for one in gate.report().run.verdicts}
    assert judged["acceptance_length_tokens"].outcome is Outcome.PASS
    assert judged["step_p50_ms"].outcome is Outcome.REGRESSED
    cause = judged["throughput_tokens_per_s"].cause
    assert cause is not None
    assert cause.parts[0][0] == "the cost of a step"
