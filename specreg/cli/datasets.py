"""`specreg prepare`: prompts of the field."""

from pathlib import Path
from typing import Annotated

import typer

from specreg.core.files import data_dir as usual_data_dir
from specreg.core.redaction import hide
from specreg.datasets.prepare import Preparation
from specreg.datasets.prepare import prepare as prepare_set
from specreg.datasets.table import dataset_named


def prepare(
    name: Annotated[str, typer.Argument(help="of a dataset: gsm8k, speed-bench-qualitative")],
    given: Annotated[
        Path | None, typer.Option("--from", help="a file that you have, or a folder that holds it")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="where to write; SPECREG_DATA, else in specreg's cache")
    ] = None,
    num_prompts: Annotated[
        int | None, typer.Option(min=1, help="how many to keep, spread over the categories")
    ] = None,
    part: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--part", help="take a file that holds a part of what was published")
    ] = False,
    revision: Annotated[str, typer.Option(help="of the hub's dataset")] = "main",
) -> None:
    """Fetch a dataset, or read your copy, check it, and write it as cases replay it.

    No dataset is part of specreg: each has a licence of its own, which is shown first.
    """
    asked = Preparation(
        data_dir=data_dir or usual_data_dir(),
        given=given,
        part=part,
        prompts=num_prompts,
        revision=revision,
        show=lambda text: typer.echo(hide(text), err=True),
    )
    prepare_set(dataset_named(name), asked)
