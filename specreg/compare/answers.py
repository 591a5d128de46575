"""Compare the answers of a gate's two sides, token by token. Nothing here is timed.

Each side generates its greedy answers once. Where two answers differ for the first time, B's server
reports the probabilities of both tokens. If these show no failure and A's server is running, A's
server also reports its probabilities. Two tokens of nearly equal probability may change places by
rounding, for example because another version of the engine has other kernels.
"""

import contextlib
import dataclasses
import functools
import itertools
import operator
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

import msgspec

from specreg.compare.pairs import COMPARED, Pair, Side
from specreg.core.counted import counted
from specreg.core.errors import InvalidMeasurementError
from specreg.core.reasons import Reason
from specreg.correctness.checks import LOSSLESS, ask_greedy, other_batch, were_equal
from specreg.correctness.lossless import Losslessness, Score, check_lossless, score_partings
from specreg.correctness.turns import Texts, ask_each_turn, turns_of
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import Transcript
from specreg.load.token_client import score
from specreg.matrix.case import ROUNDING_NATS, Case
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.metrics import Replay
from specreg.runs.ledger import Checked, Ledger
from specreg.servers.server import Server
from specreg.verdicts.verdict import Outcome, Verdict

_MAX_LAUNCHES = 2
"""After the answers of a pair couldn't be compared on this many launches, no further launch is made
for the answers alone."""
ANSWERS = "answers"
"""The name of the check whose lines have the answers of side A."""
_MAX_NAMED = 3
"""The most prompts that a message names."""
_MAX_TOKEN_ID = 2**31 - 1
"""The largest token id that every engine takes: engines keep ids as signed numbers of 32 bits."""
_MAX_TOKEN_CHARACTERS = 1024
"""More characters than a token of any vocabulary has."""
_MAX_REASON_CHARACTERS = 20_000
"""More characters than a verdict's reason has, which names a few prompts at most."""
_Frac = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]


class SavedVerdict(msgspec.Struct, frozen=True):
    """The part of a verdict on answers that differs between verdicts.

    Attributes:
        outcome: PASS or WRONG. Answers with any other outcome are compared again.
        value: the share of equal answers; None if the sides tokenize the prompts
            differently.
        reason: why the verdict has its outcome; None if the timed answers were equal.
    """

    outcome: Literal["PASS", "WRONG"]
    value: _Frac | None = None
    reason: Reason | None = None

    @classmethod
    def of(cls, verdict: Verdict) -> Self:
        """Return what a ledger keeps of a verdict on answers that were compared."""
        outcome: Literal["PASS", "WRONG"] = "PASS"
        if verdict.outcome is Outcome.WRONG:
            outcome = "WRONG"
        return cls(outcome, value=verdict.value, reason=verdict.reason)


EQUAL_WHEN_TIMED = SavedVerdict("PASS", value=1.0)
"""The verdict on answers that were equal when both sides were timed, so nobody is asked again."""


def answer_verdict(pair: Pair, ledger: Ledger) -> Verdict:
    """Return the verdict on the answers of a pair; INVALID if they weren't compared yet."""
    obstacle = why_not_compared(pair.a, pair.b)
    if obstacle:
        return _verdict_on(pair, Outcome.NOT_COMPARABLE, reason=Reason(text=obstacle))
    line = ledger.check(pair.id, LOSSLESS)
    if line is not None:
        saved = msgspec.convert(line.verdict, SavedVerdict)
        outcome = Outcome(saved.outcome)
        return _verdict_on(pair, outcome, value=saved.value, reason=saved.reason)

    failures = [
        failure
        for failure in ledger.failures
        if (failure.case_id, failure.check) == (pair.id, LOSSLESS)
    ]
    not_yet = Reason.of("answers_not_compared")
    return _verdict_on(pair, Outcome.INVALID, reason=failures[-1].reason if failures else not_yet)


def wants_answers(pairs: Iterable[Pair], ledger: Ledger) -> bool:
    """Return whether a further launch should try to compare the answers of these pairs."""
    return any(_is_worth_asking(pair, ledger) for pair in pairs)


def _is_worth_asking(pair: Pair, ledger: Ledger) -> bool:
    """Return whether the answers of a pair are missing, and few launches tried to compare them."""
    if answer_verdict(pair, ledger).outcome is not Outcome.INVALID:
        return False

    # A launch that was taken over from an interrupted gate tried nothing.
    made = [
        launch for launch in ledger.launches if launch.case_id == pair.id and not launch.is_resumed
    ]
    numbers_of_a, numbers_of_b = (
        {launch.number for launch in made if launch.arm == side} for side in COMPARED
    )
    return len(numbers_of_a & numbers_of_b) < _MAX_LAUNCHES


