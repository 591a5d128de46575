"""ShareGPT: what people asked of ChatGPT, as vllm bench serve replays it."""

from specreg.datasets._dataset import Dataset, Source
from specreg.datasets._prepared import load_prepared

_REPO = "anon8231489123/ShareGPT_Vicuna_unfiltered"
_FILE = "ShareGPT_V3_unfiltered_cleaned_split.json"

DATASET = Dataset(
    name="sharegpt",
    load=load_prepared,
    sources={
        "": Source(
            form="sharegpt",
            url=f"https://huggingface.co/datasets/{_REPO}",
            licence="Apache-2.0, by whoever uploaded it",
            terms=(
                "People's own conversations, unfiltered, collected from a site that they had shared"
                " them on: whether you may use them is for you to judge. 0.7 GB."
            ),
            local=_FILE,
            repo=_REPO,
            file=_FILE,
        )
    },
)
