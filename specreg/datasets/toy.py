"""The toy prompts: single turns of five categories, in the tiny models' own language."""

from specreg.datasets._dataset import Dataset, load_prompt_lines

DATASET = Dataset(
    name="toy",
    load=lambda _, wanted: load_prompt_lines(wanted.root / "fixtures/prompts/toy.jsonl"),
)
