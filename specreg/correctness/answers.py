"""Whether one server gives the answers that another gives, token by token; nothing here is timed.

Where two greedy answers part, B says how likely both tokens were, and so does A where its server is
up as well: two that are as good as equally likely may change places by rounding, in other kernels
for instance.
"""

import dataclasses
import functools
from collections.abc import Sequence

import msgspec

from specreg.core.errors import InvalidMeasurementError
from specreg.correctness.checks import LOSSLESS
from specreg.correctness.lossless import Losslessness, Parting, Score, check_lossless
from specreg.correctness.oracle_client import in_flight, wanted_of
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import engine_named
from specreg.engines.token_api import Transcript
from specreg.load.token_client import encode_prompts, score, transcribe
from specreg.matrix.case import Case
from specreg.matrix.schema import ROUNDING_NATS
from specreg.servers.server import Server
from specreg.verdicts.judge import Outcome, Verdict

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


def verdict_on_answers(
    case_id: str, outcome: Outcome, reason: str, value: float | None = None
) -> Verdict:
    """The verdict on the answers of a case; `value`: the share that is equal, 0..1."""
    return Verdict(
        case_id=case_id, metric=LOSSLESS, outcome=outcome, reason=reason, value=value, launches=0
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
    case_id: str,
    case: Case,
    server: Server,
    prompts: Sequence[Prompt],
    theirs: Answers,
    other: Server | None = None,
) -> Verdict:
    """The verdict on what side B answers, held against side A; `value`: the share that is equal.

    Args:
        case_id: whose.
        case: as side B runs it.
        server: of side B; it is asked how likely both were.
        prompts: what both are asked.
        theirs: the answers of side A.
        other: the server of side A, None where it isn't up; one that can't say leaves it to B.

    Raises:
        InvalidMeasurementError: it doesn't answer in ids, or parts from itself.
    """
    asked = encode_prompts(server.endpoint, case, prompts)
    each = zip(prompts, asked, theirs.prompts, strict=True)
    rendered = [prompt.id for prompt, one, its in each if one != its]
    if rendered:
        shown = ", ".join(f"'{one}'" for one in rendered[:_MOST_NAMED])
        reason = (
            f"B makes other tokens of {len(rendered)} prompts: {shown}; look at its tokenizer and"
            " chat template"
        )
        return verdict_on_answers(case_id, Outcome.WRONG, reason)
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
    return verdict_on_answers(
        case_id, outcome, _in_words(found, doubted, prompts), found.equal_frac
    )


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
