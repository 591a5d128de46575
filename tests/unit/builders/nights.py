"""What the nights of a figure say, where one night differs from another as launches do."""

from specreg.baselines.comparison import BaselineComparison
from specreg.measurement.metrics import Metric
from specreg.stats.intervals import change_of_launches
from specreg.stats.nights import NightSpread
from specreg.stats.variance import Variance
from specreg.verdicts.nights import NightEvidence


def nights_of(metric: Metric, comparison: BaselineComparison) -> NightEvidence | None:
    """What one night says whose launches differ as those of the control, and nights no further."""
    baseline = comparison.baselines.exact
    values = comparison.launch_values(metric)
    recorded = baseline.launch_values(metric) if baseline else ()
    if not metric.by_launch or not recorded or min(values, default=0.0) <= 0:
        return None
    spread = comparison.baselines.control_spreads[metric.name]
    effect = change_of_launches(values, recorded, spread, metric.sign)
    variance = Variance(value=spread.within_frac**2, freedom=spread.freedom)
    return NightEvidence(
        effect=effect,
        nights=0,
        lasting=None,
        together=None,
        nights_together=1,
        spread=NightSpread(night=variance, launch=variance),
    )
