"""Judge a metric of a case: its launches against what is known of it."""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from specreg.acceptance.record import AcceptanceRecord
from specreg.baselines.comparison import (
    CaseBaselines,
    Comparison,
    differing_settings,
    of_any_number,
    why_held_back,
)
from specreg.baselines.schema import load_acceptance
from specreg.core.commands import ATTACH_OPTION, is_attached, record_command
from specreg.engines.methods import METHODS
from specreg.matrix.case import Case
from specreg.measurement.metrics import METRICS, SPOILS, Family, Metric, acceptance_value
from specreg.stats.intervals import Effect, Look
from specreg.verdicts.detection import (
    MOST_LAUNCHES,
    RUN_LAUNCHES,
    mde_frac,
    mde_of_launches,
    to_frac,
)

_OTHER_CARD_FRAC = 0.1
"""How much the sensors of cards of one kind may differ: ±5 % each."""


class Outcome(StrEnum):
    """What a verdict says. The page of outcomes is made from these sentences."""

    PASS = "PASS"  # noqa: S105 - a word, not a password
    """It is proven that the metric lost no more than the tolerance."""
    IMPROVED = "IMPROVED"
    """It is proven that the metric gained more than the tolerance. Record it to keep the gain."""
    REGRESSED = "REGRESSED"
    """The metric is proven to be worse, and by more than the tolerance, on two launches."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """The interval is too wide to prove either; the reason says what would decide it."""
    UNDECIDABLE = "UNDECIDABLE"
    """As INCONCLUSIVE, of a speed that the baseline said can't be decided on this machine."""
    INVALID = "INVALID"
    """A check of the meter, the machine or the client failed, so the figure says nothing."""
    WRONG = "WRONG"
    """Speculation changed the text, or took other steps than its models give."""
    NO_BASELINE = "NO_BASELINE"
    """Nothing was recorded for this case with these settings."""
    NOT_COMPARABLE = "NOT_COMPARABLE"
    """There is a baseline, but this metric can't be compared with it."""
    MEASURED = "MEASURED"
    """The metric was measured to be recorded or shown, and wasn't judged."""


class Lack(StrEnum):
    """What a figure that isn't compared lacks: recording it gives the first two."""

    BASELINE = "baseline"
    SOURCE = "source"
    """A baseline that was measured in the same way."""
    FILE = "file"
    """A file that can be read."""


GOOD = frozenset({Outcome.PASS, Outcome.IMPROVED})
"""Compared with a baseline, and no worse than tolerated."""
JUDGED = GOOD | {Outcome.REGRESSED, Outcome.WRONG, Outcome.INCONCLUSIVE, Outcome.UNDECIDABLE}
"""Compared with a baseline."""
SKIPPED = frozenset({Outcome.NOT_COMPARABLE, Outcome.UNDECIDABLE})
"""Neither good nor bad: the test of such a verdict is skipped, and says why."""


class Refusal(NamedTuple):
    """Why a figure isn't compared: in a word, in a sentence, and what would let it be."""

    outcome: Outcome
    reason: str
    lacks: Lack | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """An effect held against a tolerance: one metric of one case.

    Attributes:
        reason: of the outcome, in a sentence; empty where the figures say it all.
        lacks: of one that isn't compared what would let it be, None of others.
        value, expected: measured and baseline, None where there is none.
        change_frac: (value - expected) / (expected - origin), better is positive; low_frac,
            high_frac: its interval; of a `two_sided` metric more is positive, and either way worse.
        tolerance_frac: what would still have been fine.
        mde_frac: the minimum detectable effect, a loss that is proven 99 times out of 100.
        p_worse: how often chance alone would look that much worse, one-sided.
        against: whose baseline: an environment or a source, empty without one.
        cause: of a change in speed, how much is acceptance and how much the cost of a step.
        launches: how many were measured; needed_launches: how many would tell, where this is
            undecided; 0 where no number would, None where that isn't known.
        softened: whether the test passes where there is no telling.
        by_position_frac: of the oracle, by position of the draft, how many steps accepted so many
            drafts or more, 0..1, and how many must have; empty of others.
    """

    case_id: str
    metric: str
    outcome: Outcome
    reason: str = ""
    lacks: Lack | None = None
    value: float | None = None
    expected: float | None = None
    change_frac: float | None = None
    low_frac: float | None = None
    high_frac: float | None = None
    tolerance_frac: float | None = None
    mde_frac: float | None = None
    p_worse: float | None = None
    against: str = ""
    cause: str = ""
    launches: int = 1
    needed_launches: int | None = None
    softened: bool = False
    two_sided: bool = False
    by_position_frac: tuple[tuple[float, float], ...] = ()

    @property
    def tolerated(self) -> str:
        """`3 %`: the change that would still have been fine, empty where there is none."""
        return "" if self.tolerance_frac is None else f"{100 * self.tolerance_frac:.3g} %"

    @property
    def holds(self) -> bool:
        """Whether the test of this verdict passes."""
        if self.outcome is Outcome.INCONCLUSIVE:
            return self.softened
        return self.outcome in GOOD or self.outcome is Outcome.MEASURED

    @property
    def fails(self) -> bool:
        """Whether the test fails; what can't be compared or decided here is skipped."""
        return not self.holds and self.outcome not in SKIPPED


