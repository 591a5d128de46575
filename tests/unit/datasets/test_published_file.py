"""A file of a published set is read in a process whose memory is limited."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from specreg.core.errors import DatasetError
from specreg.datasets.prompts import Prompt
from specreg.datasets.published_file import read_published_file
from specreg.datasets.table import dataset_named
from tests.unit.builders import write_lines

ROW: dict[str, object] = {"question": "How many?"}


def test_rows_are_read_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    pq.write_table(pa.Table.from_pylist([ROW]), path)
    prompt = Prompt(id="gsm8k-0", category="math", turns=("How many?",))
    published = read_published_file(path, dataset_named("gsm8k"))
    assert (published.prompts, published.left_out_rows) == ((prompt,), 0)


def test_a_wrong_row_is_named(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "prompts.jsonl", [ROW, {"question": 1}])
    with pytest.raises(DatasetError, match=re.escape(f"{path}:2: ")):
        read_published_file(path, dataset_named("gsm8k"))


def test_a_file_that_crashes_its_reader_is_named(tmp_path: Path) -> None:
    path = tmp_path / "test.parquet"
    command = (sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    words = "takes more than 6 GiB of memory to read, or is broken: its reader ended with SIGSEGV;"
    with pytest.raises(DatasetError, match=f"prompt file '{path}': {words} give a file"):
        read_published_file(path, dataset_named("gsm8k"), command=command)


@pytest.mark.parametrize(
    "column",
    [
        {"turns": [["x"] * 3_000_000]},
        {"messages": [[{"role": "user", "content": "x"}] * 300_000]},
        {"text": ["x" * 40_000_000] * 2},
    ],
    ids=["turns", "messages", "text"],
)
def test_a_small_file_of_parquet_that_would_fill_the_memory_is_refused(
    column: Mapping[str, Sequence[object]], tmp_path: Path
) -> None:
    """Equal values are stored once, also in lists, and each of them takes memory when read."""
    path = tmp_path / "test.parquet"
    pq.write_table(pa.table({name: pa.array(rows) for name, rows in column.items()}), path)
    words = "takes more than 0.0625 GiB of memory to read"
    with pytest.raises(DatasetError, match=f"prompt file '{path}': {words}"):
        read_published_file(path, dataset_named("genai-perf"), most_memory_bytes=2**26)


def test_a_long_row_of_json_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    objects = ",".join(["{}"] * 10_000_000)
    path.write_text(f'{{"messages": [{{"content": [{objects}]}}]}}')
    words = "takes more than 0.5 GiB of memory to read"
    with pytest.raises(DatasetError, match=words):
        read_published_file(path, dataset_named("sharegpt"), most_memory_bytes=2**29)
