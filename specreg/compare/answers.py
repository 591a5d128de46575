"""Compare the answers of a gate's two sides, token by token. Nothing here is timed.

Each side generates its greedy answers once. Where two answers differ for the first time, B's server
reports the probabilities of both tokens, and so does A's server if it is running. Two tokens of
nearly equal probability may change places by rounding, for example because another version of the
engine has other kernels.
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
from specreg.correctness.turns import Texts, ask_each_turn
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
"""The most prompts that a message names."""


class _SavedAnswers(msgspec.Struct):
    """The answers and verdicts in a gate's folder, from which a resumed gate continues.

    Attributes:
        answers: the answers of side A, by the id of the pair.
        verdicts: the verdict on the answers of side B, by the id of the pair.
        digest: the version of the rule by which answers are equal. A file without it is of the
            first version.
    """

    answers: dict[str, tuple[Transcript, ...]] = {}
    verdicts: dict[str, Verdict] = {}
    digest: int = 1


@dataclass(slots=True, kw_only=True)
class AnswerComparison:
    """Compares the answers of a gate's pairs, and saves the answers and verdicts.

    Attributes:
        pairs: the pairs that are compared.
        root: the root of the repository.
        path: the file that the answers are saved to.
        show: is called with a sentence about the progress.
        _saved: the answers and verdicts so far.
        _failures: why the answers of a pair couldn't be compared, by the id of the pair.
        _launches: the launches on which a comparison was tried, by the id of the pair.
    """

    pairs: Sequence[Pair]
    root: Path
    path: Path
    show: Callable[[str], None]
    _saved: _SavedAnswers = field(default_factory=lambda: _SavedAnswers(digest=ANSWER_DIGEST))
    _failures: dict[str, Reason] = field(default_factory=dict)
    _launches: dict[str, set[int]] = field(default_factory=dict)

    def take_over(self) -> None:
        """Load the saved answers of an earlier command, if they can be read."""
        with contextlib.suppress(OSError, *UNREADABLE):
            saved = msgspec.json.decode(read_regular(self.path, 1024 * MIB), type=_SavedAnswers)
            # Answers that were compared by another rule are generated again.
            if saved.digest == ANSWER_DIGEST:
                self._saved = saved

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict on the answers of each pair, or on why they weren't compared."""
        return tuple(self._verdict(pair) for pair in self.pairs)

    def _verdict(self, pair: Pair) -> Verdict:
        """Return the verdict on the answers of a pair; INVALID if they weren't compared yet."""
        if pair.id in self._saved.verdicts:
            return self._saved.verdicts[pair.id]
        obstacle = why_not_compared(pair.a, pair.b)
        if obstacle:
            return _verdict_on(pair, Outcome.NOT_COMPARABLE, reason=Reason(text=obstacle))
        not_yet = Reason(text="the answers weren't compared", remedy="--resume does so")
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
        """
        if self._verdict(pair).outcome is not Outcome.INVALID:
            return
        self._launches.setdefault(pair.id, set()).add(launch)
        prompts = load_case_prompts(self.root, pair.a)[: pair.a.prompts]
        if _were_all_equal(measured, prompts):
            self._saved.verdicts[pair.id] = _verdict_on(pair, Outcome.PASS, value=1.0)
        side = Side.A
        try:
            self._ask_a(pair, servers, prompts)
            side = Side.B
            self._compare_b(pair, servers, prompts)
        except InvalidMeasurementError as error:
            self._failures[pair.id] = Reason(text=f"side {side}: {error}")
            # A dead server is the cause of the failure, and ends the launch.
            for server in servers.values():
                server.check_alive()
        replace_file(self.path, msgspec.json.encode(hide_values(self._saved)))

    def _ask_a(self, pair: Pair, servers: Mapping[Side, Server], prompts: Sequence[Prompt]) -> None:
        """Generate the answers of side A, if its server is running and they aren't saved yet."""
        server = servers.get(Side.A)
        is_saved = pair.id in self._saved.verdicts or pair.id in self._saved.answers
        if server is None or is_saved:
            return
        ask = functools.partial(ask_greedy, pair.a, server)
        turns = ask_each_turn(server.endpoint, pair.a, prompts, ask)
        self._saved.answers[pair.id] = tuple(turn.answer for turn in turns)

    def _compare_b(
        self, pair: Pair, servers: Mapping[Side, Server], prompts: Sequence[Prompt]
    ) -> None:
        """Compare the answers of side B with those of A, unless a verdict exists.

        Nothing is done if B's server isn't running or the answers of A are missing.
        """
        can_compare = Side.B in servers and pair.id in self._saved.answers
        if not can_compare or pair.id in self._saved.verdicts:
            return
        self.show(f"{pair.id}: comparing the answers")
        answers_of_a = self._saved.answers[pair.id]
        self._saved.verdicts[pair.id] = compare_answers(pair, servers, prompts, answers_of_a)


