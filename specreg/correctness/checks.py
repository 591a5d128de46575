"""Proving: running servers and prompts in, what must hold whatever the baseline says out.

A baseline says what was; these say what must be: speculation changes no token, draws as its target
does, and takes the steps that its own models and text give.
"""

import itertools
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.errors import InvalidMeasurementError
from specreg.correctness.draft_prediction import Foresee
from specreg.correctness.lossless import check_lossless
from specreg.correctness.oracle_client import consult, in_flight, is_foreseen, wanted_of
from specreg.datasets.prompts import Prompt
from specreg.engines.protocols import Endpoint
from specreg.engines.registry import engine_named
from specreg.engines.token_api import DIALECTS, Transcript, Wanted
from specreg.load.token_client import encode_prompts, score, transcribe
from specreg.matrix.case import Case
from specreg.matrix.schema import ROUNDING_NATS
from specreg.servers.server import Server
from specreg.stats.permutation import BEGINNINGS_TOKENS, LEVEL, chance_of_alike, least_of
from specreg.verdicts.judge import Outcome, Verdict

_ORACLE_FRAC = 0.01
"""Seen: 0, of vLLM's and SGLang's methods in float32. Rounding may choose another draft now and
then, where two are as good as equally likely."""
_DRAWN_PROMPTS = 4
_DRAWS = 250
_MOST_NAMED = 3

Plain = MutableMapping[tuple[object, ...], tuple[Transcript, ...]]
"""The control's answers, kept: all cases beside it are held against them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What a proof looks at.

    Attributes:
        case: whose.
        server: with speculation; control: without it, None where there is none beside it.
        prompts: of the case.
        foresee: asks the models themselves.
        models: target and draft as folders or hub ids; the target as it is, without padding.
        plain: the control's answers so far.
    """

    case: Case
    server: Server
    control: Server | None
    prompts: Sequence[Prompt]
    foresee: Foresee
    models: tuple[str, str | None]
    plain: Plain = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Something that must hold.

    Attributes:
        name: ends in its unit.
        applies_to: whether it says anything of a case.
        prove: what came of it.
        needs_torch: whether it asks the models, in an environment of their own.
    """

    name: str
    applies_to: Callable[[Case], bool]
    prove: Callable[["Scene"], Verdict]
    needs_torch: bool = False


def prove_lossless(scene: Scene) -> Verdict:
    """Greedy answers with speculation against those without, token by token.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids, or the one without speculation
            parts from itself.
    """
    case, control = scene.case, _control(scene)
    texts = encode_prompts(control.endpoint, case, scene.prompts)
    at_once = in_flight(case)
    other = 1 if at_once > 1 else case.server.max_sequences
    plain = _plain(scene, texts, at_once)
    found = check_lossless(
        [prompt.id for prompt in scene.prompts],
        plain,
        transcribe(scene.server.endpoint, texts, wanted_of(case, len(texts)), in_flight=at_once),
        (lambda: _plain(scene, texts, other)) if other != at_once else None,
        lambda questions: score(control.endpoint, questions),
        rounding_nats=case.rounding_nats,
    )
    return Verdict(
        case_id=case.id,
        metric=LOSSLESS,
        outcome=Outcome.WRONG if found.failures else Outcome.PASS,
        value=found.equal_frac,
        expected=found.control_equal_frac,
        reason="" if not found.partings else str(found),
    )


def prove_sampling(scene: Scene) -> Verdict:
    """Answers drawn with speculation against those drawn without.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids.
    """
    case, control = scene.case, _control(scene)
    texts = encode_prompts(control.endpoint, case, scene.prompts[:_DRAWN_PROMPTS])

    def draw(endpoint: Endpoint, first_seed: int) -> list[list[tuple[int, ...]]]:
        seeds = range(first_seed, first_seed + _DRAWS)
        wanted = [
            Wanted(
                output_cap_tokens=max(BEGINNINGS_TOKENS), temperature=case.temperature, seed=seed
            )
            for _, seed in itertools.product(texts, seeds)
        ]
        asked = [text for text in texts for _ in seeds]
        drawn = transcribe(endpoint, asked, wanted, in_flight=case.server.max_sequences)
        answers = [one.output for one in drawn]
        return [answers[start : start + _DRAWS] for start in range(0, len(answers), _DRAWS)]

    pairs = list(zip(draw(scene.server.endpoint, 0), draw(control.endpoint, _DRAWS), strict=True))
    chance = least_of([chance_of_alike(pairs, tokens=tokens) for tokens in BEGINNINGS_TOKENS])
    wrong = chance < LEVEL
    reason = (
        f"{_DRAWS} draws each of {len(texts)} prompts: their beginnings with and without"
        f" speculation differ as chance alone makes them {chance:.2g} of the time; the verifier"
        " draws from another distribution than the target's"
    )
    return Verdict(
        case_id=case.id,
        metric=SAMPLING,
        outcome=Outcome.WRONG if wrong else Outcome.PASS,
        value=chance,
        reason=reason if wrong else "",
    )


def prove_oracle(scene: Scene) -> Verdict:
    """An engine's steps against those that its own text and models give.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids, or doesn't count its steps.
        ModelError: the models can't be read.
    """
    case, beside = scene.case, scene.control or scene.server
    found = consult(
        case, scene.prompts, scene.server.endpoint, beside.endpoint, scene.models, scene.foresee
    )
    if not any(answer.counts for answer in found.answers):
        message = "no answer tells its steps, so there is nothing to hold against the oracle"
        raise InvalidMeasurementError("ACCEPTANCE_MISSING", message)
    # Those of SGLang end at the most that a step accepted; the foreseen ones don't.
    depth = case.server.draft_tokens
    counted = [(answer.counts or NO_STEPS).to_depth(depth) for answer in found.answers]
    return _judge_oracle(scene, counted, found.steps, found.gaps_nats)


def _judge_oracle(
    scene: Scene,
    counted: Sequence[StepCounts],
    foreseen: Sequence[StepCounts],
    gaps_nats: Sequence[float],
) -> Verdict:
    ours, must = sum(counted, NO_STEPS), sum(foreseen, NO_STEPS)
    if not ours.steps and not must.steps:
        message = (
            "nothing was drafted, neither by the engine nor by what its models give; replay"
            " prompts that give the method something to draft"
        )
        raise InvalidMeasurementError("NOTHING_DRAFTED", message)
    otherwise = [
        f"'{prompt.id}' {_said(one)} instead of {_said(other)}"
        for prompt, one, other in zip(scene.prompts, counted, foreseen, strict=True)
        if one != other
    ]
    # The models are read by other kernels than the engine's, whatever a case demands of its own.
    rounding_nats = max(scene.case.rounding_nats, ROUNDING_NATS)
    unlike = [
        f"'{prompt.id}' by {gap:.2f} nats"
        for prompt, gap in zip(scene.prompts, gaps_nats, strict=True)
        if gap > rounding_nats
    ]
    change = _change(ours, must)
    wrong = _differ(ours, must) or bool(unlike)
    reasons = [
        f"{len(ones)} of {len(counted)} answers {what}: {'; '.join(ones[:_MOST_NAMED])}"
        for what, ones in (
            ("took other steps than their text and models give", otherwise),
            ("hold a token that the target finds less likely than another", unlike),
        )
        if ones
    ]
    if wrong:
        reasons.append("the engine's drafter or verifier is wrong, see docs/lossless.md")
    return Verdict(
        case_id=scene.case.id,
        metric=ORACLE,
        outcome=Outcome.WRONG if wrong else Outcome.PASS,
        value=ours.acceptance_length,
        expected=must.acceptance_length,
        change_frac=change,
        low_frac=change,
        high_frac=change,
        tolerance_frac=_ORACLE_FRAC,
        reason="; ".join(reasons),
    )


def _said(counts: StepCounts) -> str:
    steps = ", ".join(map(str, counts.position_counts))
    return f"S {counts.steps}, A {counts.accepted} ({steps}), D {counts.proposed}"


def _change(ours: StepCounts, must: StepCounts) -> float:
    """Relative, of the drafts accepted per step; as much as there is where none should be."""
    per_step = [one.accepted / one.steps if one.steps else 0.0 for one in (ours, must)]
    return per_step[0] / per_step[1] - 1 if per_step[1] else per_step[0]


def _differ(ours: StepCounts, must: StepCounts) -> bool:
    """Whether the drafts accepted per step, the steps or the drafts are others.

    All three: an engine that drafts in half its steps accepts as many in each.
    """
    pairs = ((ours.steps, must.steps), (ours.proposed, must.proposed))
    moved = (
        abs(one - other) > _ORACLE_FRAC * other
        for one, other in pairs
        if one is not None and other is not None
    )
    return abs(_change(ours, must)) > _ORACLE_FRAC or any(moved)


def _plain(
    scene: Scene, texts: Sequence[tuple[int, ...]], in_flight: int
) -> tuple[Transcript, ...]:
    """The control's answers, asked for once for all cases."""
    control = _control(scene)
    cap = scene.case.output_cap_tokens
    key = (control.spec, control.base_url, tuple(texts), cap, scene.case.ignore_eos, in_flight)
    if key not in scene.plain:
        wanted = wanted_of(scene.case, len(texts))
        scene.plain[key] = transcribe(control.endpoint, texts, wanted, in_flight=in_flight)
    return scene.plain[key]


