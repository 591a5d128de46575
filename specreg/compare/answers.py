"""Whether side B gives the answers that side A gives, token by token; nothing here is timed.

Where two greedy answers part, B says how likely both tokens were, and so does A where its server is
up as well: two that are as good as equally likely may change places by rounding, in other kernels
for instance.
"""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from specreg.compare.pairs import Pair, Side
from specreg.core.errors import InvalidMeasurementError, SpecregError
from specreg.core.files import UNREADABLE, replace_file
from specreg.correctness.lossless import Losslessness, Parting, Score, check_lossless
from specreg.correctness.oracle_client import in_flight, wanted_of
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import engine_named
from specreg.engines.token_api import Transcript
from specreg.load.token_client import encode_prompts, score, transcribe
from specreg.matrix.case import Case
from specreg.matrix.prompts import load_case_prompts
from specreg.matrix.schema import ROUNDING_NATS
from specreg.servers.server import Server
from specreg.verdicts.judge import Outcome, Verdict

METRIC = "lossless_frac"
"""What a verdict on answers is called, as in a run of the suite."""
_MOST_BLOCKS = 2
_MOST_NAMED = 3
_UNSTEADY = (
    "B's answers differ from A's, and asked again at another batch size from its own, by more than"
    " rounding explains; compare A with A: if it does the same, the engine always did"
)


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """What side A answers: of each prompt its token ids, and those of the answer."""

    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[int, ...], ...]

    @property
    def transcripts(self) -> tuple[Transcript, ...]:
        """Prompt by prompt."""
        each = zip(self.prompts, self.answers, strict=True)
        return tuple(Transcript(prompt=prompt, output=output) for prompt, output in each)


class _Known(msgspec.Struct):
    """What a gate's folder keeps of answers, by pair."""

    answers: dict[str, Answers] = {}
    verdicts: dict[str, Verdict] = {}


@dataclass(slots=True, kw_only=True)
class AnswerComparison:
    """The answers of a gate, as far as they were asked for; each side is asked once.

    Attributes:
        pairs: what is compared.
        root: the repository's root; path: of the file that keeps them.
        show: is told what goes on.
        failed: by pair why its answers couldn't be compared.
        blocks: by pair, those in which its answers were to be compared.
    """

    pairs: Sequence[Pair]
    root: Path
    path: Path
    show: Callable[[str], None]
    failed: dict[str, str] = field(default_factory=dict)
    blocks: dict[str, set[int]] = field(default_factory=dict)
    _known: _Known = field(default_factory=_Known)

    def take_over(self) -> None:
        """Go on with what the folder has."""
        try:
            self._known = msgspec.json.decode(self.path.read_bytes(), type=_Known)
        except (OSError, *UNREADABLE):
            self._known = _Known()

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What is known of each pair's answers, or why nothing is."""
        return tuple(map(self._verdict, self.pairs))

    def _verdict(self, pair: Pair) -> Verdict:
        if why := why_not_compared(pair.a, pair.b):
            return _verdict(pair, Outcome.NOT_COMPARABLE, why)
        unknown = self.failed.get(pair.id, "the answers weren't compared; --resume does so")
        return self._known.verdicts.get(pair.id, _verdict(pair, Outcome.INVALID, unknown))

    def wants(self, pairs: Collection[Pair]) -> bool:
        """Whether a further block may tell of answers what those before couldn't.

        Answers that couldn't be compared in two blocks aren't asked for any more.
        """
        return any(
            self._is_open(pair) and len(self.blocks.get(pair.id, ())) < _MOST_BLOCKS
            for pair in pairs
        )

    def _is_open(self, pair: Pair) -> bool:
        known = pair.id in self._known.verdicts
        return not known and not why_not_compared(pair.a, pair.b)

    def ask(self, pair: Pair, servers: Mapping[Side, Server], block: int) -> None:
        """Ask side A for its answers once, and hold side B's against them once.

        Args:
            pair: of which.
            servers: that are up.
            block: of the launches.

        Raises:
            ServerDiedError: a server went away.
            SpecregError: the disk refuses.
        """
        if not self._is_open(pair):
            return
        self.blocks.setdefault(pair.id, set()).add(block)
        prompts = load_case_prompts(self.root, pair.a)[: pair.a.prompts]
        side = Side.A
        try:
            plain = next((one for side, one in servers.items() if side is not Side.B), None)
            if pair.id not in self._known.answers and plain is not None:
                self._known.answers[pair.id] = answers_of(pair.a, plain, prompts)
            theirs, side = self._known.answers.get(pair.id), Side.B
            if Side.B in servers and theirs is not None:
                self.show(f"{pair.id}: comparing the answers")
                self._known.verdicts[pair.id] = compare_answers(
                    pair, servers[Side.B], prompts, theirs, servers.get(Side.A)
                )
        except InvalidMeasurementError as error:
            self.failed[pair.id] = f"side {side}: {error}"
            for one in servers.values():
                one.check_alive()
        try:
            replace_file(self.path, msgspec.json.encode(self._known))
        except OSError as error:
            message = f"answers '{self.path}': {error.strerror}; make room or mend its rights"
            raise SpecregError(message) from error


def _verdict(pair: Pair, outcome: Outcome, reason: str, value: float | None = None) -> Verdict:
    return Verdict(
        case_id=pair.id, metric=METRIC, outcome=outcome, reason=reason, value=value, launches=0
    )


def why_not_compared(a: Case, b: Case) -> str:
    """Why both sides need not give the same answers, or can't be asked; empty where they must."""
    if engine_named(a.server.engine).token_api is None:
        return f"engine '{a.server.engine}' tells no token ids"
    if not a.temperature == b.temperature == 0:
        return "the answers are drawn at a temperature"
    if _target(a) != _target(b):
        return "the targets of both sides differ, or their number formats"
    return "" if _asked(a) == _asked(b) else "the sides are asked otherwise"


