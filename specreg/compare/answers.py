"""Compare the answers of a gate's two sides, token by token; nothing here is timed.

Each side is asked once. Where two greedy answers part, B says how likely both tokens were, and so
does A where its server is up as well: two that are as good as equally likely may change places by
rounding, in other kernels for instance.
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
from specreg.compare.pairs import COMPARED, Pair, Side
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

_MOST_LAUNCHES = 2
"""After so many launches without a comparison, answers aren't asked for any more."""
_MOST_NAMED = 3
_verdict_on_answers = functools.partial(Verdict, metric=LOSSLESS, launches=0)


class _Known(msgspec.Struct):
    """What a gate's folder keeps of answers, by pair.

    `digest` is the definition by which answers counted as equal; without one it is the first.
    """

    answers: dict[str, tuple[Transcript, ...]] = {}
    verdicts: dict[str, Verdict] = {}
    digest: int = 1


@dataclass(slots=True, kw_only=True)
class AnswerComparison:
    """The answers of a gate, as far as they were asked for; the file of `path` keeps them."""

    pairs: Sequence[Pair]
    root: Path
    path: Path
    show: Callable[[str], None]
    _known: _Known = field(default_factory=lambda: _Known(digest=ANSWER_DIGEST))
    _failed: dict[str, Reason] = field(default_factory=dict)  # by pair, why
    _launches: dict[str, set[int]] = field(default_factory=dict)  # by pair, those that were tried

    def take_over(self) -> None:
        """Load the answers that the folder has, if they can be read."""
        with contextlib.suppress(OSError, *UNREADABLE):
            known = msgspec.json.decode(read_regular(self.path, 1024 * MIB), type=_Known)
            if known.digest != ANSWER_DIGEST:
                known = _Known(digest=ANSWER_DIGEST)
            self._known = known

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on each pair's answers, or why there are none."""
        return tuple(map(self._verdict, self.pairs))

    def _verdict(self, pair: Pair) -> Verdict:
        if pair.id in self._known.verdicts:
            return self._known.verdicts[pair.id]
        say = functools.partial(_verdict_on_answers, case_id=pair.id)
        if why := why_not_compared(pair.a, pair.b):
            return say(outcome=Outcome.NOT_COMPARABLE, reason=Reason(text=why))
        not_yet = Reason(text="the answers weren't compared", remedy="--resume does so")
        return say(outcome=Outcome.INVALID, reason=self._failed.get(pair.id, not_yet))

    def wants(self, pairs: Collection[Pair]) -> bool:
        """Whether a further launch may decide on answers where earlier ones couldn't."""
        return any(
            self._verdict(pair).outcome is Outcome.INVALID
            and len(self._launches.get(pair.id, ())) < _MOST_LAUNCHES
            for pair in pairs
        )

    def ask(
        self,
        pair: Pair,
        servers: Mapping[Side, Server],
        launch: int,
        measured: Mapping[Side, Measurement],
    ) -> None:
        """Ask side A for its answers once, and hold side B's against them once.

        Where both were `measured` beside one another and said the same whenever they were timed,
        they need not be asked again.

        Raises:
            ServerDiedError: a server went away.
        """
        if self._verdict(pair).outcome is not Outcome.INVALID:
            return
        self._launches.setdefault(pair.id, set()).add(launch)
        prompts = load_case_prompts(self.root, pair.a)[: pair.a.prompts]
        known, side = self._known, Side.A
        replays = [one.replay for one in map(measured.get, COMPARED) if one and one.replay]
        if len(replays) == len(COMPARED):
            timed = Replay(rounds=replays[1].rounds, control_rounds=replays[0].rounds)
            if all(were_equal(timed, prompt) for prompt in prompts):
                same = _verdict_on_answers(case_id=pair.id, outcome=Outcome.PASS, value=1.0)
                known.verdicts[pair.id] = same
        try:
            plain = servers.get(Side.A)
            if pair.id not in {*known.verdicts, *known.answers} and plain is not None:
                ask_a = functools.partial(ask_greedy, pair.a, plain)
                turns = ask_each_turn(plain.endpoint, pair.a, prompts, ask_a)
                known.answers[pair.id] = tuple(turn.answer for turn in turns)
            side = Side.B
            if Side.B in servers and pair.id in known.answers.keys() - known.verdicts.keys():
                self.show(f"{pair.id}: comparing the answers")
                found = compare_answers(pair, servers, prompts, known.answers[pair.id])
                known.verdicts[pair.id] = found
        except InvalidMeasurementError as error:
            self._failed[pair.id] = Reason(text=f"side {side}: {error}")
            for one in servers.values():
                one.check_alive()
        replace_file(self.path, msgspec.json.encode(hide_values(known)))


