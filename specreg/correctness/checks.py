"""Check that speculation is correct, which needs no baseline.

Speculation must not change a token of a greedy answer. It must draw from the target's distribution.
And its steps must be those that follow from its models and its text.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast, get_args

from specreg.acceptance.record import NO_STEPS, StepCounts
from specreg.core.errors import InvalidMeasurementError
from specreg.core.reasons import Reason
from specreg.correctness.lossless import check_lossless
from specreg.correctness.oracle_client import PredictDrafts, has_oracle, walk_answers
from specreg.correctness.turns import ask_each_turn, turns_of
from specreg.datasets.prompts import Prompt
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ModelRunner
from specreg.engines.wire_format import AnswerSettings, Endpoint, Transcript
from specreg.load.rounds import Round
from specreg.load.token_client import complete, encode_prompts, score
from specreg.matrix.case import ROUNDING_NATS, Case
from specreg.measurement.metrics import Replay
from specreg.servers.server import Server
from specreg.stats.permutation import BEGINNINGS_TOKENS, SAMPLING_LEVEL, chance_of_difference
from specreg.verdicts.verdict import Comparison, Outcome, Verdict

LOSSLESS = "lossless_frac"
SAMPLING = "sampling_frac"
ORACLE = "oracle_length_tokens"

_ORACLE_FRAC = 0.01
"""How far an engine's counts may be from the oracle's. In float32 the counts of vLLM's and SGLang's
methods were equal to the oracle's. In other formats rounding may decide between two drafts that are
almost equally likely."""
_DRAWN_PROMPTS = 4
"""How many prompts the check of sampling uses."""
_DRAWS = 250
"""How many answers to each of these prompts each server draws."""
_MAX_NAMED = 3
"""How many prompts a verdict names."""

ControlAnswers = MutableMapping[tuple[object, ...], tuple[Transcript, ...]]
"""The answers of controls, by the control and the requests that it got."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCase:
    """A case whose servers are up.

    Attributes:
        server: the server with speculation.
        control: the server without speculation; None if the case has none.
        prompts: the prompts of the case.
        predict_drafts: runs the models without the engine, and predicts the drafts.
        models: target and draft as folders or hub ids; None for no draft. The target has no padding
            layers, which wouldn't change its answers.
        control_answers: the answers of controls so far, which cases with the same control share.
        replay: the timed rounds of both servers; None if the case wasn't measured.
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
    case: Case, server: Server, texts: Sequence[Sequence[int]], in_flight: int = 0
) -> tuple[Transcript, ...]:
    """Return a server's greedy answers to texts.

    Args:
        case: the case, which says how long answers may be.
        texts: the texts as token ids.
        in_flight: how many requests are in flight; 0 for as many as the case has.

    Raises:
        InvalidMeasurementError: the server didn't answer in ids.
    """
    request = AnswerSettings(
        output_cap_tokens=case.request.output_cap_tokens, ignore_eos=case.request.ignore_eos
    )
    requests = [request] * len(texts)
    batch = in_flight or case.in_flight
    return complete(server.endpoint, texts, requests, in_flight=batch)


def other_batch(case: Case) -> int:
    """Return a number of requests in flight that differs from the case's; 0 if there is none.

    Kernels may round differently at another batch size, so answers at that size show how much a
    server's rounding changes by itself.
    """
    if case.in_flight > 1:
        return 1
    if case.server.max_sequences > 1:
        return case.server.max_sequences
    return 0


def check_answers(running: RunningCase) -> Verdict:
    """Compare greedy answers with speculation to those without, token by token, in each turn.

    Answers that were equal in the timed rounds count as equal. The other prompts are sent again.
    In later turns both servers get the same conversation, with the replies of the server without
    speculation.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids, a reply has no text, or the answers
            without speculation change too much with the batch size.
    """
    # Leave out the prompts whose answers were equal in the timed rounds.
    case = running.case
    control = _control(running)
    equal_prompts = [prompt for prompt in running.prompts if were_equal(running.replay, prompt)]
    prompts = [prompt for prompt in running.prompts if prompt not in equal_prompts]
    if running.prompts and not prompts:
        # All prompts have been compared already, so nothing needs to be sent again.
        return Verdict(case_id=case.id, metric=LOSSLESS, outcome=Outcome.PASS, value=1.0)

    def ask_control(texts: Sequence[tuple[int, ...]], in_flight: int) -> tuple[Transcript, ...]:
        """Return the control's answers. Cases with the same requests share them."""
        # The address is in the key, because another launch of the control may answer otherwise.
        request = (tuple(texts), case.request.output_cap_tokens, case.request.ignore_eos, in_flight)
        key = (control.spec, control.address, *request)
        if key not in running.control_answers:
            running.control_answers[key] = ask_greedy(case, control, texts, in_flight)
        return running.control_answers[key]

    # Ask the control first, because its replies are part of the later turns of both servers.
    ask_plain = functools.partial(ask_control, in_flight=case.in_flight)
    turns = ask_each_turn(control.endpoint, case, prompts, ask_plain)
    names = [turn.name for turn in turns]
    texts = [turn.text for turn in turns]
    plain_answers = [turn.answer for turn in turns]
    regenerate_plain = None
    batch = other_batch(case)
    if batch:
        regenerate_plain = functools.partial(ask_control, texts, batch)

    # Compare the answers. If some differ, the control reports how likely it finds the token of each
    # where they part, and then answers again at another batch size.
    speculative_answers = ask_greedy(case, running.server, texts)
    known_equal = sum(turns_of(case, prompt) for prompt in equal_prompts)
    losslessness = check_lossless(
        names,
        plain_answers,
        speculative_answers,
        regenerate_plain,
        functools.partial(score, control.endpoint),
        rounding_nats=case.judging.rounding_nats,
        known_equal=known_equal,
    )

    # Judge the differences.
    outcome = Outcome.PASS
    if losslessness.failures:
        outcome = Outcome.WRONG
    reason = None
    if losslessness.partings or losslessness.compared_by_token < losslessness.prompts:
        text = losslessness.describe("without speculation", "with speculation")
        reason = Reason.of("answers_compared", differences=text)
    return Verdict(
        case_id=case.id,
        metric=LOSSLESS,
        outcome=outcome,
        value=losslessness.equal_frac,
        comparison=Comparison(expected=losslessness.plain_equal_frac),
        reason=reason,
    )


