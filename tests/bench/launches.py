"""What one launch of a night tells where launches differ by so much: by simulation.

`python -m tests.bench.launches` makes a table of docs/performance.md; the spread is that of four
launches of one server at c16 on three H100, 1,911 to 2,146 tokens/s. With the folder of
`nox -s nights` it is that of the speedups of those runs, at the tolerance of the tier `cpu`.
"""

import argparse
import dataclasses
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from scipy.stats import chi2

from specreg.measurement.metrics import METRICS
from specreg.report.document import load_verdict
from specreg.verdicts.detection import MOST_LAUNCHES
from specreg.verdicts.selftest import Plant, World, simulated_case, try_plant
from specreg.verdicts.verdict import GOOD, Outcome

SPREAD_FRAC = 0.05
CASES = 8
"""Of a tier, whose baselines tell how launches differ."""
WORLDS = 20
TRIALS = 50
"""How often a machine is recorded, and how many nights follow each time."""
LOSSES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
METRIC = METRICS["throughput_tokens_per_s"]


def print_launches() -> None:
    """The table of a GPU's nights."""
    print("| tolerated | recorded launches | lost | PASS | undecided | REGRESSED |")  # noqa: T201
    print("| --- | --- | --- | --- | --- | --- |")  # noqa: T201
    for tolerance_frac, launches, loss in itertools.product((0.1, 0.2), (3, 5, 10), LOSSES):
        worlds = (
            World(seed, launch_spread_frac=SPREAD_FRAC, launches=launches, cases=CASES)
            for seed in range(WORLDS)
        )
        loss_shares = shares(loss, tolerance_frac, worlds)
        print(f"| {tolerance_frac:.0%} | {launches} | {loss:.0%} | {loss_shares} |", flush=True)  # noqa: T201


def shares(loss_frac: float, tolerance_frac: float, worlds: Iterable[World]) -> str:
    """How often a loss passes, is undecided and is found."""
    plant = Plant("", speed_frac=loss_frac, metric=METRIC, tolerance_frac=tolerance_frac)
    outcomes = Counter[Outcome]()
    for world in worlds:
        outcomes += try_plant(plant, TRIALS, world)[0]
    passed = sum(outcomes[outcome] for outcome in GOOD)
    lost = outcomes[Outcome.REGRESSED]
    parts = (passed, outcomes.total() - passed - lost, lost)
    return " | ".join(f"{share / outcomes.total():.1%}" for share in parts)


def print_nights(spread_frac: float, freedom: int) -> None:
    """The table of the speedup where launches differ so much, known by so many freedoms."""
    most_frac = spread_frac * math.sqrt(freedom / chi2.ppf(0.05, freedom))
    print("| spread of launches | lost | PASS | undecided | REGRESSED |")  # noqa: T201
    print("| --- | --- | --- | --- | --- |")  # noqa: T201
    for name, frac in (("seen", spread_frac), (f"95 % bound of {freedom} freedoms", most_frac)):
        for loss in (0.0, 0.1, 0.15, 0.2, 0.26):
            night_shares = shares(loss, 0.1, (recorded(seed, frac) for seed in range(WORLDS)))
            print(f"| {name}, {frac:.1%} | {loss:.0%} | {night_shares} |", flush=True)  # noqa: T201


def recorded(seed: int, spread_frac: float) -> World:
    """A machine whose baselines have the launches with which a run can tell 10 %, twelve at most.

    Each number of launches is drawn anew, so that a spread that looks small by chance ends it more
    often than in a real recording, which adds to the launches it has.
    """
    case = dataclasses.replace(simulated_case(0), tolerances=((METRIC.name, 0.1),))
    worlds = (
        World(1000 * seed + n, launch_spread_frac=spread_frac, launches=n, cases=6)
        for n in range(3, MOST_LAUNCHES + 1)
    )
    for world in worlds:
        baseline = world.known_of(case).exact
        if baseline and baseline.detects[METRIC.name].decides:
            break
    return world


def spread_of_nights(folder: Path) -> tuple[float, int]:
    """The deviation of the logarithm of a case's speedup, and its degrees of freedom."""
    speedups: dict[str, list[float]] = {}
    for path in sorted(folder.glob("runs/*/verdict.json")):
        run = load_verdict(path)
        for verdict in run.verdicts if run else ():
            if (
                verdict.metric == "speedup_ratio"
                and verdict.value
                and verdict.comparison.change_frac is not None
            ):
                speedups.setdefault(verdict.case_id, []).append(math.log(verdict.value))
    freedom = sum(len(some) - 1 for some in speedups.values())
    squares = sum((len(some) - 1) * statistics.variance(some) for some in speedups.values())
    return math.sqrt(squares / freedom), freedom


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nights", type=Path, nargs="?", help="the folder of `nox -s nights`")
    options = parser.parse_args()
    if options.nights is None:
        print_launches()
    else:
        print_nights(*spread_of_nights(options.nights))
