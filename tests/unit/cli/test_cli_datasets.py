"""`specreg prepare`, as a user types it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from specreg.cli import app
from specreg.core.errors import DatasetError, UnknownNameError
from specreg.core.files import data_dir


def specreg(*arguments: str | Path, data: Path | None = None) -> Result:
    """Runs the command."""
    environment = {"SPECREG_DATA": str(data)} if data else {}
    return CliRunner().invoke(app, [*map(str, arguments)], env=environment)


@pytest.fixture
def eagle(tmp_path: Path) -> Path:
    """A folder as EAGLE's `eagle/data`."""
    for config in ("alpaca", "gsm8k", "humaneval", "mt_bench", "qa", "sum"):
        rows = [
            {"question_id": row, "category": f"c{row % 8}", "turns": [f"{config} {row}"]}
            for row in range(80)
        ]
        path = tmp_path / "eagle" / config / "question.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "eagle"


def test_a_set_is_prepared_from_a_file_that_the_user_has(eagle: Path, tmp_path: Path) -> None:
    options = ("--num-prompts", "16", "--data-dir", str(tmp_path / "data"))
    done = specreg("prepare", "eagle-qa", "--from", eagle / "qa/question.jsonl", *options)
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "data").glob("*.jsonl")] == ["eagle-qa.jsonl"]
    assert len((tmp_path / "data/eagle-qa.jsonl").read_text().splitlines()) == 16


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