def were_equal(replay: Replay | None, prompt: Prompt) -> bool:
    """Return whether a prompt's answers with and without speculation were equal when timed.

    In each turn, both servers must have given the same answers over all rounds: equal in their
    whole text, including thoughts, in their number of tokens, and in the reason why they ended.

    Returns:
        True if all answers are equal. False also if nothing was timed, or if the server left out a
        part of an answer's text.
    """
    if replay is None:
        return False
    answers = _answers_to(prompt, replay.rounds)
    control_answers = _answers_to(prompt, replay.control_rounds)

    # A prompt that neither server answered would look equal, and show nothing.
    if not answers:
        return False

    # The digest is empty if the server left out a part of the text.
    are_whole = all(digest for _, digest, _, _ in answers)
    return are_whole and answers == control_answers


def _answers_to(prompt: Prompt, rounds: Sequence[Round]) -> set[tuple[int, str, int, str | None]]:
    """Return the turn, digest, token count and finish reason of each answer to a prompt."""
    # A prompt is answered once in each round. The set holds equal answers only once.
    answers = set()
    for trace in itertools.chain.from_iterable(replayed_round.traces for replayed_round in rounds):
        if trace.prompt_id == prompt.id:
            answer = (trace.turn, trace.answer_sha256, trace.tokens, trace.finish_reason)
            answers.add(answer)
    return answers


def check_sampling(running: RunningCase) -> Verdict:
    """Compare answers drawn with speculation to those drawn without.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids.
    """
    # Draw answers from both servers. Their seeds differ, because the test below assumes that the
    # draws of the two servers are independent.
    case = running.case
    control = _control(running)
    texts = encode_prompts(control.endpoint, case, running.prompts[:_DRAWN_PROMPTS])
    drawn = _draw(case, running.server.endpoint, texts, first_seed=0)
    drawn_by_control = _draw(case, control.endpoint, texts, first_seed=_DRAWS)

    # Compare the first tokens of the answers, for several numbers of tokens. Compute how likely it
    # is that they differ so much by chance.
    pairs = list(zip(drawn, drawn_by_control, strict=True))
    chances = [chance_of_difference(pairs, tokens=tokens) for tokens in BEGINNINGS_TOKENS]

    # Bonferroni's bound: the smallest p-value is multiplied by how many p-values there are.
    bound = min(chances) * len(chances)
    chance = min(1.0, bound)
    if chance >= SAMPLING_LEVEL:
        return Verdict(case_id=case.id, metric=SAMPLING, outcome=Outcome.PASS, value=chance)
    reason = Reason.of("draws_differ", draws=_DRAWS, prompts=len(texts), chance=chance)
    return Verdict(
        case_id=case.id, metric=SAMPLING, outcome=Outcome.WRONG, value=chance, reason=reason
    )


