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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from specreg.compare.pairs import Pair, Side
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
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Replay
from specreg.runs.ledger import Checked, Key, Ledger
from specreg.servers.server import Server
from specreg.verdicts.verdict import Outcome, Verdict

_MAX_LAUNCHES = 2
"""After the answers of a pair couldn't be compared on this many launches, no further launch is made
for the answers alone."""
_ANSWERS = "answers"
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


class _SavedVerdict(msgspec.Struct, frozen=True):
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


@dataclass(slots=True, kw_only=True)
class AnswerComparison:
    """Compares the answers of a gate's pairs, and records the answers and verdicts in its ledger.

    Attributes:
        pairs: the pairs that are compared.
        root: the root of the repository.
        ledger: the ledger of the gate.
        key_of: returns the key of a pair's side on the launch with a number.
        show: is called with a sentence about the progress.
        _answers: the answers of side A so far, by the id of the pair.
        _saved: the verdict on the answers of side B so far, by the id of the pair.
        _failures: why the answers of a pair couldn't be compared, by the id of the pair.
        _launches: the launches on which a comparison was tried, by the id of the pair.
    """

    pairs: Sequence[Pair]
    root: Path
    ledger: Ledger
    key_of: Callable[[Pair, Side, int], Key]
    show: Callable[[str], None]
    _answers: dict[str, tuple[Transcript, ...]] = field(default_factory=dict)
    _saved: dict[str, _SavedVerdict] = field(default_factory=dict)
    _failures: dict[str, Reason] = field(default_factory=dict)
    _launches: dict[str, set[int]] = field(default_factory=dict)

    def take_over(self) -> None:
        """Take over the answers and verdicts that the ledger has of an earlier command.

        The ledger may come from another machine. Answers that don't fit a pair are reported and
        left out, and are then generated again.
        """
        recorded = {
            (msgspec.structs.replace(key, launch=0), check): line
            for (key, check), line in self.ledger.recorded.checked.items()
        }
        for pair in self.pairs:
            answers = recorded.get((self.key_of(pair, Side.A, 0), _ANSWERS))
            verdict = recorded.get((self.key_of(pair, Side.B, 0), LOSSLESS))
            try:
                if verdict is not None:
                    self._saved[pair.id] = _checked_verdict(pair, verdict)
                if answers is not None:
                    self._answers[pair.id] = _checked_answers(pair, self.root, answers)
            except msgspec.ValidationError as error:
                message = f"'{self.ledger.path}': {pair.id}: {error}"
                self.show(f"{message}; the answers are generated again")
                self._saved.pop(pair.id, None)

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """For each pair the verdict on its answers, or one that says why they weren't compared."""
        return tuple(self._verdict(pair) for pair in self.pairs)

    def _verdict(self, pair: Pair) -> Verdict:
        """Return the verdict on the answers of a pair; INVALID if they weren't compared yet."""
        obstacle = why_not_compared(pair.a, pair.b)
        if obstacle:
            return _verdict_on(pair, Outcome.NOT_COMPARABLE, reason=Reason(text=obstacle))
        saved = self._saved.get(pair.id)
        if saved is not None:
            outcome = Outcome(saved.outcome)
            return _verdict_on(pair, outcome, value=saved.value, reason=saved.reason)
        not_yet = Reason.of("answers_not_compared")
        return _verdict_on(pair, Outcome.INVALID, reason=self._failures.get(pair.id, not_yet))

    def wants(self, pairs: Collection[Pair]) -> bool:
        """Return whether a further launch should try to compare the answers of these pairs."""
        for pair in pairs:
            tried_launches = self._launches.get(pair.id, ())
            is_missing = self._verdict(pair).outcome is Outcome.INVALID
            if is_missing and len(tried_launches) < _MAX_LAUNCHES:
                return True
        return False

    def ask(
        self,
        pair: Pair,
        servers: Mapping[Side, Server],
        launch: int,
        measured: Mapping[Side, Measurement],
    ) -> None:
        """Generate the answers of the sides whose servers are running, and compare them.

        If both sides were measured at the same time and all of their timed answers were equal,
        neither has to answer again.

        Args:
            pair: the case as both sides run it.
            servers: the running servers.
            launch: the number of the launch.
            measured: the measurements of this launch, by side.

        Raises:
            ServerDiedError: a server died.
            SpecregError: the answers can't be recorded.
        """
        if self._verdict(pair).outcome is not Outcome.INVALID:
            return
        self._launches.setdefault(pair.id, set()).add(launch)
        prompts = load_case_prompts(self.root, pair.a)[: pair.a.request.prompts]
        if _were_all_equal(measured, prompts):
            self._save(pair, launch, _SavedVerdict("PASS", value=1.0))
        side = Side.A
        try:
            self._ask_a(pair, servers, launch, prompts)
            side = Side.B
            self._compare_b(pair, servers, launch, prompts)
        except InvalidMeasurementError as error:
            self._failures[pair.id] = Reason(text=f"side {side}: {error}")
            # If a server is dead, this is the cause of the failure, and the launch ends.
            for server in servers.values():
                server.check_alive()

    def _save(self, pair: Pair, launch: int, verdict: _SavedVerdict) -> None:
        self._saved[pair.id] = verdict
        self.ledger.extend([Checked.of(self.key_of(pair, Side.B, launch), LOSSLESS, verdict)])

    def _ask_a(
        self, pair: Pair, servers: Mapping[Side, Server], launch: int, prompts: Sequence[Prompt]
    ) -> None:
        """Generate the answers of side A, if A's server is running and there are none yet."""
        server = servers.get(Side.A)
        if server is None or pair.id in self._saved or pair.id in self._answers:
            return
        ask = functools.partial(ask_greedy, pair.a, server)
        turns = ask_each_turn(server.endpoint, pair.a, prompts, ask)
        answers = tuple(turn.answer for turn in turns)
        self._answers[pair.id] = answers
        key = self.key_of(pair, Side.A, launch)
        self.ledger.extend([Checked.of(key, _ANSWERS, answers=answers)])

    def _compare_b(
        self, pair: Pair, servers: Mapping[Side, Server], launch: int, prompts: Sequence[Prompt]
    ) -> None:
        """Compare the answers of side B with those of A, unless a verdict exists.

        Nothing is done if B's server isn't running or the answers of A are missing.
        """
        can_compare = Side.B in servers and pair.id in self._answers
        if not can_compare or pair.id in self._saved:
            return
        self.show(f"{pair.id}: comparing the answers")
        verdict = compare_answers(pair, servers, prompts, self._answers[pair.id])
        outcome: Literal["PASS", "WRONG"] = "PASS"
        if verdict.outcome is Outcome.WRONG:
            outcome = "WRONG"
        self._save(pair, launch, _SavedVerdict(outcome, value=verdict.value, reason=verdict.reason))


