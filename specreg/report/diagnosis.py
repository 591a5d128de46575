"""Say what the losses of a case point to, by the rules of docs/how-to/my-run-is-red.md."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from specreg.correctness.checks import LOSSLESS, ORACLE, SAMPLING
from specreg.measurement.metrics import METRICS, SPEEDUP, THROUGHPUT
from specreg.report.document import CaseReport
from specreg.report.tables import render_change
from specreg.verdicts.verdict import Outcome, Verdict

LOST_FRAC = 0.9
"""A draft or a category is lost if less than this share of its earlier acceptance is left."""
_KEPT_FRAC = 0.98
"""The others are kept if at least this share is left. Between the two, nothing is concluded."""
_NEVER_ACCEPTED_FRAC = 0.1
"""If a first draft is accepted more rarely than this, it is as good as never accepted."""
_STEP_FRAC = 0.05
"""Beside a lost acceptance, the cost of a step is named from this share of the speed on."""
_BOTH = 2
_MOST_NAMED = 3
"""The most cases that a sentence names."""


class _Sentence(NamedTuple):
    """What was found, and what it usually means."""

    found: str
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the losses of a case point to.

    Attributes:
        code: identifies the rule that found it; it is a key of `FINDINGS`.
        amount: how much was lost; empty if the rule has no number.
        facts: the names that the sentence of the rule contains.
    """

    code: str
    amount: str = ""
    facts: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return self.render(self.amount)

    @property
    def cause(self) -> tuple[object, ...]:
        """What is equal in cases that lost something in the same way."""
        return self.code, self.facts

    def render(self, amount: str, where: str = "", advice: str = "") -> str:
        """Return the sentence.

        Args:
            amount: how much was lost.
            where: words before what was found, such as `In both cases`.
            advice: replaces what the finding usually means.
        """
        found, usual_advice = FINDINGS[self.code]
        subject = " ".join(filter(None, (where, found.format_map(dict(self.facts)))))
        if amount:
            subject += f" ({amount})"
        return f"{subject[0].upper()}{subject[1:]}: {advice or usual_advice}."


FINDINGS: Mapping[str, _Sentence] = {
    LOSSLESS: _Sentence(
        "speculation changes the text",
        "look at the verifier, or at kernels that depend on the batch",
    ),
    SAMPLING: _Sentence(
        "tokens are drawn from another distribution", "look at the rejection sampler"
    ),
    ORACLE: _Sentence(
        "the engine doesn't draft as its models do", "look at the drafter, then at the verifier"
    ),
    "ONE_CATEGORY": _Sentence("only '{category}' lost acceptance", "look at its prompts"),
    "DRAFT_NOT_LOADED": _Sentence(
        "the first draft is hardly ever accepted", "usually the draft's weights weren't loaded"
    ),
    "OTHER_MODEL": _Sentence(
        "drafts are lost from the first position on",
        "usually the draft or the target is another model",
    ),
    "LATER_POSITIONS": _Sentence("only {drafts} lost", "usually the drafter's own state is wrong"),
    "STEP_COSTS_MORE": _Sentence(
        "a step takes longer", "look at the engine, its flags or the machine"
    ),
}
"""The sentence of each finding."""
_OF_DRAFTERS = ("DRAFT_NOT_LOADED", "OTHER_MODEL", "LATER_POSITIONS")
_DRAFTERS_FAIL_ALIKE = "different drafters rarely fail alike, so look first at the engine"


def say_once(
    findings: Mapping[str, Sequence[Finding]],
    names: Mapping[str, str],
    drafters: Mapping[str, object],
) -> tuple[Sequence[str], Mapping[str, Sequence[str]]]:
    """Return a sentence for each cause that several cases share, and what each has of its own.

    Args:
        findings: the findings of each case that lost anything, by its id, the worst case first.
        names: the short name of each case.
        drafters: what drafts in each case.
    """
    ids_by_cause: dict[tuple[object, ...], list[str]] = {}
    first_findings: dict[tuple[object, ...], Finding] = {}
    for case_id, own_findings in findings.items():
        for finding in own_findings:
            ids_by_cause.setdefault(finding.cause, []).append(case_id)
            first_findings.setdefault(finding.cause, finding)

    shared = []
    for cause, case_ids in ids_by_cause.items():
        if len(case_ids) == 1:
            continue
        finding = first_findings[cause]
        advice = ""
        if finding.code in _OF_DRAFTERS and len({drafters[case_id] for case_id in case_ids}) > 1:
            advice = _DRAFTERS_FAIL_ALIKE
        amount = f"{finding.amount} in {names[case_ids[0]]}" if finding.amount else ""
        where = _where([names[case_id] for case_id in case_ids], len(findings))
        shared.append(finding.render(amount, where, advice))

    own = {
        case_id: [str(finding) for finding in own if len(ids_by_cause[finding.cause]) == 1]
        for case_id, own in findings.items()
    }
    return shared, own


