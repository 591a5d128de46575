"""HumanEval: 164 Python functions to complete."""

from specreg.datasets._dataset import Dataset
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="humaneval",
    load=load_prepared,
)
