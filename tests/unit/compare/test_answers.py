"""Two sides' answers are compared token by token, and kept until both sides were asked."""

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.acceptance.trace import ANSWER_DIGEST_VERSION
from specreg.compare.answers import (
    answer_verdict,
    compare_answers,
    judged_by_a,
    wants_answers,
    why_not_compared,
)
from specreg.compare.execute import GateExecutor
from specreg.compare.gate import take_over_gate
from specreg.compare.options import GateOptions
from specreg.compare.pairs import COMPARED, Pair, Side
from specreg.compare.plan import GateStep
from specreg.core.errors import UnsupportedError
from specreg.core.reasons import Reason
from specreg.correctness.checks import LOSSLESS, ask_greedy
from specreg.correctness.lossless import Losslessness, Parting
from specreg.engines.wire_format import Transcript
from specreg.load.rounds import Round
from specreg.load.token_client import encode_prompts
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Replay
from specreg.runs.ledger import LEDGER, Checked, Ledger, MeasuredLaunch
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.servers.server import Server, StartedServer
from specreg.verdicts.verdict import Outcome, Verdict
from tests.doubles.vllm.script import Script
from tests.doubles.vllm.steps import likeliest
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.gates import failed, key_of
from tests.unit.builders.started_servers import start

Show = Callable[[str], None]
CASE_PAIR = Pair(a=builders.CASE, b=builders.CASE)
OTHER = builders.on_server(method="ngram")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartedServer]:
    """A scripted server, which serves as side A as well as side B."""
    with start(tmp_path_factory.mktemp("texts"), Script()) as running:
        yield running


@pytest.fixture
def refusing_server(server: StartedServer) -> StartedServer:
    """The same server, asked for a model that it doesn't have."""
    return dataclasses.replace(server, model="another")


OPTIONS = GateOptions(a="vllm", b="vllm", root=builders.ROOT, show=lambda _: None)


def ledger_in(folder: Path, pair: Pair = CASE_PAIR, *, show: Show = lambda _: None) -> Ledger:
    """The ledger of a folder, as a resumed gate of a pair has it."""
    ledger = Ledger(folder / LEDGER)
    take_over_gate(ledger, [pair], key_of, dataclasses.replace(OPTIONS, show=show))
    return ledger


def ask(ledger: Ledger, servers: Mapping[Side, Server], number: int = 1) -> Verdict:
    """Compare the answers of a pair on some running servers, and return the verdict."""
    run_context = runs.context(ledger.path.parent)
    all_servers = runs.all_servers(run_context)
    executor = GateExecutor(
        root=builders.ROOT,
        servers=RunningServers(
            launcher=all_servers.launcher, logs=all_servers.logs, by_side=servers
        ),
        ledger=ledger,
        options=OPTIONS,
        key_of=key_of,
    )
    step = GateStep((CASE_PAIR,), number, tuple(servers), LOSSLESS)
    ledger.extend(executor.execute(step))
    return answer_verdict(CASE_PAIR, ledger)


@dataclass(slots=True, kw_only=True, eq=False)
class RunningServers(Servers):
    """Servers that others have started, by side."""

    by_side: Mapping[Side, Server]

    def handle(self, launch: Launch) -> ServerHandle:
        running = contextlib.nullcontext(self.by_side[Side(launch.side)])
        return self._handles.setdefault(launch, runs.handle(launch, lambda _: running))


def test_answers_of_side_a_are_kept_until_side_b_is_up(
    server: StartedServer, tmp_path: Path
) -> None:
    of_a = ask(ledger_in(tmp_path), {Side.A: server})
    assert of_a.outcome is Outcome.INVALID

    resumed = ledger_in(tmp_path)
    assert wants_answers([CASE_PAIR], resumed)
    assert ask(resumed, {Side.B: server}).outcome is Outcome.PASS
    assert not wants_answers([CASE_PAIR], resumed)


SOUND_VERDICT = {"outcome": "PASS", "value": 1.0}
WRONG_VERDICT = {"outcome": "WRONG", "value": 0.5, "reason": {"text": "they differ"}}


def taken_over(folder: Path, *lines: Checked | bytes) -> tuple[Verdict, list[str]]:
    """Return the verdict of a comparison that takes over a ledger of these lines, and its words."""
    contents = [
        line if isinstance(line, bytes) else msgspec.json.encode(line) + b"\n" for line in lines
    ]
    (folder / LEDGER).write_bytes(b"".join(contents))
    said: list[str] = []
    ledger = ledger_in(folder, show=said.append)
    return answer_verdict(CASE_PAIR, ledger), said


