"""The prompt sets that cases replay, one module each.

A public module here defines `DATASET`; the catalogue finds it.
"""

import sys
from collections.abc import Mapping

from specreg.catalog import load_catalog
from specreg.datasets._dataset import Dataset, Prompt, Wanted
from specreg.errors import UnknownNameError

__all__ = ["DATASETS", "Dataset", "Prompt", "Wanted", "dataset_named"]

DATASETS: Mapping[str, Dataset] = load_catalog(sys.modules[__name__], "DATASET", Dataset)


def dataset_named(name: str, where: str = "") -> Dataset:
    """The dataset called `name`.

    Raises:
        UnknownNameError: there is none; the message lists what there is.
    """
    if name not in DATASETS:
        raise UnknownNameError("dataset", name, DATASETS, where)
    return DATASETS[name]
