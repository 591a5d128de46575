"""A set is prepared from the user's file: checked, spread over its categories, and recorded."""

import hashlib
import json
from pathlib import Path

import pytest

from specreg.core.errors import DatasetError
from specreg.datasets.prepare import PreparedSet, load_prompts, load_record, prepare
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import dataset_named
from tests.unit import builders

CATEGORIES = (
    *("writing", "roleplay", "reasoning", "math"),
    *("coding", "extraction", "stem", "humanities"),
)


def mt_bench(rows: int = 80) -> str:
    """A `question.jsonl` of FastChat's, ten questions of each category after another."""
    prompts = [
        Prompt(id=f"{81 + n}", category=CATEGORIES[n // 10], turns=(f"Question {n}.", "And then?"))
        for n in range(rows)
    ]
    return "".join(f"{json.dumps(row)}\n" for row in builders.rows_in("mt-bench", prompts))


class Folder:
    """Where a user's file lies and where sets are written, and what was said meanwhile."""

    def __init__(self, path: Path) -> None:
        self.data_dir = path / "data"
        self.file = path / "question.jsonl"
        self.shown: list[str] = []

    def prepare(self, name: str, file: Path | None = None) -> PreparedSet:
        return prepare(
            dataset_named(name), data_dir=self.data_dir, user_file=file, show=self.shown.append
        )

    def load(self, name: str) -> tuple[Prompt, ...]:
        prompt_set = dataset_named(name)
        return load_prompts(prompt_set, root=builders.ROOT, vocabulary=int, data_dir=self.data_dir)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    new_folder = Folder(tmp_path)
    new_folder.file.write_text(mt_bench())
    return new_folder


def test_a_prepared_set_is_loaded_spread_over_its_categories(folder: Folder) -> None:
    folder.prepare("mt-bench", folder.file)
    prompts = folder.load("mt-bench")
    assert len(prompts) == 80
    assert [prompt.category for prompt in prompts[:9]] == [*CATEGORIES, "writing"]
    assert [prompt.id for prompt in prompts[:9]] == [*map(str, range(81, 161, 10)), "82"]
    assert prompts[0].turns == ("Question 0.", "And then?")


def test_the_record_says_what_was_prepared_of_what(folder: Folder) -> None:
    record = folder.prepare("mt-bench", folder.file)
    written = (folder.data_dir / "mt-bench.jsonl").read_bytes()
    assert record == PreparedSet(
        dataset="mt-bench",
        source="question.jsonl",
        revision="",
        licence="Apache-2.0. Cite Zheng et al. 2023 (arXiv:2306.05685).",
        rows=80,
        left_out=0,
        unused={},
        prompts=80,
        categories=dict.fromkeys(CATEGORIES, 10),
        source_sha256=hashlib.sha256(folder.file.read_bytes()).hexdigest(),
        sha256=hashlib.sha256(written).hexdigest(),
    )
    assert load_record(folder.data_dir, dataset_named("mt-bench")) == record
    assert len([*folder.data_dir.iterdir()]) == 2


def test_a_prepared_set_is_kept_unless_a_file_is_given(folder: Folder) -> None:
    first = folder.prepare("mt-bench", folder.file)
    folder.shown.clear()
    assert folder.prepare("mt-bench") == first
    path = folder.data_dir / "mt-bench.json"
    message = "mt-bench: kept 80 prompts (categories: 8) from question.jsonl"
    assert folder.shown == [f"{message}; remove {path} to prepare it anew"]
    renamed = folder.file.rename(folder.file.with_name("other.jsonl"))
    renamed.write_text(mt_bench().replace("And then?", "And now?"))
    assert folder.prepare("mt-bench", renamed).source == "other.jsonl"
    assert folder.load("mt-bench")[0].turns[1] == "And now?"


def test_a_repeated_id_or_an_unwritable_folder_is_refused(folder: Folder) -> None:
    folder.file.write_text(mt_bench() + mt_bench(1))
    with pytest.raises(DatasetError, match="2 prompts have the id '81'; give each its own"):
        folder.prepare("mt-bench", folder.file)
    assert not folder.data_dir.exists()
    folder.file.write_text(mt_bench())
    folder.data_dir.touch()
    with pytest.raises(
        DatasetError, match=r"file '.*mt-bench\.jsonl': .*; set SPECREG_DATA to a folder"
    ):
        folder.prepare("mt-bench", folder.file)


def test_a_part_of_a_set_is_accepted_with_a_remark(folder: Folder) -> None:
    folder.file.write_text(mt_bench(15))
    assert folder.prepare("mt-bench", folder.file).prompts == 15
    assert "15 of 80 published prompts: only these will be replayed" in folder.shown
    assert [prompt.category for prompt in folder.load("mt-bench")[:2]] == ["writing", "roleplay"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spec-bench", r"isn't on the hub; get https://.*/spec_bench/question\.jsonl and run"),
        ("eagle-mt_bench", r"get https://.*/mt_bench/question\.jsonl and run specreg prepare"),
        ("genai-perf", "get a file of your own and run specreg prepare genai-perf --from FILE"),
        ("toy", "needs no preparation; a case can name it directly"),
        ("random-300", "needs no preparation"),
    ],
)
def test_a_set_that_is_not_on_the_hub_names_its_address(
    folder: Folder, name: str, words: str
) -> None:
    with pytest.raises(DatasetError, match=words):
        folder.prepare(name)


def test_prompts_that_were_changed_are_refused(folder: Folder) -> None:
    folder.prepare("mt-bench", folder.file)
    with (folder.data_dir / "mt-bench.jsonl").open("a") as file:
        file.write('{"id": "x", "category": "c", "turns": ["x"]}\n')
    words = (
        r"dataset 'mt-bench': .*mt-bench\.jsonl is not what was prepared \(SHA-256 [0-9a-f]{12}…,"
        r" needed [0-9a-f]{12}…\); prepare it anew: run specreg prepare mt-bench"
    )
    with pytest.raises(DatasetError, match=words):
        folder.load("mt-bench")
    folder.prepare("mt-bench", folder.file)
    assert len(folder.load("mt-bench")) == 80


@pytest.mark.parametrize("content", ["", "{}", '{"dataset": 1}'])
def test_a_broken_record_is_named_and_prepared_anew(folder: Folder, content: str) -> None:
    folder.prepare("mt-bench", folder.file)
    (folder.data_dir / "mt-bench.json").write_text(content)
    with pytest.raises(
        DatasetError, match=r"mt-bench\.json: .*; prepare it anew: run specreg prepare"
    ):
        folder.load("mt-bench")
    folder.prepare("mt-bench", folder.file)
    assert load_record(folder.data_dir, dataset_named("mt-bench"))


def test_a_broken_set_that_is_not_on_the_hub_is_prepared_anew_from_a_file(folder: Folder) -> None:
    folder.file.write_text('{"text": "Hello."}')
    folder.prepare("genai-perf", folder.file)
    (folder.data_dir / "genai-perf.json").write_text("{}")
    remedy = "get a file of your own and run specreg prepare genai-perf --from FILE"
    with pytest.raises(DatasetError, match=f"prepare it anew: {remedy}$"):
        folder.load("genai-perf")


@pytest.mark.parametrize("missing", ["mt-bench.json", "mt-bench.jsonl"])
def test_a_set_without_its_record_is_not_prepared(folder: Folder, missing: str) -> None:
    folder.prepare("mt-bench", folder.file)
    (folder.data_dir / missing).unlink()
    with pytest.raises(DatasetError, match="not prepared on this machine; run specreg prepare mt"):
        folder.load("mt-bench")


def test_rows_that_are_left_out_are_counted_in_the_output(folder: Folder) -> None:
    row_left_out = {
        "conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hi!"}]
    }
    silent = {"conversations": [{"from": "gpt", "value": "Hi!"}]}
    folder.file.write_text(json.dumps([row_left_out, silent, silent]))
    record = folder.prepare("sharegpt", folder.file)
    assert (record.rows, record.left_out, record.prompts) == (3, 2, 1)
    assert "2 rows without a prompt left out" in folder.shown


def test_what_is_not_replayed_is_in_the_output_and_in_the_record(folder: Folder) -> None:
    system = {"role": "system", "content": "The mill closed in 1931."}
    rows = [
        {"question_id": name, "category": "rag", "messages": [system, {"role": "user", **asked}]}
        for name, asked in (("s1", {"content": "When?"}), ("s2", {"content": "Why?"}))
    ]
    folder.file.write_text(json.dumps(rows))
    record = folder.prepare("speed-bench-qualitative", folder.file)
    assert record.unused == {"messages by system": 2}
    shown = "only the user's prompts are replayed, without: messages by system (2 rows)"
    assert shown in folder.shown
