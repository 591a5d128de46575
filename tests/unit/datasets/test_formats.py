"""Prompt files as they are published: read, and refused with their place."""

import bz2
import gzip
import io
import json
import lzma
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specreg.core.errors import DatasetError
from specreg.datasets.packed_files import unpacked
from specreg.datasets.prompt_files import load_prompt_file, load_published_rows
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import dataset_named
from tests.unit.builders import rows_in, write_lines

OWN = "specreg's own"
SPEED_BENCH = "speed-bench-qualitative"
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"
CODE = 'Mend: print(f"{question}: {answer}")'
MT_BENCH: dict[str, object] = {
    "question_id": 111,
    "category": "math",
    "turns": ["Area?", "And the circle?"],
    "reference": ["3", "18π"],
}
SPEED: dict[str, object] = {
    "question_id": "4f1ac0f2",
    "category": "coding",
    "sub_category": "python",
    "turns": [CODE, "Shorter."],
    "multiturn": True,
}
TASK: dict[str, object] = {
    "task_id": "HumanEval/0",
    "prompt": "def add(a, b):\n",
    "entry_point": "add",
}
SHARED: dict[str, object] = {
    "id": "QWJhYvA_0",
    "conversations": [
        {"from": "human", "value": "Hello."},
        {"from": "gpt", "value": "Hello!"},
        {"from": "human", "value": "Again."},
    ],
}
AGENT: dict[str, object] = {
    "question_id": "q0",
    "category": "tools",
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "weather in A?"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
        {"role": "tool", "content": "12 C"},
        {"role": "user", "content": "and in B?"},
    ],
}
"""An agent's trace: an assistant that calls a tool says nothing."""
TASK_IN_WORDS = "Write a function to remove the first x."
EXAMPLES: list[tuple[str, dict[str, object], Prompt]] = [
    (
        OWN,
        {"id": "a", "category": "chat", "turns": ["Hello.", "Again."]},
        Prompt(id="a", category="chat", turns=("Hello.", "Again.")),
    ),
    (
        OWN,
        {"id": "b", "category": "random", "token_ids": [3, 1]},
        Prompt(id="b", category="random", token_ids=(3, 1)),
    ),
    ("mt-bench", MT_BENCH, Prompt(id="111", category="math", turns=("Area?", "And the circle?"))),
    (
        "mt-bench",
        {"prompt_id": 81, "category": "writing", "prompt": ["Write.", "Rewrite."]},
        Prompt(id="81", category="writing", turns=("Write.", "Rewrite.")),
    ),
    (SPEED_BENCH, SPEED, Prompt(id="4f1ac0f2", category="coding", turns=(CODE, "Shorter."))),
    (
        SPEED_BENCH,
        {
            "question_id": "other",
            "category": "coding",
            "messages": [
                {"role": "user", "content": "One."},
                {"role": "assistant", "content": "No."},
                {"role": "user", "content": "2"},
            ],
        },
        Prompt(id="other", category="coding", turns=("One.", "2")),
    ),
    ("humaneval", TASK, Prompt(id="HumanEval/0", category="coding", turns=("def add(a, b):\n",))),
    (
        "mbpp",
        {"task_id": 11, "text": TASK_IN_WORDS, "code": "c", "test_list": ["t"]},
        Prompt(id="11", category="coding", turns=(TASK_IN_WORDS,)),
    ),
    (
        "mbpp-sanitized",
        {"source_file": "a.ipynb", "task_id": 2, "prompt": TASK_IN_WORDS, "test_imports": []},
        Prompt(id="2", category="coding", turns=(TASK_IN_WORDS,)),
    ),
    (SPEED_BENCH, AGENT, Prompt(id="q0", category="tools", turns=("weather in A?", "and in B?"))),
    (
        "gsm8k",
        {"question": "Ann has 2 eggs. How many?", "answer": "#### 2"},
        Prompt(id="gsm8k-0", category="math", turns=("Ann has 2 eggs. How many?",)),
    ),
    ("sharegpt", SHARED, Prompt(id="sharegpt-0", category="chat", turns=("Hello.", "Again."))),
    (
        "genai-perf",
        {"text": "Hi.", "output_length": 9},
        Prompt(id="genai-perf-0", category="own", turns=("Hi.",)),
    ),
]
"""By set, a row as it is published, and the prompt that it is."""


