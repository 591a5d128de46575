"""Texts: what side A answered and side B's server in, whether B changes a token out.

Nothing here is timed. Where two greedy answers part, B says how likely both tokens were, and so
does A where its server is up as well: two that are as good as equally likely may change places by
rounding, in other kernels for instance.
"""

import dataclasses
import functools
from collections.abc import Sequence

import msgspec

from specreg.core.errors import InvalidMeasurementError
from specreg.correctness.lossless import Losslessness, Parting, Score, check_lossless
from specreg.correctness.oracle_client import in_flight, wanted_of
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import engine_named
from specreg.engines.token_api import Transcript
from specreg.load.token_client import encode_prompts, score, transcribe
from specreg.matrix.case import Case
from specreg.matrix.schema import ROUNDING_NATS
from specreg.servers.server import Server
from specreg.verdicts.judge import Outcome

_MOST_NAMED = 3
_UNSTEADY = (
    "B's answers differ from A's, and asked again at another batch size from its own, by more than"
    " rounding explains; compare A with A: if it does the same, the engine always did"
)


class TextsSaid(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What side A answers: of each prompt its token ids, and those of the answer."""

    case_id: str
    prompts: tuple[tuple[int, ...], ...]
    answers: tuple[tuple[int, ...], ...]


class TextsJudged(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Whether both sides give the same answers.

    Attributes:
        case_id: whose.
        outcome: PASS, WRONG, INVALID where it couldn't be told, NOT_COMPARABLE where the answers
            needn't be the same; `reason`: in a sentence.
        asked: how many prompts; equal_frac: the share whose answers are equal to the last token.
    """

    case_id: str
    outcome: Outcome
    reason: str
    asked: int
    equal_frac: float | None = None


def why_not_compared(a: Case, b: Case) -> str:
    """Why both sides need not give the same answers, or nobody can tell; empty where they must."""
    if engine_named(a.server.engine).token_api is None:
        return f"engine '{a.server.engine}' tells no token ids"
    if not a.temperature == b.temperature == 0:
        return "the answers are drawn at a temperature"
    if _target_of(a) != _target_of(b):
        return "the targets of both sides differ, or their number formats"
    return "" if _asked_of(a) == _asked_of(b) else "the sides are asked otherwise"


def _target_of(case: Case) -> tuple[object, ...]:
    server = case.server
    return server.target, server.padding_layers, server.widen, server.dtype


def _asked_of(case: Case) -> tuple[object, ...]:
    return case.dataset, case.prompts, case.output_cap_tokens, case.ignore_eos


def hear(case: Case, case_id: str, server: Server, prompts: Sequence[Prompt]) -> TextsSaid:
    """What a side answers.

    Raises:
        InvalidMeasurementError: it doesn't answer in ids.
    """
    texts = encode_prompts(server.endpoint, case, prompts)
    answers = transcribe(
        server.endpoint, texts, wanted_of(case, len(texts)), in_flight=in_flight(case)
    )
    return TextsSaid(case_id=case_id, prompts=texts, answers=tuple(one.output for one in answers))


def compare_texts(
    case: Case,
    server: Server,
    prompts: Sequence[Prompt],
    said: TextsSaid,
    other: Server | None = None,
) -> TextsJudged:
    """Holds what a server answers against what side A said; asks it how likely both were.

    Args:
        case: as side B runs it.
        server: of side B.
        prompts: what both are asked.
        said: by side A.
        other: the server of side A, None where it isn't up; one that can't say leaves it to B.

    Raises:
        InvalidMeasurementError: it doesn't answer in ids, or parts from itself.
    """
    asked = encode_prompts(server.endpoint, case, prompts)
    rendered = [
        prompt.id
        for prompt, one, other in zip(prompts, asked, said.prompts, strict=True)
        if one != other
    ]
    if rendered:
        shown = ", ".join(f"'{one}'" for one in rendered[:_MOST_NAMED])
        return TextsJudged(
            case_id=said.case_id,
            outcome=Outcome.WRONG,
            reason=f"B makes other tokens of {len(rendered)} prompts: {shown}; look at its"
            " tokenizer and chat template",
            asked=len(prompts),
        )
    at_once = in_flight(case)
    other_at_once = 1 if at_once > 1 else case.server.max_sequences

    def answers(in_flight: int) -> tuple[Transcript, ...]:
        return transcribe(server.endpoint, asked, wanted_of(case, len(asked)), in_flight=in_flight)

    try:
        found = check_lossless(
            [prompt.id for prompt in prompts],
            answers(at_once),
            [
                Transcript(prompt=one, output=other)
                for one, other in zip(said.prompts, said.answers, strict=True)
            ],
            (lambda: answers(other_at_once)) if other_at_once != at_once else None,
            lambda questions: score(server.endpoint, questions),
            # Another version may have other kernels, whatever a case demands of speculation.
            rounding_nats=max(case.rounding_nats, ROUNDING_NATS),
        )
    except InvalidMeasurementError as error:
        if error.reason == "CONTROL_UNSTEADY":
            raise InvalidMeasurementError(error.reason, _UNSTEADY) from error
        raise
    doubted = _asked_of_a(found, said, prompts, other)
    return TextsJudged(
        case_id=said.case_id,
        outcome=Outcome.WRONG if found.failures or doubted else Outcome.PASS,
        reason=_in_words(found, doubted, prompts),
        asked=found.prompts,
        equal_frac=found.equal_frac,
    )


def _asked_of_a(
    found: Losslessness, said: TextsSaid, prompts: Sequence[Prompt], a: Server | None
) -> tuple[Parting, ...] | None:
    """What A doubts; None where it needn't be asked, isn't up, or can't say."""
    if a is None or found.failures:
        return None
    try:
        return doubted_by_a(found, said, prompts, functools.partial(score, a.endpoint))
    except InvalidMeasurementError:
        return None


def doubted_by_a(
    found: Losslessness, said: TextsSaid, prompts: Sequence[Prompt], score: Score
) -> tuple[Parting, ...]:
    """The partings that B finds rounding and A doesn't.

    Args:
        found: by B's word.
        said: by A.
        prompts: of both.
        score: asks A's server.

    Returns:
        Their `gap_nats` is A's: how much likelier A's own token is to it.
    """
    answered = zip(said.prompts, said.answers, strict=True)
    texts = dict(zip((one.id for one in prompts), answered, strict=True))
    rounded = [one for one in found.partings if one.is_rounding(found.bound_nats)]
    questions = []
    for one in rounded:
        prompt, answer = texts[one.prompt_id]
        tokens = tuple(token for token in (one.other, one.plain) if token is not None)
        questions.append(((*prompt, *answer[: one.position]), tokens))
    scores = score(questions) if questions else ()
    asked = [
        dataclasses.replace(one, gap_nats=ours - theirs)
        for one, (ours, theirs) in zip(rounded, scores, strict=True)
    ]
    # Where A finds B's token likelier than its own, B does no worse.
    return tuple(one for one in asked if one.gap_nats is None or one.gap_nats > found.bound_nats)


def not_compared(case_id: str, reason: str) -> TextsJudged:
    """What is told of texts that need not be the same."""
    return TextsJudged(case_id=case_id, outcome=Outcome.NOT_COMPARABLE, reason=reason, asked=0)


def untold(case_id: str, reason: str) -> TextsJudged:
    """What becomes of texts that couldn't be compared."""
    return TextsJudged(case_id=case_id, outcome=Outcome.INVALID, reason=reason, asked=0)


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
