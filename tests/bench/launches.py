"""What one launch of a night tells where launches differ by 5 %, as on an H100: by simulation.

`python -m tests.bench.launches` makes the table of docs/performance.md; the spread is that of four
launches of one server at c16 on three machines of a kind, 1,911 to 2,146 tokens/s.
"""

import itertools

from specreg.measurement.metrics import METRICS
from specreg.verdicts.judge import GOOD, Outcome
from specreg.verdicts.selftest import Machine, Plant, try_plant

SPREAD_FRAC = 0.05
CASES = 8
"""Of a tier, whose baselines tell how launches differ."""
TRIALS = 400
LOSSES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
METRIC = METRICS["throughput_tokens_per_s"]


def main() -> None:
    """Print the table."""
    print("| tolerated | recorded launches | lost | PASS | undecided | REGRESSED |")  # noqa: T201
    print("| --- | --- | --- | --- | --- | --- |")  # noqa: T201
    for tolerance_frac, launches, loss in itertools.product((0.1, 0.2), (3, 5, 10), LOSSES):
        plant = Plant("", speed_frac=loss, metric=METRIC, tolerance_frac=tolerance_frac)
        machine = Machine(launch_spread_frac=SPREAD_FRAC, launches=launches, cases=CASES)
        found, _ = try_plant(plant, TRIALS, seed=launches, machine=machine)
        passed, lost = sum(found[one] for one in GOOD), found[Outcome.REGRESSED]
        shares = [one / TRIALS for one in (passed, TRIALS - passed - lost, lost)]
        told = " | ".join(f"{share:.1%}" for share in shares)
        print(f"| {tolerance_frac:.0%} | {launches} | {loss:.0%} | {told} |")  # noqa: T201


if __name__ == "__main__":
    main()
