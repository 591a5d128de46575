"""`specreg prepare`: prompts of the field."""

from pathlib import Path
from typing import Annotated

import typer

from specreg.core.files import data_dir
from specreg.core.redaction import hide
from specreg.datasets.prepare import prepare as prepare_set
from specreg.datasets.table import dataset_named


def prepare(
    name: Annotated[str, typer.Argument(help="of a dataset: gsm8k, speed-bench-qualitative")],
    given: Annotated[Path | None, typer.Option("--from", help="a file that you have")] = None,
) -> None:
    """Fetch a dataset, or read your copy, check it, and write it as cases replay it.

    No dataset is part of specreg: each has a licence of its own, which is shown first. It is
    written to SPECREG_DATA, else to specreg's cache.
    """
    prepare_set(
        dataset_named(name),
        data_dir=data_dir(),
        given=given,
        show=lambda text: typer.echo(hide(text), err=True),
    )
