import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from specreg.compare.gate.journal import Begun, Journal, Rehearsed, Spent, resumed
from specreg.compare.gate.launched import Arm, Launched
from specreg.compare.gate.texts import TextsJudged, TextsSaid
from specreg.core.errors import SpecregError
from specreg.verdicts.judge import Outcome
from tests.unit import builders

BEGUN = Begun(
    a="vllm 0.31.0",
    b="vllm 0.32.0",
    cases="[]",
    environment="cpu",
    files_sha256="ab",
    together=True,
)
LAUNCHED = Launched(
    case_id="case",
    arm=Arm.A2,
    block=1,
    number=3,
    values={"ready_s": 1.5},
    acceptance=builders.acceptance(builders.counts(1, 2, 3)),
)
LINES = (
    Rehearsed(),
    LAUNCHED,
    Spent(launch_s=2.0),
    TextsSaid(case_id="case", prompts=((1, 2),), answers=((3,),)),
    TextsJudged(case_id="case", outcome=Outcome.PASS, reason="", asked=1, equal_frac=1.0),
)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "gate.jsonl"
    journal, earlier = resumed(path, BEGUN, resume=False)
    assert earlier == ()
    for line in LINES:
        journal.write(line)
    assert resumed(path, BEGUN, resume=True)[1] == LINES


def test_a_torn_line_is_left_out_and_what_follows_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "gate.jsonl"
    journal, _ = resumed(path, BEGUN, resume=False)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(LAUNCHED)[:30])
    journal.write(Spent(launch_s=1.0))
    assert tuple(journal.lines()) == (BEGUN, Spent(launch_s=1.0))


def test_a_gate_that_lies_there_isnt_written_over(tmp_path: Path) -> None:
    path = tmp_path / "gate.jsonl"
    journal, _ = resumed(path, BEGUN, resume=False)
    journal.write(LAUNCHED)
    with pytest.raises(SpecregError, match="holds a gate already; say --resume to go on"):
        resumed(path, BEGUN, resume=False)


@pytest.mark.parametrize("resume", [False, True])
def test_what_measured_nothing_is_in_nobodys_way(tmp_path: Path, resume: bool) -> None:  # noqa: FBT001 - a parameter
    path = tmp_path / "gate.jsonl"
    journal, _ = resumed(path, BEGUN, resume=False)
    journal.write(Rehearsed())
    other = msgspec.structs.replace(BEGUN, b="vllm 0.33.0")
    journal, earlier = resumed(path, other, resume=resume)
    assert earlier == ()
    assert tuple(journal.lines()) == (other,)
    assert resumed(path, other, resume=True)[1] == ()


def test_another_gate_isnt_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "gate.jsonl"
    journal, _ = resumed(path, BEGUN, resume=False)
    journal.write(LAUNCHED)
    other = msgspec.structs.replace(BEGUN, b="vllm 0.33.0", environment="gpu")
    with pytest.raises(SpecregError, match="of another gate, with other b and environment"):
        resumed(path, other, resume=True)


def test_a_folder_that_cant_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SpecregError, match="make room or mend its rights"):
        Journal(path=tmp_path / "file" / "gate.jsonl").write(BEGUN)


HOLDER = """
import sys
from pathlib import Path
from specreg.compare.gate.journal import resumed
from tests.unit.compare.test_gate_journal import BEGUN
held = resumed(Path(sys.argv[1]), BEGUN, resume=True)
print("held", flush=True)
sys.stdin.read()
"""


def test_two_gates_dont_share_a_folder(tmp_path: Path) -> None:
    """Resumed at once, each would write its launches between those of the other."""
    path = tmp_path / "gate.jsonl"
    other = subprocess.Popen(
        (sys.executable, "-c", HOLDER, path),
        cwd=builders.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        before = path.read_bytes()
        said = f"'{tmp_path}': another gate is at work there; wait for its end, or name another"
        with pytest.raises(SpecregError, match=re.escape(said)):
            resumed(path, BEGUN, resume=True)
        assert path.read_bytes() == before
    resumed(path, BEGUN, resume=True)