def line_of(side: Side, check: str, pair: Pair = CASE_PAIR, **fields: Any) -> Checked:  # noqa: ANN401 - any field
    """Return a line of the present version about a check of a pair's side."""
    present: dict[str, Any] = {"digest": ANSWER_DIGEST_VERSION, **fields}
    return Checked(key=key_of(pair, side, 1), check=check, **present)


def saved_verdict(**changes: object) -> Checked:
    """Return a line with a verdict on the pair that has some fields changed."""
    return line_of(Side.B, "lossless_frac", verdict={**SOUND_VERDICT, **changes})


def saved_answers(count: int = 4, **changes: Any) -> Checked:  # noqa: ANN401 - any field
    """Return a line with answers to the pair's prompts, the first of which is changed."""
    answer = Transcript(prompt=(1, 2), output=(3,), text="x")
    first, *others = [answer] * count
    return line_of(Side.A, "answers", answers=(dataclasses.replace(first, **changes), *others))


def test_a_verdict_that_fits_its_pair_is_taken_over(tmp_path: Path) -> None:
    verdict, said = taken_over(tmp_path, saved_verdict(**WRONG_VERDICT))
    assert (verdict.outcome, verdict.value, verdict.launches) == (Outcome.WRONG, 0.5, 0)
    assert (verdict.case_id, verdict.metric) == (CASE_PAIR.id, "lossless_frac")
    assert verdict.explanation == "they differ"
    assert said == []
    assert taken_over(tmp_path, saved_answers())[1] == []


def test_answers_of_another_pair_are_of_another_gate(tmp_path: Path) -> None:
    line = line_of(Side.B, "lossless_frac", Pair(a=OTHER, b=OTHER), verdict=SOUND_VERDICT)
    with pytest.raises(UnsupportedError, match="is of another gate"):
        taken_over(tmp_path, line)


def encoded(line: Checked) -> bytes:
    return msgspec.json.encode(line) + b"\n"


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(encoded(saved_verdict())[:-9], id="cut off"),
        pytest.param(b"\xff" + encoded(saved_verdict()), id="invalid UTF-8"),
        pytest.param(b'{"x":' * 100_000, id="nested"),
        pytest.param(b"null", id="no object"),
        pytest.param(
            line_of(Side.B, "lossless_frac", verdict=SOUND_VERDICT, digest=1), id="version"
        ),
        pytest.param(
            line_of(Side.B, "lossless_frac", verdict=SOUND_VERDICT, digest=10**400),
            id="huge version",
        ),
        pytest.param(encoded(saved_verdict()).replace(b"1.0", b"NaN"), id="NaN"),
        pytest.param(encoded(saved_verdict()).replace(b"1.0", b"1e400"), id="1e400"),
    ],
)
def test_a_line_that_cannot_be_read_is_as_if_it_were_not_there(
    tmp_path: Path, content: bytes | Checked
) -> None:
    verdict, said = taken_over(tmp_path, content)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reason == Reason.of("answers_not_compared")
    assert said == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (saved_verdict(outcome="REGRESSED"), "Invalid enum value 'REGRESSED'"),
        (saved_verdict(outcome="INVALID"), "Invalid enum value 'INVALID'"),
        (saved_verdict(value=1.01), "Expected `float` <= 1.0"),
        (saved_verdict(value=-0.5), "Expected `float` >= 0.0"),
        (saved_verdict(value=None), f"{CASE_PAIR.id}: its verdict has no value"),
        (saved_verdict(reason={"text": 5}), "Expected `str`"),
        (saved_verdict(reason={"text": "x" * 10**7}), "its verdict has an impossible reason"),
        (saved_verdict(reason={"text": "x", "code": "UNCHECKED"}), "an impossible reason"),
        (saved_answers(count=3), "it has 3 answers, needed 4"),
        (saved_answers(count=5), "it has 5 answers, needed 4"),
        (saved_answers(prompt=()), "an answer has impossible token ids"),
        (saved_answers(output=(-1,)), "an answer has impossible token ids"),
        (saved_answers(output=(2**31,)), "an answer has impossible token ids"),
        (saved_answers(output=(5,) * 5000), "an answer has 5000 tokens, needed"),
        (saved_answers(text="x" * 2000), "an answer of 1 token has 2000 characters"),
    ],
    ids=itertools.count(),
)
def test_answers_that_do_not_fit_are_generated_again(
    tmp_path: Path, line: Checked, problem: str
) -> None:
    verdict, said = taken_over(tmp_path, line)
    assert verdict.outcome is Outcome.INVALID
    assert verdict.reason == Reason.of("answers_not_compared")
    (message,) = said
    assert problem in message
    assert message.endswith("; the answers are generated again")
    assert len(message) < 1000