def first_look(metric: Metric) -> Look:
    """The look that a run plans for: at its launches, or at all prompts of the case."""
    return Look.LAUNCH if metric.by_launch else Look.FULL


def judge(metric: Metric, comparison: Comparison, look: Look) -> Verdict:
    """The verdict on one metric of a case, at a look that has its share of the level to spend.

    What the prompts of the case decided stays decided, whatever the extension was measured for.
    """
    if look is Look.EXTENDED:
        verdict = judge(metric, comparison.without_extension, Look.FULL)
        if verdict.outcome is not Outcome.INCONCLUSIVE:
            return verdict
    measurement, known = comparison.measurement, comparison.known
    verdict = Verdict(
        case_id=measurement.case.id,
        metric=metric.name,
        outcome=Outcome.INCONCLUSIVE,
        value=measurement.values.get(metric.name),
        launches=len(comparison.launches) if metric.by_launch else 1,
    )
    of_its_kind = _refused_speed if metric.by_launch else _refused_acceptance
    checks = (_refused_figure, _refused_baseline, of_its_kind)
    refusals = itertools.chain.from_iterable(check(metric, comparison) for check in checks)
    for outcome, why, lacks in refusals:
        hint = f"; record one with\n  {record_command((measurement.case.id,), known.options)}"
        if is_attached(known.options):
            hint = f"; leave out {ATTACH_OPTION} to record one"
        reason = f"{why}{hint if lacks else ''}"
        return dataclasses.replace(verdict, outcome=outcome, reason=reason, lacks=lacks)
    verdict = dataclasses.replace(
        verdict,
        against=known.baseline.environment.name if known.baseline else "published",
        tolerance_frac=allowed_frac(metric, measurement.case, known),
    )
    of_kind = _judge_speed if metric.by_launch else _judge_acceptance
    return of_kind(metric, comparison, look, verdict)


def outcome_of(
    change_frac: float,
    low_frac: float,
    high_frac: float,
    tolerance: float,
    *,
    two_sided: bool = False,
) -> Outcome:
    """The outcome by the whole interval; better is positive.

    PASS: proven within tolerance. IMPROVED: proven better than it. REGRESSED: proven worse than
    before, and the estimate is worse than tolerated; of what should stay as it is (`two_sided`):
    proven to have changed, and by more. INCONCLUSIVE: none of these.
    """
    if low_frac > -tolerance and (not two_sided or high_frac < tolerance):
        return Outcome.IMPROVED if low_frac > tolerance else Outcome.PASS
    lost = high_frac < 0 and change_frac < -tolerance
    gained = two_sided and low_frac > 0 and change_frac > tolerance
    return Outcome.REGRESSED if lost or gained else Outcome.INCONCLUSIVE


def with_effect(
    verdict: Verdict, metric: Metric, change: Effect, level: float, loss_level: float | None = None
) -> Verdict:
    """Return the verdict with a change, judged by its whole interval at a level (0..0.5).

    `loss_level` is that at which a loss must be proven, None for the same.
    """
    low, high = (to_frac(metric, end) for end in change.bounds(level))
    certain_high = to_frac(metric, change.bounds(loss_level or level)[1])
    estimate, worse = to_frac(metric, change.estimate_frac), change.p_worse
    allowed = verdict.tolerance_frac or 0.0
    return dataclasses.replace(
        verdict,
        outcome=outcome_of(estimate, low, certain_high, allowed, two_sided=metric.two_sided),
        change_frac=estimate,
        low_frac=low,
        high_frac=high,
        p_worse=2 * min(worse, 1 - worse) if metric.two_sided else worse,
        two_sided=metric.two_sided,
    )