def load(name: str, path: Path) -> tuple[Prompt, ...]:
    if name == OWN:
        return load_prompt_file(path)
    return load_published_rows(path, dataset_named(name)).prompts


@pytest.mark.parametrize(("name", "row", "prompt"), EXAMPLES)
def test_each_row_is_read_as_a_line_in_an_array_and_in_parquet(
    name: str, row: dict[str, object], prompt: Prompt, tmp_path: Path
) -> None:
    lines = write_lines(tmp_path / "question.jsonl", [row])
    lines.write_bytes(lines.read_bytes() + b"\n\n")
    assert load(name, lines) == (prompt,)
    array = tmp_path / "array.json"
    array.write_text("\ufeff \n" + json.dumps([row], indent=1))
    assert load(name, array) == (prompt,)
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "test.parquet")
    assert load(name, tmp_path / "test.parquet") == (prompt,)


@pytest.mark.parametrize(
    "unused",
    [
        {"prompt_id": [1], "task_id": 1.5, "prompt": 7, "question": False, "text": {"a": 1}},
        {"prompt_id": None, "prompt": None, "question": None, "text": None, "messages": None},
        {"id": {}, "reference": [None], "score": float("nan"), "source": 10**400},
    ],
    ids=["of-other-types", "null", "unknown-columns"],
)
def test_a_column_that_the_prompt_is_not_made_of_may_hold_anything(
    unused: dict[str, object], tmp_path: Path
) -> None:
    path = tmp_path / "question.jsonl"
    path.write_text(json.dumps({**MT_BENCH, **unused}))
    prompt = Prompt(id="111", category="math", turns=("Area?", "And the circle?"))
    assert load("mt-bench", path) == (prompt,)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("11", "11"),
        ('"11"', "11"),
        ('"MBPP/11"', "MBPP/11"),
        ("11.0", "11"),
        ("123456789012345678901234567890", "123456789012345678901234567890"),
        ("-1", "-1"),
        ("0", "0"),
        ("NaN", "mbpp-0"),
        ("null", "mbpp-0"),
        ('""', "mbpp-0"),
    ],
)
def test_an_id_is_a_number_or_a_text_or_the_number_of_its_row(
    written: str, name: str, tmp_path: Path
) -> None:
    row = f'{{"task_id": {written}, "text": "Add."}}'
    for path, content in (("a.jsonl", f"\ufeff{row}\r\n"), ("a.json", f"[{row}]")):
        (tmp_path / path).write_bytes(content.encode())
        assert load("mbpp", tmp_path / path)[0].id == name


def test_an_id_that_parquet_holds_as_a_float_is_a_whole_number(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    ids = pa.array([11.0, float("nan"), None], pa.float64())
    pq.write_table(pa.table({"task_id": ids, "text": ["Add.", "Sort.", "Sum."]}), path)
    assert [prompt.id for prompt in load("mbpp", path)] == ["11", "mbpp-1", "mbpp-2"]


@pytest.mark.parametrize(
    ("content", "turns"),
    [
        ("One.", ("One.",)),
        ([{"type": "text", "text": "One."}], ("One.",)),
        ([{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}], ("One.\nTwo.",)),
        (["One."], ("One.",)),
    ],
)
def test_a_users_content_is_a_text_or_a_list_of_texts(
    content: object, turns: tuple[str, ...], tmp_path: Path
) -> None:
    other_messages = [
        {"role": "developer", "content": 3},
        {"role": "assistant", "content": [{"type": "image_url", "image_url": {}}]},
        {"role": "assistant", "tool_calls": []},
        {"role": "tool", "content": {"celsius": 12}},
        {"role": None, "content": None},
    ]
    row = {**AGENT, "messages": [*other_messages, {"role": "user", "content": content}]}
    path = write_lines(tmp_path / "trace.jsonl", [row])
    assert load(SPEED_BENCH, path)[0].turns == turns


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (3, "`$.messages[1].content` is neither a text nor a list of texts: Expected"),
        ({"url": "a.png"}, "`$.messages[1].content`"),
        ([{"type": "text", "text": None}], "`$.messages[1].content`"),
        (
            [{"type": "image_url", "image_url": {}}],
            "Invalid enum value 'image_url' - at `$[0].type`",
        ),
    ],
)
def test_a_users_content_that_cannot_be_replayed_is_refused(
    content: object, words: str, tmp_path: Path
) -> None:
    row = {**AGENT, "messages": [{"role": "tool"}, {"role": "user", "content": content}]}
    path = write_lines(tmp_path / "trace.jsonl", [AGENT, row])
    with pytest.raises(DatasetError) as error:
        load(SPEED_BENCH, path)
    assert str(error.value).startswith(f"{path}:2: prompt 'q0': ")
    assert words in str(error.value)


