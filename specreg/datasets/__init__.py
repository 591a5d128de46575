"""The prompt sets that cases replay, one module each.

A public module here defines `DATASET`; the catalogue finds it.
"""

import re
import sys
from collections.abc import Mapping

from specreg.catalog import load_catalog
from specreg.datasets._dataset import Dataset, Prompt, PromptSet, Wanted
from specreg.errors import UnknownNameError

__all__ = ["DATASETS", "SETS", "Dataset", "Prompt", "PromptSet", "Wanted", "dataset_named"]

DATASETS: Mapping[str, Dataset] = load_catalog(sys.modules[__name__], "DATASET", Dataset)

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
    if dataset in DATASETS and DATASETS[dataset].takes_length and re.fullmatch(r"[1-9]\d*", config):
        return PromptSet(dataset=DATASETS[dataset], config=config)
    raise UnknownNameError("dataset", name, SETS, where)