def allowed_frac(metric: Metric, case: Case, known: CaseBaselines) -> float:
    """The tolerance of a case, wider against the acceptance of another machine or of a paper."""
    own = metric.allowed_frac(case)
    if metric.by_launch or known.exact is not None:
        return own
    wider = max(metric.portable_tolerance_frac or 0, own)
    told = known.published
    value = told.value(metric.name) if told and not known.baseline else None
    if told and told.tolerance_frac is not None and value is not None and value > metric.origin:
        theirs = told.tolerance_frac * value / (value - metric.origin)
        # Near AL = 1 their percentage exceeds all there is to lose: it would never fail.
        return max(wider, theirs) if theirs < 1 else wider
    return wider


_ABSENT = dict.fromkeys(
    Family,
    "no answer had two chunks or more, or the server beside it has none; raise output_cap_tokens",
) | {
    Family.ACCEPTANCE: "this source doesn't tell it; name it under shown in the matrix",
    Family.POWER: "no device's counter moved; look at power/ in the run's folder",
}
"""By family, why a metric that a case should have may have no value, and what to do."""


def _refused_figure(metric: Metric, comparison: Comparison) -> Iterator[Refusal]:
    """Yield why what was measured can't be compared."""
    measurement = comparison.measurement
    if invalid := measurement.invalid.get(metric.family):
        yield Refusal(Outcome.INVALID, invalid)
    slow = why_held_back(comparison.launches, comparison.known.exact)
    if slow and metric.family in SPOILS["CLOCK_LOW"]:
        yield Refusal(Outcome.INVALID, slow)
    if metric.family is Family.POWER:
        power = measurement.replay.power if measurement.replay else None
        if power is None:
            yield Refusal(Outcome.NOT_COMPARABLE, "the power of this launch wasn't sampled")
        elif power.invalid:
            yield Refusal(Outcome.INVALID, power.invalid)
        elif power.too_short:
            yield Refusal(Outcome.NOT_COMPARABLE, power.too_short)
    if metric.name not in measurement.values:
        yield Refusal(Outcome.INVALID, f"METRIC_ABSENT: no value, as {_ABSENT[metric.family]}")


def _refused_baseline(metric: Metric, comparison: Comparison) -> Iterator[Refusal]:
    """Yield why the baseline can't be compared with."""
    case, known, baseline = comparison.measurement.case, comparison.known, comparison.known.baseline
    if baseline is None and not (known.published and known.published.has_acceptance):
        yield Refusal(Outcome.NO_BASELINE, _nothing_recorded(metric, known), Lack.BASELINE)
    settings = of_any_number(known.settings)
    if differing := differing_settings(baseline.case, settings) if baseline else "":
        yield Refusal(
            Outcome.NO_BASELINE, f"it was recorded with other settings: {differing}", Lack.BASELINE
        )
    if known.settings.num_prompts is not None and (metric.by_launch or case.needs_fresh_server):
        what = "a speed" if metric.by_launch else "what a drafter learns"
        reason = f"of {known.settings.num_prompts} prompts: {what} is of all prompts of the case"
        yield Refusal(Outcome.NOT_COMPARABLE, f"{reason}; leave out --num-prompts to judge it")


def _nothing_recorded(metric: Metric, known: CaseBaselines) -> str:
    """Say so, and what was published of the metric, if anything, and where that holds."""
    told, words = known.published, f"nothing recorded in '{known.environment.name}'"
    value = told.value(metric.name) if told else None
    return f"{words}, published is {value:.3g} ({told.conditions})" if told and value else words


def _refused_acceptance(metric: Metric, comparison: Comparison) -> Iterator[Refusal]:
    """Yield why two acceptances are not of the same kind."""
    baseline, ours = comparison.known.baseline, comparison.measurement.acceptance
    theirs = baseline.acceptance if baseline else None
    if comparison.expected_ratio(metric) is None:
        yield Refusal(Outcome.NO_BASELINE, f"the baseline holds no {metric.name}", Lack.BASELINE)
    if ours is not None and theirs is not None:
        tags, recorded = ((one.source, one.view) for one in (ours, theirs))
        if tags != recorded:
            reason = f"measured as {', '.join(tags)}, recorded as {', '.join(recorded)}"
            yield Refusal(Outcome.NOT_COMPARABLE, reason, Lack.SOURCE)