def test_an_id_that_is_there_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    rows: list[object] = [{"task_id": task_id, "text": "Add."} for task_id in (1, 2, "1")]
    path = write_lines(tmp_path / "mbpp.jsonl", rows)
    with pytest.raises(DatasetError) as error:
        load("mbpp", path)
    assert str(error.value) == (
        f"{path}:1 and {path}:3: 2 prompts have the id '1'; give each its own"
    )


def test_rows_are_counted_by_the_lines_of_their_file(tmp_path: Path) -> None:
    path = tmp_path / "mbpp.jsonl"
    path.write_bytes(b'\xef\xbb\xbf\r\n \r\n{"text": "Add."}\r\n{"text": 5}\r\n')
    with pytest.raises(DatasetError, match=r"mbpp\.jsonl:4: .*`\$\.text`"):
        load("mbpp", path)


@pytest.mark.parametrize(
    ("name", "row", "words"),
    [
        (OWN, {"id": "a", "turns": ["x"]}, "`category`; a prompt needs an id, a category and"),
        (OWN, {"id": "a", "category": "c", "turn": ["x"]}, "`turn`"),
        (OWN, {"id": "a", "category": "c", "turns": []}, "empty turn"),
        (OWN, {"id": "a" * 201, "category": "c", "turns": ["x"]}, "give it a shorter one"),
        (OWN, {"id": "a", "category": "c", "turns": ["x"], "token_ids": [1]}, "and token_ids"),
        ("mt-bench", {"question_id": 1, "turns": ["x"]}, "category is missing; give the row one"),
        ("mt-bench", {"question_id": 1, "category": "c"}, "prompt '1': turns is missing"),
        ("mt-bench", {"question_id": 1, "category": "c", "turns": ["x", 2]}, "`$.turns[1]`"),
        ("mt-bench", {"question_id": 1.5, "category": "c", "turns": ["x"]}, "`$.question_id`"),
        ("mt-bench", {"question_id": True, "category": "c", "turns": ["x"]}, "`$.question_id`"),
        ("mt-bench", {"question_id": 1, "category": 2, "turns": ["x"]}, "`$.category`"),
        ("mbpp", {"task_id": 12, "text": 5}, "`$.text`"),
        ("mbpp", {"task_id": 12, "code": "c"}, "turns is missing"),
        (SPEED_BENCH, {**AGENT, "messages": "none"}, "`$.messages`"),
        (SPEED_BENCH, {**SPEED, "turns": [PLACEHOLDER]}, "turn 1: a placeholder"),
        (SPEED_BENCH, {**SPEED, "turns": ["x", f"{PLACEHOLDER}\n\nSum"]}, "turn 2: a placeholder"),
        ("gsm8k", {"answer": "#### 5"}, "turns is missing"),
        ("sharegpt", {"conversations": [{"from": 3}]}, "`$.conversations[0].from`"),
        ("genai-perf", {"text": " "}, "empty turn"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(
    name: str, row: dict[str, object], words: str, tmp_path: Path
) -> None:
    rows = [example for example_name, example, _ in EXAMPLES if example_name == name] + [row]
    path = write_lines(tmp_path / "question.json", rows)
    with pytest.raises(DatasetError) as error:
        load(name, path)
    assert str(error.value).startswith(f"{path}:{len(rows)}: ")
    assert words in str(error.value)
    assert ";" in str(error.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"answer": "#### 5"}, "turns is missing"),
        ({"question": 5}, "`$.question`"),
        ({"question": None, "answer": "x"}, "turns is missing"),
    ],
)
def test_a_wrong_row_of_parquet_is_refused_with_its_place(
    row: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "test.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(DatasetError) as error:
        load("gsm8k", path)
    assert str(error.value).startswith(f"{path}:1: ")
    assert words in str(error.value)
    assert str(error.value).endswith(", question or text")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.jsonl", None, "No such file"),
        ("a.parquet", None, "No such file"),
        ("a.jsonl", b"", "holds no prompts; a row needs"),
        ("a.jsonl", b"\xef\xbb\xbf\n", "holds no prompts; a row needs"),
        ("a.jsonl", b"[]", "holds no prompts; a row needs"),
        ("a.jsonl", b"[1", "a.jsonl:1: no comma and no end follows it"),
        ("a.json", b'[{"text": "a"}, {"text" "b"}]', "a.json:2: "),
        ("a.json", b'[{"text": "a"}, {"text": NaN}, {"text": "b"}, }]', "a.json:4: "),
        ("a.jsonl", "a,b\n1,2".encode("utf-16"), r"begins with '.*a.*, needed JSON lines"),
        ("a.json", b'\n{\n  "data": [\n    {"text": "a"}\n  ]\n}', "object over several lines"),
        ("a.jsonl", b"version https://git-lfs.github.com/spec/v1", "begins with 'version https"),
        ("a.jsonl.gz", b"\x1f\x8b\x08 and no more", "can't be unpacked: .*; fetch it again"),
        ("a.parquet", gzip.compress(b'{"text": "a"}', mtime=0)[:-9], "can't be unpacked: .*ended"),
        ("a.parquet", b"PAR1 but not really", "fetch it again"),
        ("a.jsonl", b'{"text": "a"}\n{"text', "a.jsonl:2: "),
        ("a.jsonl", b'{"text": "\xff"}', "a.jsonl:1: "),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "b"}', "a.jsonl:2: "),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    name: str, content: bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DatasetError, match=words) as error:
        load("genai-perf", path)
    assert str(path) in str(error.value)