def why_not_compared(a: Case, b: Case) -> str:
    """Why both sides need not give the same answers, or can't be asked; empty where they must."""
    if engine_named(a.server.engine).token_api is None:
        return f"engine '{a.server.engine}' tells no token ids"
    if not a.temperature == b.temperature == 0:
        return "the answers are drawn at a temperature"
    if a.server.pinned_length_tokens or b.server.pinned_length_tokens:
        return "their acceptance is pinned, whatever the targets say"
    of_target = operator.attrgetter("target", "padding_layers", "widen", "dtype")
    if of_target(a.server) != of_target(b.server):
        return "the targets of both sides differ, or their number formats"
    asked = operator.attrgetter("dataset", "prompts", "output_cap_tokens", "ignore_eos", "turns")
    return "" if asked(a) == asked(b) else "the sides are asked otherwise"


def compare_answers(
    pair: Pair,
    servers: Mapping[Side, Server],
    prompts: Sequence[Prompt],
    theirs: Sequence[Transcript],
) -> Verdict:
    """The verdict on what side B's server answers to prompts, held against A's answers.

    B's is asked how likely both were, and then A's where it is up and can say.

    Raises:
        InvalidMeasurementError: it doesn't answer in ids, or differently at another batch size.
    """
    case, server, a = pair.b, servers[Side.B], servers.get(Side.A)
    say = functools.partial(_verdict_on_answers, case_id=pair.id)
    left = iter(theirs)
    # A's replies come before the later turns on both sides.
    turns = ask_each_turn(
        server.endpoint, case, prompts, lambda texts: list(itertools.islice(left, len(texts)))
    )
    names, texts = [turn.name for turn in turns], [turn.text for turn in turns]
    unlike = [f"'{turn.name}'" for turn in turns if turn.text != turn.answer.prompt]
    if unlike:
        named = ", ".join(unlike[:_MOST_NAMED])
        reason = Reason(
            text=f"B makes other tokens of {len(unlike)} prompts: {named}",
            remedy="look at its tokenizer and chat template",
        )
        return say(outcome=Outcome.WRONG, reason=reason)
    ask, batch = functools.partial(ask_greedy, case, server, texts), other_batch(case)
    found = check_lossless(
        names,
        ask(),
        theirs,
        functools.partial(ask, batch) if batch else None,
        functools.partial(score, server.endpoint),
        # Another version may have other kernels, whatever a case demands of speculation.
        rounding_nats=max(case.rounding_nats, ROUNDING_NATS),
    )
    if a is not None and not found.failures:
        with contextlib.suppress(InvalidMeasurementError):
            found = judged_by_a(found, functools.partial(score, a.endpoint))
    outcome = Outcome.WRONG if found.failures else Outcome.PASS
    reason = Reason(text=found.describe("of B", "of A"))
    return say(outcome=outcome, reason=reason, value=found.equal_frac)


def judged_by_a(found: Losslessness, ask_a: Score) -> Losslessness:
    """Return what B found, the gaps measured by A: how much likelier A's own tokens are.

    Where A finds B's token likelier than its own, B does no worse: the gap is 0. `found` has no
    failures by B's word, `ask_a` asks A's server.
    """
    partings = tuple(
        dataclasses.replace(one, gap_nats=max(0.0, -(one.gap_nats or 0.0)))
        for one in score_partings(found.partings, ask_a)
    )
    return dataclasses.replace(found, partings=partings)
