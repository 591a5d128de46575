"""GSM8K: 1,319 sums in words."""

from specreg.datasets._dataset import Dataset
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="gsm8k",
    load=load_prepared,
)
