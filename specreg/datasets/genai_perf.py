"""A user's own prompts, in genai-perf's form."""

from specreg.datasets._dataset import Dataset
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="genai-perf",
    load=load_prepared,
)
