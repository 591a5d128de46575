"""HumanEval: 164 Python functions to complete."""

from specreg.datasets._dataset import Dataset, Source
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="humaneval",
    load=load_prepared,
    sources={
        "": Source(
            form="humaneval",
            url="https://huggingface.co/datasets/openai/openai_humaneval",
            licence="MIT",
            terms="Free to use and to share; cite Chen et al. 2021 (arXiv:2107.03374).",
            local="openai_humaneval/test-00000-of-00001.parquet",
            repo="openai/openai_humaneval",
            file="openai_humaneval/test-00000-of-00001.parquet",
            rows=164,
            categories=1,
        )
    },
)
