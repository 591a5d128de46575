"""Compare the answers of a gate's two sides, token by token; nothing here is timed.

Each side generates its answers once. Where two greedy answers part, B's server reports how likely
both tokens were, and so does A's if it is up as well. Two tokens of nearly equal probability may
change places by rounding, for instance because another version has other kernels.
"""

import contextlib
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.acceptance.trace import ANSWER_DIGEST
from specreg.compare.pairs import Pair, Side
from specreg.core.errors import InvalidMeasurementError
from specreg.core.files import MIB, UNREADABLE, read_regular, replace_file
from specreg.core.reasons import Reason
from specreg.core.values import hide_values
from specreg.correctness.checks import LOSSLESS, ask_greedy, other_batch, were_equal
from specreg.correctness.lossless import Losslessness, Score, check_lossless, score_partings
from specreg.correctness.turns import ask_each_turn
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import Transcript
from specreg.load.token_client import score
from specreg.matrix.case import ROUNDING_NATS, Case
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Replay
from specreg.servers.server import Server
from specreg.verdicts.verdict import Outcome, Verdict

_MAX_LAUNCHES = 2
"""After this many launches without a comparison, the gate stops trying to compare answers."""
_MAX_NAMED = 3


class _Known(msgspec.Struct):
    """The answers and verdicts in a gate's folder, with which a later command continues.

    Attributes:
        answers: by pair, what side A answered.
        verdicts: by pair, the verdict on the answers of side B.
        digest: the definition by which answers counted as equal; the first one if it isn't there.
    """

    answers: dict[str, tuple[Transcript, ...]] = {}
    verdicts: dict[str, Verdict] = {}
    digest: int = 1


@dataclass(slots=True, kw_only=True)
class AnswerComparison:
    """Compares the answers of a gate's pairs, and remembers what was compared.

    Attributes:
        pairs: what is compared.
        root: the repository.
        path: the file that keeps the answers.
        show: is called with a sentence about what goes on.
        _known: the answers and verdicts so far.
        _failures: by pair, why its answers couldn't be compared.
        _launches: by pair, the launches on which it was tried.
    """

    pairs: Sequence[Pair]
    root: Path
    path: Path
    show: Callable[[str], None]
    _known: _Known = field(default_factory=lambda: _Known(digest=ANSWER_DIGEST))
    _failures: dict[str, Reason] = field(default_factory=dict)
    _launches: dict[str, set[int]] = field(default_factory=dict)

    def take_over(self) -> None:
        """Load the answers that the folder has, if they can be read."""
        with contextlib.suppress(OSError, *UNREADABLE):
            known = msgspec.json.decode(read_regular(self.path, 1024 * MIB), type=_Known)
            if known.digest == ANSWER_DIGEST:
                self._known = known

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on each pair's answers, or why there are none."""
        return tuple(self._verdict(pair) for pair in self.pairs)

    def _verdict(self, pair: Pair) -> Verdict:
        if pair.id in self._known.verdicts:
            return self._known.verdicts[pair.id]
        refusal = why_not_compared(pair.a, pair.b)
        if refusal:
            return _verdict_on(pair, Outcome.NOT_COMPARABLE, reason=Reason(text=refusal))
        not_yet = Reason(text="the answers weren't compared", remedy="--resume does so")
        return _verdict_on(pair, Outcome.INVALID, reason=self._failures.get(pair.id, not_yet))

    def wants(self, pairs: Collection[Pair]) -> bool:
        """Return whether a further launch may compare answers that earlier launches couldn't."""
        return any(
            self._verdict(pair).outcome is Outcome.INVALID
            and len(self._launches.get(pair.id, ())) < _MAX_LAUNCHES
            for pair in pairs
        )

    def ask(
        self,
        pair: Pair,
        servers: Mapping[Side, Server],
        launch: int,
        measured: Mapping[Side, Measurement],
    ) -> None:
        """Let side A answer once, and compare side B's answers with these once.

        If both sides were measured at the same time, and all their timed answers were the same,
        neither has to answer again.

        Args:
            pair: the case as both sides run it.
            servers: those that are up.
            launch: the number of the launch.
            measured: what was measured on this launch, by side.

        Raises:
            ServerDiedError: a server went away.
        """
        if self._verdict(pair).outcome is not Outcome.INVALID:
            return
        self._launches.setdefault(pair.id, set()).add(launch)
        prompts = load_case_prompts(self.root, pair.a)[: pair.a.prompts]
        if _were_all_equal(measured, prompts):
            self._known.verdicts[pair.id] = _verdict_on(pair, Outcome.PASS, value=1.0)
        side = Side.A
        try:
            self._ask_a(pair, servers, prompts)
            side = Side.B
            self._compare_b(pair, servers, prompts)
        except InvalidMeasurementError as error:
            self._failures[pair.id] = Reason(text=f"side {side}: {error}")
            for server in servers.values():
                server.check_alive()
        replace_file(self.path, msgspec.json.encode(hide_values(self._known)))

    def _ask_a(self, pair: Pair, servers: Mapping[Side, Server], prompts: Sequence[Prompt]) -> None:
        """Ask side A for its answers, if it is up and they aren't known."""
        server = servers.get(Side.A)
        is_known = pair.id in self._known.verdicts or pair.id in self._known.answers
        if server is None or is_known:
            return
        ask = functools.partial(ask_greedy, pair.a, server)
        turns = ask_each_turn(server.endpoint, pair.a, prompts, ask)
        self._known.answers[pair.id] = tuple(turn.answer for turn in turns)

    def _compare_b(
        self, pair: Pair, servers: Mapping[Side, Server], prompts: Sequence[Prompt]
    ) -> None:
        """Compare side B's answers, if it is up, A's are known and there is no verdict yet."""
        can_compare = Side.B in servers and pair.id in self._known.answers
        if not can_compare or pair.id in self._known.verdicts:
            return
        self.show(f"{pair.id}: comparing the answers")
        answers_of_a = self._known.answers[pair.id]
        self._known.verdicts[pair.id] = compare_answers(pair, servers, prompts, answers_of_a)