def _refused_speed(metric: Metric, comparison: Comparison) -> Iterator[Refusal]:
    """Yield why two speeds are not of the same kind."""
    known, exact = comparison.known, comparison.known.exact
    if exact is None:
        where = f"'{known.baseline.environment.name}'" if known.baseline else "a published figure"
        reason = f"{_nothing_recorded(metric, known)}, and speed doesn't carry over from {where}"
        yield Refusal(Outcome.NOT_COMPARABLE, reason, Lack.BASELINE)
    elif not exact.launches:
        reason = "the baseline is of an earlier form, whose speeds differ"
        yield Refusal(Outcome.NOT_COMPARABLE, reason, Lack.BASELINE)
    elif not exact.launch_values(metric):
        yield Refusal(Outcome.NO_BASELINE, "the baseline holds none", Lack.BASELINE)
    if metric.name not in known.spreads:
        yield Refusal(Outcome.NO_BASELINE, "its spread takes two launches or more", Lack.BASELINE)
    if metric.family is Family.POWER and (unlike := comparison.unlike_devices):
        yield Refusal(Outcome.NOT_COMPARABLE, unlike, Lack.SOURCE)


def _judge_acceptance(
    metric: Metric, comparison: Comparison, look: Look, verdict: Verdict
) -> Verdict:
    known, ours = comparison.known, comparison.ours
    found = comparison.ratio_change(metric)
    if isinstance(found, str):
        return dataclasses.replace(verdict, reason=found, needed_launches=0)
    value, expected, change = found
    verdict = dataclasses.replace(verdict, value=value, expected=expected)
    verdict = _with_mde(verdict, metric, change, look)
    prompts = ours.prompt_ids if ours is not None else ()
    if verdict.outcome is Outcome.INCONCLUSIVE:
        finer = (verdict.mde_frac or 0.0) / (verdict.tolerance_frac or 1.0)
        remedy = f"raise prompts in the matrix to about {max(2.0, finer**2) * len(prompts):.0f}"
        return _undecided(verdict, f"{len(prompts)} prompts", remedy, needed_launches=0)
    if verdict.outcome is Outcome.REGRESSED:
        theirs = load_acceptance(known.baseline.acceptance) if known.baseline else None
        records = (comparison.measurement.acceptance, theirs)
        reason = _by_category(metric, *(one and one.only(set(prompts)) for one in records))
        return dataclasses.replace(verdict, reason=reason)
    return verdict


def _judge_speed(metric: Metric, comparison: Comparison, look: Look, verdict: Verdict) -> Verdict:
    known, ours = comparison.known, comparison.launch_values(metric)
    recorded = known.exact.launch_values(metric) if known.exact else ()
    other_card = comparison.other_card if metric.family is Family.POWER else ""
    if other_card:
        wider = max(verdict.tolerance_frac or 0.0, _OTHER_CARD_FRAC)
        verdict = dataclasses.replace(verdict, tolerance_frac=wider)
    verdict = dataclasses.replace(verdict, expected=_geometric_mean(recorded))
    change = comparison.speed_change(metric)
    if change is None:  # a goodput of 0 has no logarithm, and is surely worse
        always = max(ours) <= 0
        return dataclasses.replace(
            verdict,
            outcome=Outcome.REGRESSED if always else Outcome.INCONCLUSIVE,
            reason="" if always else "it is 0 in one launch, and isn't in another",
            change_frac=-1.0,
            low_frac=-1.0,
            high_frac=-1.0,
            p_worse=0.0,
        )
    cause = _cause(metric, comparison, change)
    verdict = dataclasses.replace(verdict, value=_geometric_mean(ours), cause=cause)
    verdict = _with_mde(verdict, metric, change, look)
    if other_card and verdict.outcome is not Outcome.PASS:
        reason = f"{other_card}, and cards of one kind differ by {_OTHER_CARD_FRAC:.0%}"
        return dataclasses.replace(verdict, outcome=Outcome.NOT_COMPARABLE, reason=reason)
    if verdict.outcome is Outcome.INCONCLUSIVE:
        return _undecided_speed(metric, verdict, known, len(recorded))
    return verdict


