"""Spec-Bench: 480 prompts; MT-Bench, and five tasks of one turn."""

from specreg.datasets._dataset import Dataset
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="spec-bench",
    load=load_prepared,
)