def test_a_verdict_on_answers_that_cannot_be_equal_is_not_taken_over(tmp_path: Path) -> None:
    sampled_case = builders.with_request(builders.CASE, temperature=0.8)
    sampled = Pair(a=sampled_case, b=sampled_case)
    line = line_of(Side.B, "lossless_frac", sampled, verdict=SOUND_VERDICT)
    (tmp_path / LEDGER).write_bytes(encoded(line))
    ledger = ledger_in(tmp_path, sampled)
    assert answer_verdict(sampled, ledger).outcome is Outcome.NOT_COMPARABLE


def timed(answer_sha256: str) -> Measurement:
    """Return a measurement in which each prompt of the case got an answer of a digest."""
    trace = builders.trace(builders.chunk(9))
    traces = tuple(
        msgspec.structs.replace(trace, prompt_id=prompt.id, answer_sha256=answer_sha256)
        for prompt in load_case_prompts(builders.ROOT, builders.CASE)
    )
    replay = Replay(rounds=(Round(traces=traces, started_ns=0, ended_ns=9),))
    return dataclasses.replace(builders.measurement({}), replay=replay)


def ledger_of_timed(folder: Path, digest_of_b: str) -> Ledger:
    """The ledger of a gate that measured both sides, and got these answers of B and others of A."""
    ledger = Ledger(folder / LEDGER)
    for side, digest in ((Side.A, "ab"), (Side.B, digest_of_b)):
        ledger.add(
            MeasuredLaunch(case_id=CASE_PAIR.id, arm=side, number=1, measurement=timed(digest))
        )
    return ledger


def test_answers_that_were_equal_when_timed_are_not_asked_for_again(
    tmp_path: Path, refusing_server: StartedServer
) -> None:
    verdict = ask(ledger_of_timed(tmp_path, "ab"), dict.fromkeys(COMPARED, refusing_server))

    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 1.0)


@pytest.mark.parametrize("digest_of_b", ["cd", ""], ids=["another", "unknown"])
def test_answers_that_differed_when_timed_are_generated_again(
    tmp_path: Path, refusing_server: StartedServer, digest_of_b: str
) -> None:
    ledger = ledger_of_timed(tmp_path, digest_of_b)

    verdict = ask(ledger, dict.fromkeys(COMPARED, refusing_server))

    assert (verdict.outcome, verdict.value) == (Outcome.INVALID, None)
    assert verdict.explanation.startswith("side A: ")


def test_answers_that_two_launches_refused_are_not_requested_again(
    tmp_path: Path, refusing_server: StartedServer
) -> None:
    ledger = Ledger(tmp_path / LEDGER)
    for number in (1, 2):
        assert wants_answers([CASE_PAIR], ledger)
        for side in COMPARED:
            ledger.add(failed(side, number, pair=CASE_PAIR))
        verdict = ask(ledger, {Side.A: refusing_server}, number)

    assert not wants_answers([CASE_PAIR], ledger)
    assert verdict.explanation.startswith("side A: ")


Answers = tuple[Transcript, ...]
Questions = Sequence[tuple[Sequence[int], Sequence[int]]]
FOUND_BY_B = Losslessness(
    prompts=3,
    compared_by_token=3,
    partings=(
        Parting(
            prompt_id="x", position=2, plain=70, speculative=7, text=(1, 2, 5, 6), gap_nats=0.1
        ),
        Parting(prompt_id="y", position=1, plain=90, speculative=9, text=(3, 8), gap_nats=0.0),
    ),
    plain_partings=None,
    rounding_nats=0.25,
)


