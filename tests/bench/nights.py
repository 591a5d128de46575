"""Identical nights: records the tier `cpu` here, and runs it unchanged again and again.

`nox -s nights -- 10` counts what became of the verdicts, and ends with status 1 where a night was
red, which identical software mustn't be. Baselines, runs and their history stay in
`.specreg/nights`.
"""

import argparse
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from specreg.report.document import RunVerdict
from specreg.report.files import load_verdict


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
    red_nights = 0
    for night in range(1, nights + 1):
        run, took_s = suite(folder, *arguments)
        verdicts = run.verdicts if run else ()
        outcomes = Counter(str(verdict.outcome) for verdict in verdicts)
        total.update(outcomes)
        red = [verdict for verdict in verdicts if verdict.fails]
        red_nights += bool(red) or not verdicts
        known = max((verdict.nights for verdict in verdicts), default=0)
        summary = ", ".join(f"{count} {word}" for word, count in sorted(outcomes.items()))
        line = f"night {night}, {took_s:.0f} s, {known} nights known: {summary or 'no verdict'}"
        print(line, flush=True)  # noqa: T201
        for verdict in red:
            print(f"  red: {verdict.case_id} {verdict.metric}: {verdict.explanation}", flush=True)  # noqa: T201
    counts = ", ".join(f"{count} {word}" for word, count in sorted(total.items()))
    print(f"all: {counts}; {red_nights} of {nights} nights were red")  # noqa: T201
    return int(bool(red_nights))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nights", type=int, nargs="?", default=10)
    parser.add_argument("--folder", type=Path, default=Path(".specreg/nights"))
    script_options, pytest_arguments = parser.parse_known_args()
    sys.exit(main(script_options.nights, script_options.folder.resolve(), *pytest_arguments))