def _control(scene: Scene) -> Server:
    if scene.control is None:
        message = f"'{scene.case.id}' has no server without speculation beside it"
        raise InvalidMeasurementError("CONTROL_MISSING", message)
    return scene.control


def _gives_ids(case: Case) -> bool:
    return engine_named(case.server.engine).protocol.name in DIALECTS


def _is_greedy(case: Case) -> bool:
    return case.speculates and case.temperature == 0 and _gives_ids(case)


def _has_oracle(case: Case) -> bool:
    return _is_greedy(case) and is_foreseen(case)


LOSSLESS = "lossless_frac"
SAMPLING = "sampling_frac"
ORACLE = "oracle_length_tokens"

_ROWS = (
    Proof(
        name=LOSSLESS,
        applies_to=lambda case: _is_greedy(case) and case.control is not None,
        prove=prove_lossless,
    ),
    Proof(
        name=SAMPLING,
        applies_to=lambda case: (
            case.speculates and case.temperature > 0 and _gives_ids(case) and bool(case.control)
        ),
        prove=prove_sampling,
    ),
    Proof(name=ORACLE, applies_to=_has_oracle, prove=prove_oracle, needs_torch=True),
)

PROOFS: Mapping[str, Proof] = MappingProxyType({proof.name: proof for proof in _ROWS})


def proofs_of(case: Case, *, with_torch: bool) -> tuple[Proof, ...]:
    """What must hold of a case."""
    return tuple(
        proof
        for proof in PROOFS.values()
        if proof.applies_to(case) and (with_torch or not proof.needs_torch)
    )
