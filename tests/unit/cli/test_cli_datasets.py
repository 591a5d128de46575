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


def test_all_configs_are_prepared_at_once(eagle: Path, tmp_path: Path) -> None:
    done = specreg("prepare", "eagle", "--config", "all", "--from", eagle, data=tmp_path / "data")
    assert done.exit_code == 0, done.output
    assert sorted(path.stem for path in (tmp_path / "data").glob("*.jsonl")) == [
        *("eagle-alpaca", "eagle-gsm8k", "eagle-humaneval"),
        *("eagle-mt_bench", "eagle-qa", "eagle-sum"),
    ]


@pytest.mark.parametrize(
    "arguments", [("eagle-qa",), ("eagle", "--config", "qa")], ids=["full name", "config"]
)
def test_a_config_is_named_in_full_or_apart(
    arguments: tuple[str, ...], eagle: Path, tmp_path: Path
) -> None:
    options = ("--num-prompts", "16", "--data-dir", str(tmp_path / "data"))
    done = specreg("prepare", *arguments, "--from", eagle / "qa/question.jsonl", *options)
    assert done.exit_code == 0, done.output
    assert [path.name for path in (tmp_path / "data").glob("*.jsonl")] == ["eagle-qa.jsonl"]
    assert len((tmp_path / "data/eagle-qa.jsonl").read_text().splitlines()) == 16


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("eagle",),
            "dataset 'eagle': has several configs: alpaca, gsm8k, .*; give --config, or a",
        ),
        (("eagle", "--config", "mtbench"), "unknown config of eagle 'mtbench'; did you mean 'mt_b"),
        (("gsm9k",), "unknown dataset 'gsm9k'; did you mean 'gsm8k'"),
        (("eagle-qa", "--config", "qa"), "dataset 'eagle-qa': has no configs; leave --config out"),
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


def test_one_file_is_no_set_of_all_configs(eagle: Path, tmp_path: Path) -> None:
    """The same prompts would be written under each name."""
    file = eagle / "alpaca/question.jsonl"
    done = specreg("prepare", "eagle", "--config", "all", "--from", file, data=tmp_path / "data")
    assert isinstance(done.exception, DatasetError)
    assert "is one file, --config all has 6; give the folder" in str(done.exception)
    assert not (tmp_path / "data").exists()