def test_a_small_file_of_parquet_with_millions_of_rows_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    zeros = pa.array(np.zeros(30_000_000, np.int8))
    texts = pa.DictionaryArray.from_arrays(zeros, pa.array(["x"]))
    pq.write_table(pa.table({"text": texts}), path)
    assert path.stat().st_size < 2**24
    words = "has 30,000,000 rows, and at most 1,000,000 are read; give a file"
    with pytest.raises(DatasetError, match=f"prompt file '{path}': {words}"):
        load("genai-perf", path)


@pytest.mark.parametrize("name", ["a\x1b[31m", "a\n::error::x", "\u202e"], ids=ascii)
@pytest.mark.parametrize("column", ["question_id", "category"])
def test_a_name_that_no_report_could_show_is_refused(
    name: str, column: str, tmp_path: Path
) -> None:
    row = {"question_id": "1", "category": "c", "turns": ["Hello."]} | {column: name}
    path = write_lines(tmp_path / "prompts.jsonl", [row])
    with pytest.raises(DatasetError, match="isn't plain text; rename it"):
        load("mt-bench", path)


@pytest.mark.parametrize("suffix", ["jsonl", "json"])
def test_a_file_that_is_too_long_is_refused_before_it_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"prompts.{suffix}"
    with path.open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(
        DatasetError, match=r"has 1,099,511,627,776 bytes, and at most 1,073,741,824 are"
    ):
        load("genai-perf", path)


