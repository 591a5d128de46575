"""The reference engine: what is installed and started."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import UnsupportedError
from specreg.engines.pytorch.options import divide_devices, parse_options
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import Parallel
from tests.unit import builders

REFERENCE = engine_named("reference")
PYTHON = Path("/envs/reference/bin/python")
PLAIN: dict[str, Any] = {"engine": "reference", "engine_args": ()}


@pytest.mark.parametrize("method", REFERENCE.methods)
def test_its_own_parser_reads_the_command_line(method: str) -> None:
    changes: dict[str, Any] = {"method": method, "draft": "/models/draft", "draft_tokens": 5}
    command = REFERENCE.command(PYTHON, *builders.start_of(**PLAIN | changes))
    assert command[:3] == (str(PYTHON), "-m", "specreg.engines.pytorch")
    read = parse_options(command[3:])
    assert (read.model, read.served_model_name) == ("some/target", "toy")
    assert (read.port, read.dtype, read.device) == (8123, "float32", ("cpu",))
    assert (read.context_tokens, read.max_sequences) == (1024, 8)
    assert read.method == method
    assert read.draft_tokens == (5 if method != "none" else 3)
    assert read.draft_model == ("/models/draft" if method == "draft_model" else None)
    assert REFERENCE.methods[method].learns == (method == "ngram_adaptive")


def test_on_a_gpu_it_takes_what_is_there_and_the_cases_own_words_come_last() -> None:
    start = builders.start_of(**PLAIN | {"on_gpu": True})
    assert parse_options(REFERENCE.command(PYTHON, *start)[3:]).device == ()
    start = builders.start_of(**PLAIN | {"on_gpu": True, "engine_args": ("--device=cuda:1",)})
    assert parse_options(REFERENCE.command(PYTHON, *start)[3:]).device == ("cuda:1",)


def test_it_finds_specreg_after_what_the_user_put_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    folders = REFERENCE.environment(*builders.start_of(**PLAIN))["PYTHONPATH"].split(os.pathsep)
    assert folders == ["/mine", str(builders.ROOT)]
    monkeypatch.delenv("PYTHONPATH")
    assert REFERENCE.environment(*builders.start_of(**PLAIN))["PYTHONPATH"] == str(builders.ROOT)


def test_the_extra_is_what_the_suite_installs() -> None:
    project = tomllib.loads((builders.ROOT / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["reference"]
    requirement = REFERENCE.requirement(on_gpu=False)
    assert sorted(extra) == sorted((requirement.pin, *requirement.extras))
    assert requirement.local_torch == "torch==2.13.0"
    assert REFERENCE.requirement(on_gpu=True).local_torch is None


ONE, TWO, EIGHT = (tuple(f"cuda:{index}" for index in range(count)) for count in (1, 2, 8))


@pytest.mark.parametrize(
    ("devices", "placement", "ratio", "target_devices"),
    [
        pytest.param(ONE, "auto", None, None, id="one device is shared"),
        pytest.param(EIGHT, "same", None, None, id="all are shared"),
        pytest.param(TWO, "separate", None, 1, id="one each"),
        pytest.param(EIGHT, "separate", None, 7, id="the last is the draft's"),
        pytest.param(EIGHT, "ratio", (3, 1), 6, id="as 3 to 1"),
        pytest.param(EIGHT, "ratio", (1, 1), 4, id="half and half"),
        pytest.param(EIGHT, "ratio", (1, 99), 1, id="one at least is the target's"),
        pytest.param(TWO, "ratio", (3, 1), 1, id="one at least is the draft's"),
        pytest.param(EIGHT, "auto", None, 7, id="as parameters, 70 to 8"),
    ],
)
def test_devices_are_divided_among_target_and_draft(
    devices: tuple[str, ...],
    placement: str,
    ratio: tuple[int, int] | None,
    target_devices: int | None,
) -> None:
    divided = divide_devices(devices, placement, ratio, lambda: (70, 8))
    if target_devices is None:
        assert divided == (devices, devices)
    else:
        assert divided == (devices[:target_devices], devices[target_devices:])


@pytest.mark.parametrize("placement", ["separate", "ratio"])
def test_one_device_cannot_be_divided(placement: str) -> None:
    with pytest.raises(UnsupportedError, match=f"placement '{placement}': needs two devices, got"):
        divide_devices(("cpu",), placement, (1, 1), lambda: (1, 1))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--placement=ratio",), "--placement=ratio needs --gpu-ratio, and no other placement"),
        (("--gpu-ratio=3:1",), "--placement=ratio needs --gpu-ratio, and no other placement"),
        (("--placement=ratio", "--gpu-ratio=3:0"), "'3:0' is no ratio of two numbers from 1 on"),
        (("--placement=ratio", "--gpu-ratio=3"), "'3' is no ratio of two numbers from 1 on"),
        (("--draft-model=some/draft",), "--method=draft_model needs --draft-model"),
        (("--device=cuda:0,cpu",), "several devices must be different GPUs, such as cuda:0,cuda:1"),
        (("--device=cuda:0,cuda:0",), "several devices must be different GPUs"),
    ],
)
def test_options_that_say_nothing_are_refused(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_options(("--model", "some/target", *arguments))
    assert words in capsys.readouterr().err


def test_a_case_over_several_gpus_names_them_all_and_divides_them() -> None:
    words = ("--placement=ratio", "--gpu-ratio=3:1")
    spec, site = builders.start_of(
        engine="reference", on_gpu=True, parallel=Parallel(pipeline=4), engine_args=words
    )
    read = parse_options(REFERENCE.command(PYTHON, spec, site)[3:])
    assert read.device == ("cuda:0", "cuda:1", "cuda:2", "cuda:3")
    assert (read.placement, read.gpu_ratio) == ("ratio", (3, 1))
    REFERENCE.check(spec)
