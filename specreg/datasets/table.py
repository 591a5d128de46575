"""List the datasets that a case can name, each with its source and its licence."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from specreg.core.errors import DatasetError, UnknownNameError

_RANDOM = "random"
_MAX_RANDOM_DIGITS = 6
"""The most digits of the length of random prompts, which so have less than a million tokens."""
_RAW = "https://raw.githubusercontent.com"
FILLING = f"{_RAW}/NVIDIA-NeMo/Skills/main/nemo_skills/dataset/speed-bench/prepare.py"
"""NVIDIA's script, which fills the rows of SPEED-Bench that refer to other datasets."""
_PARQUET = "test-00000-of-00001.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSet:
    """A dataset, or one of its configs, and where it is published.

    Attributes:
        dataset: the name of the dataset.
        config: the name of the config; empty if the dataset has only one.
        category: the category of all prompts, if the rows have none.
        licence: the licence as its publishers name it, and what it means for a benchmark; empty if
            the set doesn't need to be prepared.
        repo: the hub's dataset; empty if it isn't on the hub.
        file: the path of the file in the hub's dataset.
        examples_file: the path of another file of the hub's dataset, whose worked examples stand
            before each question; empty if the prompts are replayed as they are.
        stops: the texts at which an answer ends, because the model would go on with a question of
            its own.
        page: the page where a user gets the set or reads about it; empty for its page on the hub.
        rows: how many prompts were published; None if it isn't known.
        turns: the average number of turns of a conversation. It lets the time of a run be estimated
            before the set is prepared.
    """

    dataset: str
    config: str = ""
    category: str = ""
    licence: str = ""
    repo: str = ""
    file: str = ""
    examples_file: str = ""
    stops: tuple[str, ...] = ()
    page: str = ""
    rows: int | None = None
    turns: float = 1.0

    @property
    def name(self) -> str:
        """The full name, which is part of a case's id: `speed-bench-qualitative`."""
        return f"{self.dataset}-{self.config}" if self.config else self.dataset

    @property
    def url(self) -> str:
        """The page where a user gets the set or reads about it."""
        return self.page or f"https://huggingface.co/datasets/{self.repo}"

    @property
    def tokens(self) -> int | None:
        """The length of its prompts if they are random token ids; None for any other set."""
        return int(self.config) if self.dataset == _RANDOM else None


def dataset_named(name: str) -> PromptSet:
    """Return the set with a full name, such as `toy` or `speed-bench-qualitative`.

    Raises:
        UnknownNameError: there is no such set. The message lists the sets that there are.
        DatasetError: random prompts would be too long.
    """
    if name in SETS:
        return SETS[name]
    random_name = re.fullmatch(rf"{_RANDOM}-([1-9]\d*)", name)
    if random_name is None:
        raise UnknownNameError("dataset", name, SETS)
    length = random_name[1]
    if len(length) > _MAX_RANDOM_DIGITS:
        raise DatasetError(
            f"dataset '{name}': got prompts of {length} random ids, needed a number of at most"
            f" {_MAX_RANDOM_DIGITS} digits; ask for fewer"
        )

    return PromptSet(dataset=_RANDOM, config=length)


