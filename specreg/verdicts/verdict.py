"""The verdict on one metric of one case as data: outcome, comparison, cause and reason."""

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from specreg.core.names import Name, ReportedCase
from specreg.core.readable import Label
from specreg.core.reasons import Reason


class Outcome(StrEnum):
    """The result of judging a metric. The page of outcomes is generated from these sentences."""

    PASS = "PASS"  # noqa: S105 - a word, not a password
    """It is proven that the metric lost no more than the tolerance."""
    IMPROVED = "IMPROVED"
    """It is proven that the metric gained more than the tolerance. Record it to keep the gain."""
    REGRESSED = "REGRESSED"
    """A loss is proven that is likely to exceed the tolerance, or has lasted for several nights."""
    INCONCLUSIVE = "INCONCLUSIVE"
    """One night can't decide. The test passes with a remark, unless no number of nights can."""
    INVALID = "INVALID"
    """A check of the meter, the machine or the client failed, so the figure says nothing."""
    WRONG = "WRONG"
    """Speculation changed the text, or took other steps than its models give."""
    NO_BASELINE = "NO_BASELINE"
    """No usable baseline of this case with these settings has the metric."""
    NOT_COMPARABLE = "NOT_COMPARABLE"
    """The metric can't be compared, for example because another machine recorded the baseline."""
    MEASURED = "MEASURED"
    """The metric was measured to be recorded or shown, and wasn't judged."""


GOOD = frozenset({Outcome.PASS, Outcome.IMPROVED})
"""Outcomes of a metric or check that was judged, and is no worse than tolerated."""
WORSE = frozenset({Outcome.REGRESSED, Outcome.WRONG})
"""Outcomes of a metric or check that is proven to be worse than tolerated."""
JUDGED = GOOD | WORSE | {Outcome.INCONCLUSIVE}
"""Outcomes of a metric or check that was judged."""
SKIPPED = frozenset({Outcome.NOT_COMPARABLE})
"""Outcomes with which the test is skipped, with the reason of the verdict."""


class Lack(StrEnum):
    """What a metric lacks to be compared. Recording a baseline supplies the first two."""

    BASELINE = "baseline"
    """A baseline with these settings."""
    SOURCE = "source"
    """A baseline that was measured in the same way."""
    FILE = "file"
    """A baseline file that can be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """How a change is divided into the parts that cause it.

    Attributes:
        parts: the name of each part and its relative change; better is positive. The product of
            1 + change over all parts is the factor by which the output speed changed.
    """

    parts: tuple[tuple[Label, float], ...]

    def __str__(self) -> str:
        return ", ".join(f"{change_frac:+.1%} by {name}" for name, change_frac in self.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How a metric differs from its expected value. A field is None if it is unknown.

    Attributes:
        expected: the value of the baseline, of the publication, or of side A of a gate. For a speed
            it is the level of the nights before, less what all cases have in common tonight.
        against: where that value comes from: an environment, a publication, a side, or a moment.
        tolerance_frac: the tolerated change for the worse, as a share.
        two_sided: whether a change in either direction is worse.
        change_frac: the relative change; better is positive, and more is positive for a two-sided
            metric. It is ±(value - expected) / (expected - origin), with the metric's `origin`. A
            soak has the change in an hour instead.
        low_frac: the lower end of the interval of `change_frac`.
        high_frac: the upper end of the interval of `change_frac`.
        p_worse: the probability that chance alone makes the metric look this much worse, or for a
            two-sided metric this different.
        mde_frac: the minimum detectable effect, a loss that is proven 99 times out of 100.
        common_frac: the change of all cases of the run, or of the control, which comes from the
            machine or the engine; better is positive. The change of all cases is already subtracted
            from `change_frac`; the change of the control isn't.
    """

    expected: float | None = None
    against: Label = ""
    tolerance_frac: float | None = None
    two_sided: bool = False
    change_frac: float | None = None
    low_frac: float | None = None
    high_frac: float | None = None
    p_worse: float | None = None
    mde_frac: float | None = None
    common_frac: float | None = None

    @property
    def tolerated(self) -> str:
        """The tolerance as text, such as `3 %`; empty without a tolerance."""
        if self.tolerance_frac is None:
            return ""
        return f"{100 * self.tolerance_frac:.3g} %"


NOTHING_COMPARED = Comparison()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A comparison judged against a tolerance: one metric of one case.

    Attributes:
        case_id: the id of the case.
        metric: the name of the metric.
        outcome: the result.
        value: the measured value; None if nothing was measured.
        comparison: how the value differs from its expected value; empty if it wasn't compared.
        cause: how much of a changed speed comes from acceptance, and how much from the cost of a
            step; None if unknown.
        reason: why the metric has this outcome; None if the figures explain it.
        lacks: what is missing for a comparison; None if the metric was compared, or if neither a
            recording nor a repaired file would help.
        launches: how many launches were judged.
        needed_launches: how many launches would decide an undecided metric; 0 if no number would,
            None if unknown.
        nights: how many earlier runs the verdict is based on, besides the baseline.
        since: the run of the first night of a lasting loss; empty otherwise.
        needed_nights: how many nights would decide an undecided metric; 0 if no number would, None
            if unknown.
        softened: whether the test passes if the metric is INCONCLUSIVE.
        by_position_frac: for each draft position of the oracle, the share of the steps (0..1) that
            accepted it, and the share that should have accepted it; empty for other metrics.
    """

    case_id: ReportedCase
    metric: Name
    outcome: Outcome
    value: float | None = None
    comparison: Comparison = NOTHING_COMPARED
    cause: Cause | None = None
    reason: Reason | None = None
    lacks: Lack | None = None
    launches: int = 1
    needed_launches: int | None = None
    nights: int = 0
    since: str = ""
    needed_nights: int | None = None
    softened: bool = False
    by_position_frac: tuple[tuple[float, float], ...] = ()

    @property
    def figure(self) -> tuple[str, str]:
        """The case and the metric that the verdict is about."""
        return self.case_id, self.metric

    @property
    def explanation(self) -> str:
        """The reason as a sentence; empty without a reason."""
        return "" if self.reason is None else str(self.reason)

    def has_code(self, *codes: str) -> bool:
        """Return whether the reason has one of these codes."""
        return self.reason is not None and self.reason.code in codes

    @property
    def holds(self) -> bool:
        """Whether the test of this verdict passes."""
        if self.outcome is Outcome.INCONCLUSIVE:
            return self.softened
        return self.outcome in GOOD or self.outcome is Outcome.MEASURED

    @property
    def fails(self) -> bool:
        """Whether the test of this verdict fails. A test that is skipped doesn't fail."""
        return not self.holds and self.outcome not in SKIPPED


def with_remark(verdict: Verdict, remark: Reason) -> Verdict:
    """Append a remark to the reason of a verdict, or make it the reason."""
    reason = remark
    if verdict.reason is not None:
        text = f"{verdict.reason.text}; {remark.text}"
        reason = dataclasses.replace(verdict.reason, text=text)
    return dataclasses.replace(verdict, reason=reason)
