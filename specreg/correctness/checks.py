"""Check what must hold whatever a baseline says.

Speculation changes no token of a greedy answer, draws as its target does, and takes the steps that
its own models and text give.
"""

import dataclasses
import functools
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.errors import InvalidMeasurementError
from specreg.core.reasons import Reason
from specreg.correctness.lossless import check_lossless
from specreg.correctness.oracle_client import PredictDrafts, has_oracle, walk_answers
from specreg.correctness.turns import ask_each_turn, turns_of
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import Endpoint, Transcript, Wanted
from specreg.load.token_client import complete, encode_prompts, score
from specreg.matrix.case import ROUNDING_NATS, Case
from specreg.measurement.metrics import Replay
from specreg.servers.server import Server
from specreg.stats.permutation import BEGINNINGS_TOKENS, LEVEL, chance_of_alike
from specreg.verdicts.verdict import Comparison, Outcome, Verdict

LOSSLESS = "lossless_frac"
SAMPLING = "sampling_frac"
ORACLE = "oracle_length_tokens"

_ORACLE_FRAC = 0.01
"""0 was seen of vLLM's and SGLang's methods in float32. Rounding may choose another draft where
two are almost equally likely."""
_DRAWN_PROMPTS = 4
_DRAWS = 250
_MOST_NAMED = 3

