"""The toy prompts: forty single turns of five categories, in the tiny models' own language."""

from specreg.datasets._dataset import Dataset, load_prompt_lines

DATASET = Dataset(
    name="toy",
    load_prompts=lambda wanted: load_prompt_lines(wanted.root / "fixtures/prompts/toy.jsonl"),
)
