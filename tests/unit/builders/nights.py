"""What the nights of a figure say, where one night differs from another as launches do."""

from specreg.baselines.comparison import BaselineComparison
from specreg.measurement.metrics import Metric
from specreg.stats.nights import NightSpread
from specreg.stats.variance import Variance
from specreg.verdicts.nights import NightEvidence


def nights_of(metric: Metric, comparison: BaselineComparison) -> NightEvidence | None:
    """What one night says whose launches differ as `known` has it, and nights no further."""
    effect = comparison.speed_change(metric) if metric.by_launch else None
    if effect is None:
        return None
    spread = comparison.known.spreads[metric.name]
    variance = Variance(value=spread.within_frac**2, freedom=spread.freedom)
    return NightEvidence(
        effect=effect,
        nights=0,
        lasting=None,
        together=None,
        nights_together=1,
        spread=NightSpread(night=variance, launch=variance),
    )
