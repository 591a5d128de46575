"""What two sides' answers come to, where each is asked of the other's tokens, and what is kept."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Never

import msgspec
import pytest

from specreg.compare import answers
from specreg.compare.answers import AnswerComparison, compare_answers, judged_by_a, why_not_compared
from specreg.compare.pairs import Pair, Side
from specreg.core.errors import InvalidMeasurementError
from specreg.correctness.checks import LOSSLESS, ask_greedy
from specreg.correctness.lossless import Losslessness, Parting
from specreg.engines.wire_format import Transcript
from specreg.load.rounds import Round
from specreg.load.token_client import encode_prompts
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Replay
from specreg.servers.server import StartedServer
from specreg.verdicts.verdict import Outcome, Verdict
from tests.doubles.vllm.script import Script
from tests.doubles.vllm.steps import likeliest
from tests.unit import builders
from tests.unit.builders.gates import PAIR
from tests.unit.builders.started_servers import start

SERVER = SimpleNamespace(check_alive=lambda: None, endpoint=None)
ALONE_A = {Side.A: SERVER}
ALONE_B = {Side.B: SERVER}


@pytest.fixture
def comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AnswerComparison:
    """Of sides that answer the same."""
    same = Verdict(case_id=PAIR.id, metric=LOSSLESS, outcome=Outcome.PASS)
    for name in ("load_case_prompts", "ask_greedy"):
        monkeypatch.setattr(answers, name, lambda *_: ())
    monkeypatch.setattr(answers, "ask_each_turn", lambda *arguments: arguments[-1](()))
    monkeypatch.setattr(answers, "compare_answers", lambda *_: same)
    return begun(tmp_path)


def begun(folder: Path) -> AnswerComparison:
    path = folder / "answers.json"
    return AnswerComparison(pairs=[PAIR], root=builders.ROOT, path=path, show=lambda _: None)


def test_answers_of_servers_that_are_up_in_turn_are_kept_for_the_other_side(
    comparison: AnswerComparison, tmp_path: Path
) -> None:
    comparison.ask(PAIR, ALONE_A, 1, {})  # type: ignore[arg-type]
    assert (comparison.verdicts[0].outcome, comparison.wants([PAIR])) == (Outcome.INVALID, True)
    resumed = begun(tmp_path)
    resumed.take_over()
    resumed.ask(PAIR, ALONE_B, 1, {})  # type: ignore[arg-type]
    assert (resumed.verdicts[0].outcome, resumed.wants([PAIR])) == (Outcome.PASS, False)


def refuse(*_: object) -> Never:
    raise InvalidMeasurementError("NO_IDS", "it answers in text")


@pytest.mark.parametrize(
    ("of_b", "outcome"),
    [("ab", Outcome.PASS), ("cd", Outcome.INVALID), ("", Outcome.INVALID)],
    ids=["the-same", "another", "unknown"],
)
def test_answers_that_were_the_same_when_they_were_timed_are_not_asked_for_again(
    comparison: AnswerComparison, monkeypatch: pytest.MonkeyPatch, of_b: str, outcome: Outcome
) -> None:
    def timed(digest: str) -> Measurement:
        trace = builders.trace(builders.chunk(9))
        trace = msgspec.structs.replace(trace, prompt_id="chat-0", answer_sha256=digest)
        replay = Replay(rounds=(Round(traces=(trace,), started_ns=0, ended_ns=9),))
        return dataclasses.replace(builders.measurement({}), replay=replay)

    monkeypatch.setattr(answers, "load_case_prompts", lambda *_: builders.PROMPTS[:1])
    monkeypatch.setattr(answers, "ask_greedy", refuse)
    both = {**ALONE_A, **ALONE_B}
    measured = {Side.A: timed("ab"), Side.B: timed(of_b)}
    comparison.ask(PAIR, both, 1, measured)  # type: ignore[arg-type]
    [verdict] = comparison.verdicts
    assert (verdict.outcome, verdict.value) == (outcome, 1.0 if outcome is Outcome.PASS else None)
    assert ("it answers in text" in verdict.explanation) == (outcome is Outcome.INVALID)


def test_what_cant_be_compared_on_two_launches_is_asked_for_no_more(
    comparison: AnswerComparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "ask_greedy", refuse)
    for number in (1, 2):
        assert comparison.wants([PAIR])
        comparison.ask(PAIR, ALONE_A, number, {})  # type: ignore[arg-type]
    assert not comparison.wants([PAIR])
    [verdict] = comparison.verdicts
    assert verdict.explanation == "side A: NO_IDS: it answers in text"


Said = tuple[Transcript, ...]
Questions = Sequence[tuple[Sequence[int], Sequence[int]]]
FOUND = Losslessness(
    prompts=3,
    asked=3,
    partings=(
        Parting(prompt_id="x", position=2, plain=70, other=7, text=(1, 2, 5, 6), gap_nats=0.1),
        Parting(prompt_id="y", position=1, plain=90, other=9, text=(3, 8), gap_nats=0.0),
    ),
    noise=None,
    rounding_nats=0.25,
)


@pytest.mark.parametrize(
    ("scores", "gaps_nats"),
    [
        pytest.param([(-0.8, -0.7), (-3.1, -0.1)], (0.1, 3.0), id="far from A's own"),
        pytest.param([(-0.8, -0.7), (-0.1, -3.1)], (0.1, 0.0), id="likelier to A too"),
    ],
)
def test_what_b_calls_rounding_a_is_asked_of(
    scores: list[tuple[float, float]], gaps_nats: tuple[float, ...]
) -> None:
    """At the same places, of the same tokens."""
    questions_asked: list[Questions] = []

    def score(questions: Questions) -> Sequence[Sequence[float]]:
        questions_asked.append(questions)
        return scores

    judged = judged_by_a(FOUND, score)
    assert questions_asked == [[((1, 2, 5, 6), (70, 7)), ((3, 8), (90, 9))]]
    assert [parting.gap_nats for parting in judged.partings] == pytest.approx(gaps_nats)
    assert [failure.prompt_id for failure in judged.failures] == ["y"] * (gaps_nats[1] > 0.25)


WITHOUT_IDS = builders.on_server(engine="tensorrt_llm")


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (builders.CASE, builders.CASE, ""),
        (builders.CASE, dataclasses.replace(builders.CASE, temperature=0.7), "drawn at a temper"),
        (builders.CASE, builders.on_server(dtype="bfloat16"), "the targets of both sides differ"),
        (builders.CASE, dataclasses.replace(builders.CASE, prompts=3), "asked otherwise"),
        (WITHOUT_IDS, WITHOUT_IDS, "tells no token ids"),
    ],
    ids=["alike", "drawn", "of another format", "other prompts", "no ids"],
)
def test_why_answers_arent_compared_is_told(a: Case, b: Case, words: str) -> None:
    assert words in why_not_compared(a, b)
    assert bool(why_not_compared(a, b)) == bool(words)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedServer]:
    with start(tmp_path_factory.mktemp("texts"), Script()) as running:
        yield running


@pytest.fixture(scope="module")
def answers_of_a(server: StartedServer) -> Said:
    texts = encode_prompts(server.endpoint, builders.CASE, builders.PROMPTS)
    return ask_greedy(builders.CASE, server, texts)


def compared(answers_of_a: Said, rounding_nats: float = 0.25, **servers: StartedServer) -> Verdict:
    """What side B's server comes to, and A's where there is one, of A's answers."""
    case = dataclasses.replace(builders.CASE, rounding_nats=rounding_nats)
    up = {Side[name]: server for name, server in servers.items()}
    return compare_answers(Pair(a=case, b=case), up, builders.PROMPTS, answers_of_a)


