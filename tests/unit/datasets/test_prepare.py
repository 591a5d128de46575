"""A set is prepared from the user's file: checked, spread over its categories, and recorded."""

import hashlib
import json
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import DatasetError
from specreg.datasets.prepare import Preparation, PreparedSet, load_prompts, load_record, prepare
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import dataset_named
from tests.unit import builders

CATEGORIES = (
    *("writing", "roleplay", "reasoning", "math"),
    *("coding", "extraction", "stem", "humanities"),
)


def mt_bench(rows: int = 80) -> str:
    """A `question.jsonl` of FastChat's, ten questions of each category after another."""
    return "".join(
        json.dumps(
            {
                "question_id": 81 + row,
                "category": CATEGORIES[row // 10],
                "turns": [f"Question {row}.", "And then?"],
            }
        )
        + "\n"
        for row in range(rows)
    )


class Folder:
    """Where a user's file lies and where sets are written, and what was said meanwhile."""

    def __init__(self, path: Path) -> None:
        self.data_dir, self.file = path / "data", path / "question.jsonl"
        self.said: list[str] = []

    def prepare(
        self,
        name: str,
        given: Path | None = None,
        *,
        part: bool = False,
        prompts: int | None = None,
        revision: str = "main",
    ) -> PreparedSet:
        """Prepares a set."""
        asked = Preparation(
            data_dir=self.data_dir,
            given=given,
            part=part,
            prompts=prompts,
            revision=revision,
            show=self.said.append,
        )
        return prepare(dataset_named(name), asked)

    def load(self, name: str) -> tuple[Prompt, ...]:
        """The prompts of a set, as a run loads them."""
        one = dataset_named(name)
        return load_prompts(one, root=builders.ROOT, vocabulary=int, data_dir=self.data_dir)


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A folder with the whole of MT-Bench."""
    found = Folder(tmp_path)
    found.file.write_text(mt_bench())
    return found


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
        licence="Apache-2.0",
        rows=80,
        left_out=0,
        prompts=80,
        asked=None,
        part=False,
        categories=dict.fromkeys(CATEGORIES, 10),
        source_sha256=hashlib.sha256(folder.file.read_bytes()).hexdigest(),
        sha256=hashlib.sha256(written).hexdigest(),
    )
    stored = (folder.data_dir / "mt-bench.json").read_bytes()
    assert msgspec.json.decode(stored, type=PreparedSet) == record
    assert sorted(path.name for path in folder.data_dir.iterdir()) == [
        "mt-bench.json",
        "mt-bench.jsonl",
    ]


def test_a_folder_that_cannot_be_written_is_named(folder: Folder) -> None:
    folder.data_dir.touch()
    with pytest.raises(DatasetError, match=r"file '.*mt-bench\.jsonl': .*; name a folder that can"):
        folder.prepare("mt-bench", folder.file)


def test_what_holds_still_is_kept_and_said_so(folder: Folder) -> None:
    first = folder.prepare("mt-bench", folder.file)
    written = (folder.data_dir / "mt-bench.jsonl").stat().st_ino
    for given in (folder.file, None):
        folder.said.clear()
        assert folder.prepare("mt-bench", given) == first
        path = folder.data_dir / "mt-bench.json"
        kept = "mt-bench: kept 80 prompts (categories: 8), of question.jsonl"
        assert folder.said == [f"{kept}; remove {path} to prepare it anew"]
    assert (folder.data_dir / "mt-bench.jsonl").stat().st_ino == written


def test_what_is_asked_for_otherwise_is_prepared_anew(folder: Folder, tmp_path: Path) -> None:
    folder.prepare("mt-bench", folder.file)
    other = tmp_path / "other.jsonl"
    other.write_text(mt_bench().replace("And then?", "And now?"))
    assert folder.prepare("mt-bench", other).source == "other.jsonl"
    assert folder.load("mt-bench")[0].turns[1] == "And now?"
    assert folder.prepare("mt-bench", folder.file, prompts=16).prompts == 16
    assert folder.prepare("mt-bench", folder.file, prompts=16, part=True).part
    folder.said.clear()
    folder.prepare("mt-bench", folder.file, prompts=16, part=True, revision="v1")
    assert folder.said[-1].startswith("wrote 16 prompts")


def test_as_many_prompts_as_asked_for_are_spread_too(folder: Folder) -> None:
    record = folder.prepare("mt-bench", folder.file, prompts=20)
    assert (record.rows, record.prompts, record.asked) == (80, 20, 20)
    assert sorted(record.categories.values()) == [2, 2, 2, 2, 3, 3, 3, 3]
    assert len(folder.load("mt-bench")) == 20


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(
            mt_bench(79), "79 rows, needed 80; get the whole file, or say --part", id="79"
        ),
        pytest.param(
            mt_bench().replace("humanities", "stem"), "7 categories, needed 8; get", id="categories"
        ),
        pytest.param("", "is empty; fetch it again", id="empty"),
        pytest.param("<html>not found</html>", "question.jsonl:1: JSON is malformed", id="page"),
        pytest.param(
            mt_bench() + mt_bench(1), "prompts 1 and 81 have the same id '81'", id="twice"
        ),
    ],
)
def test_what_was_not_published_is_refused_and_nothing_written(
    folder: Folder, content: str, words: str
) -> None:
    folder.file.write_text(content)
    with pytest.raises(DatasetError, match=words):
        folder.prepare("mt-bench", folder.file)
    assert not folder.data_dir.exists()


def test_a_part_is_taken_where_the_user_says_so(folder: Folder) -> None:
    folder.file.write_text(mt_bench(15))
    record = folder.prepare("mt-bench", folder.file, part=True)
    assert (record.part, record.prompts) == (True, 15)
    assert [prompt.category for prompt in folder.load("mt-bench")[:2]] == ["writing", "roleplay"]


def test_a_folder_is_searched_for_the_file_of_each_config(folder: Folder, tmp_path: Path) -> None:
    row = {"question_id": "q", "category": "coding", "messages": [{"role": "user", "content": "x"}]}
    (tmp_path / "qualitative.jsonl").write_text(json.dumps(row) + "\n")
    assert folder.prepare("speed-bench-qualitative", tmp_path, part=True).prompts == 1
    with pytest.raises(DatasetError, match=r"throughput_1k\.jsonl' is no file that can be read"):
        folder.prepare("speed-bench-throughput_1k", tmp_path, part=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("spec-bench", r"isn't on the hub; get https://.*/spec_bench/question\.jsonl and run"),
        (
            "eagle-mt_bench",
            r"get https://.*/mt_bench/question\.jsonl and run specreg prepare eagle",
        ),
        ("genai-perf", "get a file of your own and run specreg prepare genai-perf --from FILE"),
        ("toy", "nothing to prepare; a case can name it as it is"),
        ("random-300", "nothing to prepare"),
    ],
)
def test_what_the_hub_does_not_have_says_where_it_is(folder: Folder, name: str, words: str) -> None:
    with pytest.raises(DatasetError, match=words):
        folder.prepare(name)


def test_prompts_that_somebody_changed_are_refused(folder: Folder) -> None:
    folder.prepare("mt-bench", folder.file)
    with (folder.data_dir / "mt-bench.jsonl").open("a") as file:
        file.write('{"id": "x", "category": "c", "turns": ["x"]}\n')
    words = (
        r"dataset 'mt-bench': .*mt-bench\.jsonl is not what was prepared \(SHA-256 [0-9a-f]{12}…,"
        r" needed [0-9a-f]{12}…\); prepare it anew: specreg prepare mt-bench"
    )
    with pytest.raises(DatasetError, match=words):
        folder.load("mt-bench")
    folder.prepare("mt-bench", folder.file)
    assert len(folder.load("mt-bench")) == 80


@pytest.mark.parametrize("content", ["", "{}", '{"dataset": 1}'])
def test_a_broken_record_is_named_and_prepared_anew(folder: Folder, content: str) -> None:
    folder.prepare("mt-bench", folder.file)
    (folder.data_dir / "mt-bench.json").write_text(content)
    with pytest.raises(DatasetError, match=r"mt-bench\.json: .*; prepare it anew: specreg prepare"):
        folder.load("mt-bench")
    folder.prepare("mt-bench", folder.file)
    assert load_record(folder.data_dir, "mt-bench")


@pytest.mark.parametrize("missing", ["mt-bench.json", "mt-bench.jsonl"])
def test_half_a_set_is_none(folder: Folder, missing: str) -> None:
    folder.prepare("mt-bench", folder.file)
    (folder.data_dir / missing).unlink()
    with pytest.raises(DatasetError, match="not prepared on this machine; run specreg prepare mt"):
        folder.load("mt-bench")


def test_rows_left_out_are_counted_aloud(folder: Folder) -> None:
    said = {"conversations": [{"from": "human", "value": "Hi."}, {"from": "gpt", "value": "Hi!"}]}
    silent = {"conversations": [{"from": "gpt", "value": "Hi!"}]}
    folder.file.write_text(json.dumps([said, silent, silent]))
    record = folder.prepare("sharegpt", folder.file)
    assert (record.rows, record.left_out, record.prompts) == (3, 2, 1)
    assert "2 rows left out: they ask nothing" in folder.said
