"""`specreg prepare`, as a user types it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specreg.cli import app
from specreg.core.errors import DatasetError, UnknownNameError
from specreg.core.files import data_dir
from tests.unit.builders import write_lines


def specreg(*arguments: str | Path, data: Path | None = None) -> Result:
    """Runs the command."""
    environment = {"SPECREG_DATA": str(data)} if data else {}
    return CliRunner().invoke(app, [*map(str, arguments)], env=environment)


def test_a_set_is_prepared_from_a_file_that_the_user_has(tmp_path: Path) -> None:
    rows = [{"question_id": row, "category": "qa", "turns": [f"Who {row}?"]} for row in range(80)]
    given = write_lines(tmp_path / "question.jsonl", rows)
    done = specreg("prepare", "eagle-qa", "--from", given, data=tmp_path / "data")
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "data").glob("*.jsonl")] == ["eagle-qa.jsonl"]
    assert len((tmp_path / "data/eagle-qa.jsonl").read_text().splitlines()) == 80


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gsm9k",), "unknown dataset 'gsm9k'; did you mean 'gsm8k'"),
        (("random-77",), "dataset 'random-77': nothing to prepare"),
    ],
)
def test_a_name_that_means_no_set_is_answered(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    done = specreg("prepare", *arguments, data=tmp_path)
    assert isinstance(done.exception, DatasetError | UnknownNameError)
    with pytest.raises((DatasetError, UnknownNameError), match=words):
        raise done.exception


def test_the_folder_of_sets_is_the_users_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPECREG_DATA", raising=False)
    monkeypatch.setenv("SPECREG_CACHE", str(tmp_path))
    assert data_dir() == tmp_path / "datasets"
    monkeypatch.setenv("SPECREG_DATA", str(tmp_path / "sets"))
    assert data_dir() == tmp_path / "sets"
