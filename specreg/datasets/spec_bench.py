"""Spec-Bench: 80 questions of MT-Bench, and 80 of one turn in each of five tasks."""

from specreg.datasets._dataset import Dataset, Source
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="spec-bench",
    load=load_prepared,
    sources={
        "": Source(
            form="questions",
            url="https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
            licence="Apache-2.0, of the repository; its tasks are taken from others with their own",
            terms="Free to use; cite Xia et al. 2024 (arXiv:2401.07851).",
            local="question.jsonl",
            rows=480,
            categories=13,
            turns=560 / 480,
        )
    },
)