def _checked_verdict(pair: Pair, line: Checked) -> _SavedVerdict:
    """Return the verdict of a line on the answers of a pair.

    Raises:
        msgspec.ValidationError: it can't be a verdict on these answers.
    """
    verdict = msgspec.convert(line.verdict, _SavedVerdict)
    if why_not_compared(pair.a, pair.b):
        raise msgspec.ValidationError("it has a verdict on answers that can't be compared")
    if verdict.outcome == "PASS" and verdict.value is None:
        raise msgspec.ValidationError("its verdict has no value")
    reason = verdict.reason
    if reason is not None and (reason.shown_code or len(str(reason)) > _MAX_REASON_CHARACTERS):
        raise msgspec.ValidationError("its verdict has an impossible reason")
    return verdict


def _checked_answers(pair: Pair, root: Path, line: Checked) -> tuple[Transcript, ...]:
    """Return the answers of a line, which side A gave to the prompts of a pair.

    Raises:
        msgspec.ValidationError: they can't be answers to these prompts.
    """
    case = pair.a
    prompts = load_case_prompts(root, case)[: case.request.prompts]
    turns = sum(turns_of(case, prompt) for prompt in prompts)
    if len(line.answers) != turns:
        problem = f"it has {counted(len(line.answers), 'answer')}, needed {turns}"
        raise msgspec.ValidationError(problem)
    has_later_turns = turns > len(prompts)
    for answer in line.answers:
        problems = _answer_problems(case, answer, needs_text=has_later_turns)
        for problem in problems:
            raise msgspec.ValidationError(problem)
    return line.answers


def _answer_problems(case: Case, answer: Transcript, *, needs_text: bool) -> Iterator[str]:
    """Yield what shows that a saved answer isn't one of side A.

    Args:
        case: the case as side A runs it.
        answer: the answer.
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


def _were_all_equal(measured: Mapping[Side, Measurement], prompts: Sequence[Prompt]) -> bool:
    """Return whether both sides were timed on this launch, with equal answers to every prompt."""
    measurement_of_a = measured.get(Side.A)
    measurement_of_b = measured.get(Side.B)
    if measurement_of_a is None or measurement_of_b is None:
        return False
    if measurement_of_a.replay is None or measurement_of_b.replay is None:
        return False
    # `were_equal` compares a case with its control, and here side B with side A.
    timed = Replay(
        rounds=measurement_of_b.replay.rounds, control_rounds=measurement_of_a.replay.rounds
    )
    return all(were_equal(timed, prompt) for prompt in prompts)


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

    Where two answers differ for the first time, B's server reports the probabilities of both
    tokens. If these probabilities show no failure and A's server is running, those of A's server
    decide.

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
