"""ShareGPT: what people asked of ChatGPT."""

from specreg.datasets._dataset import Dataset
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="sharegpt",
    load=load_prepared,
)
