"""The nights of a machine: compare what tonight measures with the baseline and the earlier runs.

A figure is one metric of one case. Its nights are the baseline, the runs since then, and tonight.
All cases of a night may change together, because the machine or the engine became slower. This
common change is the median over the cases, and it is judged as a series of its own. A case is then
judged by how it differs from the other cases. If there are too few other cases for a median, the
variation of the case's own nights shows how much the machine varies from night to night.
"""

import bisect
import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from specreg.baselines.comparison import without_extension
from specreg.baselines.schema import Baseline, load_acceptance
from specreg.measurement.metrics import METRICS, Family, Metric, acceptance_value
from specreg.stats.intervals import LEVEL, Effect
from specreg.stats.nights import (
    DIFFERENCE_FREEDOM,
    MAX_NIGHTS,
    MAX_TOGETHER,
    NightLevel,
    NightSpread,
    change_of_last_nights,
    change_tonight,
    lasting_loss,
    start_of_gain,
    variance_of_nights,
)
from specreg.stats.variance import Variance, pooled, shrunk, sum_of
from specreg.verdicts.history import (
    NO_HISTORY,
    History,
    RunRecord,
    baseline_sha256,
    settings_sha256,
)
from specreg.verdicts.verdict import Outcome

SPEED_DRAWS = sum(metric.by_launch and not metric.follows for metric in METRICS.values())
"""How many speeds of a case are decided independently. The other speeds follow one of these."""
FEWEST_OTHERS = 4
"""The fewest other cases whose median shows the common change of a night."""
KNOWN_NIGHTS = 5
"""The fewest earlier runs that show how much nights differ. With fewer the spread is a guess."""
LASTING_LEVEL = LEVEL / 8
"""The probability per night that chance alone shows a lasting loss, over all cases. It is smaller
than `LEVEL` because many splits of the nights are tried, and because a loss that appears by chance
on one night stays on the following nights."""
COMMON_LASTING_LEVEL = LASTING_LEVEL / 20
"""The probability per night that chance alone shows a lasting loss common to all cases. It is
smaller still, because such a loss fails many tests at once."""
LEAST_LASTING_FRAC = 0.02
"""The smallest lasting change that is reported, unless a quarter of the tolerance is more."""
_TONIGHT = "tonight"
"""Stands for the name of the present run."""
_SPOILED = frozenset({Outcome.INVALID, Outcome.WRONG})
"""The outcomes of a figure whose night isn't used."""
_LAUNCH_PRIOR_FREEDOM = 2
"""How many degrees of freedom the assumed spread of launches is worth."""
_NIGHT_PRIOR_FREEDOM = 8
"""How many degrees of freedom the assumed spread of nights is worth."""
_LAUNCH_FRAC = {"cpu": 0.03, "gpu": 0.01}
"""The spread of launches in one night that is assumed before a machine has shown its own, measured
on two shared CPU cores and on an H100."""
_NIGHT_FRAC = {"cpu": 0.065, "gpu": 0.05}
"""The additional spread between nights that is assumed before a machine has shown its own, from the
committed baselines of CPUs and from four launches on three H100s."""
_OWN_NIGHT_FRAC = {"cpu": 0.033, "gpu": 0.015}
"""The part of the spread between nights that cases don't share, from the speedups in the committed
baselines of CPUs. The value for GPUs is an assumption."""
_NO_LAUNCH_VARIANCE = Variance(value=0.0, freedom=1e6)
"""The launch variance of acceptance and of the common change. Acceptance is judged on one launch of
a night, and the nights of the common change aren't divided into launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingLoss:
    """A proven loss that has lasted until tonight.

    Attributes:
        effect: the change from the level before the loss to the level since then.
        since: the run of its first night.
        nights: how many nights it has lasted, including tonight.
        versions: the engine's versions on the night before the loss and on its first night; empty
            if unknown.
    """

    effect: Effect
    since: str
    nights: int
    versions: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonEvidence:
    """The common change of all cases.

    Attributes:
        effect: the change of tonight from the nights before.
        lasting: a proven common loss that has lasted until tonight; None without one.
        nights: how many earlier runs show how much the common change varies.
        cases: how many other cases tonight's common change is based on.
    """

    effect: Effect
    lasting: LastingLoss | None
    nights: int
    cases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NightEvidence:
    """How a figure changed tonight, according to its nights.

    Attributes:
        effect: the change of tonight from the nights before. The common change of all cases is
            subtracted from it unless `common` is None.
        nights: how many earlier runs show how much the nights vary, besides the baseline: all but
            those that proved a loss.
        lasting: a proven loss of the case that has lasted until tonight; None without one.
        together: the change from the mean of the first nights of the present level to the mean of
            the last nights; None with fewer than two nights of this level before tonight.
        nights_together: how many last nights `together` takes, including tonight.
        spread: how the nights of the figure vary.
        common: the common change of all cases; None with too few other cases.
    """

    effect: Effect
    nights: int
    lasting: LastingLoss | None
    together: Effect | None
    nights_together: int
    spread: NightSpread
    common: CommonEvidence | None = None


@dataclass(slots=True, kw_only=True)
class _PastRun:
    """A run before tonight, over all cases that were measured in it.

    Attributes:
        deviations: how far each case was above its usual level, sorted.
        lost_cases: the number of cases whose software was worse.
        standing_cases: the number of cases whose night may be part of a reference.
    """

    deviations: list[float] = field(default_factory=list)
    lost_cases: int = 0
    standing_cases: int = 0

    def add(self, night: NightLevel, usual: float) -> None:
        """Add the night of a case, and keep the deviations sorted.

        Args:
            night: the night of the case.
            usual: the usual level of the case.
        """
        bisect.insort(self.deviations, night.level - usual)
        if night.lost:
            self.lost_cases += 1
        if night.stands:
            self.standing_cases += 1

    @property
    def is_lost(self) -> bool:
        """Whether the software of most cases was worse."""
        return self.lost_cases > len(self.deviations) / 2

    @property
    def stands(self) -> bool:
        """Whether the nights of most cases stand."""
        return self.standing_cases > len(self.deviations) / 2


@dataclass(slots=True, kw_only=True)
class MetricNights:
    """The nights of one metric, for all cases of a machine. Mappings are keyed by the case's id.

    Attributes:
        metric: the metric.
        kind: the kind of machine, "cpu" or "gpu".
        past: the nights before tonight, the oldest first. The baseline is one of them.
        launches: how the launches of one night vary.
        noise: how much nights vary beyond the launches, from the committed baselines; None if the
            baselines don't contain it.
        hosts: the machine that measures the case tonight; empty if one machine measures all cases.
        tonight: what has been measured tonight so far.
        _usual: the median level of the nights before tonight on which the software wasn't worse.
        _launch_variances: how the launches of one night vary, estimated with the help of the other
            cases.
        _runs: the past runs, by the name of their night.
        _variances: how past nights vary after the common change was subtracted.
    """

    metric: Metric
    kind: str
    past: Mapping[str, tuple[NightLevel, ...]]
    launches: Mapping[str, Variance]
    noise: Variance | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)
    tonight: dict[str, NightLevel] = field(default_factory=dict)
    _usual: dict[str, float] = field(default_factory=dict)
    _launch_variances: dict[str, Variance] = field(default_factory=dict)
    _runs: dict[str, _PastRun] = field(default_factory=dict)
    _variances: dict[str, Variance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Derive how far each past night was from the usual levels, and how much nights vary."""
        for case_id, nights in self.past.items():
            usual_levels = [night.level for night in nights if not night.lost]
            usual = statistics.median(usual_levels or [night.level for night in nights])
            self._usual[case_id] = usual
            self._launch_variances[case_id] = self._shrunk_launch_variance(case_id)
            for night in nights:
                self._runs.setdefault(night.run, _PastRun()).add(night, usual)
        # This needs the deviations of all cases, so it can't be part of the first loop.
        for case_id, nights in self.past.items():
            relative = self._relative(case_id, nights, [])
            variance = variance_of_nights(relative, self._launch_variances[case_id])
            if variance is not None:
                self._variances[case_id] = variance

    def _shrunk_launch_variance(self, case_id: str) -> Variance:
        """Estimate how the launches of one night of a case vary, with the help of other cases."""
        if not self.metric.by_launch:
            return _NO_LAUNCH_VARIANCE
        variances_of_others = _without_case(self.launches, case_id)
        prior = Variance(value=_LAUNCH_FRAC[self.kind] ** 2, freedom=_LAUNCH_PRIOR_FREEDOM)
        return shrunk(self.launches.get(case_id), variances_of_others, prior)

    def evidence(
        self, case_id: str, *, decisions: int, least_frac: float, of_prompts: Variance | None = None
    ) -> NightEvidence | None:
        """Return how the figure of a case changed tonight.

        If enough other cases show the common change, the case is judged without it, and
        otherwise by its own nights alone.

        Args:
            case_id: the id of the case.
            decisions: how many decisions share the level of a proof, because chance may show a loss
                in each of them.
            least_frac: the smallest lasting change that is reported.
            of_prompts: an estimate of how much nights vary, made from the prompts of tonight and of
                the baseline, for a metric of acceptance; None for a speed.

        Returns:
            None without an earlier night, or if tonight has no level.
        """
        past = self.past.get(case_id, ())
        tonight = self.tonight.get(case_id)
        if tonight is None or not past:
            return None
        # Subtract what all cases have in common, and find out how the remaining levels vary.
        series = [*past, tonight]
        common: CommonEvidence | None = None
        if of_prompts is not None:
            # The machine doesn't influence acceptance, so the cases have no common change.
            variance = variance_of_nights(past, _NO_LAUNCH_VARIANCE)
            night = shrunk(variance, (), of_prompts)
            spread = NightSpread(night=night, launch=_NO_LAUNCH_VARIANCE)
        else:
            deviations = list(self._deviations_tonight(case_id).values())
            relative = self._relative(case_id, series, deviations)
            # Without an earlier good night among them, the relative nights have no reference.
            has_reference = any(night.stands for night in relative[:-1])
            if has_reference and relative[-1].run == _TONIGHT:
                series = relative
                spread = self._relative_spread(case_id)
                common = self._common(deviations, least_frac)
            else:
                spread = self._absolute_spread(case_id)

        # Leave out the nights that say nothing about the level of tonight.
        series = _without_mended_losses(series)
        known_nights = sum(not night.lost for night in series[:-1])
        # A gain that lasted is the new level, so the nights before it no longer count.
        lasting_level = LASTING_LEVEL / decisions
        start = _start_of_level(series, spread, lasting_level, least_frac)
        series = series[start:]

        # Compare tonight, and the last nights, with the first good nights of the level.
        nights_together, together = _together(series, spread)
        reference = _reference(series[:-1])
        return NightEvidence(
            effect=change_tonight([*reference, series[-1]], spread),
            # The first of the nights is the baseline, which isn't counted.
            nights=max(known_nights - 1, 0),
            lasting=self._lasting(series, spread, lasting_level, least_frac),
            together=together,
            nights_together=nights_together,
            spread=spread,
            common=common,
        )

    def _deviations_tonight(self, case_id: str) -> dict[str, float]:
        """Return how far the other cases on the same machine are above their usual levels."""
        host = self.hosts.get(case_id)
        deviations = {}
        for tonights_id, night in self.tonight.items():
            is_on_host = self.hosts.get(tonights_id) == host
            if tonights_id != case_id and is_on_host and tonights_id in self._usual:
                deviations[tonights_id] = night.level - self._usual[tonights_id]
        return deviations

    def _relative(
        self, case_id: str, nights: Sequence[NightLevel], deviations_tonight: Sequence[float]
    ) -> list[NightLevel]:
        """Return the nights of a case without the common change of the other cases.

        Nights on which too few other cases were measured are left out.
        """
        usual = self._usual[case_id]
        relative = []
        for night in nights:
            deviations = deviations_tonight
            if night.run != _TONIGHT:
                deviations = _without(self._runs[night.run].deviations, night.level - usual)
            if len(deviations) >= FEWEST_OTHERS:
                level = night.level - statistics.median(deviations)
                noise = self._noise_of_median(len(deviations))
                relative.append(dataclasses.replace(night, level=level, noise=noise))
        return relative

    def _noise_of_median(self, cases: int) -> float:
        """Return the variance of the median over this number of cases."""
        typical = pooled(list(self._variances.values()))
        if typical is None:
            typical = Variance(value=_OWN_NIGHT_FRAC[self.kind] ** 2, freedom=1)
        # The median of normal values varies π/2 times as much as their mean.
        return math.pi / 2 * typical.value / cases

    def _relative_spread(self, case_id: str) -> NightSpread:
        """Return how the nights of a case vary after the common change was subtracted."""
        launch = self._launch_variances[case_id]
        variances_of_others = _without_case(self._variances, case_id)
        if not variances_of_others:
            # No other case has two nights yet, so estimate from how the cases differ tonight.
            variances_of_others = self._variances_tonight(case_id)
        variance = self._variances.get(case_id)
        between = Variance(value=_OWN_NIGHT_FRAC[self.kind] ** 2, freedom=_NIGHT_PRIOR_FREEDOM)
        night = shrunk(variance, variances_of_others, sum_of(launch, between))
        return NightSpread(night=night, launch=launch)

    def _variances_tonight(self, case_id: str) -> list[Variance]:
        """Estimate the variance of nights from tonight and the baseline of each other case."""
        deviations = self._deviations_tonight(case_id)
        common = statistics.median(deviations.values())
        variances = []
        for other_id, deviation in deviations.items():
            squared_difference = (deviation - common) ** 2
            averaged_out = self._launch_variances[other_id].value * self._averaged_out_launches(
                other_id
            )
            value = (squared_difference + averaged_out) / 2
            variances.append(Variance(value=value, freedom=DIFFERENCE_FREEDOM))
        return variances

    def _averaged_out_launches(self, case_id: str) -> float:
        """Return how many launch variances must be added to the squared difference of two nights.

        For two nights with one launch each, the squared difference contains the launch variance
        twice. A night with n launches contributes only 1/n of the launch variance.
        """
        launches_before = self.past[case_id][-1].launches
        launches_tonight = self.tonight[case_id].launches
        return 2 - 1 / launches_before - 1 / launches_tonight

    def _absolute_spread(self, case_id: str) -> NightSpread:
        """Return how the nights of a case vary, including the common change of all cases."""
        launch = self._launch_variances[case_id]
        own_variance = variance_of_nights(self.past.get(case_id, ()), launch)
        variances = []
        for past_id, nights in self.past.items():
            variance = variance_of_nights(nights, launch)
            if past_id != case_id and variance is not None:
                variances.append(variance)
        variances_of_others = []
        typical = pooled(variances)
        if typical is not None:
            # A bad hour is bad for all cases, so many cases contain no more information about
            # hours than one case does.
            freedom = statistics.fmean(variance.freedom for variance in variances)
            variances_of_others.append(Variance(value=typical.value, freedom=freedom))
        night = shrunk(own_variance, variances_of_others, sum_of(launch, self._prior()))
        return NightSpread(night=night, launch=launch)

    def _prior(self) -> Variance:
        """Return how much nights are assumed to vary before any were measured."""
        if self.noise is not None:
            return self.noise
        night_frac = usual_night_frac(self.metric, self.kind)
        return Variance(value=night_frac**2, freedom=_NIGHT_PRIOR_FREEDOM)

    def _common(self, deviations_tonight: Sequence[float], least_frac: float) -> CommonEvidence:
        """Return the common change of all cases tonight, and a common loss that has lasted.

        Args:
            deviations_tonight: how far the other cases are above their usual levels tonight.
            least_frac: the smallest lasting loss that is reported.
        """
        past = []
        for run in sorted(self._runs):
            past_run = self._runs[run]
            # The deviations of a past run include the one of the case itself.
            if len(past_run.deviations) > FEWEST_OTHERS:
                night = self._common_level(run, past_run.deviations)
                night = dataclasses.replace(night, stands=past_run.stands, lost=past_run.is_lost)
                past.append(night)
        tonight = self._common_level(_TONIGHT, deviations_tonight)
        nights = _without_mended_losses([*past, tonight])
        good_nights = [night for night in past if night.stands] or past
        known_nights = sum(not night.lost for night in past)
        # A single series estimates its own spread badly, and a common loss fails many tests at
        # once. So the prior always counts, with all of its degrees of freedom.
        prior = self._prior()
        variances = [prior]
        variance = variance_of_nights(past, _NO_LAUNCH_VARIANCE)
        if variance is not None:
            variances.append(variance)
        spread = NightSpread(night=pooled(variances) or prior, launch=_NO_LAUNCH_VARIANCE)
        return CommonEvidence(
            effect=change_tonight([*good_nights, tonight], spread),
            lasting=self._lasting(nights, spread, COMMON_LASTING_LEVEL, least_frac),
            nights=max(known_nights - 1, 0),
            cases=len(deviations_tonight),
        )

    def _common_level(self, run: str, deviations: Sequence[float]) -> NightLevel:
        """Return the level of a night that all cases share: the median of their deviations."""
        noise = self._noise_of_median(len(deviations))
        return NightLevel(run=run, level=statistics.median(deviations), noise=noise)

    def _lasting(
        self,
        series: Sequence[NightLevel],
        spread: NightSpread,
        lasting_level: float,
        least_frac: float,
    ) -> LastingLoss | None:
        """Return a loss that has lasted until tonight and is proven; None without one.

        Args:
            series: the nights in order; the last is tonight.
            spread: how the nights vary.
            lasting_level: a loss is proven if chance alone shows it with at most this probability.
            least_frac: the smallest loss that is reported.
        """
        change = lasting_loss(series, spread, least_frac=least_frac)
        sign = 1
        if change is None and self.metric.two_sided:
            # A rise of such a metric is a loss too.
            sign = -1
            mirrored = [dataclasses.replace(night, level=-night.level) for night in series]
            change = lasting_loss(mirrored, spread, least_frac=least_frac)
        if change is None or change.effect.p_worse > lasting_level:
            return None
        effect = change.effect
        return LastingLoss(
            effect=dataclasses.replace(effect, estimate_frac=sign * effect.estimate_frac),
            since=series[change.since].run,
            nights=len(series) - change.since,
        )


