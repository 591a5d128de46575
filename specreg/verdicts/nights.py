"""The nights of a machine: what earlier runs say of each figure, and what tonight adds.

A figure is a metric of a case. Its nights are the baseline and the runs since, with tonight as the
last. What all cases do alike on a night, because the machine or the engine is slower, is judged as
a series of its own; a case is judged by how it differs from the others. With too few other cases
its own nights have to tell how much hours differ.
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
    change_tonight,
    lasting_loss,
    mean_of_last,
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
"""How many speeds of a case are decided, each with the figures that follow it."""
FEWEST_OTHERS = 4
"""With fewer other cases it can't be told what most of them do."""
KNOWN_NIGHTS = 5
"""So many runs before tonight tell how nights differ; with fewer it is a guess."""
LASTING_LEVEL = LEVEL / 8
"""How often chance may show a lasting loss on a night, over all cases. Many splits of the nights
are looked at, and what chance shows on one night it shows on those that follow."""
COMMON_LASTING_LEVEL = LASTING_LEVEL / 20
"""The same for a loss of all cases alike, which is red for many tests at once."""
LEAST_LASTING_FRAC = 0.02
"""The smallest change that is named because it lasts, or a quarter of a wider tolerance."""
_TONIGHT = "tonight"
_SPOILED = frozenset({Outcome.INVALID, Outcome.WRONG})
_LAUNCH_PRIOR_FREEDOM = 2
_NIGHT_PRIOR_FREEDOM = 8
_LAUNCH_FRAC = {"cpu": 0.03, "gpu": 0.01}
"""How launches of a night differ before a machine has shown it: on two shared cores, on an H100."""
_NIGHT_FRAC = {"cpu": 0.065, "gpu": 0.05}
"""How nights differ beyond that: by the committed baselines of CPUs, and four launches on three
H100s."""
_OWN_NIGHT_FRAC = {"cpu": 0.033, "gpu": 0.015}
"""The part of it that is a case's own, by the speedups in the committed baselines of CPUs. That of
GPUs is an assumption: no nights of one have been recorded yet."""
_NO_LAUNCH_VARIANCE = Variance(value=0.0, freedom=1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastingLoss:
    """A proven loss that has lasted until tonight.

    Attributes:
        effect: the level since then against the level before.
        since: the run of its first night.
        nights: how many nights it has lasted, tonight included.
        versions: the engine's version on the night before it began and on its first night; empty
            where that isn't known.
    """

    effect: Effect
    since: str
    nights: int
    versions: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonEvidence:
    """What all cases do alike.

    Attributes:
        effect: the change of tonight from the nights before.
        lasting: a proven loss that has lasted until tonight.
        nights: how many earlier runs tell.
        cases: how many other cases tell it tonight.
    """

    effect: Effect
    lasting: LastingLoss | None
    nights: int
    cases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NightEvidence:
    """What the nights of a figure say of tonight.

    Attributes:
        effect: the change of tonight from the nights before. It leaves out what all cases do alike,
            if `common` is known.
        nights: how many earlier runs it stands on, besides the baseline.
        lasting: a proven loss of the case that has lasted until tonight.
        together: the change of the last nights together; None with fewer than two nights.
        nights_together: how many nights that is, tonight included.
        spread: how the nights of the figure differ.
        common: what all cases do alike; None with too few other cases.
    """

    effect: Effect
    nights: int
    lasting: LastingLoss | None
    together: Effect | None
    nights_together: int
    spread: NightSpread
    common: CommonEvidence | None = None


@dataclass(slots=True, kw_only=True)
class MetricNights:
    """The nights of one metric, of all cases of a machine.

    Attributes:
        kind: the kind of machine, "cpu" or "gpu".
        past: by case's id, the nights before tonight, the baseline first.
        launches: by case's id, how its launches of one night differ.
        noise: what the committed baselines say of how nights differ beyond that; None if nothing.
        hosts: by case's id, the machine that measures it tonight, where several do.
        tonight: by case's id, what tonight has measured so far.
        _usual: by case's id, the level that it usually had before tonight.
        _launch_variances: by case's id, how its launches of one night differ, moderated.
        _deviations: by past run, by how much each case was above its usual level, sorted.
        _variances: by case's id, how its past nights differ beside those of the others.
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
    _deviations: dict[str, list[float]] = field(default_factory=dict)
    _variances: dict[str, Variance] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Note how much all cases deviated on each past night, and how their nights differ."""
        for case_id, nights in self.past.items():
            usual = statistics.median(night.level for night in nights)
            self._usual[case_id] = usual
            self._launch_variances[case_id] = self._shrunk_launch_variance(case_id)
            for night in nights:
                self._deviations.setdefault(night.run, []).append(night.level - usual)
        for deviations in self._deviations.values():
            deviations.sort()
        for case_id, nights in self.past.items():
            relative = self._relative(case_id, nights, [])
            variance = variance_of_nights(relative, self._launch_variances[case_id])
            if variance is not None:
                self._variances[case_id] = variance

    def _shrunk_launch_variance(self, case_id: str) -> Variance:
        """Return how the launches of one night of a case differ."""
        if not self.metric.by_launch:
            return _NO_LAUNCH_VARIANCE
        others = [variance for other, variance in self.launches.items() if other != case_id]
        prior = Variance(value=_LAUNCH_FRAC[self.kind] ** 2, freedom=_LAUNCH_PRIOR_FREEDOM)
        return shrunk(self.launches.get(case_id), others, prior)

    def evidence(
        self, case_id: str, *, cases: int, least_frac: float, of_prompts: Variance | None = None
    ) -> NightEvidence | None:
        """Return what the nights say of a case tonight.

        Args:
            case_id: the case.
            cases: how many cases the run judges, each of which chance may make look worse.
            least_frac: the smallest lasting change that is named.
            of_prompts: of a metric of acceptance, how nights differ by what its prompts show; None
                for a speed.

        Returns:
            None without an earlier night or a level tonight.
        """
        past = self.past.get(case_id, ())
        tonight = self.tonight.get(case_id)
        if tonight is None or not past:
            return None
        series = [*past, tonight]
        common: CommonEvidence | None = None
        if of_prompts is not None:
            own = variance_of_nights(past, _NO_LAUNCH_VARIANCE)
            night = shrunk(own, (), of_prompts)
            spread = NightSpread(night=night, launch=_NO_LAUNCH_VARIANCE)
        else:
            others = self._others_tonight(case_id)
            relative = self._relative(case_id, series, others)
            if len(relative) > 1 and relative[-1].run == _TONIGHT:
                series = relative
                spread = self._relative_spread(case_id)
                common = self._common(others, least_frac)
            else:
                spread = self._absolute_spread(case_id)
        level = LASTING_LEVEL / cases
        start = start_of_gain(series[:-1], spread, level=level, least_frac=least_frac)
        series = series[start:]
        nights_together, together = _together(series, spread)
        return NightEvidence(
            effect=change_tonight([*_reference(series[:-1]), series[-1]], spread),
            nights=len(series) - 2 + start,
            lasting=self._lasting(series, spread, level, least_frac),
            together=together,
            nights_together=nights_together,
            spread=spread,
            common=common,
        )

    def _others_tonight(self, case_id: str) -> list[float]:
        """Return by how much each other case on the same machine is above its usual level."""
        host = self.hosts.get(case_id)
        return [
            night.level - self._usual[other]
            for other, night in self.tonight.items()
            if other != case_id and other in self._usual and self.hosts.get(other) == host
        ]

    def _relative(
        self, case_id: str, nights: Sequence[NightLevel], others_tonight: Sequence[float]
    ) -> list[NightLevel]:
        """Return the nights of a case beside what the other cases did on each of them.

        Nights on which too few others were measured are left out.
        """
        usual = self._usual[case_id]
        relative = []
        for night in nights:
            others = others_tonight
            if night.run != _TONIGHT:
                others = _without(self._deviations[night.run], night.level - usual)
            if len(others) >= FEWEST_OTHERS:
                level = night.level - statistics.median(others)
                noise = self._noise_of_median(len(others))
                relative.append(dataclasses.replace(night, level=level, noise=noise))
        return relative

    def _noise_of_median(self, cases: int) -> float:
        """Return the variance of the median of some cases, π/2 of that of their mean."""
        typical = pooled(list(self._variances.values()))
        if typical is None:
            typical = Variance(value=_OWN_NIGHT_FRAC[self.kind] ** 2, freedom=1)
        return math.pi / 2 * typical.value / cases

    def _relative_spread(self, case_id: str) -> NightSpread:
        """Return how the nights of a case differ beside what all cases do alike."""
        launch = self._launch_variances[case_id]
        others = [variance for other, variance in self._variances.items() if other != case_id]
        if not others:
            # On the first night, how the cases differ tonight tells how nights differ.
            others = self._variances_tonight(case_id)
        own = self._variances.get(case_id)
        between = Variance(value=_OWN_NIGHT_FRAC[self.kind] ** 2, freedom=_NIGHT_PRIOR_FREEDOM)
        night = shrunk(own, others, sum_of(launch, between))
        return NightSpread(night=night, launch=launch)

    def _variances_tonight(self, case_id: str) -> list[Variance]:
        """Return how far tonight is from the baseline in other cases, as variances of nights."""
        others = self._others_tonight(case_id)
        alike = statistics.median(others)
        fewer = self._launch_variances[case_id].value * self._missing_launches(case_id)
        freedom = DIFFERENCE_FREEDOM
        return [
            Variance(value=((deviation - alike) ** 2 + fewer) / 2, freedom=freedom)
            for deviation in others
        ]

    def _missing_launches(self, case_id: str) -> float:
        """Return how much less two nights vary than nights with one launch each would."""
        before = self.past[case_id][-1].launches
        return 2 - 1 / before - 1 / self.tonight[case_id].launches

    def _absolute_spread(self, case_id: str) -> NightSpread:
        """Return how the nights of a case differ, with what all cases do alike."""
        launch = self._launch_variances[case_id]
        own = variance_of_nights(self.past.get(case_id, ()), launch)
        variances = []
        for other, nights in self.past.items():
            variance = variance_of_nights(nights, launch)
            if other != case_id and variance is not None:
                variances.append(variance)
        others = []
        typical = pooled(variances)
        if typical is not None:
            # An hour is bad for all cases alike, so that many cases tell no more than one does.
            freedom = statistics.fmean(variance.freedom for variance in variances)
            others.append(Variance(value=typical.value, freedom=freedom))
        night = shrunk(own, others, sum_of(launch, self._prior()))
        return NightSpread(night=night, launch=launch)

    def _prior(self) -> Variance:
        """Return how nights are taken to differ before any were seen."""
        if self.noise is not None:
            return self.noise
        night_frac = usual_night_frac(self.metric, self.kind)
        return Variance(value=night_frac**2, freedom=_NIGHT_PRIOR_FREEDOM)

    def _common(self, others: Sequence[float], least_frac: float) -> CommonEvidence:
        """Return what all cases did alike on each night."""
        past = [
            NightLevel(
                run=run,
                level=statistics.median(deviations),
                noise=self._noise_of_median(len(deviations)),
            )
            for run, deviations in sorted(self._deviations.items())
            if len(deviations) > FEWEST_OTHERS
        ]
        tonight = NightLevel(
            run=_TONIGHT, level=statistics.median(others), noise=self._noise_of_median(len(others))
        )
        nights = [*past, tonight]
        own = variance_of_nights(past, _NO_LAUNCH_VARIANCE)
        # One series tells its own spread badly, and its loss is red for many tests at once.
        known = [self._prior()] if own is None else [self._prior(), own]
        night = pooled(known) or self._prior()
        spread = NightSpread(night=night, launch=_NO_LAUNCH_VARIANCE)
        return CommonEvidence(
            effect=change_tonight(nights, spread),
            lasting=self._lasting(nights, spread, COMMON_LASTING_LEVEL, least_frac),
            nights=len(past) - 1,
            cases=len(others),
        )

    def _lasting(
        self, series: Sequence[NightLevel], spread: NightSpread, level: float, least_frac: float
    ) -> LastingLoss | None:
        """Return a loss that is proven at a level and has lasted until tonight."""
        change = lasting_loss(series, spread, least_frac=least_frac)
        sign = 1
        if change is None and self.metric.two_sided:
            # A rise is for the worse too.
            sign = -1
            mirrored = [dataclasses.replace(night, level=-night.level) for night in series]
            change = lasting_loss(mirrored, spread, least_frac=least_frac)
        if change is None or change.effect.p_worse > level:
            return None
        effect = change.effect
        return LastingLoss(
            effect=dataclasses.replace(effect, estimate_frac=sign * effect.estimate_frac),
            since=series[change.since].run,
            nights=len(series) - change.since,
        )


def usual_night_frac(metric: Metric, kind: str) -> float:
    """Return how nights of a metric differ on a kind of machine of which none is known yet."""
    fracs = _OWN_NIGHT_FRAC if metric.family is Family.SPEEDUP else _NIGHT_FRAC
    return fracs[kind]


def _without(deviations: Sequence[float], own: float) -> list[float]:
    """Return the sorted deviations of a night without that of the case itself."""
    row = bisect.bisect_left(deviations, own)
    return [*deviations[:row], *deviations[row + 1 :]]


def _reference(nights: Sequence[NightLevel]) -> Sequence[NightLevel]:
    """Return the nights that tonight is held against: the first good ones of the level."""
    good = [night for night in nights if night.stands]
    return good[:MAX_NIGHTS] or nights[:1]


def _together(series: Sequence[NightLevel], spread: NightSpread) -> tuple[int, Effect | None]:
    """Return how many of the last nights are taken together, and how they differ from the first.

    That is half of the nights, but five as soon as there are as many besides the baseline.
    """
    earlier = len(series) - 1
    nights = min(max(len(series) // 2, min(earlier, KNOWN_NIGHTS)), MAX_TOGETHER)
    if earlier == 1:
        return nights, None
    reference = min(len(series) - nights, MAX_TOGETHER)
    return nights, mean_of_last(series, nights, spread, reference)


@dataclass(slots=True, kw_only=True)
class MachineNights:
    """The nights of all figures of a machine.

    Attributes:
        baselines: of this machine, by case's id.
        history: the earlier runs on this machine.
        cases: how many cases the run judges, each of which chance may make look worse.
        hosts: by case's id, the machine that measures it tonight, where several do.
        _by_metric: by the name of a metric, its nights.
        _versions: by case's id and run, the version of the engine.
    """

    baselines: Mapping[str, Baseline]
    history: History = NO_HISTORY
    cases: int = 1
    hosts: Mapping[str, str] = field(default_factory=dict)
    _by_metric: dict[str, MetricNights] = field(default_factory=dict)
    _versions: dict[tuple[str, str], str] = field(default_factory=dict)

    def know(self, case_id: str, baseline: Baseline) -> None:
        """Take in the baseline of a case, if it isn't known yet."""
        if case_id in self.baselines:
            return
        self.baselines = {**self.baselines, case_id: baseline}
        tonight = {name: nights.tonight for name, nights in self._by_metric.items()}
        self._by_metric = {name: self._load(METRICS[name]) for name in tonight}
        for name, levels in tonight.items():
            self._by_metric[name].tonight.update(levels)

    def add(self, case_id: str, metric: Metric, values: Sequence[float]) -> None:
        """Note what tonight has measured of a figure.

        Args:
            case_id: the case.
            metric: the metric.
            values: its value on each launch of tonight.
        """
        level = _level(metric, values)
        if level is not None:
            night = NightLevel(run=_TONIGHT, level=level, launches=len(values))
            self.of(metric).tonight[case_id] = night

    def evidence(
        self,
        case_id: str,
        metric: Metric,
        *,
        tolerance_frac: float,
        of_prompts: Variance | None = None,
    ) -> NightEvidence | None:
        """Return what the nights say of a figure tonight; None without a night before.

        Args:
            case_id: the case.
            metric: the metric.
            tolerance_frac: what the metric may lose, 0..1.
            of_prompts: how nights of acceptance differ, by what its prompts show; None for a speed.
        """
        least_frac = max(LEAST_LASTING_FRAC, tolerance_frac / 4)
        evidence = self.of(metric).evidence(
            case_id, cases=self.decisions(metric), least_frac=least_frac, of_prompts=of_prompts
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
        """Return how many decisions of the run share a level with one about a metric.

        Acceptance is decided once for each case, and so is each speed that leads a draw.
        """
        return self.cases * (SPEED_DRAWS if metric.by_launch else 1)

    def waits_for_others(self, metric: Metric, evidence: NightEvidence | None) -> bool:
        """Return whether further cases of the run will tell what all of them do alike."""
        is_alone = evidence is not None and evidence.common is None
        return metric.by_launch and is_alone and self.cases > FEWEST_OTHERS

    def of(self, metric: Metric) -> MetricNights:
        """Return the nights of a metric."""
        if metric.name not in self._by_metric:
            self._by_metric[metric.name] = self._load(metric)
        return self._by_metric[metric.name]

    def _load(self, metric: Metric) -> MetricNights:
        past = {}
        launches = {}
        kinds = {baseline.environment.kind for baseline in self.baselines.values()}
        for case_id, baseline in self.baselines.items():
            records = self._records_since(case_id, baseline)
            nights = _nights(metric, baseline, records)
            if nights:
                past[case_id] = nights
            samples: list[Sequence[float]] = [baseline.launch_values(metric)]
            samples += [record.values_of(metric.name) for record in records]
            variance = _variance_within(samples) if metric.by_launch else None
            if variance is not None:
                launches[case_id] = variance
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
        """Return the runs of a case that are comparable, since its level was last accepted.

        A baseline that was recorded anew without a reason continues the nights before it, because
        a slow loss would hide in it otherwise.
        """
        settings = settings_sha256(baseline.case)
        records = [
            record for record in self.history.of(case_id) if record.settings_sha256 == settings
        ]
        sha256 = baseline_sha256(baseline)
        knows_recording = any(
            record.recorded and record.baseline_sha256 == sha256 for record in records
        )
        if not knows_recording:
            recorded_on = baseline.provenance.recorded_on.replace("-", "")
            return [record for record in records if record.run[: len(recorded_on)] >= recorded_on]
        accepted = [row for row, record in enumerate(records) if record.accepted]
        return records[max(accepted, default=0) :]

    def _with_versions(self, case_id: str, lasting: LastingLoss | None) -> LastingLoss | None:
        """Return a lasting loss with the engine's version before it and on its first night."""
        if lasting is None:
            return None
        runs = [record.night for record in self.history.of(case_id)]
        if lasting.since not in runs:
            return lasting
        row = runs.index(lasting.since)
        baseline = self.baselines.get(case_id)
        before = baseline.provenance.engine_version if baseline is not None else ""
        if row:
            before = self._versions.get((case_id, runs[row - 1]), before)
        versions = (before, self._versions.get((case_id, lasting.since), ""))
        return dataclasses.replace(lasting, versions=versions)


def _nights(
    metric: Metric, baseline: Baseline, records: Sequence[RunRecord]
) -> tuple[NightLevel, ...]:
    """Return the nights of a figure before tonight: its baseline, and the runs since."""
    nights = []
    sha256 = baseline_sha256(baseline)
    if not any(record.recorded and record.baseline_sha256 == sha256 for record in records):
        level = _level(metric, _recorded_values(metric, baseline))
        if level is not None:
            launches = max(len(baseline.launch_values(metric)), 1)
            run = baseline.provenance.recorded_on.replace("-", "")
            nights.append(NightLevel(run=run, level=level, launches=launches))
    for record in records:
        outcome = record.outcomes.get(metric.name)
        level = _level(metric, record.values_of(metric.name))
        if level is None or outcome in _SPOILED:
            continue
        nights.append(
            NightLevel(
                run=record.night,
                level=level,
                launches=record.launches_of(metric.name),
                stands=outcome != Outcome.REGRESSED,
            )
        )
    return tuple(nights)


def _recorded_values(metric: Metric, baseline: Baseline) -> Sequence[float]:
    """Return what a baseline holds of a metric: by launch, or over the prompts of the case."""
    if metric.by_launch:
        return baseline.launch_values(metric)
    record = load_acceptance(baseline.acceptance)
    if record is None:
        return ()
    value = acceptance_value(metric, without_extension(record, baseline.case.prompts))
    return () if value is None else (value,)


def _level(metric: Metric, values: Iterable[float]) -> float | None:
    """Return the mean logarithm of a metric, better being positive; None if one isn't above 0."""
    excesses = [value - metric.origin for value in values]
    if not excesses or min(excesses) <= 0:
        return None
    return metric.sign * math.fsum(map(math.log, excesses)) / len(excesses)


def _variance_within(samples: Sequence[Sequence[float]]) -> Variance | None:
    """Return how launches of one night differ, pooled over the nights of a case."""
    variances = []
    for sample in samples:
        logs = [math.log(value) for value in sample if value > 0]
        if len(logs) > 1:
            variance = statistics.variance(logs)
            variances.append(Variance(value=variance, freedom=len(logs) - 1))
    return pooled(variances)


def _noise(metric: Metric, baselines: Iterable[Baseline]) -> Variance | None:
    """Return how identical runs of a machine differed when its baselines were recorded."""
    noises = [
        baseline.noise[metric.name] for baseline in baselines if metric.name in baseline.noise
    ]
    variances = [
        Variance(value=noise.between_frac**2, freedom=noise.runs - 1)
        for noise in noises
        if noise.runs > 1
    ]
    known = pooled(variances)
    if known is None or not known.value:
        return None
    # The cases were measured in the same hours, so that they tell no more than one does.
    freedom = statistics.fmean(variance.freedom for variance in variances)
    return Variance(value=known.value, freedom=freedom)
