"""MT-Bench: 80 conversations of two turns in eight categories."""

from specreg.datasets._dataset import Dataset
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="mt-bench",
    load=load_prepared,
)
