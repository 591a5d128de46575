"""The six sets that the EAGLE papers report on, 80 prompts each."""

from specreg.datasets._dataset import Dataset, Source
from specreg.datasets._prepared import load_prepared

_CATEGORIES = {
    "alpaca": None,
    "gsm8k": None,
    "humaneval": None,
    "mt_bench": 8,
    "qa": None,
    "sum": None,
}
"""By config, how many categories there are; None where nobody said."""


def _source(config: str, categories: int | None) -> Source:
    """A file of EAGLE's repository."""
    file = f"{config}/question.jsonl"
    return Source(
        form="questions",
        url=f"https://raw.githubusercontent.com/SafeAILab/EAGLE/main/eagle/data/{file}",
        licence="Apache-2.0, of the repository; the prompts are taken from others with their own",
        terms="Free to use; cite Li et al. 2024 (arXiv:2401.15077).",
        local=file,
        rows=80,
        categories=categories,
        turns=2.0 if config == "mt_bench" else 1.0,
    )


DATASET = Dataset(
    name="eagle",
    load=load_prepared,
    sources={config: _source(config, count) for config, count in _CATEGORIES.items()},
)