def _where(names: Sequence[str], cases: int) -> str:
    """Say in which of so many cases something was found."""
    if len(names) == cases:
        return "In both cases" if cases == _BOTH else f"In all {cases} of them"
    if len(names) > _MOST_NAMED:
        return f"In {len(names)} of them"
    *others, last = names
    return f"In {', '.join(others)} and {last}"


def diagnose(case: CaseReport, lost: Sequence[Verdict]) -> Iterator[Finding]:
    """Yield what the losses of a case point to, the larger one first; nothing if no rule fits."""
    for verdict in lost:
        if verdict.outcome is Outcome.WRONG and verdict.metric in FINDINGS:
            yield Finding(code=verdict.metric)
    quantities = {METRICS[verdict.metric].quantity for verdict in lost if verdict.metric in METRICS}
    findings = []
    if "acceptance" in quantities:
        finding = _lost_category(case) or _lost_position(case, lost)
        if finding is not None:
            findings.append(finding)

    if "speed" in quantities:
        findings += _lost_time(case, lost, has_lost_acceptance="acceptance" in quantities)
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
        if left_frac < LOST_FRAC:
            lost.append((name, before, now))
        elif left_frac < _KEPT_FRAC:
            return None

    if len(lost) != 1 or len(case.figures.acceptance.by_category) == 1:
        return None
    [(name, before, now)] = lost
    amount = f"{before - 1:.2f} → {now - 1:.2f} drafts a step"
    return Finding(code="ONE_CATEGORY", amount=amount, facts=(("category", name),))


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
        if now / now_reached >= LOST_FRAC * before / before_reached:
            continue
        old_frac, new_frac = _judged_shares(position, lost) or (before, now)
        amount = f"{old_frac:.1%} → {new_frac:.1%}"
        if position > 1:
            drafts = f"drafts from position {position} on are"
            if position == len(before_fracs):
                drafts = f"the draft at position {position} is"
            return Finding(code="LATER_POSITIONS", amount=amount, facts=(("drafts", drafts),))
        code = "DRAFT_NOT_LOADED" if now < _NEVER_ACCEPTED_FRAC else "OTHER_MODEL"
        return Finding(code=code, amount=amount)

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


def _is_slower_itself(case: CaseReport) -> bool:
    """Return whether a case is slower, and not only the server without speculation faster."""
    if case.expected is None or case.figures is None:
        return False
    before = case.expected.values.get(THROUGHPUT)
    now = case.figures.judged.get(THROUGHPUT)
    return before is not None and now is not None and now < (1 - _STEP_FRAC) * before


def _lost_time(
    case: CaseReport, lost: Sequence[Verdict], *, has_lost_acceptance: bool
) -> Iterator[Finding]:
    """Yield a finding if the steps of a case take longer, with the share of the speed they cost."""
    for verdict in lost:
        change_frac = verdict.comparison.change_frac
        metric = METRICS.get(verdict.metric)
        if metric is None or not metric.of_output or change_frac is None:
            continue
        if metric.sign < 0:
            # A speed is the inverse of a time.
            change_frac = 1 / (1 - change_frac) - 1
        if verdict.cause is not None:
            change_frac = dict(verdict.cause.parts).get("the cost of a step", 0.0)
        elif has_lost_acceptance or (metric.name == SPEEDUP and not _is_slower_itself(case)):
            continue
        if change_frac < (-_STEP_FRAC if has_lost_acceptance else 0.0):
            amount = f"{render_change(change_frac)} of the speed"
            yield Finding(code="STEP_COSTS_MORE", amount=amount)
            return
