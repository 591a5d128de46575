"""The pages of docs/ say what the code says; test_validity.py holds the reasons of INVALID."""

import dataclasses
import re

import pytest

from docs.write_reference import FOLDER, PAGES, render
from specreg.matrix.tier import load_tier
from specreg.suite.options import Options, flag_of
from specreg.verdicts.verdict import GOOD, Outcome
from tests.unit import builders
from tests.unit.builders.collection import collect
from tests.unit.builders.library_source import texts, trees

PAGE = (builders.ROOT / "docs/how-to/my-run-is-red.md").read_text()
OF_OTHERS = {"--group", "--pid", "--wheel"}
TABLES = "".join(re.findall(r"\| the reason says \|.+\n(?:\|.+\n)+", PAGE))
QUOTED = re.findall(r"`([^`]+)`", "\n".join(row.split(" | ")[0] for row in TABLES.splitlines()))


LINKED_FROM_OUTSIDE = ("README.md", "CONTRIBUTING.md")


@pytest.fixture(scope="module")
def library_text() -> str:
    """All texts of the library's source that aren't docstrings."""
    return "\n".join(text for _, tree in trees() for text in texts(tree))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_of_the_reference_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text() == render(name), "run nox -s write_reference"


def test_each_tier_is_described_by_whole_sentences() -> None:
    rows = re.findall(r"^\| `\w+` \| ([^|]+) \|", render("tiers.md"), re.MULTILINE)
    assert len(rows) > 20
    assert [row for row in rows if not row.endswith((".", "?"))] == []


@pytest.mark.parametrize("name", LINKED_FROM_OUTSIDE)
def test_a_link_of_the_repository_leads_somewhere(name: str) -> None:
    """Sphinx checks the pages of docs/ only."""
    links = re.findall(r"(?:\]\(|src=\")([^)#\s\"]+)", (builders.ROOT / name).read_text())
    files = [link for link in links if not link.startswith("http")]
    assert files
    assert [link for link in files if not (builders.ROOT / link).exists()] == []


def test_each_promise_of_reliability_names_tests_that_there_are() -> None:
    page = (builders.ROOT / "docs/explanation/reliability.md").read_text()
    named = set(re.findall(r"`(test_\w+)`", page))
    files = (builders.ROOT / "tests").rglob("test_*.py")
    defined = {name for path in files for name in re.findall(r"def (test_\w+)\(", path.read_text())}
    assert named - defined == set()

    promises, _, faults = page.partition("## The faults")
    paragraphs = [part for part in promises.split("\n\n") if part.startswith("**")]
    lists = [part for part in promises.split("\n\n") if part.startswith("- `test_")]
    inline = [part for part in paragraphs if "`test_" in part]
    assert len(paragraphs) == len(lists) + len(inline)
    assert "tests/faults/test_rows_of_*.py" in faults


def test_each_module_that_a_page_runs_is_there() -> None:
    pages = [*(builders.ROOT / "docs").rglob("*.md"), *builders.ROOT.glob("*.md")]
    text = "\n".join(page.read_text() for page in pages)
    modules = set(re.findall(r"python3? -m ((?:specreg|tests|docs)[\w.]*)", text))
    assert "tests.bench.gate" in modules
    paths = [builders.ROOT / module.replace(".", "/") for module in modules]
    missing = [
        path
        for path in paths
        if not path.with_suffix(".py").exists() and not (path / "__main__.py").exists()
    ]
    assert missing == []


def test_what_the_map_of_the_code_names_is_there() -> None:
    """`verdicts/judge.outcome_of` is a name in that module, `verdicts/confirmation` a module."""
    page = (builders.ROOT / "docs/explanation/structure.md").read_text()
    named = re.findall(r"`([a-z_]+/[a-z_]+)((?:\.\w+)*)`", page)
    assert len(named) > 20
    missing = []
    for module, names in named:
        path = builders.ROOT / f"specreg/{module}.py"
        text = path.read_text() if path.exists() else ""
        missing += [f"{module}{names}"] if not text else []
        for name in names.split(".")[1:]:
            if text and not re.search(rf"^ *(def|class) {name}\b|^{name}\b", text, re.MULTILINE):
                missing.append(f"{module}.{name}")
    assert missing == []


def test_the_command_that_attaches_chooses_cases_of_one_server() -> None:
    """Of a table with several model pairs all are there, because the server's GPUs aren't known."""
    page = (builders.ROOT / "docs/how-to/measure-a-running-server.md").read_text()
    (typed,) = re.findall(r"^    (pytest .* --specreg-tier gpu .*)$", page, re.MULTILINE)
    command = typed.replace("HOST:PORT", "127.0.0.1:1")
    tests = collect([command])[command].tests
    cases = load_tier(builders.ROOT / "fixtures/matrix", "gpu").cases
    chosen = [case for case in cases if any(f"[{case.id}-" in test for test in tests)]
    assert [case.id for case in chosen] == ["vllm-eagle3-qwen3-8b-toy-c4"]


def test_each_outcome_that_is_no_pass_has_a_section() -> None:
    sections = set(re.findall(r"^## (\S+)$", PAGE, re.MULTILINE))
    assert set(Outcome) - GOOD - {Outcome.MEASURED} <= sections


@pytest.mark.parametrize("quoted", QUOTED)
def test_what_it_quotes_of_a_reason_is_said(quoted: str, library_text: str) -> None:
    pieces = [piece.strip() for piece in re.split(r"[…':;]|\d+ ?%?", quoted)]
    assert [piece for piece in pieces if piece not in library_text] == []


def test_no_message_names_a_page_that_an_installation_lacks(library_text: str) -> None:
    assert re.findall(r"docs/[\w/-]+\.md", library_text) == []


@pytest.mark.parametrize("name", ["how-to/my-run-is-red", "getting-started"])
def test_each_option_exists(name: str, library_text: str) -> None:
    options = set(re.findall(r"--[a-z][a-z-]+", (builders.ROOT / f"docs/{name}.md").read_text()))
    options -= OF_OTHERS | {*map(flag_of, dataclasses.fields(Options))}
    assert {option for option in options if option not in library_text} == set()
