"""The prompt sets that cases replay, one module each, which defines `DATASET`."""

import re
from collections.abc import Mapping
from types import MappingProxyType

from specreg.core.errors import UnknownNameError
from specreg.datasets import (
    eagle,
    genai_perf,
    gsm8k,
    humaneval,
    mt_bench,
    random,
    sharegpt,
    spec_bench,
    speed_bench,
    toy,
)
from specreg.datasets._dataset import Dataset, Prompt, PromptSet, Source, Wanted

__all__ = [
    "DATASETS",
    "SETS",
    "Dataset",
    "Prompt",
    "PromptSet",
    "Source",
    "Wanted",
    "dataset_named",
]

_MODULES = (
    eagle,
    genai_perf,
    gsm8k,
    humaneval,
    mt_bench,
    random,
    sharegpt,
    spec_bench,
    speed_bench,
    toy,
)
DATASETS: Mapping[str, Dataset] = MappingProxyType(
    {module.DATASET.name: module.DATASET for module in _MODULES}
)

SETS: Mapping[str, PromptSet] = {one.name: one for held in DATASETS.values() for one in held.sets}
"""All sets by their full names; of datasets that take any length, the usual ones."""


def dataset_named(name: str, where: str = "") -> PromptSet:
    """The set of a full name, `toy` or `speed-bench-qualitative`.

    Raises:
        UnknownNameError: there is none; the message lists what there is.
    """
    dataset, _, config = name.rpartition("-")
    if name in SETS:
        return SETS[name]
    if dataset in DATASETS and DATASETS[dataset].lengths and re.fullmatch(r"[1-9]\d*", config):
        return PromptSet(dataset=DATASETS[dataset], config=config)
    raise UnknownNameError("dataset", name, SETS, where)
