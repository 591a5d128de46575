"""Say what the losses of a case point to, by the rules of docs/how-to/my-run-is-red.md."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specreg.correctness.checks import LOSSLESS, ORACLE, SAMPLING
from specreg.measurement.metrics import METRICS
from specreg.report.document import CaseReport
from specreg.verdicts.verdict import Outcome, Verdict

_LOST_FRAC = 0.9
"""A draft or a category is lost if less than this share of its earlier acceptance is left."""
_KEPT_FRAC = 0.98
"""The others are kept if at least this share is left. Between the two, nothing is concluded."""
_NEVER_ACCEPTED_FRAC = 0.1
"""If a first draft is accepted more rarely than this, it is as good as never accepted."""
_STEP_FRAC = 0.05
"""The cost of a step is a finding of its own from this share of the speed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the losses of a case point to.

    Attributes:
        code: identifies the rule that found it; it is a key of `FINDINGS`.
        facts: the numbers and names that the sentence of the rule contains.
    """

    code: str
    facts: Mapping[str, str]

    def __str__(self) -> str:
        return FINDINGS[self.code].format_map(self.facts)


FINDINGS: Mapping[str, str] = {
    LOSSLESS: "Speculation changes the text: look at the verifier, or at kernels that depend on"
    " the batch.",
    SAMPLING: "Tokens are drawn from another distribution: look at the rejection sampler.",
    ORACLE: "The engine doesn't draft as its models do: look at the drafter, then at the verifier.",
    "ONE_CATEGORY": "Only '{category}' lost acceptance ({before} → {now} drafts a step): look at"
    " its prompts.",
    "DRAFT_NOT_LOADED": "The first draft is accepted in {now} of the steps, before in {before}: the"
    " draft's weights weren't loaded.",
    "OTHER_MODEL": "Drafts are lost from the first position on ({before} → {now}): the draft or the"
    " target is another model.",
    "LATER_POSITIONS": "Only drafts from position {position} on are lost ({before} → {now}): the"
    " drafter's own state is probably wrong.",
    "STEP_COSTS_MORE": "Acceptance is as before, and a step takes longer: look at the engine, its"
    " flags or the machine.",
    "STEP_TOO": "A step takes longer ({change} of the speed): look at the engine, its flags or the"
    " machine.",
}
"""The sentence of each finding."""


def diagnose(case: CaseReport, lost: Sequence[Verdict]) -> Iterator[Finding]:
    """Yield what the losses of a case point to, the larger one first; nothing if no rule fits."""
    for verdict in lost:
        if verdict.outcome is Outcome.WRONG and verdict.metric in FINDINGS:
            yield Finding(code=verdict.metric, facts={})
    quantities = {METRICS[verdict.metric].quantity for verdict in lost if verdict.metric in METRICS}
    findings = []
    if "acceptance" in quantities:
        finding = _lost_category(case) or _lost_position(case, lost)
        if finding is not None:
            findings.append(finding)
    if "speed" in quantities:
        findings += _lost_time(lost, has_lost_acceptance="acceptance" in quantities)
    if _is_mostly_time(lost):
        findings.reverse()
    yield from findings


def _lost_category(case: CaseReport) -> Finding | None:
    """Return the only category that lost acceptance; None if several did, or if it isn't known."""
    if case.expected is None or case.figures is None or case.figures.acceptance is None:
        return None
    lost = []
    for name, part in case.figures.acceptance.by_category.items():
        before = case.expected.by_category_length_tokens.get(name)
        now = part.acceptance_length_tokens
        if before is None or now is None or before <= 1:
            return None
        # The first token of a step needs no draft.
        left_frac = (now - 1) / (before - 1)
        if left_frac < _LOST_FRAC:
            lost.append((name, before, now))
        elif left_frac < _KEPT_FRAC:
            return None
    if len(lost) != 1 or len(case.figures.acceptance.by_category) == 1:
        return None
    [(name, before, now)] = lost
    facts = {"category": name, "before": f"{before - 1:.2f}", "now": f"{now - 1:.2f}"}
    return Finding(code="ONE_CATEGORY", facts=facts)


def _lost_position(case: CaseReport, lost: Sequence[Verdict]) -> Finding | None:
    """Return the first position whose draft became worse, and what that means; None without one."""
    if case.expected is None or case.figures is None or case.figures.acceptance is None:
        return None
    before_fracs = case.expected.marginal_frac
    now_fracs = case.figures.acceptance.total.marginal_frac
    shares = zip(
        itertools.pairwise((1.0, *before_fracs)),
        itertools.pairwise((1.0, *now_fracs)),
        strict=False,
    )
    for position, ((before_reached, before), (now_reached, now)) in enumerate(shares, start=1):
        if not (before and before_reached and now_reached):
            return None
        # A draft is accepted only after all drafts before it, so a worse draft lowers the shares of
        # all later positions too. Only among the steps that reached its own position is it visible.
        if now / now_reached >= _LOST_FRAC * before / before_reached:
            continue
        old_frac, new_frac = _judged_shares(position, lost) or (before, now)
        facts = {"position": str(position), "before": f"{old_frac:.1%}", "now": f"{new_frac:.1%}"}
        if position > 1:
            return Finding(code="LATER_POSITIONS", facts=facts)
        if now < _NEVER_ACCEPTED_FRAC:
            return Finding(code="DRAFT_NOT_LOADED", facts=facts)
        return Finding(code="OTHER_MODEL", facts=facts)
    return None


def _judged_shares(position: int, lost: Sequence[Verdict]) -> tuple[float, float] | None:
    """Return the two shares that the verdict on a position compared; None without a verdict."""
    for verdict in lost:
        is_of_position = verdict.metric in METRICS and METRICS[verdict.metric].position == position
        if is_of_position and verdict.comparison.expected is not None and verdict.value is not None:
            return verdict.comparison.expected, verdict.value
    return None


def _is_mostly_time(lost: Sequence[Verdict]) -> bool:
    """Return whether a case lost more speed by the cost of its steps than by acceptance."""
    causes = [dict(verdict.cause.parts) for verdict in lost if verdict.cause is not None]
    return any(
        changes.get("the cost of a step", 0.0) < changes.get("acceptance", 0.0)
        for changes in causes
    )


def _lost_time(lost: Sequence[Verdict], *, has_lost_acceptance: bool) -> Iterator[Finding]:
    """Yield a finding if the steps of a case take longer."""
    if not has_lost_acceptance:
        yield Finding(code="STEP_COSTS_MORE", facts={})
        return
    for verdict in lost:
        if verdict.cause is None:
            continue
        changes = dict(verdict.cause.parts)
        change_frac = changes.get("the cost of a step", 0.0)
        if change_frac < -_STEP_FRAC:
            yield Finding(code="STEP_TOO", facts={"change": f"{change_frac:+.0%}"})
            return
