"""A user's own prompts: lines of genai-perf or of aiperf's single_turn."""

from specreg.datasets._dataset import Dataset, Source
from specreg.datasets._prepared import load_prepared

DATASET = Dataset(
    name="genai-perf",
    load=load_prepared,
    sources={
        "": Source(
            form="genai-perf",
            url="a file of your own",
            licence="yours",
            terms="Prompts of your own stay on this machine.",
            local="prompts.jsonl",
        )
    },
)
