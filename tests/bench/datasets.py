"""How long 10,000 prompts take to load and to check: `python -m tests.bench.datasets`, seconds.

Each form is read from a file of its own rows, and the largest set is prepared and loaded as a run
does it. A prompt has two kilobytes, or one turn of them where its form holds one.
"""

import functools
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from specreg.datasets.formats import FORMATS, Format
from specreg.datasets.prepare import Preparation, load_prompts, prepare
from specreg.datasets.prompts import Prompt
from specreg.datasets.table import dataset_named
from tests.unit.builders import rows_in, write_lines

PROMPTS = 10_000
REPEATS = 5


def median_s(action: Callable[[], object]) -> float:
    """How long something takes, in seconds: the median of a few times."""
    taken = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        action()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def prompts_for(form: Format) -> list[Prompt]:
    """As many prompts as are measured, of eight categories."""
    turns = 1 if form.name in {"gsm8k", "humaneval", "genai-perf"} else 2
    return [
        Prompt(
            id=f"prompt-{number}",
            category=f"category {number % 8}",
            turns=tuple(f"{number}.{turn} " + "word " * (400 // turns) for turn in range(turns)),
        )
        for number in range(PROMPTS)
    ]


def main() -> None:
    """Prints the seconds of each form, and of a prepared set."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for form in FORMATS.values():
            lines, table = folder / f"{form.name}.jsonl", folder / f"{form.name}.parquet"
            rows = rows_in(form.name, prompts_for(form))
            write_lines(lines, rows)
            pq.write_table(pa.Table.from_pylist(rows), table)
            for path in (lines, table):
                print(f"{path.name}: {median_s(lambda: form.load(path)):.2f} s")  # noqa: B023, T201
        asked = Preparation(data_dir=folder / "sets", given=folder / "sharegpt.jsonl")
        sharegpt = dataset_named("sharegpt")
        load = functools.partial(load_prompts, root=folder, vocabulary=int, data_dir=asked.data_dir)
        began = time.perf_counter()
        prepare(sharegpt, asked)
        print(f"prepare sharegpt: {time.perf_counter() - began:.2f} s")  # noqa: T201
        loading_s = median_s(lambda: load(sharegpt))
        print(f"load a prepared set: {loading_s:.2f} s")  # noqa: T201


if __name__ == "__main__":
    main()