def _draw(
    case: Case, endpoint: Endpoint, texts: Sequence[Sequence[int]], *, first_seed: int
) -> list[list[tuple[int, ...]]]:
    """Return the answers to each text that a server draws, each with a seed of its own."""
    request = AnswerSettings(
        output_cap_tokens=max(BEGINNINGS_TOKENS),
        temperature=case.request.temperature,
        top_p=case.request.top_p,
        top_k=case.request.top_k,
    )
    seeds = range(first_seed, first_seed + _DRAWS)
    requests = [dataclasses.replace(request, seed=seed) for seed in seeds]

    # All draws of a text follow each other, so that the answers can be divided by text below.
    repeated_texts = [text for text in texts for _ in requests]

    # As many at once as the server takes, because nothing is timed here.
    transcripts = complete(
        endpoint, repeated_texts, requests * len(texts), in_flight=case.server.max_sequences
    )
    answers = [transcript.output for transcript in transcripts]
    starts = range(0, len(answers), _DRAWS)
    return [answers[start : start + _DRAWS] for start in starts]


def check_steps(running: RunningCase) -> Verdict:
    """Compare an engine's steps to those that follow from its text and its models.

    Raises:
        InvalidMeasurementError: a server didn't answer in ids or doesn't count its steps, nothing
            was drafted, or the context has no room for the drafts after an answer.
        EnvironmentSetupError: the environment that runs the models couldn't be made.
        ModelError: the models can't be read, or don't fit together.
    """
    # Get answers, and recompute their steps.
    case = running.case
    server = running.server
    texts = encode_prompts(server.endpoint, case, running.prompts)
    answers = ask_greedy(case, server, texts)

    # The last step of an answer may draft beyond its end, so `walk_answers` lets a server continue
    # the answers. If there is a control, it does so, because it has no drafter that may be faulty.
    endpoint = (running.control or server).endpoint
    expected, gaps_nats = walk_answers(
        _as_run(case, server), answers, endpoint, running.models, running.predict_drafts
    )
    if not any(answer.counts for answer in answers):
        raise InvalidMeasurementError("ACCEPTANCE_MISSING", sources="the answers")

    # Count the steps of the engine, and the expected ones. SGLang's histograms end with the largest
    # number of drafts that a step accepted, so they are extended to the case's number of drafts.
    depth = case.server.draft_tokens
    counted = [(answer.counts or NO_STEPS).to_depth(depth) for answer in answers]
    total = sum(counted, NO_STEPS)
    expected_total = sum(expected, NO_STEPS)
    if not total.steps and not expected_total.steps:
        raise InvalidMeasurementError("NOTHING_DRAFTED")

    # Compare the counts of each answer, and of all answers together.
    other_steps = _other_steps(running.prompts, counted, expected)
    unlikely_tokens = _unlikely_tokens(case, running.prompts, gaps_nats)
    reasons = []
    if other_steps:
        description = "took other steps than their text and models give"
        reasons.append(_describe(other_steps, len(counted), description))
    if unlikely_tokens:
        description = "hold a token that the target finds less likely than another"
        reasons.append(_describe(unlikely_tokens, len(counted), description))
    change_frac = _change_of_acceptance(total, expected_total)
    is_wrong = _differs(total, expected_total, change_frac) or bool(unlikely_tokens)
    outcome = Outcome.PASS
    if is_wrong:
        outcome = Outcome.WRONG
        reasons.append("the engine's drafter or verifier is wrong")
    reason = None
    if reasons:
        reason = Reason.of("steps_differ", differences="; ".join(reasons))

    # Without a step there are no shares, so one of the two sequences may be shorter.
    shares = zip(total.marginal_acceptance, expected_total.marginal_acceptance, strict=False)
    return Verdict(
        case_id=case.id,
        metric=ORACLE,
        outcome=outcome,
        value=total.acceptance_length,
        comparison=Comparison(
            expected=expected_total.acceptance_length,
            tolerance_frac=_ORACLE_FRAC,
            change_frac=change_frac,
            low_frac=change_frac,
            high_frac=change_frac,
        ),
        reason=reason,
        by_position_frac=tuple(shares),
    )


def _as_run(case: Case, server: Server) -> Case:
    """Return a case with the model runner that its server really has, if that is known."""
    runner = server.facts.model_runner
    if runner not in get_args(ModelRunner):
        return case
    model_runner = cast("ModelRunner", runner)
    server_spec = dataclasses.replace(case.server, model_runner=model_runner)
    return dataclasses.replace(case, server=server_spec)