_TABLE = (
    *(
        PromptSet(
            dataset="eagle",
            config=config,
            page=f"{_RAW}/SafeAILab/EAGLE/main/eagle/data/{config}/question.jsonl",
            licence="Apache-2.0, of the repository. Cite Li et al. 2024 (arXiv:2401.15077).",
            rows=80,
            turns=2.0 if config == "mt_bench" else 1.0,
        )
        for config in ("alpaca", "gsm8k", "humaneval", "mt_bench", "qa", "sum")
    ),
    # A file of your own, whose lines are as genai-perf or aiperf's single_turn reads them.
    PromptSet(
        dataset="genai-perf",
        category="own",
        licence="yours. Prompts of your own stay on this machine.",
        page="a file of your own",
    ),
    PromptSet(
        dataset="gsm8k",
        category="math",
        licence="MIT. Cite Cobbe et al. 2021 (arXiv:2110.14168).",
        repo="openai/gsm8k",
        file=f"main/{_PARQUET}",
        rows=1319,
    ),
    # As TensorRT-LLM's accuracy tests have it: a text to continue, after five worked examples.
    PromptSet(
        dataset="gsm8k",
        config="5shot",
        category="math",
        licence="MIT. Cite Cobbe et al. 2021 (arXiv:2110.14168).",
        repo="openai/gsm8k",
        file=f"main/{_PARQUET}",
        examples_file="main/train-00000-of-00001.parquet",
        stops=("Question:", "</s>", "<|im_end|>"),
        rows=1319,
    ),
    PromptSet(
        dataset="humaneval",
        category="coding",
        licence="MIT. Cite Chen et al. 2021 (arXiv:2107.03374).",
        repo="openai/openai_humaneval",
        file=f"openai_humaneval/{_PARQUET}",
        rows=164,
    ),
    # The test splits. The full form has the task under text, the sanitized one under prompt.
    *(
        PromptSet(
            dataset="mbpp",
            config=config,
            category="coding",
            licence="CC-BY-4.0. Cite Austin et al. 2021 (arXiv:2108.07732).",
            repo="google-research-datasets/mbpp",
            file=f"{config or 'full'}/{_PARQUET}",
            rows=rows,
        )
        for config, rows in (("", 500), ("sanitized", 257))
    ),
    PromptSet(
        dataset="mt-bench",
        licence="Apache-2.0. Cite Zheng et al. 2023 (arXiv:2306.05685).",
        repo="HuggingFaceH4/mt_bench_prompts",
        file="raw/question.jsonl",
        rows=80,
        turns=2.0,
    ),
    # These lengths are listed. Any other length of up to six digits can be named as well.
    *(PromptSet(dataset=_RANDOM, config=str(length)) for length in (128, 512, 1024, 2048, 8192)),
    PromptSet(
        dataset="sharegpt",
        category="chat",
        licence=(
            "Apache-2.0, as its uploader says. People's own conversations, unfiltered, collected"
            " from a site that they had shared them on: whether you may use them is for you to"
            " judge. 0.7 GB."
        ),
        repo="anon8231489123/ShareGPT_Vicuna_unfiltered",
        file="ShareGPT_V3_unfiltered_cleaned_split.json",
    ),
    *(
        PromptSet(
            dataset="sharegpt",
            config=config,
            category="chat",
            licence=(
                "CC-BY-4.0, as its uploader says. People's own conversations, as in sharegpt:"
                " whether you may use them is for you to judge."
            ),
            repo="shibing624/sharegpt_gpt4",
            file=file,
        )
        for config, file in (
            ("gpt4", "sharegpt_gpt4.jsonl"),
            ("v3", "sharegpt_V3_format.jsonl"),
            ("zh", "sharegpt_zh_38K_format.jsonl"),
        )
    ),
    # 80 questions of MT-Bench with two turns, and 80 with one turn for each of five other tasks.
    PromptSet(
        dataset="spec-bench",
        licence="Apache-2.0, of the repository. Cite Xia et al. 2024 (arXiv:2401.07851).",
        page=f"{_RAW}/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
        rows=480,
        turns=560 / 480,
    ),
    # NVIDIA's file of a config, or the file that the script of NeMo-Skills made of it.
    *(
        PromptSet(
            dataset="speed-bench",
            config=config,
            licence=(
                "NVIDIA Evaluation Dataset License. For evaluation only; not to be passed on. About"
                " half of the rows are references to datasets with licences of their own; those are"
                f" filled by NVIDIA's script ({FILLING}), and without that they are refused."
            ),
            repo="nvidia/SPEED-Bench",
            file=f"{config}/{_PARQUET}",
            rows=880 if config == "qualitative" else 1536,
        )
        for config in ("qualitative", *(f"throughput_{size}k" for size in (1, 2, 8, 16, 32)))
    ),
    PromptSet(dataset="toy"),
    PromptSet(dataset="toy", config="turns", turns=3.0),
)

SETS: Mapping[str, PromptSet] = MappingProxyType(
    {prompt_set.name: prompt_set for prompt_set in _TABLE}
)
"""All sets by their full names; sets of random token ids with the usual lengths."""
