"""SPEED-Bench: 880 prompts of eleven categories, and five lengths for throughput."""

from specreg.datasets._dataset import Dataset
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="speed-bench",
    load=load_prepared,
    configs=(
        "qualitative",
        "throughput_1k",
        "throughput_2k",
        "throughput_8k",
        "throughput_16k",
        "throughput_32k",
    ),
)