def changed(answers_of_a: Said, position: int, token: int) -> Said:
    """The first answer with another token there."""
    first, *later = answers_of_a
    output = (*first.output[:position], token, *first.output[position + 1 :])
    return dataclasses.replace(first, output=output), *later


def test_the_same_answers_are_equal(server: StartedServer, answers_of_a: Said) -> None:
    verdict = compared(answers_of_a, B=server)
    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 1.0)
    assert verdict.explanation == "100.0% of 6 answers are equal"


def test_a_token_that_b_would_never_say_is_wrong(server: StartedServer, answers_of_a: Said) -> None:
    verdict = compared(changed(answers_of_a, 3, 7), B=server)
    assert verdict.outcome is Outcome.WRONG
    assert (
        f"prompt 'chat-0', token 4: 7 of A, {answers_of_a[0].output[3]} of B, "
        in verdict.explanation
    )


@pytest.mark.parametrize("a_knows", [True, False], ids=["A agrees", "A can't say"])
def test_where_it_is_up_side_a_is_asked_as_well(
    server: StartedServer, answers_of_a: Said, *, a_knows: bool
) -> None:
    """The scripted server says of the second likeliest token that it is 1 nat less likely."""
    rounded = changed(answers_of_a, 3, likeliest(answers_of_a[0].output[3])[1])
    a = server if a_knows else dataclasses.replace(server, model="another")
    verdict = compared(rounded, 1.5, A=a, B=server)
    assert verdict.outcome is Outcome.PASS
    assert verdict.explanation.endswith("; 1 part where both tokens lie within 1.50 nats")


def test_a_prompt_that_is_rendered_otherwise_is_wrong(
    server: StartedServer, answers_of_a: Said
) -> None:
    rendered = (dataclasses.replace(answers_of_a[0], prompt=(1, 2)), *answers_of_a[1:])
    verdict = compared(rendered, B=server)
    assert verdict.outcome is Outcome.WRONG
    assert verdict.explanation.startswith("B makes other tokens of 1 prompts: 'chat-0'")