def test_a_file_of_more_lines_than_are_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"conversations": []}\n' * 1_000_001)
    with pytest.raises(DatasetError, match="has 1,000,001 rows, and at most 1,000,000 are read"):
        load("sharegpt", path)


def test_a_conversation_without_a_word_of_the_user_is_left_out_and_counted(tmp_path: Path) -> None:
    silent: dict[str, object] = {"id": "s", "conversations": [{"from": "gpt", "value": "Hello!"}]}
    blank: dict[str, object] = {"id": "b", "conversations": [{"from": "human", "value": "\n"}]}
    path = write_lines(tmp_path / "sharegpt.jsonl", [silent, SHARED, {"conversations": []}, blank])
    prompt = Prompt(id="sharegpt-1", category="chat", turns=("Hello.", "Again."))
    published = load_published_rows(path, dataset_named("sharegpt"))
    assert (published.prompts, published.left_out_rows) == ((prompt,), 3)


@pytest.mark.parametrize("name", ["mt-bench", "humaneval", "gsm8k", "sharegpt", "genai-perf"])
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_any_text_is_read_as_it_is_written(name: str, text: str, tmp_path: Path) -> None:
    rows = rows_in(name, [Prompt(id="a", category="c", turns=(f"x{text}",))])
    path = write_lines(tmp_path / "prompts.jsonl", rows)
    assert load(name, path)[0].turns == (f"x{text}",)


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a.jsonl", '{"text": "a"}\n{"text": "x %s y"}'),
        ("a.jsonl", '{"text": "a"}\n{"text": "b", "reply": ["%s"]}'),
        ("a.json", '[{"text": "a"},\n {"text": "x %s y"}, {"text": "b"}]'),
        ("a.json", '[{"text": "a"}, {"te%sxt": "b"}]'),
    ],
)
@pytest.mark.parametrize("half", [r"\ud83d", r"\ude00", r"\ud83dA"])
def test_half_of_a_surrogate_pair_is_refused_with_its_row(
    name: str, written: str, half: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(written % half)
    with pytest.raises(DatasetError) as error:
        load("genai-perf", path)
    assert str(error.value).startswith(f"{path}:2: ")
    assert str(error.value).endswith("; correct the row, or remove it")


def test_half_of_a_surrogate_pair_is_named_in_our_own_format_too(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text(r'{"id": "a", "category": "chat", "turns": ["x \ud83d y"]}')
    with pytest.raises(DatasetError, match="half of a character"):
        load_prompt_file(path)


def zipped(content: bytes, *, files: int = 1) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.mkdir("data")
        archive.writestr("__MACOSX/._a.jsonl", "resources")
        for number in range(files):
            archive.writestr(f"data/{number}.jsonl", content)
    return file.getvalue()


def packed_by_zstandard(content: bytes) -> bytes:
    packed: bytes = pa.compress(content, codec="zstd", asbytes=True)
    return packed


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bz2.compress, lzma.compress, zipped, packed_by_zstandard],
    ids=["gzip", "bzip2", "xz", "zip", "zstandard"],
)
@pytest.mark.parametrize("name", ["HumanEval.jsonl.gz", "5b2f6c"])
def test_a_packed_file_is_read_whatever_its_name(
    pack: Callable[[bytes], bytes], name: str, tmp_path: Path
) -> None:
    """OpenAI publishes HumanEval with gzip; a hub's cache names files by their checksum."""
    path = tmp_path / name
    prompt = Prompt(id="HumanEval/0", category="coding", turns=("def add(a, b):\n",))
    path.write_bytes(pack(json.dumps(TASK).encode()))
    assert load("humaneval", path) == (prompt,)
    table = io.BytesIO()
    pq.write_table(pa.Table.from_pylist([TASK]), table)
    path.write_bytes(pack(table.getvalue()))
    assert load("humaneval", path) == (prompt,)