def usual_night_frac(metric: Metric, kind: str) -> float:
    """Return the usual spread of a metric's nights on a kind of machine, "cpu" or "gpu"."""
    # A speedup compares two servers in the same minutes, so bad hours cancel out.
    fracs = _OWN_NIGHT_FRAC if metric.family is Family.SPEEDUP else _NIGHT_FRAC
    return fracs[kind]


def _without(deviations: Sequence[float], removed: float) -> list[float]:
    """Return the sorted deviations of a night without the deviation of one case."""
    # The deviations are sorted, so bisection finds the one to leave out.
    row = bisect.bisect_left(deviations, removed)
    return [*deviations[:row], *deviations[row + 1 :]]


def _without_case(variances: Mapping[str, Variance], case_id: str) -> list[Variance]:
    """Return the variances of all cases but one."""
    return [variance for known_id, variance in variances.items() if known_id != case_id]


def _without_mended_losses(series: Sequence[NightLevel]) -> list[NightLevel]:
    """Return the nights without those whose loss was mended before tonight.

    A loss was mended if a night between it and tonight is good. Then it hasn't lasted until
    tonight, which is the last night of the series.
    """
    rows_that_stand = [row for row, night in enumerate(series[:-1]) if night.stands]
    last_to_stand = max(rows_that_stand, default=-1)
    return [night for row, night in enumerate(series) if not night.lost or row > last_to_stand]


