"""Every form, on files as they are published: read, and refused with their place."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specreg.core.errors import DatasetError
from specreg.datasets.formats import FORMATS
from specreg.datasets.prompts import Prompt
from tests.unit import builders
from tests.unit.builders import rows_in, write_lines

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"

CODE = 'Mend: print(f"{question}: {answer}")'
MT_BENCH: dict[str, object] = {
    "question_id": 111,
    "category": "math",
    "turns": ["The vertices are at (0, 0). Area?", "And the circle?"],
    "reference": ["3", "18π"],
}
SPEED: dict[str, object] = {
    "question_id": "4f1ac0f2b9e14f3a8d1f3ad7fb1a4f0e",
    "category": "coding",
    "sub_category": "python",
    "turns": [CODE, "Shorter."],
    "source": "https://huggingface.co/datasets/AdaLEval/stackselect",
    "src_id": "17",
    "difficulty": "easy",
    "multiturn": True,
}
TASK: dict[str, object] = {
    "task_id": "HumanEval/0",
    "prompt": "def add(a, b):\n    '''The sum.'''\n",
    "canonical_solution": "    return a + b\n",
    "test": "def check(candidate): ...\n",
    "entry_point": "add",
}
SUM: dict[str, object] = {
    "question": "Ann has 2 eggs and buys 3. How many?",
    "answer": "2 + 3 = 5\n#### 5",
}
SHARED: dict[str, object] = {
    "id": "QWJhYvA_0",
    "conversations": [
        {"from": "human", "value": "Hello."},
        {"from": "gpt", "value": "Hello!"},
        {"from": "human", "value": "Again."},
        {"from": "gpt", "value": "Hello again!"},
    ],
}
EXAMPLES: dict[str, list[tuple[dict[str, object], Prompt]]] = {
    "specreg": [
        (
            {"id": "a", "category": "chat", "turns": ["Hello.", "Again."]},
            Prompt(id="a", category="chat", turns=("Hello.", "Again.")),
        ),
        (
            {"id": "b", "category": "random", "token_ids": [3, 1]},
            Prompt(id="b", category="random", token_ids=(3, 1)),
        ),
    ],
    "questions": [
        (
            MT_BENCH,
            Prompt(
                id="111",
                category="math",
                turns=("The vertices are at (0, 0). Area?", "And the circle?"),
            ),
        ),
        (
            {"prompt_id": 81, "category": "writing", "prompt": ["Write.", "Rewrite."]},
            Prompt(id="81", category="writing", turns=("Write.", "Rewrite.")),
        ),
    ],
    "speed-bench": [
        (
            SPEED,
            Prompt(
                id="4f1ac0f2b9e14f3a8d1f3ad7fb1a4f0e", category="coding", turns=(CODE, "Shorter.")
            ),
        ),
        (
            {
                **{key: value for key, value in SPEED.items() if key != "turns"},
                "question_id": "other",
                "messages": [{"role": "user", "content": "One."}, {"role": "user", "content": "2"}],
            },
            Prompt(id="other", category="coding", turns=("One.", "2")),
        ),
    ],
    "humaneval": [
        (
            TASK,
            Prompt(
                id="HumanEval/0", category="coding", turns=("def add(a, b):\n    '''The sum.'''\n",)
            ),
        )
    ],
    "gsm8k": [
        (
            SUM,
            Prompt(id="gsm8k-0", category="math", turns=("Ann has 2 eggs and buys 3. How many?",)),
        )
    ],
    "sharegpt": [(SHARED, Prompt(id="sharegpt-0", category="chat", turns=("Hello.", "Again.")))],
    "genai-perf": [
        (
            {"text": "Hi.", "output_length": 9},
            Prompt(id="genai-perf-0", category="own", turns=("Hi.",)),
        )
    ],
}
"""By form, rows as they are published, and the prompts that they are."""

MALFORMED = [
    ("specreg", {"id": "a", "turns": ["x"]}, "`category`"),
    ("specreg", {"id": "a", "category": "c", "turn": ["x"]}, "`turn`"),
    ("specreg", {"id": "a", "category": "c", "turns": []}, "empty turn"),
    ("specreg", {"id": "a", "category": "c", "turns": ["x"], "token_ids": [1]}, "and token_ids"),
    ("questions", {"category": "c", "turns": ["x"]}, "question_id is missing"),
    ("questions", {"question_id": 1, "category": "c"}, "turns is missing"),
    ("questions", {"question_id": 1, "category": "c", "turns": ["x", 2]}, "`$.turns[1]`"),
    ("questions", {"question_id": 1.5, "category": "c", "turns": ["x"]}, "`$.question_id`"),
    ("speed-bench", {"question_id": "q", "category": "c"}, "turns is missing"),
    ("speed-bench", {**SPEED, "turns": [PLACEHOLDER]}, "turn 1: a placeholder"),
    ("speed-bench", {**SPEED, "turns": ["x", f"{PLACEHOLDER}\n\nSum up {{article}}"]}, "turn 2: a"),
    (
        "speed-bench",
        {**SPEED, "source": "abisee/cnn_dailymail", "turns": ["Sum up:\n{article}"]},
        "the template's {article} was never filled",
    ),
    (
        "speed-bench",
        {**SPEED, "source": "livecodebench/code_generation_lite", "turns": ["{starter_code}"]},
        "{starter_code} was never filled",
    ),
    (
        "speed-bench",
        {
            "question_id": "q",
            "category": "c",
            "messages": [{"role": "user", "content": "You are {role_name}."}],
        },
        "{role_name} was never filled",
    ),
    (
        "speed-bench",
        {"question_id": "q", "category": "c", "messages": [{"role": "user"}]},
        "`content` - at `$.messages[0]`",
    ),
    ("humaneval", {"prompt": "def f():"}, "`task_id`"),
    ("gsm8k", {"answer": "#### 5"}, "`question`"),
    ("sharegpt", {"id": "x"}, "`conversations`"),
    ("sharegpt", {"conversations": [{"from": "human"}]}, "`value` - at `$.conversations[0]`"),
    ("genai-perf", {"prompt": "x"}, "`text`"),
    ("genai-perf", {"text": " "}, "empty turn"),
]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("kind", ["lines", "array", "parquet"])
def test_each_format_is_read_as_lines_array_and_parquet(
    kind: str, name: str, tmp_path: Path
) -> None:
    path = tmp_path / ("test.parquet" if kind == "parquet" else "question.jsonl")
    for number, (row, prompt) in enumerate(EXAMPLES[name]):
        if kind == "parquet":  # each has columns of its own
            pq.write_table(pa.Table.from_pylist([row]), path)
        elif kind == "array":
            path.write_text("\ufeff \n" + json.dumps([row], indent=1))
        else:
            write_lines(path, [one for one, _ in EXAMPLES[name]])
        prompts, left_out_rows = FORMATS[name].load(path)
        assert prompts[number if kind == "lines" else 0] == prompt
        assert left_out_rows == 0


@pytest.mark.parametrize(("name", "row", "words"), MALFORMED)
def test_a_wrong_row_is_refused_with_its_place(
    name: str, row: dict[str, object], words: str, tmp_path: Path
) -> None:
    rows = [*(one for one, _ in EXAMPLES[name]), row]
    path = write_lines(tmp_path / "question.json", rows)
    with pytest.raises(DatasetError) as error:
        FORMATS[name].load(path)
    assert str(error.value).startswith(f"{path}:{len(rows)}: ")
    assert words in str(error.value)
    assert ";" in str(error.value)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        pytest.param({"answer": "#### 5"}, "`question`", id="no-column"),
        pytest.param({"question": 5}, "`$.question`", id="wrong-type"),
        pytest.param({"question": None, "answer": "x"}, "`question`", id="no-value"),
    ],
)
def test_a_wrong_row_of_parquet_is_refused_with_its_place(
    row: dict[str, object], words: str, tmp_path: Path
) -> None:
    path = tmp_path / "test.parquet"
    pq.write_table(pa.Table.from_pylist([row]), path)
    with pytest.raises(DatasetError) as error:
        FORMATS["gsm8k"].load(path)
    assert str(error.value).startswith(f"{path}:1: ")
    assert words in str(error.value)
    assert str(error.value).endswith("; a row of 'gsm8k' needs question (a text)")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("a.jsonl", None, "No such file", id="missing"),
        pytest.param("a.parquet", None, "No such file", id="missing Parquet"),
        pytest.param("a.jsonl", b"", "is empty; fetch it again", id="empty"),
        pytest.param("a.jsonl", b"\xef\xbb\xbf\n", "is empty; fetch it again", id="a mark"),
        pytest.param("a.jsonl", b"[]", "asks nothing; a row of 'genai-perf' needs", id="no rows"),
        pytest.param("a.jsonl", b"[1", "truncated; a row of 'genai-perf' needs", id="cut off"),
        pytest.param("a.parquet", b"PAR1 but not really", "fetch it again", id="no Parquet"),
        pytest.param("a.jsonl", b'{"text": "a"}\n\n', "", id="lines after the last row"),
        pytest.param("a.jsonl", b'{"text": "a"}\n{"text', "a.jsonl:2: ", id="a torn row"),
        pytest.param("a.jsonl", b'{"text": "\xff"}', "a.jsonl:1: ", id="no UTF-8"),
        pytest.param("a.jsonl", b'{"text": "a"}\n\n{"text": "b"}', "a.jsonl:2: ", id="blank"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(
    name: str, content: bytes | None, words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    if not words:
        assert len(FORMATS["genai-perf"].load(path)[0]) == 1
        return
    with pytest.raises(DatasetError, match=words) as error:
        FORMATS["genai-perf"].load(path)
    assert str(path) in str(error.value)


def test_a_conversation_without_a_word_of_the_user_is_left_out_and_counted(tmp_path: Path) -> None:
    silent: dict[str, object] = {"id": "s", "conversations": [{"from": "gpt", "value": "Hello!"}]}
    blank: dict[str, object] = {"id": "b", "conversations": [{"from": "human", "value": "\n"}]}
    path = write_lines(tmp_path / "sharegpt.jsonl", [silent, SHARED, {"conversations": []}, blank])
    prompt = Prompt(id="sharegpt-1", category="chat", turns=("Hello.", "Again."))
    assert FORMATS["sharegpt"].load(path) == ((prompt,), 3)


@pytest.mark.parametrize("text", ["f'{article}'", "{question}", "\\frac{x}{y} {{article}}"])
def test_braces_of_code_are_no_leftover(text: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "qualitative.jsonl", [{**SPEED, "turns": [text]}])
    assert FORMATS["speed-bench"].load(path)[0][0].turns == (text,)


@pytest.mark.parametrize("name", FORMATS)
@settings(
    max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(str.strip))
def test_any_text_is_read_as_it_is_written(name: str, text: str, tmp_path: Path) -> None:
    rows = rows_in(name, [Prompt(id="a", category="c", turns=(f"x{text}",))])
    path = write_lines(tmp_path / "prompts.jsonl", rows)
    assert FORMATS[name].load(path)[0][0].turns == (f"x{text}",)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    pq.write_table(pa.table({"question": ["x"]}), path)
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from pathlib import Path; from specreg.datasets.formats import FORMATS\n"
        f"FORMATS['gsm8k'].load(Path({str(path)!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=builders.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode
    assert 'takes pyarrow, which isn\'t installed; uv pip install -e ".[datasets]"' in done.stderr