@pytest.mark.parametrize(
    ("scores", "gaps_nats"),
    [
        pytest.param([(-0.8, -0.7), (-3.1, -0.1)], (0.1, 3.0), id="far from A's own"),
        pytest.param([(-0.8, -0.7), (-0.1, -3.1)], (0.1, 0.0), id="likelier to A too"),
    ],
)
def test_side_a_is_asked_about_what_b_calls_rounding(
    scores: list[tuple[float, float]], gaps_nats: tuple[float, ...]
) -> None:
    """A is asked at the same positions about the same tokens."""
    questions_asked: list[Questions] = []

    def score(questions: Questions) -> Sequence[Sequence[float]]:
        questions_asked.append(questions)
        return scores

    judged = judged_by_a(FOUND_BY_B, score)
    assert questions_asked == [[((1, 2, 5, 6), (70, 7)), ((3, 8), (90, 9))]]
    assert [parting.gap_nats for parting in judged.partings] == pytest.approx(gaps_nats)
    assert [failure.prompt_id for failure in judged.failures] == ["y"] * (gaps_nats[1] > 0.25)


WITHOUT_IDS = builders.on_server(engine="tensorrt_llm")


@pytest.mark.parametrize(
    ("a", "b", "words"),
    [
        (builders.CASE, builders.CASE, ""),
        (builders.CASE, builders.with_request(builders.CASE, temperature=0.7), "drawn at random"),
        (builders.CASE, builders.on_server(dtype="bfloat16"), "different targets or number"),
        (builders.CASE, builders.with_request(builders.CASE, prompts=3), "get different requests"),
        (WITHOUT_IDS, WITHOUT_IDS, "reports no token ids"),
    ],
    ids=["alike", "drawn", "of another format", "other prompts", "no ids"],
)
def test_the_reason_for_not_comparing_answers_is_given(a: Case, b: Case, words: str) -> None:
    reason = why_not_compared(a, b)

    assert words in reason
    assert bool(reason) == bool(words)


@pytest.fixture(scope="module")
def answers_of_a(server: StartedServer) -> Answers:
    """What side A answered to the prompts."""
    texts = encode_prompts(server.endpoint, builders.CASE, builders.PROMPTS)
    return ask_greedy(builders.CASE, server, texts)


def compare(
    answers_of_a: Answers, rounding_nats: float = 0.25, **servers: StartedServer
) -> Verdict:
    """Compare A's answers with those of side B's server; `A` is the server of A if it is up."""
    case = builders.with_judging(builders.CASE, rounding_nats=rounding_nats)
    servers_by_side = {Side[name]: server for name, server in servers.items()}
    return compare_answers(Pair(a=case, b=case), servers_by_side, builders.PROMPTS, answers_of_a)


def with_token(answers: Answers, position: int, token: int) -> Answers:
    """Return answers of which the first has another token at a position."""
    first, *later = answers
    output = (*first.output[:position], token, *first.output[position + 1 :])
    return dataclasses.replace(first, output=output), *later


def test_the_same_answers_are_equal(server: StartedServer, answers_of_a: Answers) -> None:
    verdict = compare(answers_of_a, B=server)
    assert (verdict.outcome, verdict.value) == (Outcome.PASS, 1.0)
    equal = "100.0% of 6 answers are equal"
    assert verdict.reason == Reason.of("answers_compared", differences=equal)


def test_a_token_that_b_would_never_choose_is_wrong(
    server: StartedServer, answers_of_a: Answers
) -> None:
    verdict = compare(with_token(answers_of_a, 3, 7), B=server)
    assert verdict.outcome is Outcome.WRONG
    assert (
        f"prompt 'chat-0', token 4: 7 of A, {answers_of_a[0].output[3]} of B, "
        in verdict.explanation
    )


@pytest.mark.parametrize("a_knows", [True, False], ids=["A agrees", "A can't say"])
def test_side_a_is_asked_as_well_if_it_is_up(
    server: StartedServer, answers_of_a: Answers, *, a_knows: bool
) -> None:
    """The second likeliest token of the scripted server is 1 nat less likely."""
    rounded = with_token(answers_of_a, 3, likeliest(answers_of_a[0].output[3])[1])
    a = server if a_knows else dataclasses.replace(server, model="another")
    verdict = compare(rounded, 1.5, A=a, B=server)
    assert verdict.outcome is Outcome.PASS
    assert verdict.explanation.endswith("; differences that rounding explains (up to 1.50 nats): 1")


def test_a_prompt_that_b_tokenizes_otherwise_is_wrong(
    server: StartedServer, answers_of_a: Answers
) -> None:
    rendered = (dataclasses.replace(answers_of_a[0], prompt=(1, 2)), *answers_of_a[1:])
    verdict = compare(rendered, B=server)
    assert verdict.outcome is Outcome.WRONG
    assert verdict.reason == Reason.of("tokens_differ", prompts="1 prompt", examples="'chat-0'")