def _target(case: Case) -> tuple[object, ...]:
    server = case.server
    return server.target, server.padding_layers, server.widen, server.dtype


def _asked(case: Case) -> tuple[object, ...]:
    return case.dataset, case.prompts, case.output_cap_tokens, case.ignore_eos


def answers_of(case: Case, server: Server, prompts: Sequence[Prompt]) -> Answers:
    """What a server answers.

    Raises:
        InvalidMeasurementError: it doesn't answer in ids.
    """
    texts = encode_prompts(server.endpoint, case, prompts)
    answers = transcribe(
        server.endpoint, texts, wanted_of(case, len(texts)), in_flight=in_flight(case)
    )
    return Answers(prompts=texts, answers=tuple(one.output for one in answers))


def compare_answers(
    pair: Pair,
    server: Server,
    prompts: Sequence[Prompt],
    theirs: Answers,
    other: Server | None = None,
) -> Verdict:
    """The verdict on what side B answers, held against side A; `value`: the share that is equal.

    Args:
        pair: whose.
        server: of side B; it is asked how likely both were.
        prompts: what both are asked.
        theirs: the answers of side A.
        other: the server of side A, None where it isn't up; one that can't say leaves it to B.

    Raises:
        InvalidMeasurementError: it doesn't answer in ids, or parts from itself.
    """
    case = pair.b
    asked = encode_prompts(server.endpoint, case, prompts)
    each = zip(prompts, asked, theirs.prompts, strict=True)
    rendered = [prompt.id for prompt, one, its in each if one != its]
    if rendered:
        shown = ", ".join(f"'{one}'" for one in rendered[:_MOST_NAMED])
        reason = (
            f"B makes other tokens of {len(rendered)} prompts: {shown}; look at its tokenizer and"
            " chat template"
        )
        return _verdict(pair, Outcome.WRONG, reason)
    at_once = in_flight(case)
    other_at_once = 1 if at_once > 1 else case.server.max_sequences

    def answers(in_flight: int) -> tuple[Transcript, ...]:
        return transcribe(server.endpoint, asked, wanted_of(case, len(asked)), in_flight=in_flight)

    try:
        found = check_lossless(
            [prompt.id for prompt in prompts],
            answers(at_once),
            theirs.transcripts,
            (lambda: answers(other_at_once)) if other_at_once != at_once else None,
            lambda questions: score(server.endpoint, questions),
            # Another version may have other kernels, whatever a case demands of speculation.
            rounding_nats=max(case.rounding_nats, ROUNDING_NATS),
        )
    except InvalidMeasurementError as error:
        if error.reason == "CONTROL_UNSTEADY":
            raise InvalidMeasurementError(error.reason, _UNSTEADY) from error
        raise
    doubted = None
    if other is not None and not found.failures:
        try:
            ask_a = functools.partial(score, other.endpoint)
            doubted = doubted_by_a(found, theirs, prompts, ask_a)
        except InvalidMeasurementError:
            doubted = None
    outcome = Outcome.WRONG if found.failures or doubted else Outcome.PASS
    return _verdict(pair, outcome, _in_words(found, doubted, prompts), found.equal_frac)


def doubted_by_a(
    found: Losslessness, theirs: Answers, prompts: Sequence[Prompt], score: Score
) -> tuple[Parting, ...]:
    """The partings that B finds rounding and A doesn't.

    Args:
        found: by B's word.
        theirs: the answers of A.
        prompts: of both.
        score: asks A's server.

    Returns:
        Their `gap_nats` is A's: how much likelier A's own token is to it.
    """
    texts = dict(zip((one.id for one in prompts), theirs.transcripts, strict=True))
    rounded = [one for one in found.partings if one.is_rounding(found.bound_nats)]
    questions = []
    for one in rounded:
        text = texts[one.prompt_id]
        tokens = tuple(token for token in (one.other, one.plain) if token is not None)
        questions.append(((*text.prompt, *text.output[: one.position]), tokens))
    scores = score(questions) if questions else ()
    asked = [
        dataclasses.replace(one, gap_nats=ours - theirs)
        for one, (ours, theirs) in zip(rounded, scores, strict=True)
    ]
    # Where A finds B's token likelier than its own, B does no worse.
    return tuple(one for one in asked if one.gap_nats is None or one.gap_nats > found.bound_nats)


def _in_words(
    found: Losslessness, doubted: Sequence[Parting] | None, prompts: Sequence[Prompt]
) -> str:
    """In `Losslessness` the plain answers are B's here, and the others A's."""
    turns = " of first turns" if any(len(one.turns) > 1 for one in prompts) else ""
    said = [f"{found.equal_frac:.1%} of {found.prompts} answers{turns} are equal"]
    rounded = len(found.partings) - len(found.failures) - len(doubted or ())
    if rounded:
        whose = "B holds" if doubted is None else "both sides hold"
        said.append(f"{rounded} part where {whose} both tokens within {found.bound_nats:.2f} nats")
    said.extend(_parting_in_words(one, "B") for one in found.failures[:_MOST_NAMED])
    said.extend(_parting_in_words(one, "A") for one in (doubted or ())[:_MOST_NAMED])
    return "; ".join(said)


def _parting_in_words(one: Parting, judge: str) -> str:
    where = f"prompt '{one.prompt_id}', token {one.position + 1}"
    if one.plain is None or one.other is None:
        ended, on = ("B", "A") if one.plain is None else ("A", "B")
        return f"{where}: the answer of {ended} has ended, that of {on} goes on"
    tokens = f"{one.other} of A, {one.plain} of B"
    return f"{where}: {tokens}, {one.gap_nats:.2f} nats likelier to {judge}"
