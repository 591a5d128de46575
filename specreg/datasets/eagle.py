"""The six sets of the EAGLE papers, 80 prompts each."""

from specreg.datasets._dataset import Dataset
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="eagle",
    load=load_prepared,
    configs=("alpaca", "gsm8k", "humaneval", "mt_bench", "qa", "sum"),
)