def _verdict_on(
    pair: Pair, outcome: Outcome, *, value: float | None = None, reason: Reason | None = None
) -> Verdict:
    """Return a verdict on the answers of a pair. It doesn't count any launches."""
    return Verdict(
        case_id=pair.id, metric=LOSSLESS, outcome=outcome, value=value, reason=reason, launches=0
    )


def _were_all_equal(measured: Mapping[Side, Measurement], prompts: Sequence[Prompt]) -> bool:
    """Return whether both sides were timed on this launch and gave equal answers everywhere."""
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
    """Return why the answers of both sides can't be compared; empty if they must be equal.

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
    """Generate the answers of side B, and compare them with those of side A.

    Where two answers differ for the first time, B's server reports the probabilities of both
    tokens. If A's server is running, its probabilities decide.

    Args:
        pair: the case as both sides run it.
        servers: the running servers, including that of side B.
        prompts: the prompts of the case.
        answers_of_a: A's answer to each turn, in order.

    Raises:
        InvalidMeasurementError: B's answers have no token ids, or differ at another batch size.
    """
    case = pair.b
    server = servers[Side.B]
    remaining_answers = iter(answers_of_a)

    # Both sides get A's replies as the context of the later turns. Otherwise one different token
    # would change all later prompts.
    def next_answers_of_a(texts: Texts) -> list[Transcript]:
        return list(itertools.islice(remaining_answers, len(texts)))

    turns = ask_each_turn(server.endpoint, case, prompts, next_answers_of_a)
    # With other prompt tokens, the answers can't be compared.
    tokenized_otherwise = [f"'{turn.name}'" for turn in turns if turn.text != turn.answer.prompt]
    if tokenized_otherwise:
        examples = ", ".join(tokenized_otherwise[:_MAX_NAMED])
        reason = Reason(
            text=f"B makes other tokens of {len(tokenized_otherwise)} prompts: {examples}",
            remedy="look at its tokenizer and chat template",
        )
        return _verdict_on(pair, Outcome.WRONG, reason=reason)

    # Compare the answers. `regenerate_b` shows whether B's answers depend on the batch size.
    names = [turn.name for turn in turns]
    texts = [turn.text for turn in turns]
    ask_b = functools.partial(ask_greedy, case, server, texts)
    regenerate_b = None
    batch = other_batch(case)
    if batch:
        regenerate_b = functools.partial(ask_b, batch)
    losslessness = check_lossless(
        names,
        ask_b(),
        answers_of_a,
        regenerate_b,
        functools.partial(score, server.endpoint),
        # A case may allow no rounding for speculation, but another version may have other kernels.
        rounding_nats=max(case.rounding_nats, ROUNDING_NATS),
    )

    # The probabilities of A's server are more meaningful, because A is the reference.
    server_of_a = servers.get(Side.A)
    if server_of_a is not None and not losslessness.failures:
        ask_a = functools.partial(score, server_of_a.endpoint)
        # Without A's probabilities, those of B still decide.
        with contextlib.suppress(InvalidMeasurementError):
            losslessness = judged_by_a(losslessness, ask_a)
    outcome = Outcome.PASS
    if losslessness.failures:
        outcome = Outcome.WRONG
    reason = Reason(text=losslessness.describe("of B", "of A"))
    return _verdict_on(pair, outcome, value=losslessness.equal_frac, reason=reason)


def judged_by_a(by_b: Losslessness, ask_a: Score) -> Losslessness:
    """Replace the gaps between both tokens by those that A's server reports.

    A gap is how much more probable A's token is than B's. If A finds B's token more probable than
    its own, B's answer is no worse, and the gap is 0.

    Args:
        by_b: the comparison with the gaps of B's server, without a failure.
        ask_a: asks A's server for the probabilities of tokens.
    """
    partings = []
    for parting in score_partings(by_b.partings, ask_a):
        # The gap of a parting is that of B's token over A's, so its sign changes.
        gap_nats = max(0.0, -(parting.gap_nats or 0.0))
        partings.append(dataclasses.replace(parting, gap_nats=gap_nats))
    return dataclasses.replace(by_b, partings=tuple(partings))
