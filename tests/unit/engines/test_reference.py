"""The reference engine: what is installed and started."""

import dataclasses
import os
import tomllib
from pathlib import Path

import pytest

from specreg.engines.pytorch.__main__ import parse_options
from specreg.engines.registry import engine_named
from tests.unit import builders

REFERENCE = engine_named("reference")
PYTHON = Path("/envs/reference/bin/python")
PLAIN = dataclasses.replace(builders.LAUNCH_OPTIONS, engine_args=())


@pytest.mark.parametrize("method", REFERENCE.methods)
def test_its_own_parser_reads_the_command_line(method: str) -> None:
    settings = REFERENCE.methods[method].render("/models/draft", 5)
    options = dataclasses.replace(PLAIN, speculation=settings)
    command = REFERENCE.command(PYTHON, options)
    assert command[:3] == (str(PYTHON), "-m", "specreg.engines.pytorch")
    read = parse_options(command[3:])
    assert (read.model, read.served_model_name) == ("some/target", "toy")
    assert (read.port, read.dtype, read.device) == (8123, "float32", "cpu")
    assert (read.context_tokens, read.max_sequences) == (1024, 8)
    assert read.method == method
    assert read.draft_tokens == (5 if method != "none" else 3)
    assert read.draft_model == ("/models/draft" if method == "draft_model" else None)
    assert REFERENCE.methods[method].learns == (method == "ngram_adaptive")


def test_on_a_gpu_it_takes_what_is_there_and_the_cases_own_words_come_last() -> None:
    options = dataclasses.replace(PLAIN, on_gpu=True)
    assert parse_options(REFERENCE.command(PYTHON, options)[3:]).device == ""
    options = dataclasses.replace(options, engine_args=("--device=cuda:1",))
    assert parse_options(REFERENCE.command(PYTHON, options)[3:]).device == "cuda:1"


def test_a_draft_without_its_method_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(("--model", "some/target", "--draft-model", "some/draft"))
    assert "--method=draft_model needs --draft-model" in capsys.readouterr().err


def test_it_finds_specreg_after_what_the_user_put_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    found = REFERENCE.environment(PLAIN)["PYTHONPATH"].split(os.pathsep)
    assert found == ["/mine", str(builders.ROOT)]
    monkeypatch.delenv("PYTHONPATH")
    assert REFERENCE.environment(PLAIN)["PYTHONPATH"] == str(builders.ROOT)


def test_the_extra_is_what_the_suite_installs() -> None:
    project = tomllib.loads((builders.ROOT / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["reference"]
    requirement = REFERENCE.requirement(on_gpu=False)
    assert sorted(extra) == sorted((requirement.pin, *requirement.extras))
    assert requirement.local_torch == "torch==2.13.0"
    assert REFERENCE.requirement(on_gpu=True).local_torch is None
