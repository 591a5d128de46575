"""The toy prompts: single turns of five categories, in the tiny models' own language."""

from specreg.datasets._dataset import Dataset
from specreg.datasets.formats import form_named

DATASET = Dataset(
    name="toy",
    load=lambda _, wanted: (
        form_named("specreg").load(wanted.root / "fixtures/prompts/toy.jsonl").prompts
    ),
)
