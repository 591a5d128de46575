"""Identical nights: records the tier `cpu` here, and runs it unchanged again and again.

`nox -s nights -- 10` counts what became of the verdicts, and ends with status 1 where a night was
red, which identical software mustn't be. Baselines and runs stay in `.specreg/nights`.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from specreg.report.document import RunVerdict, load_verdict
from specreg.verdicts.verdict import Outcome

_LOSSES = {Outcome.REGRESSED, Outcome.WRONG, Outcome.INVALID}
_MOST_INCONCLUSIVE = 1


def suite(folder: Path, *arguments: str) -> tuple[RunVerdict | None, float]:
    """The verdicts of a run of the tier, and how many seconds it took."""
    began_s = time.monotonic()
    options = (f"--specreg-baselines={folder / 'baselines'}", f"--specreg-runs={folder / 'runs'}")
    command = (sys.executable, "-m", "pytest", "tests/perf", "-q", "--specreg-tier=cpu")
    with (folder / "output.log").open("ab") as log:
        subprocess.run((*command, *options, *arguments), check=False, stdout=log, stderr=log)
    run = max((folder / "runs").iterdir())
    return load_verdict(run / "verdict.json"), time.monotonic() - began_s


def main(nights: int, folder: Path, *arguments: str) -> int:
    """Print a line for each night, and all of them together; 1 where one was red."""
    folder.mkdir(parents=True, exist_ok=True)
    if not any((folder / "baselines").glob("*/*.json")):
        _, took_s = suite(folder, "--update-baselines", "--reason=nights", *arguments)
        print(f"recorded in {took_s:.0f} s", flush=True)  # noqa: T201
    total = Counter[str]()
    for night in range(1, nights + 1):
        verdict, took_s = suite(folder, *arguments)
        outcomes = (
            Counter(str(metric_verdict.outcome) for metric_verdict in verdict.verdicts)
            if verdict
            else Counter()
        )
        total.update(outcomes)
        summary = ", ".join(f"{count} {word}" for word, count in sorted(outcomes.items()))
        print(f"night {night}, {took_s:.0f} s: {summary or 'no verdict'}", flush=True)  # noqa: T201
    print(f"all: {', '.join(f'{count} {word}' for word, count in sorted(total.items()))}")  # noqa: T201
    red = any(total[outcome] for outcome in _LOSSES) or not total
    return int(red or total[Outcome.INCONCLUSIVE] > _MOST_INCONCLUSIVE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nights", type=int, nargs="?", default=10)
    parser.add_argument("--folder", type=Path, default=Path(".specreg/nights"))
    script_options, pytest_arguments = parser.parse_known_args()
    sys.exit(main(script_options.nights, script_options.folder.resolve(), *pytest_arguments))