def can_ask(pair: Pair, number: int, sides: Collection[Side], ledger: Ledger) -> bool:
    """Return whether the running servers of a launch have something to answer for a pair.

    Args:
        pair: the case as both sides run it.
        number: the number of the launch, on which both the pair was measured.
        sides: the sides whose servers run.
        ledger: the ledger of the gate.
    """
    if answer_verdict(pair, ledger).outcome is not Outcome.INVALID:
        return False
    failures = ledger.failures_of(pair.id, number, LOSSLESS)
    has_failed = any(failure.arm in sides for failure in failures)
    launches = [ledger.find(pair.id, number, side) for side in sides]
    if has_failed or any(launch is None or launch.is_resumed for launch in launches):
        return False
    if {*sides} >= {*COMPARED}:
        return True

    # If the sides run in turn, A answers first, and B's answers are compared with A's.
    knows_a = ledger.check(pair.id, ANSWERS) is not None
    return knows_a if Side.B in sides else not knows_a


def were_all_equal(pair: Pair, number: int, prompts: Sequence[Prompt], ledger: Ledger) -> bool:
    """Return whether both sides were timed on a launch, with equal answers to every prompt."""
    launches = [ledger.find(pair.id, number, side) for side in COMPARED]
    rounds_of_a, rounds_of_b = (
        launch.measurement.replay.rounds if launch and launch.measurement.replay else ()
        for launch in launches
    )

    # `were_equal` compares a case with its control, and here side B with side A.
    timed = Replay(rounds=rounds_of_b, control_rounds=rounds_of_a)
    return all(were_equal(timed, prompt) for prompt in prompts)


def ask_a(pair: Pair, server: Server, prompts: Sequence[Prompt]) -> tuple[Transcript, ...]:
    """Return the answers that side A generates.

    Raises:
        InvalidMeasurementError: the server doesn't answer in token ids.
        ServerDiedError: the server died.
    """
    ask = functools.partial(ask_greedy, pair.a, server)
    turns = ask_each_turn(server.endpoint, pair.a, prompts, ask)
    return tuple(turn.answer for turn in turns)


def check_saved(pair: Pair, root: Path, line: Checked) -> None:
    """Check a line about the answers of a pair, which may come from another machine.

    Raises:
        msgspec.ValidationError: the line doesn't fit the pair.
    """
    if line.check == ANSWERS:
        _check_answers(pair, root, line.answers)
    else:
        _check_verdict(pair, line)


def _check_verdict(pair: Pair, line: Checked) -> None:
    """Check that a line can have a verdict on the answers of a pair."""
    verdict = msgspec.convert(line.verdict, SavedVerdict)
    if why_not_compared(pair.a, pair.b):
        raise msgspec.ValidationError("it has a verdict on answers that can't be compared")
    if verdict.outcome == "PASS" and verdict.value is None:
        raise msgspec.ValidationError("its verdict has no value")
    reason = verdict.reason
    if reason is not None and (reason.shown_code or len(str(reason)) > _MAX_REASON_CHARACTERS):
        raise msgspec.ValidationError("its verdict has an impossible reason")


def _check_answers(pair: Pair, root: Path, answers: Sequence[Transcript]) -> None:
    """Check that side A can have given these answers to the prompts of a pair."""
    case = pair.a
    prompts = load_case_prompts(root, case)[: case.request.prompts]
    turns = sum(turns_of(case, prompt) for prompt in prompts)
    if len(answers) != turns:
        problem = f"it has {counted(len(answers), 'answer')}, needed {turns}"
        raise msgspec.ValidationError(problem)
    has_later_turns = turns > len(prompts)
    for answer in answers:
        problems = _answer_problems(case, answer, needs_text=has_later_turns)
        for problem in problems:
            raise msgspec.ValidationError(problem)


def _answer_problems(case: Case, answer: Transcript, *, needs_text: bool) -> Iterator[str]:
    """Yield what shows that a saved answer isn't one of side A.

    Args:
        case: the case as side A runs it.
        needs_text: whether the answer's text is sent as a part of later turns.
    """
    ids = (*answer.prompt, *answer.output)
    if not answer.prompt or min(ids) < 0 or max(ids) > _MAX_TOKEN_ID:
        yield "an answer has impossible token ids"
    tokens = len(answer.output)
    if tokens > case.request.output_cap_tokens:
        yield f"an answer has {tokens} tokens, needed {case.request.output_cap_tokens} or fewer"
    if answer.text is None and needs_text:
        yield "an answer has no text, which later turns need"
    characters = len(answer.text or "")
    if characters > _MAX_TOKEN_CHARACTERS * max(tokens, 1):
        yield f"an answer of {counted(tokens, 'token')} has {characters} characters"


def _verdict_on(
    pair: Pair, outcome: Outcome, *, value: float | None = None, reason: Reason | None = None
) -> Verdict:
    """Return a verdict on the answers of a pair. It doesn't count any launches."""
    return Verdict(
        case_id=pair.id, metric=LOSSLESS, outcome=outcome, value=value, reason=reason, launches=0
    )