def _verdict_on(
    pair: Pair, outcome: Outcome, *, value: float | None = None, reason: Reason | None = None
) -> Verdict:
    """Return a verdict on the answers of a pair, which no launch is counted for."""
    return Verdict(
        case_id=pair.id, metric=LOSSLESS, outcome=outcome, value=value, reason=reason, launches=0
    )


def _were_all_equal(measured: Mapping[Side, Measurement], prompts: Sequence[Prompt]) -> bool:
    """Return whether both sides were timed side by side and answered all prompts the same."""
    measurement_of_a = measured.get(Side.A)
    measurement_of_b = measured.get(Side.B)
    if measurement_of_a is None or measurement_of_b is None:
        return False
    if measurement_of_a.replay is None or measurement_of_b.replay is None:
        return False
    timed = Replay(
        rounds=measurement_of_b.replay.rounds, control_rounds=measurement_of_a.replay.rounds
    )
    return all(were_equal(timed, prompt) for prompt in prompts)


def why_not_compared(a: Case, b: Case) -> str:
    """Return why both sides need not give the same answers, or can't be asked; empty if they must.

    Args:
        a: the case as side A runs it.
        b: the case as side B runs it.
    """
    if engine_named(a.server.engine).token_api is None:
        return f"engine '{a.server.engine}' tells no token ids"
    if not a.temperature == b.temperature == 0:
        return "the answers are drawn at a temperature"
    if not (a.server.is_lossless and b.server.is_lossless):
        return "their acceptance is pinned or lossy, whatever the targets say"
    target_settings = operator.attrgetter("target", "padding_layers", "widen", "dtype")
    if target_settings(a.server) != target_settings(b.server):
        return "the targets of both sides differ, or their number formats"
    request_settings = operator.attrgetter(
        "dataset", "prompts", "output_cap_tokens", "ignore_eos", "turns"
    )
    if request_settings(a) != request_settings(b):
        return "the sides are asked otherwise"
    return ""


def compare_answers(
    pair: Pair,
    servers: Mapping[Side, Server],
    prompts: Sequence[Prompt],
    answers_of_a: Sequence[Transcript],
) -> Verdict:
    """Compare what side B's server answers to prompts with A's answers.

    B's server is asked how likely both tokens were where they part, and then A's if it is up and
    can say.

    Args:
        pair: the case as both sides run it.
        servers: those that are up; side B's is one of them.
        prompts: the prompts of the case.
        answers_of_a: A's answer to each turn, in order.

    Raises:
        InvalidMeasurementError: B doesn't answer in ids, or differently at another batch size.
    """
    case = pair.b
    server = servers[Side.B]
    remaining_answers = iter(answers_of_a)
    # A's replies come before the later turns on both sides.
    turns = ask_each_turn(
        server.endpoint,
        case,
        prompts,
        lambda texts: list(itertools.islice(remaining_answers, len(texts))),
    )
    tokenized_otherwise = [f"'{turn.name}'" for turn in turns if turn.text != turn.answer.prompt]
    if tokenized_otherwise:
        examples = ", ".join(tokenized_otherwise[:_MAX_NAMED])
        reason = Reason(
            text=f"B makes other tokens of {len(tokenized_otherwise)} prompts: {examples}",
            remedy="look at its tokenizer and chat template",
        )
        return _verdict_on(pair, Outcome.WRONG, reason=reason)
    ask_b = functools.partial(ask_greedy, case, server, [turn.text for turn in turns])
    ask_again = None
    batch = other_batch(case)
    if batch:
        ask_again = functools.partial(ask_b, batch)
    losslessness = check_lossless(
        [turn.name for turn in turns],
        ask_b(),
        answers_of_a,
        ask_again,
        functools.partial(score, server.endpoint),
        # Another version may have other kernels, whatever a case demands of speculation.
        rounding_nats=max(case.rounding_nats, ROUNDING_NATS),
    )
    server_of_a = servers.get(Side.A)
    if server_of_a is not None and not losslessness.failures:
        with contextlib.suppress(InvalidMeasurementError):
            losslessness = judged_by_a(losslessness, functools.partial(score, server_of_a.endpoint))
    outcome = Outcome.PASS
    if losslessness.failures:
        outcome = Outcome.WRONG
    reason = Reason(text=losslessness.describe("of B", "of A"))
    return _verdict_on(pair, outcome, value=losslessness.equal_frac, reason=reason)


def judged_by_a(by_b: Losslessness, ask_a: Score) -> Losslessness:
    """Return what B found with gaps measured by A: how much likelier A's own tokens are.

    Where A finds B's token likelier than its own, B does no worse, and the gap is 0.

    Args:
        by_b: what B found, without any failure.
        ask_a: asks A's server how likely tokens are.
    """
    partings = tuple(
        dataclasses.replace(parting, gap_nats=max(0.0, -(parting.gap_nats or 0.0)))
        for parting in score_partings(by_b.partings, ask_a)
    )
    return dataclasses.replace(by_b, partings=partings)
