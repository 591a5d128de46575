"""What one launch of a night tells where launches differ by so much: by simulation.

`python -m tests.bench.launches` makes a table of docs/performance.md; the spread is that of four
launches of one server at c16 on three H100, 1,911 to 2,146 tokens/s. With the folder of
`nox -s nights` it is that of the speedups of those runs, at the tolerance of the tier `cpu`.
"""

import argparse
import itertools
import math
import statistics
from pathlib import Path

from scipy.stats import chi2

from specreg.measurement.metrics import METRICS
from specreg.report.document import load_verdict
from specreg.verdicts.judge import GOOD, Outcome
from specreg.verdicts.selftest import Plant, World, try_plant

SPREAD_FRAC = 0.05
CASES = 8
"""Of a tier, whose baselines tell how launches differ."""
TRIALS = 400
LOSSES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
METRIC = METRICS["throughput_tokens_per_s"]


def print_launches() -> None:
    """The table of a GPU's nights."""
    print("| tolerated | recorded launches | lost | PASS | undecided | REGRESSED |")  # noqa: T201
    print("| --- | --- | --- | --- | --- | --- |")  # noqa: T201
    for tolerance_frac, launches, loss in itertools.product((0.1, 0.2), (3, 5, 10), LOSSES):
        world = World(launches, launch_spread_frac=SPREAD_FRAC, launches=launches, cases=CASES)
        told = shares(loss, tolerance_frac, world)
        print(f"| {tolerance_frac:.0%} | {launches} | {loss:.0%} | {told} |")  # noqa: T201


def shares(loss_frac: float, tolerance_frac: float, world: World) -> str:
    """How often a loss passes, is undecided and is found."""
    plant = Plant("", speed_frac=loss_frac, metric=METRIC, tolerance_frac=tolerance_frac)
    found, _ = try_plant(plant, TRIALS, world)
    passed, lost = sum(found[one] for one in GOOD), found[Outcome.REGRESSED]
    return " | ".join(f"{one / TRIALS:.1%}" for one in (passed, TRIALS - passed - lost, lost))


def print_nights(folder: Path) -> None:
    """The table of the speedup where launches differ as in the runs of `nox -s nights`."""
    spread_frac, freedom = spread_of_nights(folder)
    most_frac = spread_frac * math.sqrt(freedom / chi2.ppf(0.05, freedom))
    print("| spread of launches | lost | PASS | undecided | REGRESSED |")  # noqa: T201
    print("| --- | --- | --- | --- | --- |")  # noqa: T201
    for name, frac in (("seen", spread_frac), (f"95 % bound of {freedom} freedoms", most_frac)):
        for loss in (0.0, 0.1, 0.15, 0.2, 0.26):
            told = shares(loss, 0.1, World(3, launch_spread_frac=frac, cases=6))
            print(f"| {name}, {frac:.1%} | {loss:.0%} | {told} |", flush=True)  # noqa: T201


def spread_of_nights(folder: Path) -> tuple[float, int]:
    """The deviation of the logarithm of a case's speedup, and its degrees of freedom."""
    speedups: dict[str, list[float]] = {}
    for path in sorted(folder.glob("runs/*/verdict.json")):
        run = load_verdict(path)
        for one in run.verdicts if run else ():
            if one.metric == "speedup_ratio" and one.value and one.change_frac is not None:
                speedups.setdefault(one.case_id, []).append(math.log(one.value))
    freedom = sum(len(some) - 1 for some in speedups.values())
    squares = sum((len(some) - 1) * statistics.variance(some) for some in speedups.values())
    return math.sqrt(squares / freedom), freedom


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nights", type=Path, nargs="?", help="the folder of `nox -s nights`")
    asked = parser.parse_args()
    if asked.nights is None:
        print_launches()
    else:
        print_nights(asked.nights)
