"""How much wider sampling makes the interval of a change of acceptance.

`python -m tests.bench.sampled RUN…` makes the figures of docs/explanation/measuring.md from runs of
the tier `cpu_sampled` that measured each case of `eagle3` on two launches.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from specreg.acceptance.record import StepCounts
from specreg.runs.ledger import read_ledger
from specreg.stats.intervals import Column, change_of_ratio

LEVEL = 0.01
"""How often an interval misses the truth on either side."""
EAGLE3 = "vllm-eagle3-sampled"
DRAFT_MODEL = "vllm-draft_model-sampled"
ROWS = {
    "greedy": (f"{EAGLE3}-toy-c4", f"{DRAFT_MODEL}-toy-c4"),
    "temperature 0.6, top-p 0.95, top-k 20, seeds": (
        f"{EAGLE3}-toy-t0.6-c4",
        f"{DRAFT_MODEL}-toy-t0.6-c4",
    ),
    "temperature 1, seeds": (f"{EAGLE3}-toy-t1-c4", f"{DRAFT_MODEL}-toy-t1-c4"),
    # Draws without seeds have nothing in common with any others.
    "temperature 1, no seeds": (f"{EAGLE3}-unseeded-toy-t1-c4", f"{DRAFT_MODEL}-toy-t1-c4"),
}
"""By what a row of the table says, its two cases."""

AcceptedAndSteps = tuple[Column, Column]


def counts_of(runs: Sequence[Path]) -> Mapping[str, Sequence[AcceptedAndSteps]]:
    """Return, by case id and launch, the accepted drafts and the steps of each prompt.

    A run that records replays more prompts than others; counted are those of all launches.
    """
    launches: dict[str, list[dict[str, StepCounts]]] = {}
    for run in runs:
        for key, measurement in read_ledger(run / "ledger.jsonl").measured.items():
            if measurement.acceptance is not None:
                prompts = measurement.acceptance.prompts
                by_prompt = {prompt.prompt_id: prompt.counts for prompt in prompts}
                launches.setdefault(key.case_id, []).append(by_prompt)
    prompt_ids = set.intersection(
        *(set(by_prompt) for tables in launches.values() for by_prompt in tables)
    )
    return {
        case_id: [_columns(by_prompt, sorted(prompt_ids)) for by_prompt in tables]
        for case_id, tables in launches.items()
    }


def _columns(by_prompt: Mapping[str, StepCounts], prompt_ids: Sequence[str]) -> AcceptedAndSteps:
    counts = [by_prompt[prompt_id] for prompt_id in prompt_ids]
    accepted = np.array([steps.accepted for steps in counts], float)
    return accepted, np.array([steps.steps for steps in counts], float)


def interval(measured: AcceptedAndSteps, recorded: AcceptedAndSteps) -> str:
    """Return the change of AL - 1 and half the width of its interval, prompt by prompt."""
    accepted, steps = recorded
    effect = change_of_ratio(measured, recorded, float(accepted.sum() / steps.sum()))
    low, high = effect.bounds(LEVEL)
    return f"{effect.estimate_frac:+.1%} ± {(high - low) / 2:.1%}"


def length_of(counts: AcceptedAndSteps) -> float:
    """Return the acceptance length."""
    accepted, steps = counts
    return float(1 + accepted.sum() / steps.sum())


def main(runs: Sequence[Path]) -> None:
    """Print the table."""
    launches = counts_of(runs)
    columns = ("sampling", "AL, `eagle3`", "AL, `draft_model`", "`eagle3` again", "`draft_model`")
    print(f"| {' | '.join(columns)} |")  # noqa: T201
    print(f"| {' | '.join('---' for _ in columns)} |")  # noqa: T201
    for name, (eagle3_id, draft_model_id) in ROWS.items():
        eagle3, eagle3_again, *_ = launches[eagle3_id]
        draft_model = launches[draft_model_id][0]
        cells = [
            f"{length_of(eagle3):.3f}",
            f"{length_of(draft_model):.3f}",
            interval(eagle3_again, eagle3),
            interval(draft_model, eagle3),
        ]
        print(f"| {name} | {' | '.join(cells)} |")  # noqa: T201


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="the folders of the runs")
    main(parser.parse_args().runs)