def _with_mde(verdict: Verdict, metric: Metric, change: Effect, look: Look) -> Verdict:
    verdict = with_effect(verdict, metric, change, look.value)
    return dataclasses.replace(verdict, mde_frac=mde_frac(metric, change, look))


def _undecided_speed(
    metric: Metric, verdict: Verdict, known: CaseBaselines, recorded: int
) -> Verdict:
    """UNDECIDABLE where the baseline said beforehand that as many launches wouldn't tell.

    Not where more is tolerated now than was then: how many launches tell that wasn't said.
    """
    tolerance_frac, spread = verdict.tolerance_frac or 0.0, known.spreads[metric.name]
    told = known.exact.detects.get(metric.name) if known.exact else None
    if (
        told is not None
        and not told.decides
        and tolerance_frac <= told.tolerance_frac
        and (not told.launches or verdict.launches < told.launches)
    ):
        enough = "would" if told.launches else "wouldn't be enough"
        reason = (
            f"this machine can't tell {tolerance_frac:.1%} with {RUN_LAUNCHES} launches, which"
            f" detect {told.mde_frac:.1%}, {told.launches or MOST_LAUNCHES} launches {enough};"
            f" it is no more than {-(verdict.low_frac or 0.0):.1%} worse"
        )
        return dataclasses.replace(
            verdict, outcome=Outcome.UNDECIDABLE, reason=reason, needed_launches=told.launches
        )
    more = range(verdict.launches + 1, MOST_LAUNCHES + 1)
    sees = ((k, mde_of_launches(metric, k, recorded, spread)) for k in more)
    needed, mde = next(((k, mde) for k, mde in sees if mde <= tolerance_frac), (0, 0.0))
    remedy = (
        f"measure {needed} launches, which detect {mde:.1%}"
        if needed
        else f"{MOST_LAUNCHES} launches would still be too few: record it anew from more launches,"
        " raise its tolerance in the matrix, or measure on a quieter machine"
    )
    launches = f"{verdict.launches} launch{'es' if verdict.launches > 1 else ''}"
    return _undecided(verdict, f"{launches} against {recorded}", remedy, needed_launches=needed)


def _undecided(verdict: Verdict, by_what: str, remedy: str, *, needed_launches: int) -> Verdict:
    """Say what the case can detect: a tolerance finer than that can't be kept."""
    reason = (
        f"its minimum detectable effect is {verdict.mde_frac:.1%} with {by_what}, its tolerance"
        f" {verdict.tolerance_frac:.1%}; {remedy}"
    )
    return dataclasses.replace(verdict, reason=reason, needed_launches=needed_launches)


def _cause(metric: Metric, comparison: Comparison, change: Effect) -> str:
    """Δ log(output speed) = Δ log(tokens per step) - Δ log(step time), in words.

    Empty for what isn't a speed of output, without an acceptance to compare, and for a method that
    doesn't draft in every step: AL leaves the other steps out.
    """
    method = comparison.measurement.case.server.method
    if not metric.of_output or method == "none" or not METHODS[method].drafts_every_step:
        return ""
    length = comparison.without_extension.ratio_change(METRICS["acceptance_length_tokens"])
    if isinstance(length, str):
        return ""
    acceptance = math.log(length[0] / length[1])
    parts = math.expm1(acceptance), math.expm1(change.estimate_frac - acceptance)
    return f"{parts[0]:+.1%} by acceptance, {parts[1]:+.1%} by the cost of a step"


def _by_category(
    metric: Metric, ours: AcceptanceRecord | None, theirs: AcceptanceRecord | None
) -> str:
    """Where acceptance was lost: `by category: coding 3.12 -> 1.85, math 2.74 -> 2.73`."""
    recorded = theirs.by_category if theirs else {}
    parts = []
    for category, record in (ours.by_category if ours else {}).items():
        old, new = (acceptance_value(metric, one) for one in (recorded.get(category), record))
        if old is not None and new is not None:
            parts.append(f"{category} {old:.3g} -> {new:.3g}")
    return f"by category: {', '.join(parts)}" if parts else ""


def _geometric_mean(values: tuple[float, ...]) -> float:
    return statistics.geometric_mean(values) if len(values) > 1 else values[0]
