"""What the commands have in common: their options, and the tier that those name."""

from pathlib import Path
from typing import Annotated

import typer

from specreg.matrix.case import Tier
from specreg.matrix.tier import load_tier
from specreg.suite.options import Options
from specreg.telemetry.identity import find_gpus

RootOption = Annotated[Path, typer.Option("--root", help="the repository's root")]
TierOption = Annotated[str | None, typer.Option("--tier", help="gpu where there is one, else cpu")]
HERE = Path()
USUAL = Options()
"""The folders of a repository, unless pytest is told others."""


def tier_of(matrix: Path, name: str | None) -> Tier:
    """The tier of a name, else that of this machine, with the model pairs that its GPUs hold."""
    gpus = find_gpus()
    return load_tier(matrix, name or ("gpu" if gpus.devices else "cpu")).chosen(gpus.memory_gib)
