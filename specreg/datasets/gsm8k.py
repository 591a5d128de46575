"""GSM8K: the 1,319 sums in words of its test split."""

from specreg.datasets._dataset import Dataset, Source
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="gsm8k",
    load=load_prepared,
    sources={
        "": Source(
            form="gsm8k",
            url="https://huggingface.co/datasets/openai/gsm8k",
            licence="MIT",
            terms="Free to use and to share; cite Cobbe et al. 2021 (arXiv:2110.14168).",
            local="main/test-00000-of-00001.parquet",
            repo="openai/gsm8k",
            file="main/test-00000-of-00001.parquet",
            rows=1319,
            categories=1,
        )
    },
)
