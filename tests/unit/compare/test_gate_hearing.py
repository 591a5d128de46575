"""Which answers a gate still wants to hear, and for how long."""

from pathlib import Path

import pytest

from specreg.compare.gate.beside import SideError
from specreg.compare.gate.hearing import Hearing
from specreg.compare.gate.journal import Journal
from specreg.compare.gate.launched import Arm
from specreg.compare.gate.plan import Pair
from specreg.compare.gate.texts import TextsJudged
from specreg.engines.registry import engine_named
from specreg.servers.server import Server
from specreg.verdicts.judge import Outcome
from tests.unit import builders

ROOT = Path(__file__).parents[3]
PAIR = Pair(a=builders.CASE, b=builders.CASE)


@pytest.fixture
def hearing(tmp_path: Path) -> Hearing:
    journal = Journal(path=tmp_path / "gate.jsonl")
    return Hearing(pairs=(PAIR,), root=ROOT, journal=journal, show=lambda _: None)


def test_what_nobody_could_compare_in_two_blocks_is_wanted_no_more(hearing: Hearing) -> None:
    assert hearing.wants([PAIR.id])
    for block in (1, 1, 2):
        assert hearing.wants([PAIR.id])
        hearing.begin([PAIR], block)
    assert not hearing.wants([PAIR.id])
    assert [one.outcome for one in hearing.judged] == [Outcome.INVALID]


def test_what_was_compared_before_isnt_wanted_again(hearing: Hearing) -> None:
    compared = TextsJudged(case_id=PAIR.id, outcome=Outcome.PASS, reason="", asked=4)
    hearing.take_over([compared])
    assert not hearing.wants([PAIR.id])
    assert hearing.judged == (compared,)


def test_a_server_that_dies_while_it_is_heard_is_told(hearing: Hearing) -> None:
    gone = Server(
        spec=builders.SPEC,
        engine=engine_named("vllm"),
        base_url="http://127.0.0.1:9",
        model="model",
        target="target",
        draft=None,
        engine_version="1.0",
    )
    with pytest.raises(SideError, match="answers no more"):
        hearing.listen(PAIR, {Arm.A: gone})
    [untold] = hearing.judged
    assert untold.reason.startswith("side A: ")
