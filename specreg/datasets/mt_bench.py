"""MT-Bench: 80 conversations of two turns, ten in each of eight categories."""

from specreg.datasets._dataset import Dataset, Source
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="mt-bench",
    load=load_prepared,
    sources={
        "": Source(
            form="questions",
            url="https://huggingface.co/datasets/HuggingFaceH4/mt_bench_prompts",
            licence="Apache-2.0",
            terms="Free to use and to share; cite Zheng et al. 2023 (arXiv:2306.05685).",
            local="question.jsonl",
            repo="HuggingFaceH4/mt_bench_prompts",
            file="raw/question.jsonl",
            rows=80,
            categories=8,
            turns=2.0,
        )
    },
)