def _other_steps(
    prompts: Sequence[Prompt], counted: Sequence[StepCounts], expected: Sequence[StepCounts]
) -> list[str]:
    """Return the prompts whose answers took other steps than expected, with both counts."""
    descriptions = []
    for prompt, counts, expected_counts in zip(prompts, counted, expected, strict=True):
        if counts != expected_counts:
            shown = _describe_counts(counts)
            shown_expected = _describe_counts(expected_counts)
            descriptions.append(f"'{prompt.id}' {shown} instead of {shown_expected}")
    return descriptions


def _unlikely_tokens(
    case: Case, prompts: Sequence[Prompt], gaps_nats: Sequence[float]
) -> list[str]:
    """Return the prompts with a token that the target finds less likely than another, and the gap.

    Gaps that rounding explains are left out.
    """
    # The oracle runs the models with other kernels than the engine, so rounding is allowed here
    # even if the case demands that every token is equal.
    rounding_nats = max(case.judging.rounding_nats, ROUNDING_NATS)
    return [
        f"'{prompt.id}' by {gap_nats:.2f} nats"
        for prompt, gap_nats in zip(prompts, gaps_nats, strict=True)
        if gap_nats > rounding_nats
    ]


def _describe(examples: Sequence[str], answers: int, description: str) -> str:
    """Return a clause about how many answers have a property, with the first examples.

    Args:
        examples: a text for each answer that has it.
        answers: the number of all answers.
        description: the property, as the end of a sentence about the answers.
    """
    shown = "; ".join(examples[:_MAX_NAMED])
    return f"{len(examples)} of {answers} answers {description}: {shown}"


def _describe_counts(counts: StepCounts) -> str:
    """Return the counts of some steps in a few words, with the accepted drafts by position."""
    positions = ", ".join(str(count) for count in counts.position_counts)
    return f"S {counts.steps}, A {counts.accepted} ({positions}), D {counts.proposed}"


def _change_of_acceptance(total: StepCounts, expected: StepCounts) -> float:
    """Return the relative change of the drafts accepted per step.

    A change relative to zero isn't defined. If no draft should have been accepted, this is the
    number of accepted drafts per step itself.
    """
    accepted_per_step = _accepted_per_step(total)
    expected_per_step = _accepted_per_step(expected)
    if not expected_per_step:
        return accepted_per_step
    return accepted_per_step / expected_per_step - 1


def _accepted_per_step(counts: StepCounts) -> float:
    """Return A / S; 0 without steps."""
    if not counts.steps:
        return 0.0
    return counts.accepted / counts.steps


def _differs(total: StepCounts, expected: StepCounts, change_frac: float) -> bool:
    """Return whether acceptance, steps or drafts differ by more than rounding explains."""
    # Acceptance per step alone isn't enough: a drafter that skips every second step keeps it.
    if abs(change_frac) > _ORACLE_FRAC:
        return True
    difference_steps = abs(total.steps - expected.steps)
    if difference_steps > _ORACLE_FRAC * expected.steps:
        return True
    if total.proposed is None or expected.proposed is None:
        return False
    difference_tokens = abs(total.proposed - expected.proposed)
    return difference_tokens > _ORACLE_FRAC * expected.proposed


def _control(running: RunningCase) -> Server:
    if running.control is None:
        raise TypeError(f"'{running.case.id}' is checked without a control")
    return running.control


class CorrectnessCheck(NamedTuple):
    """A correctness check.

    Attributes:
        name: the name of the check, which is the metric of its verdict.
        check: makes the check and returns the verdict.
    """

    name: str
    check: Callable[[RunningCase], Verdict]


_CHECKS = {LOSSLESS: check_answers, SAMPLING: check_sampling, ORACLE: check_steps}
CHECKS = {name: CorrectnessCheck(name, check) for name, check in _CHECKS.items()}


def checks_of(case: Case, *, with_torch: bool) -> tuple[CorrectnessCheck, ...]:
    """Return the checks that apply to a case.

    Args:
        with_torch: True to include the check that runs the models, which needs torch.
    """
    # All checks need answers in token ids: two tokens may have the same text.
    if not case.speculates or engine_named(case.server.engine).token_api is None:
        return ()

    # A verifier that accepts other tokens by design would always be WRONG.
    if not engine_named(case.server.engine).is_lossless(case.server):
        return ()
    is_greedy = case.request.temperature == 0
    has_control = case.control is not None
    applies = {
        LOSSLESS: is_greedy and has_control,
        SAMPLING: not is_greedy and has_control,
        ORACLE: is_greedy and with_torch and has_oracle(case),
    }
    return tuple(check for name, check in CHECKS.items() if applies[name])