def why_not_compared(a: Case, b: Case) -> str:
    """Return why the answers of both sides can't be compared; empty if they can.

    Args:
        a: the case as side A runs it.
        b: the case as side B runs it.
    """
    if engine_named(a.server.engine).token_api is None:
        return f"engine '{a.server.engine}' reports no token ids"
    if not a.request.temperature == b.request.temperature == 0:
        return "the answers are drawn at random, because the temperature isn't 0"
    if not all(engine_named(side.server.engine).is_lossless(side.server) for side in (a, b)):
        return "acceptance is pinned or lossy, so the answers depend on the drafts"
    target_settings = operator.attrgetter("target", "padding_layers", "widen", "dtype")
    if target_settings(a.server) != target_settings(b.server):
        return "the sides have different targets or number formats"
    request_settings = operator.attrgetter(
        "dataset", "prompts", "output_cap_tokens", "ignore_eos", "turns"
    )
    if request_settings(a.request) != request_settings(b.request):
        return "the sides get different requests"
    return ""


def compare_answers(
    pair: Pair,
    servers: Mapping[Side, Server],
    prompts: Sequence[Prompt],
    answers_of_a: Sequence[Transcript],
) -> Verdict:
    """Generate the answers of side B, and compare them with those of side A.

    Args:
        pair: the case as both sides run it.
        servers: the running servers, including that of side B.
        prompts: the prompts of the case.
        answers_of_a: A's answer to each turn, in order.

    Raises:
        InvalidMeasurementError: B's server doesn't answer in token ids, a reply of A has no text,
            or B's answers change too much with the batch size.
    """
    case = pair.b
    server = servers[Side.B]
    remaining_answers = iter(answers_of_a)

    # Both sides get A's replies as the context of the later turns. Otherwise one different token
    # would change all later prompts.
    def next_answers_of_a(texts: Texts) -> list[Transcript]:
        return list(itertools.islice(remaining_answers, len(texts)))

    turns = ask_each_turn(server.endpoint, case, prompts, next_answers_of_a)

    # If the sides have different prompt tokens, their answers can't be compared.
    tokenized_otherwise = [f"'{turn.name}'" for turn in turns if turn.text != turn.answer.prompt]
    if tokenized_otherwise:
        examples = ", ".join(tokenized_otherwise[:_MAX_NAMED])
        amount = counted(len(tokenized_otherwise), "prompt")
        reason = Reason.of("tokens_differ", prompts=amount, examples=examples)
        return _verdict_on(pair, Outcome.WRONG, reason=reason)

    # Compare the answers. `check_lossless` expects the probabilities from the server of the plain
    # answers, those without speculation. B's server reports them, so B's answers take the place of
    # the plain ones. `regenerate_b` shows whether B's answers depend on the batch size.
    names = [turn.name for turn in turns]
    texts = [turn.text for turn in turns]
    ask_b = functools.partial(ask_greedy, case, server, texts)
    regenerate_b = None
    batch = other_batch(case)
    if batch:
        regenerate_b = functools.partial(ask_b, batch)
    answers_of_b = ask_b()
    score_on_b = functools.partial(score, server.endpoint)

    # A case may allow no rounding for speculation, but another version may have other kernels.
    rounding_nats = max(case.judging.rounding_nats, ROUNDING_NATS)
    losslessness = check_lossless(
        names, answers_of_b, answers_of_a, regenerate_b, score_on_b, rounding_nats=rounding_nats
    )

    # The probabilities of A's server are more meaningful, because A is the reference.
    server_of_a = servers.get(Side.A)
    if server_of_a is not None and not losslessness.failures:
        score_on_a = functools.partial(score, server_of_a.endpoint)
        # Without A's probabilities, those of B still decide.
        with contextlib.suppress(InvalidMeasurementError):
            losslessness = judged_by_a(losslessness, score_on_a)

    outcome = Outcome.PASS
    if losslessness.failures:
        outcome = Outcome.WRONG
    differences = losslessness.describe("of B", "of A")
    reason = Reason.of("answers_compared", differences=differences)
    return _verdict_on(pair, outcome, value=losslessness.equal_frac, reason=reason)


def judged_by_a(by_b: Losslessness, score_on_a: Score) -> Losslessness:
    """Replace the gaps that B's server reports by those that A's server reports.

    A new gap is how much more probable A's token is than B's. If A finds B's token more probable
    than its own, B's answer is no worse, and the gap is 0.

    Args:
        by_b: the comparison with the gaps of B's server, without a failure.
        score_on_a: asks A's server for the probabilities of tokens.
    """
    partings = []
    for parting in score_partings(by_b.partings, score_on_a):
        # `check_lossless` got B's answers as the plain ones, so a scored gap is how much likelier
        # B's token is than A's. The new gap has the opposite sign.
        gap_nats = max(0.0, -(parting.gap_nats or 0.0))
        partings.append(dataclasses.replace(parting, gap_nats=gap_nats))
    return dataclasses.replace(by_b, partings=tuple(partings))
