"""`specreg prepare`: prompts of the field."""

from pathlib import Path
from typing import Annotated

import typer

from specreg.core.errors import DatasetError, UnknownNameError
from specreg.core.files import data_dir as default_data_dir
from specreg.core.redaction import hide
from specreg.datasets.prepare import Preparation
from specreg.datasets.prepare import prepare as prepare_set
from specreg.datasets.table import SETS, PromptSet, dataset_named


def prepare(
    name: Annotated[str, typer.Argument(help="of a dataset: gsm8k, speed-bench-qualitative")],
    config: Annotated[
        str | None, typer.Option(help="of a dataset that has several, or all of them: all")
    ] = None,
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
        data_dir=data_dir or default_data_dir(),
        given=given,
        part=part,
        prompts=num_prompts,
        revision=revision,
        show=lambda text: typer.echo(hide(text), err=True),
    )
    sets = _sets_of(name, config)
    if len(sets) > 1 and given is not None and not given.is_dir():
        message = (
            f"dataset '{name}': '{given}' is one file, --config all has {len(sets)}; give the"
            " folder that holds them, or one --config"
        )
        raise DatasetError(message)
    for one in sets:
        prepare_set(one, asked)


def _sets_of(name: str, config: str | None) -> tuple[PromptSet, ...]:
    """The sets that a name and a config mean.

    Raises:
        UnknownNameError: there is no such dataset or config.
        DatasetError: the dataset has several configs and none was given, or has none.
    """
    if config is None and name in SETS:
        return (SETS[name],)
    sets = {one.config: one for one in SETS.values() if one.dataset == name}
    if not sets:
        one = dataset_named(name)
        if config is not None:
            raise DatasetError(f"dataset '{name}': has no configs; leave --config out")
        return (one,)
    if config == "all":
        return tuple(sets.values())
    if config is None:
        message = f"dataset '{name}': has several configs: {', '.join(sets)}; give --config, or all"
        raise DatasetError(message)
    if config not in sets:
        raise UnknownNameError(f"config of {name}", config, sets)
    return (sets[config],)