ControlAnswers = MutableMapping[tuple[object, ...], tuple[Transcript, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCase:
    """A case whose servers are up.

    Attributes:
        server: with speculation; control: without it, None where there is none beside it.
        predict_drafts: asks the models themselves.
        models: target and draft as folders or hub ids; the target as it is, without padding.
        control_answers: those so far, kept for all cases that have this control.
        replay: what was timed of both servers; None where nothing was.
    """

    case: Case
    server: Server
    control: Server | None
    prompts: Sequence[Prompt]
    predict_drafts: PredictDrafts
    models: tuple[str, str | None]
    control_answers: ControlAnswers = field(default_factory=dict)
    replay: Replay | None = None


def ask_greedy(
    case: Case, server: Server, texts: Sequence[Sequence[int]], at_once: int = 0
) -> tuple[Transcript, ...]:
    """Return a server's greedy answers to texts in ids, `at_once` (0: the case's) in flight."""
    one = Wanted(output_cap_tokens=case.output_cap_tokens, ignore_eos=case.ignore_eos)
    wanted = [one] * len(texts)
    return complete(server.endpoint, texts, wanted, in_flight=at_once or case.in_flight)


def other_batch(case: Case) -> int:
    """Return another number of requests at once than the case's; 0 where there is none."""
    if case.in_flight > 1:
        return 1
    return case.server.max_sequences if case.server.max_sequences > 1 else 0


def check_answers(running: RunningCase) -> Verdict:
    """Compare greedy answers with speculation to those without, token by token, in each turn.

    Answers that were equal when timed count as equal; the others are asked for again, later turns
    after the replies without speculation.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids, or the one without speculation
            answers differently at another batch size.
    """
    case, control = running.case, _control(running)
    prompts = [one for one in running.prompts if not were_equal(running.replay, one)]
    if running.prompts and not prompts:
        return Verdict(case_id=case.id, metric=LOSSLESS, outcome=Outcome.PASS, value=1.0)

    def ask_control(texts: Sequence[tuple[int, ...]], at_once: int) -> tuple[Transcript, ...]:
        """Ask the control once for all cases that ask alike."""
        asked = (tuple(texts), case.output_cap_tokens, case.ignore_eos, at_once)
        key = (control.spec, control.base_url, *asked)
        if key not in running.control_answers:
            running.control_answers[key] = ask_greedy(case, control, texts, at_once)
        return running.control_answers[key]

    ask_plain = functools.partial(ask_control, at_once=case.in_flight)
    turns = ask_each_turn(control.endpoint, case, prompts, ask_plain)
    texts = [turn.text for turn in turns]
    batch = other_batch(case)
    equal = [prompt for prompt in running.prompts if prompt not in prompts]
    found = check_lossless(
        [turn.name for turn in turns],
        [turn.answer for turn in turns],
        ask_greedy(case, running.server, texts),
        functools.partial(ask_control, texts, batch) if batch else None,
        functools.partial(score, control.endpoint),
        rounding_nats=case.rounding_nats,
        known_equal=sum(turns_of(case, prompt) for prompt in equal),
    )
    said = found.describe("without speculation", "with speculation")
    return Verdict(
        case_id=case.id,
        metric=LOSSLESS,
        outcome=Outcome.WRONG if found.failures else Outcome.PASS,
        value=found.equal_frac,
        comparison=Comparison(expected=found.control_equal_frac),
        reason=Reason(text=said) if found.partings or found.asked < found.prompts else None,
    )


def were_equal(replay: Replay | None, prompt: Prompt) -> bool:
    """Whether a prompt's answers with and without speculation were the same whenever timed.

    That is all that was generated, thoughts too, the number of tokens and why it ended, of each
    turn. Not where nothing was timed, nor where an answer doesn't show all that was generated.
    """
    if replay is None:
        return False
    ours, theirs = (
        {
            (one.turn, one.answer_sha256, one.tokens, one.finish_reason)
            for part in rounds
            for one in part.traces
            if one.prompt_id == prompt.id
        }
        for rounds in (replay.rounds, replay.control_rounds)
    )
    return bool(ours) and ours == theirs and all(digest for _, digest, *_ in ours)


def check_sampling(running: RunningCase) -> Verdict:
    """Compare answers drawn with speculation to those drawn without.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids.
    """
    case, control = running.case, _control(running)
    texts = encode_prompts(control.endpoint, case, running.prompts[:_DRAWN_PROMPTS])

    def draw(endpoint: Endpoint, first_seed: int) -> list[list[tuple[int, ...]]]:
        one = Wanted(output_cap_tokens=max(BEGINNINGS_TOKENS), temperature=case.temperature)
        seeds = range(first_seed, first_seed + _DRAWS)
        wanted = [dataclasses.replace(one, seed=seed) for seed in seeds]
        asked = [text for text in texts for _ in wanted]
        in_flight = case.server.max_sequences
        drawn = complete(endpoint, asked, wanted * len(texts), in_flight=in_flight)
        answers = [one.output for one in drawn]
        return [answers[start : start + _DRAWS] for start in range(0, len(answers), _DRAWS)]

    pairs = list(zip(draw(running.server.endpoint, 0), draw(control.endpoint, _DRAWS), strict=True))
    chances = [chance_of_alike(pairs, tokens=tokens) for tokens in BEGINNINGS_TOKENS]
    chance = min(1.0, min(chances) * len(chances))  # Bonferroni's bound
    reason = Reason(
        text=f"{_DRAWS} draws each of {len(texts)} prompts begin otherwise with speculation than"
        f" without; by chance they do so {chance:.2g} of the time: the verifier draws from another"
        " distribution than the target's"
    )
    wrong = chance < LEVEL
    return Verdict(
        case_id=case.id,
        metric=SAMPLING,
        outcome=Outcome.WRONG if wrong else Outcome.PASS,
        value=chance,
        reason=reason if wrong else None,
    )


def check_steps(running: RunningCase) -> Verdict:
    """Compare an engine's steps to those that its own text and models give.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids, or doesn't count its steps; or
            nothing was drafted.
        ModelError: the models can't be read.
    """
    case, server = running.case, running.server
    answers = ask_greedy(case, server, encode_prompts(server.endpoint, case, running.prompts))
    beside = running.control or server
    expected, gaps_nats = walk_answers(
        case, answers, beside.endpoint, running.models, running.predict_drafts
    )
    if not any(answer.counts for answer in answers):
        message = "no answer tells its steps, so there is nothing to hold against the oracle"
        raise InvalidMeasurementError("ACCEPTANCE_MISSING", message)
    # SGLang's histograms end at the most that a step accepted; the expected ones don't.
    depth = case.server.draft_tokens
    counted = [(answer.counts or NO_STEPS).to_depth(depth) for answer in answers]
    ours, must = sum(counted, NO_STEPS), sum(expected, NO_STEPS)
    if not ours.steps and not must.steps:
        message = "neither the engine nor its models drafted; replay prompts that give drafts"
        raise InvalidMeasurementError("NOTHING_DRAFTED", message)
    otherwise = [
        f"'{prompt.id}' {_said(one)} instead of {_said(other)}"
        for prompt, one, other in zip(running.prompts, counted, expected, strict=True)
        if one != other
    ]
    # The models are read by other kernels than the engine's, whatever a case demands of its own.
    rounding_nats = max(case.rounding_nats, ROUNDING_NATS)
    unlike = [
        f"'{prompt.id}' by {gap:.2f} nats"
        for prompt, gap in zip(running.prompts, gaps_nats, strict=True)
        if gap > rounding_nats
    ]
    reasons = [
        f"{len(ones)} of {len(counted)} answers {what}: {'; '.join(ones[:_MOST_NAMED])}"
        for what, ones in (
            ("took other steps than their text and models give", otherwise),
            ("hold a token that the target finds less likely than another", unlike),
        )
        if ones
    ]
    # The relative change of drafts accepted per step; of 0 expected, what there is.
    per_step, expects = (one.accepted / one.steps if one.steps else 0.0 for one in (ours, must))
    change_frac = per_step / expects - 1 if expects else per_step
    # Steps and drafts too: drafting in half the steps leaves the acceptance of a step as it is.
    differs = abs(change_frac) > _ORACLE_FRAC or any(
        abs(one - other) > _ORACLE_FRAC * other
        for one, other in ((ours.steps, must.steps), (ours.proposed, must.proposed))
        if one is not None and other is not None
    )
    wrong = differs or bool(unlike)
    if wrong:
        reasons.append("the engine's drafter or verifier is wrong")
    return Verdict(
        case_id=case.id,
        metric=ORACLE,
        outcome=Outcome.WRONG if wrong else Outcome.PASS,
        value=ours.acceptance_length,
        comparison=Comparison(
            expected=must.acceptance_length,
            tolerance_frac=_ORACLE_FRAC,
            change_frac=change_frac,
            low_frac=change_frac,
            high_frac=change_frac,
        ),
        reason=Reason(text="; ".join(reasons)) if reasons else None,
        by_position_frac=tuple(
            # One that took no step has none.
            zip(ours.marginal_acceptance, must.marginal_acceptance, strict=False)
        ),
    )


def _said(counts: StepCounts) -> str:
    steps = ", ".join(map(str, counts.position_counts))
    return f"S {counts.steps}, A {counts.accepted} ({steps}), D {counts.proposed}"


def _control(running: RunningCase) -> Server:
    if running.control is None:
        raise TypeError(f"'{running.case.id}' is checked without a control")
    return running.control


class CorrectnessCheck(NamedTuple):
    """A check of a case: the verdict's metric, and the function that gives the verdict."""

    name: str
    check: Callable[[RunningCase], Verdict]


_CHECKS = {LOSSLESS: check_answers, SAMPLING: check_sampling, ORACLE: check_steps}
CHECKS = {name: CorrectnessCheck(name, check) for name, check in _CHECKS.items()}


def checks_of(case: Case, *, with_torch: bool) -> tuple[CorrectnessCheck, ...]:
    """Return the checks that apply to a case; the oracle takes torch."""
    if not case.speculates or engine_named(case.server.engine).token_api is None:
        return ()
    if case.server.pinned_length_tokens:  # what is accepted need not be what the target says
        return ()
    greedy, beside = case.temperature == 0, case.control is not None
    applies = {
        LOSSLESS: greedy and beside,
        SAMPLING: not greedy and beside,
        ORACLE: greedy and with_torch and has_oracle(case),
    }
    return tuple(check for name, check in CHECKS.items() if applies[name])
