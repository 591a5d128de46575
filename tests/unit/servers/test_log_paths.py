"""Whose a log is: no server is given that of another one, whatever their pairs are called."""

import dataclasses
from pathlib import Path

import pytest

from specreg.servers.launch import Launch, log_paths, numbered
from tests.unit import builders


def launch_of(models: str, number: int = 1) -> Launch:
    """A launch of a server of a model pair."""
    return Launch(spec=dataclasses.replace(builders.SPEC, models=models), number=number)


def test_a_pair_is_not_given_the_log_of_one_whose_name_is_longer(tmp_path: Path) -> None:
    pairs = ("tiny", "tiny-1b", "tiny-2", "tiny.2", "tiny-2-3")
    for models in pairs:
        log = tmp_path / f"{launch_of(models).id}.log"
        log.touch()
        numbered(log, 2).touch()
        (tmp_path / f"{log.stem}~2~shard1.log").touch()
    for models in pairs:
        paths = log_paths(tmp_path, launch_of(models))
        name = launch_of(models).id
        assert [path.name for path in paths] == [
            f"{name}{end}.log" for end in ("", "~2", "~2~shard1")
        ]


def test_the_second_launch_has_logs_of_its_own(tmp_path: Path) -> None:
    (tmp_path / f"{launch_of('tiny').id}.log").touch()
    assert log_paths(tmp_path, launch_of("tiny", 2)) == []


@pytest.mark.parametrize("models", ["[0-9]*", "tiny?", "*"])
def test_a_pattern_in_a_name_finds_nothing_else(tmp_path: Path, models: str) -> None:
    (tmp_path / f"{launch_of('tiny-1').id}.log").touch()
    assert log_paths(tmp_path, launch_of(models)) == []


def test_there_are_no_logs_where_there_is_no_folder(tmp_path: Path) -> None:
    assert log_paths(tmp_path / "gone", launch_of("tiny")) == []
