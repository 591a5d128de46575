"""The reference engine: what is installed and started, and where its models are put."""

import dataclasses
import os
import tomllib
from pathlib import Path

import pytest

from specreg.acceptance.record import Source, StepCounts
from specreg.core.errors import InvalidMeasurementError, UnsupportedError
from specreg.engines.pytorch.options import Placement, choose_devices, parse_options, place
from specreg.engines.registry import ENGINES, engine_named
from specreg.engines.settings import Parallel
from tests.unit import builders

REFERENCE = engine_named("reference")
PYTHON = Path("/envs/reference/bin/python")
PLAIN = dataclasses.replace(builders.LAUNCH_OPTIONS, engine_args=())


@pytest.mark.parametrize("method", ["none", "ngram", "draft_model"])
def test_its_own_parser_reads_the_command_line(method: str) -> None:
    settings = REFERENCE.methods[method].render("/models/draft", 5)
    options = dataclasses.replace(PLAIN, speculation=settings)
    command = REFERENCE.command(PYTHON, options)
    assert command[:3] == (str(PYTHON), "-m", "specreg.engines.pytorch")
    read = parse_options(command[3:])
    assert (read.model, read.served_model_name) == ("some/target", "toy")
    assert (read.host, read.port, read.dtype) == ("127.0.0.1", 8123, "float32")
    assert (read.context_tokens, read.max_sequences) == (1024, 8)
    assert read.method == method
    assert read.draft_tokens == (5 if method != "none" else 3)
    assert read.draft_model == ("/models/draft" if method == "draft_model" else None)
    assert (read.longest_tokens, read.shortest_tokens) == (4, 2)
    assert read.devices == ("cpu",)


def test_on_a_gpu_it_takes_what_is_there_and_the_cases_own_words_come_last() -> None:
    options = dataclasses.replace(PLAIN, on_gpu=True, engine_args=("--placement=same",))
    read = parse_options(REFERENCE.command(PYTHON, options)[3:])
    assert (read.devices, read.placement) == ((), "same")


def test_it_splits_no_matrix() -> None:
    with pytest.raises(UnsupportedError, match="splits no matrix; place its models with"):
        REFERENCE.check_parallel(Parallel(tensor=2))


def test_it_finds_specreg_after_what_the_user_put_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    found = REFERENCE.environment(PLAIN)["PYTHONPATH"].split(os.pathsep)
    assert found == ["/mine", str(builders.ROOT)]
    monkeypatch.delenv("PYTHONPATH")
    assert REFERENCE.environment(PLAIN)["PYTHONPATH"] == str(builders.ROOT)


def test_a_server_is_offline_where_nothing_needs_to_be_fetched() -> None:
    offline = dataclasses.replace(PLAIN, offline=True)
    assert REFERENCE.environment(offline)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in REFERENCE.environment(PLAIN)


def test_the_extra_is_what_the_suite_installs() -> None:
    project = tomllib.loads((builders.ROOT / "pyproject.toml").read_text())
    extra = project["project"]["optional-dependencies"]["reference"]
    requirement = REFERENCE.requirement(on_gpu=False)
    assert sorted(extra) == sorted((requirement.pin, *requirement.extras))


def test_without_a_gpu_its_torch_is_the_local_one() -> None:
    assert REFERENCE.requirement(on_gpu=False).local_torch == "torch==2.13.0"
    assert REFERENCE.requirement(on_gpu=True).local_torch is None


PAGE = """
reference:spec_decode_num_drafts_total 4
reference:spec_decode_num_draft_tokens_total 12
reference:spec_decode_num_accepted_tokens_total 7
reference:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4
reference:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2
reference:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 1
"""


def test_its_counters_have_a_name_of_their_own() -> None:
    protocol = ENGINES["reference"].wire_format
    expected = StepCounts(steps=4, accepted=7, proposed=12, position_counts=(4, 2, 1))
    assert protocol.parse_counters(PAGE).counts == expected
    assert protocol.request_source is Source.REFERENCE
    with pytest.raises(InvalidMeasurementError, match="looked for reference:spec_decode_num_dr"):
        protocol.parse_counters(PAGE.replace("reference:", "vllm:"))


def test_its_counters_are_absent_without_speculation() -> None:
    with pytest.raises(InvalidMeasurementError, match="SPEC_DISABLED"):
        ENGINES["reference"].wire_format.parse_counters("reference:generation_tokens_total 3\n")


@pytest.mark.parametrize(
    ("wish", "devices", "target", "first_frac", "draft"),
    [
        ("automatic", ("cpu",), ("cpu",), 1.0, "cpu"),
        ("automatic", ("cuda:0",), ("cuda:0",), 1.0, "cuda:0"),
        ("automatic", ("cuda:0", "cuda:1"), ("cuda:0",), 1.0, "cuda:1"),
        ("same", ("cuda:0", "cuda:1"), ("cuda:0",), 1.0, "cuda:0"),
        ("separate", ("cuda:0", "cpu"), ("cuda:0",), 1.0, "cpu"),
        ("split=0.7", ("cuda:0", "cuda:1"), ("cuda:0", "cuda:1"), 0.7, "cuda:0"),
    ],
)
def test_target_and_draft_are_put_where_they_are_wished(
    wish: str, devices: tuple[str, ...], target: tuple[str, ...], first_frac: float, draft: str
) -> None:
    assert place(wish, devices) == Placement(target=target, first_frac=first_frac, draft=draft)


@pytest.mark.parametrize("wish", ["separate", "split=0.5"])
def test_two_devices_are_needed_for_what_is_spread(wish: str) -> None:
    with pytest.raises(UnsupportedError, match="needs two devices, there is cuda:0; name two"):
        place(wish, ("cuda:0",))


@pytest.mark.parametrize("wish", ["", "beside", "split", "split=0", "split=.0", "split=1.0"])
def test_an_unknown_wish_is_answered_with_the_known(wish: str) -> None:
    with pytest.raises(UnsupportedError, match="unknown; known: automatic, same, separate, split="):
        place(wish, ("cuda:0", "cuda:1"))


@pytest.mark.parametrize(
    ("asked", "there", "chosen"),
    [
        ((), ("cpu",), ("cpu",)),
        ((), ("cuda:0", "cuda:1", "cpu"), ("cuda:0", "cuda:1")),
        (("cpu",), ("cuda:0", "cpu"), ("cpu",)),
        (("cpu", "cuda:0"), ("cuda:0", "cpu"), ("cpu", "cuda:0")),
    ],
)
def test_the_devices_are_those_asked_for_or_the_gpus_or_the_cpu(
    asked: tuple[str, ...], there: tuple[str, ...], chosen: tuple[str, ...]
) -> None:
    assert choose_devices(asked, there) == chosen


def test_a_device_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UnsupportedError, match="'cuda:1': not on this machine; it has cuda:0, cpu"):
        choose_devices(("cuda:1",), ("cuda:0", "cpu"))