def test_an_archive_of_several_files_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "sets.zip"
    path.write_bytes(zipped(b'{"text": "a"}', files=2))
    with pytest.raises(DatasetError, match="is an archive of 2 files, needed one file"):
        load("genai-perf", path)


def test_a_file_that_is_packed_twice_is_read(tmp_path: Path) -> None:
    """A server that compresses what it sends packs `HumanEval.jsonl.gz` again."""
    path = tmp_path / "set"
    path.write_bytes(gzip.compress(zipped(json.dumps(TASK).encode())))
    assert len(load("humaneval", path)) == 1


def test_a_file_is_not_unpacked_without_end(tmp_path: Path) -> None:
    path = tmp_path / "set"
    path.write_bytes(gzip.compress(gzip.compress(gzip.compress(json.dumps(TASK).encode()))))
    with pytest.raises(DatasetError, match="begins with"):
        load("humaneval", path)


def test_a_table_of_excel_is_named(tmp_path: Path) -> None:
    path = tmp_path / "set.xlsx"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr("xl/workbook.xml", "<workbook/>")
    with pytest.raises(DatasetError, match="a table of Excel, needed one file of JSON lines"):
        load("genai-perf", path)


def test_a_packed_file_that_unpacks_to_too_much_is_refused() -> None:
    with pytest.raises(OSError, match="is longer than 1 MiB"):
        unpacked(io.BytesIO(gzip.compress(bytes(2**20 + 1))), 2**20)


CONTEXT: dict[str, object] = {"task_id": 1, "prompt": "When?", "context": "It closed in 1931."}
MEANT: list[tuple[str, list[dict[str, object]], dict[str, int]]] = [
    ("humaneval", [CONTEXT, {**CONTEXT, "task_id": 2}], {"context": 2}),
    ("humaneval", [CONTEXT, {"task_id": 2, "prompt": "Why?", "context": None}], {"context": 1}),
    ("humaneval", [{**CONTEXT, "id": 7, "question_id": "q", "context": "", "tools": []}], {}),
    (SPEED_BENCH, [AGENT], {"messages by system": 1, "messages by tool": 1}),
    ("sharegpt", [{**SHARED, "system": "Be brief."}, SHARED], {"messages by gpt": 2, "system": 1}),
    ("gsm8k", [{"question": "How many?", "answer": "#### 2"}], {"answer": 1}),
    ("mbpp", [{"text": "Add.", "prompt": "Add, please."}], {"text": 1}),
]
"""By set, rows that hold more than what is replayed, and how many rows hold it."""


@pytest.mark.parametrize(("name", "rows", "unused"), MEANT)
def test_what_is_not_replayed_is_counted(
    name: str, rows: list[dict[str, object]], unused: dict[str, int], tmp_path: Path
) -> None:
    path = write_lines(tmp_path / "rows.jsonl", rows)
    assert load_published_rows(path, dataset_named(name)).unused == unused


def test_what_is_not_replayed_is_counted_in_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [{**CONTEXT, "choices": ["a"]}, {**CONTEXT, "task_id": 2, "context": None}]
    pq.write_table(pa.Table.from_pylist(rows), path)
    unused = load_published_rows(path, dataset_named("humaneval")).unused
    assert unused == {"choices": 1, "context": 1}


def test_a_file_with_thousands_of_odd_columns_names_some_of_them(tmp_path: Path) -> None:
    rows: list[object] = [
        {"text": "Hi.", "common": 1, f"\x1b[31m{number}{'x' * 99}": 1} for number in range(1000)
    ]
    path = write_lines(tmp_path / "rows.jsonl", rows)
    unused = load_published_rows(path, dataset_named("genai-perf")).unused
    assert unused["common"] == 1000
    assert len(unused) == 50
    assert all(name.isprintable() and len(name) <= 40 for name in unused)


def test_parquet_without_pyarrow_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    path = tmp_path / "test.parquet"
    path.write_bytes(b"PAR1")
    words = r'needs pyarrow, which isn.t installed; uv pip install -e "\.\[datasets\]"'
    with pytest.raises(DatasetError, match=words):
        load("gsm8k", path)
