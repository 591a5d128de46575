"""The page for those who come from another tool: its commands work, and its names are ours."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from specreg.cli import app
from specreg.engines.methods import Tree
from specreg.engines.server_spec import Parallel
from specreg.matrix.commands import understand_command
from specreg.matrix.server_files import ServerFile
from specreg.matrix.tables import case_keys
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.figures import PartFigures
from specreg.measurement.metrics import GATE_METRICS, METRICS
from tests.unit import builders
from tests.unit.builders.collection import Collection, collect

PAGE = (builders.ROOT / "docs/how-to/come-from-another-tool.md").read_text()
STAND_INS = {"HOST:PORT": "127.0.0.1:1", "CASE": "vllm-eagle3-tiny-toy-c1", "TIER": "mine"}
"""What stands for the placeholders of the page."""


def tier_file() -> str:
    """The tier that the page shows, as a file."""
    begin = PAGE.index("    needs_gpus")
    end = PAGE.index("`specreg matrix")
    return re.sub(r"^    ", "", PAGE[begin:end], flags=re.MULTILINE)


COMMANDS = sorted(set(re.findall(r"`(pytest [^`\n]+)`", PAGE)))
"""The commands of pytest on the page, those of the text and of its tables."""


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's tiers, and the one of the page, in a folder."""
    folder = tmp_path_factory.mktemp("page") / "fixtures"
    for name in ("matrix", "models"):
        (folder / name).mkdir(parents=True)
    for path in (builders.ROOT / "fixtures/matrix").glob("*.toml"):
        (folder / "matrix" / path.name).write_text(path.read_text())
    pairs = builders.ROOT / "fixtures/models/pairs.toml"
    (folder / "models/pairs.toml").write_text(pairs.read_text())
    (folder / "matrix/mine.toml").write_text(tier_file())
    return folder / "matrix"


@pytest.fixture(scope="module")
def collections(matrix: Path) -> Mapping[str, Collection]:
    """What each command of the page would run, as typed, with the page's own tier."""
    typed = {command: command for command in COMMANDS}
    for command in COMMANDS:
        for name, stand_in in STAND_INS.items():
            typed[command] = typed[command].replace(name, stand_in)
    listed = collect([*typed.values()], f"--specreg-matrix={matrix}")
    return {command: listed[typed[command]] for command in COMMANDS}


def test_the_tier_of_the_page_is_what_nemo_skills_serves(matrix: Path) -> None:
    tier = load_tier(matrix, "mine")
    assert [case.id for case in tier.cases] == [
        "sglang-none-llama-3.3-70b-speed-bench-qualitative-c32",
        "sglang-draft_model-llama-3.3-70b-speed-bench-qualitative-c32",
        "vllm-none-llama-3.3-70b-nvidia-speed-bench-qualitative-c32",
        "vllm-eagle3-llama-3.3-70b-nvidia-speed-bench-qualitative-c32",
    ]
    for case in tier.cases:
        assert case.server.parallel == Parallel(tensor=8)
        assert (case.server.max_sequences, case.request.output_cap_tokens) == (32, 1024)
        assert case.server.draft_tokens == (3 if case.speculates else 0)
    assert tier.cases[0].server.gpu_memory_frac == pytest.approx(0.4)


def test_the_matrix_shows_what_was_understood_of_the_pages_commands(matrix: Path) -> None:
    root = str(matrix.parents[1])
    done = CliRunner().invoke(app, ["matrix", "--tier", "mine", "--root", root])
    assert done.exit_code == 0, done.output
    assert done.output.count("keys read from the command of ") == 2
    assert 'engine_args = ["--torch-compile-max-bs", "32", "--cuda-graph-max-bs", "32"]' in (
        done.output
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_finds_tests_to_run(
    command: str, collections: Mapping[str, Collection]
) -> None:
    collection = collections[command]
    assert collection.exit_code == 0, collection.output
    assert collection.tests
    assert all(test.startswith("tests/perf/") for test in collection.tests)


def test_each_command_of_the_page_is_among_those_that_are_typed() -> None:
    assert len(COMMANDS) >= 8
    commands = set(re.findall(r"`(specreg \w+)", PAGE))
    assert commands <= {"specreg matrix", "specreg prepare", "specreg report"}


def test_the_containers_of_the_page_are_understood() -> None:
    """Those of files have the form of the files that tests/unit/matrix/test_containers.py reads."""
    lines = re.findall(r"`(docker run [^`\n]+)`", PAGE)
    understood = [understand_command(line, {}) for line in lines]
    assert [(table.keys["engine"], table.keys["image"]) for table in understood] == [
        ("vllm", "vllm/vllm-openai:latest"),
        ("sglang", "lmsysorg/sglang:latest"),
        ("tensorrt_llm", "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc5"),
    ]
    targets = [table.target.partition("/")[0] for table in understood]
    assert targets == ["Qwen", "meta-llama", "TinyLlama"]
    files = re.findall(r"`command = (\{ file = [^`\n]+)`", PAGE)
    for text in files:
        msgspec.convert(tomllib.loads(f"command = {text}")["command"], ServerFile)
    assert len(files) == 3


def column(title: str) -> list[str]:
    """What stands in backquotes in the columns of the page's tables that have a title."""
    spans: list[str] = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        head, _, *rows = table.splitlines()
        titles = [cell.strip() for cell in head.split("|")]
        if title in titles:
            index = titles.index(title)
            spans += [
                span for row in rows for span in re.findall(r"`([^`]+)`", row.split("|")[index])
            ]
    assert spans, f"no table of the page has a column '{title}'"
    return spans


def test_each_key_of_a_case_that_the_page_names_exists() -> None:
    keys = {*case_keys()}
    keys |= {f"parallel.{name}" for name in Parallel.__struct_fields__}
    keys |= {f"tree.{name}" for name in Tree.__struct_fields__}
    named = {name for name in column("key of a case") if re.fullmatch(r"[a-z_.]+", name)}
    assert {"draft_tokens", "duration_s", "top_k", "parallel.tensor"} <= named
    assert named - keys <= {"transformers", "target_ar"}  # words of the other tool


def test_each_metric_and_case_that_the_page_names_exists() -> None:
    figures = {name for name in column("specreg's") if re.fullmatch(r"[a-z0-9_]+", name)}
    assert figures - {*METRICS, *GATE_METRICS, *PartFigures.__struct_fields__} == set()
    folder = builders.ROOT / "fixtures/matrix"
    known = {case.id for name in tier_names(folder) for case in load_tier(folder, name).cases}
    named = set(re.findall(r"`((?:vllm|sglang|triton|tensorrt_llm)-[\w.-]+-c\d+)`", PAGE))
    assert len(named) == 2
    assert named <= known


def test_the_rate_that_counts_the_bonus_token_is_worked_out_rightly() -> None:
    """SGLang's 69.38 % at AL 2.78 and three drafts: 2.78 of four tokens, where 1.78 of 3 is A/D."""
    length, drafts = 2.78, 3
    assert length / (drafts + 1) == pytest.approx(0.6938, abs=0.0013)
    assert (length - 1) / drafts == pytest.approx(0.59, abs=0.005)
    assert "69.38 % at AL 2.78 and 3 drafts is (2.78 − 1) / 3 = 59 %" in PAGE
