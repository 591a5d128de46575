"""The command `specreg` in this process."""

from pathlib import Path

from typer.testing import CliRunner, Result

from specreg.cli import app


def specreg(root: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "--root", str(root)])