def _start_of_level(
    series: Sequence[NightLevel], spread: NightSpread, lasting_level: float, least_frac: float
) -> int:
    """Return the index of the night of the last gain, on which the present level began.

    Only nights that stand are searched for a gain, because a partly mended loss isn't a gain.
    """
    rows = [row for row, night in enumerate(series[:-1]) if night.stands]
    good_nights = [series[row] for row in rows]
    start = start_of_gain(good_nights, spread, level=lasting_level, least_frac=least_frac)
    return rows[start] if start else 0


def _reference(nights: Sequence[NightLevel]) -> Sequence[NightLevel]:
    """Return the nights that tonight is compared with: the first good nights of the level.

    Later nights would let the reference follow a slow loss. If no night is good, the first one is
    the reference.
    """
    good_nights = [night for night in nights if night.stands]
    return good_nights[:MAX_NIGHTS] or nights[:1]


def _together(series: Sequence[NightLevel], spread: NightSpread) -> tuple[int, Effect | None]:
    """Return how many of the last nights are averaged, and how they differ from the first nights.

    Half of the nights are averaged, or the last five if that is more. With five or fewer nights
    before tonight, all nights but the first are averaged. On either side no more than MAX_TOGETHER
    are averaged.

    Returns:
        The number of nights, and the change; None with fewer than two earlier nights.
    """
    earlier = len(series) - 1
    most_recent = min(earlier, KNOWN_NIGHTS)
    nights = min(max(len(series) // 2, most_recent), MAX_TOGETHER)
    if earlier == 1:
        return nights, None
    reference = min(len(series) - nights, MAX_TOGETHER)
    return nights, change_of_last_nights(series, nights, spread, reference)


@dataclass(slots=True, kw_only=True)
class MachineNights:
    """The nights of all figures of a machine.

    Attributes:
        baselines: the baselines of this machine, by the case's id.
        history: the earlier runs on this machine.
        cases: how many cases the run judges. Chance may show a loss in each of them.
        hosts: the machine that measures each case tonight, by the case's id; empty if one machine
            measures all cases.
        _by_metric: the nights of each metric, by its name.
        _versions: the version of the engine, by the case's id and the name of the night.
    """

    baselines: Mapping[str, Baseline]
    history: History = NO_HISTORY
    cases: int = 1
    hosts: Mapping[str, str] = field(default_factory=dict)
    _by_metric: dict[str, MetricNights] = field(default_factory=dict)
    _versions: dict[tuple[str, str], str] = field(default_factory=dict)

    def add_baseline(self, case_id: str, baseline: Baseline) -> None:
        """Add the baseline of a case, unless the case has one."""
        if case_id in self.baselines:
            return
        self.baselines = {**self.baselines, case_id: baseline}
        # All spreads depend on the baselines. Derive them anew, and keep tonight's levels.
        tonight = {name: nights.tonight for name, nights in self._by_metric.items()}
        self._by_metric = {}
        for name, levels in tonight.items():
            nights = self._load(METRICS[name])
            nights.tonight.update(levels)
            self._by_metric[name] = nights

    def add(self, case_id: str, metric: Metric, values: Sequence[float]) -> None:
        """Store what was measured tonight, in place of an earlier value of the figure.

        Args:
            case_id: the id of the case.
            metric: the metric.
            values: the value of the metric on each launch of tonight.
        """
        levels = self.of(metric).tonight
        level = _level(metric, values)
        if level is None:
            # Forget the level of an earlier look at fewer launches.
            levels.pop(case_id, None)
            return
        levels[case_id] = NightLevel(run=_TONIGHT, level=level, launches=len(values))

    def evidence(
        self,
        case_id: str,
        metric: Metric,
        *,
        tolerance_frac: float,
        of_prompts: Variance | None = None,
    ) -> NightEvidence | None:
        """Return how a figure changed tonight.

        Args:
            case_id: the id of the case.
            metric: the metric.
            tolerance_frac: the tolerated loss, as a share.
            of_prompts: an estimate of how much nights vary, made from the prompts of tonight and of
                the baseline, for a metric of acceptance; None for a speed.

        Returns:
            None without an earlier night, or if tonight has no level.
        """
        least_frac = max(LEAST_LASTING_FRAC, tolerance_frac / 4)
        evidence = self.of(metric).evidence(
            case_id, decisions=self.decisions(metric), least_frac=least_frac, of_prompts=of_prompts
        )
        if evidence is None:
            return None
        lasting = self._with_versions(case_id, evidence.lasting)
        common = evidence.common
        if common is not None:
            common_lasting = self._with_versions(case_id, common.lasting)
            common = dataclasses.replace(common, lasting=common_lasting)
        return dataclasses.replace(evidence, lasting=lasting, common=common)

    def decisions(self, metric: Metric) -> int:
        """Return how many decisions of the run share one level of significance.

        The acceptance of each case is one decision. So is each speed of a case that doesn't follow
        another one.
        """
        decisions_per_case = SPEED_DRAWS if metric.by_launch else 1
        return self.cases * decisions_per_case

    def waits_for_others(self, metric: Metric, evidence: NightEvidence | None) -> bool:
        """Return whether later cases of the run may still show the common change of all cases."""
        lacks_common = evidence is not None and evidence.common is None
        return metric.by_launch and lacks_common and self.cases > FEWEST_OTHERS

    def of(self, metric: Metric) -> MetricNights:
        """Return the nights of a metric."""
        if metric.name not in self._by_metric:
            self._by_metric[metric.name] = self._load(metric)
        return self._by_metric[metric.name]

    def _load(self, metric: Metric) -> MetricNights:
        """Collect the past nights of a metric from the baselines and the history."""
        past = {}
        launches = {}
        kinds = {baseline.environment.kind for baseline in self.baselines.values()}
        for case_id, baseline in self.baselines.items():
            records = self._records_since(case_id, baseline)
            # Find the level of each night.
            nights = _nights(metric, baseline, records)
            if nights:
                past[case_id] = nights
            # Find out how the launches of one night vary.
            samples: list[Sequence[float]] = [baseline.launch_values(metric)]
            samples += [record.values_of(metric.name) for record in records if not record.lost]
            variance = _variance_within(samples) if metric.by_launch else None
            if variance is not None:
                launches[case_id] = variance
            # Keep the version of the engine on each night, because a lasting loss may come from it.
            for record in records:
                self._versions[case_id, record.night] = record.engine_version
        return MetricNights(
            metric=metric,
            kind="gpu" if "gpu" in kinds else "cpu",
            past=past,
            launches=launches,
            noise=_noise(metric, self.baselines.values()),
            hosts=self.hosts,
        )

    def _records_since(self, case_id: str, baseline: Baseline) -> list[RunRecord]:
        """Return the comparable runs of a case since the last one that accepted a level.

        A run accepts the level of its night by recording a baseline with a reason. A baseline that
        was recorded without a reason continues the nights before it; otherwise it would hide a slow
        loss.
        """
        settings = settings_sha256(baseline.case)
        records = [
            record for record in self.history.of(case_id) if record.settings_sha256 == settings
        ]
        sha256 = baseline_sha256(baseline)
        if not any(_has_recorded(record, sha256) for record in records):
            # The history lacks the run that recorded the baseline. The names of runs begin with
            # their date, so they can be compared with the date of the recording.
            recorded_on = baseline.provenance.recorded_on.replace("-", "")
            return [record for record in records if record.run[: len(recorded_on)] >= recorded_on]
        accepted_rows = [row for row, record in enumerate(records) if record.accepted]
        return records[max(accepted_rows, default=0) :]

    def _with_versions(self, case_id: str, lasting: LastingLoss | None) -> LastingLoss | None:
        """Add to a lasting loss the engine's versions before it and on its first night."""
        if lasting is None:
            return None
        # Only comparable runs have a version here, so no run with other settings comes in between.
        nights = [
            record.night
            for record in self.history.of(case_id)
            if (case_id, record.night) in self._versions
        ]
        if lasting.since not in nights:
            return lasting
        row = nights.index(lasting.since)
        # The night before the first run is the baseline.
        before = self.baselines[case_id].provenance.engine_version
        if row:
            before = self._versions[case_id, nights[row - 1]]
        first = self._versions[case_id, lasting.since]
        return dataclasses.replace(lasting, versions=(before, first))


def _nights(
    metric: Metric, baseline: Baseline, records: Sequence[RunRecord]
) -> tuple[NightLevel, ...]:
    """Return the nights of a figure before tonight: its baseline, and the runs since then."""
    sha256 = baseline_sha256(baseline)
    baseline_night = _night_of_baseline(metric, baseline)
    nights: list[NightLevel | None] = []
    # If the run that recorded the baseline is among the records, the baseline would count twice.
    if not any(_has_recorded(record, sha256) for record in records):
        nights.append(baseline_night)
    for record in records:
        night = _night_of_run(metric, record)
        # The run that recorded the baseline has only the figures of the selected tests, and the
        # baseline has all of them.
        if night is None and _has_recorded(record, sha256):
            night = baseline_night
        nights.append(night)
    return tuple(night for night in nights if night is not None)


def _has_recorded(record: RunRecord, sha256: str) -> bool:
    """Return whether a run recorded the baseline with this checksum."""
    return record.recorded and record.baseline_sha256 == sha256


def _night_of_baseline(metric: Metric, baseline: Baseline) -> NightLevel | None:
    """Return the night on which a figure of a baseline was recorded; None if it has no level."""
    level = _level(metric, _recorded_values(metric, baseline))
    if level is None:
        return None
    launches = max(len(baseline.launch_values(metric)), 1)
    run = baseline.provenance.recorded_on.replace("-", "")
    return NightLevel(run=run, level=level, launches=launches)


def _night_of_run(metric: Metric, record: RunRecord) -> NightLevel | None:
    """Return the night of a figure in a run; None if it has no level, or is INVALID or WRONG."""
    outcome = record.outcomes.get(metric.name)
    level = _level(metric, record.values_of(metric.name))
    if level is None or outcome in _SPOILED:
        return None
    return NightLevel(
        run=record.night,
        level=level,
        launches=record.launches_of(metric.name),
        # Tonight isn't compared with a night that has a loss, which would become the usual level.
        stands=outcome != Outcome.REGRESSED and not record.lost,
        lost=record.lost,
    )


def _recorded_values(metric: Metric, baseline: Baseline) -> Sequence[float]:
    """Return a baseline's values of a metric: one for each launch, or one over the prompts."""
    if metric.by_launch:
        return baseline.launch_values(metric)
    record = load_acceptance(baseline.acceptance)
    if record is None:
        return ()
    # A run replays the extension only if the case's own prompts don't decide.
    usual_prompts = without_extension(record, baseline.case.prompts)
    value = acceptance_value(metric, usual_prompts)
    if value is None:
        return ()
    return (value,)


def _level(metric: Metric, values: Iterable[float]) -> float | None:
    """Return the mean logarithm of a metric's values, with the sign that makes better positive.

    Returns:
        None without values, or if one isn't above the metric's origin and so has no logarithm.
    """
    excesses = [value - metric.origin for value in values]
    if not excesses or min(excesses) <= 0:
        return None
    sum_of_logs = math.fsum(map(math.log, excesses))
    return metric.sign * sum_of_logs / len(excesses)


def _variance_within(samples: Sequence[Sequence[float]]) -> Variance | None:
    """Return how the launches of one night vary, pooled over the nights of a case."""
    variances = []
    for sample in samples:
        logs = [math.log(value) for value in sample if value > 0]
        if len(logs) > 1:
            variance = statistics.variance(logs)
            variances.append(Variance(value=variance, freedom=len(logs) - 1))
    return pooled(variances)


def _noise(metric: Metric, baselines: Iterable[Baseline]) -> Variance | None:
    """Return how identical runs of a machine varied, according to its baselines."""
    variances = []
    for baseline in baselines:
        noise = baseline.noise.get(metric.name)
        # A single run shows no spread.
        if noise is not None and noise.runs > 1:
            variance = Variance(value=noise.between_frac**2, freedom=noise.runs - 1)
            variances.append(variance)
    pooled_variance = pooled(variances)
    if pooled_variance is None or not pooled_variance.value:
        return None
    # The cases were measured in the same hours, so together they contain no more information about
    # hours than one case does.
    freedom = statistics.fmean(variance.freedom for variance in variances)
    return Variance(value=pooled_variance.value, freedom=freedom)
