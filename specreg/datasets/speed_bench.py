"""SPEED-Bench: 880 prompts of eleven categories, and for throughput five lengths of input."""

from specreg.datasets._dataset import Dataset, Source
from specreg.datasets._prepared import load_prepared

_LENGTHS = ("1k", "2k", "8k", "16k", "32k")


def _source(config: str, rows: int, categories: int) -> Source:
    """NVIDIA's file of a config, or what the script of NeMo-Skills made of it."""
    return Source(
        form="speed-bench",
        url="https://huggingface.co/datasets/nvidia/SPEED-Bench",
        licence="NVIDIA Evaluation Dataset License",
        terms=(
            "For evaluation only; not to be passed on. About half of the rows are references to"
            " datasets with licences of their own; those are filled by NVIDIA's script"
            " (docs/datasets.md), and without that they are refused."
        ),
        local=f"{config}.jsonl",
        repo="nvidia/SPEED-Bench",
        file=f"{config}/test-00000-of-00001.parquet",
        rows=rows,
        categories=categories,
    )


DATASET = Dataset(
    name="speed-bench",
    load=load_prepared,
    sources={
        "qualitative": _source("qualitative", rows=880, categories=11),
        **{
            f"throughput_{length}": _source(f"throughput_{length}", rows=1536, categories=3)
            for length in _LENGTHS
        },
    },
)
