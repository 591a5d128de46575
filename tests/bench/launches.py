"""What the nights tell where launches differ by so much: by simulation.

By default, the spread is that of four launches of one server at c16 on three H100, 1,911 to
2,146 tokens/s; the tolerances of the tiers for GPUs follow from it. With the folder of
`nox -s nights` it is that of the speedups of those runs.
"""

import argparse
import math
import statistics
from pathlib import Path

from specreg.judging.simulation import Planted, Scenario, share, simulate
from specreg.report.files import load_verdict

SPREAD_FRAC = 0.05
"""How four launches of one server differed on three H100."""
CASES = 8
"""Of a tier, whose cases tell together how nights differ."""
SERIES = 20
"""How many machines are simulated."""
FIRST_LOST_NIGHT = 11
LOSSES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3)


def print_table(launch_frac: float) -> None:
    """Print how often a loss is named by the first, the fifth and the tenth night after it."""
    print("| spread of launches | lost | night 1 | night 5 | night 10 | red before |")  # noqa: T201
    print("| --- | --- | --- | --- | --- | --- |")  # noqa: T201
    for loss_frac in LOSSES:
        scenario = Scenario(
            name="",
            launch_frac=launch_frac,
            night_frac=0.0,
            cases=(CASES,),
            nights=FIRST_LOST_NIGHT + 9,
            planted=(Planted(change_frac=-loss_frac, first=FIRST_LOST_NIGHT),),
        )
        counts = simulate(scenario, SERIES)
        shares = " | ".join(f"{counts.found_by(night):.0%}" for night in (1, 5, 10))
        red = f"{share(counts.red_nights, counts.healthy_nights):.1%}"
        print(f"| {launch_frac:.1%} | {loss_frac:.0%} | {shares} | {red} |", flush=True)  # noqa: T201


def spread_of_nights(folder: Path) -> float:
    """Return the standard deviation of the logarithm of a case's speedup."""
    speedups: dict[str, list[float]] = {}
    for path in sorted(folder.glob("runs/*/verdict.json")):
        run = load_verdict(path)
        for verdict in run.verdicts if run else ():
            is_compared = verdict.comparison.change_frac is not None
            if verdict.metric == "speedup_ratio" and verdict.value and is_compared:
                speedups.setdefault(verdict.case_id, []).append(math.log(verdict.value))
    freedom = sum(len(logs) - 1 for logs in speedups.values())
    squares = sum((len(logs) - 1) * statistics.variance(logs) for logs in speedups.values())
    return math.sqrt(squares / freedom)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nights", type=Path, nargs="?", help="the folder of `nox -s nights`")
    options = parser.parse_args()
    print_table(SPREAD_FRAC if options.nights is None else spread_of_nights(options.nights))
