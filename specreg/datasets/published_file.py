"""Read the file of a published set in a process of its own, whose memory is limited.

A small Parquet file may unpack to gigabytes, and a broken one may crash a decoder that is written
in C, especially if an allocation fails. In a process of its own, neither harms the caller.
"""

import contextlib
import importlib
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from specreg.core.errors import DatasetError, SpecregError
from specreg.core.processes import child_process, new_temporary
from specreg.datasets.prompt_files import PublishedPrompts, load_examples, load_published_rows
from specreg.datasets.table import PromptSet

_MAX_MEMORY_BYTES = 6 * 2**30
"""The memory that reading a file may take. ShareGPT, the largest published set, takes less than
3 GiB."""
_READER = (sys.executable, "-P", "-m", "specreg.datasets.published_file")
_OUT_OF_MEMORY = 3
"""The exit status of a reader that ran out of memory and could still report it."""


class _Order(msgspec.Struct, frozen=True, kw_only=True):
    """A request to the reader.

    Attributes:
        path: the file.
        prompt_set: the set that it belongs to.
        has_examples: True if the file has the worked examples of the set instead of its prompts.
        most_memory_bytes: how much memory the reader may use besides what it uses at its start.
    """

    path: str
    prompt_set: PromptSet
    has_examples: bool
    most_memory_bytes: int


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the reader.

    Attributes:
        published: what the file holds; None if it was refused.
        refusal: why the file was refused; empty if it wasn't.
    """

    published: PublishedPrompts | None = None
    refusal: str = ""


def read_published_file(
    path: Path,
    prompt_set: PromptSet,
    *,
    has_examples: bool = False,
    most_memory_bytes: int = _MAX_MEMORY_BYTES,
    command: Sequence[str] = _READER,
) -> PublishedPrompts:
    """Load the prompts of the file of a published set; see `load_published_rows`.

    Args:
        path: the file.
        has_examples: True if the file has the worked examples of the set instead of its prompts.
        most_memory_bytes: how much memory that may take.
        command: the program that reads.

    Raises:
        DatasetError: as in `load_published_rows`; or reading the file takes too much memory, or
            crashes the reader.
        OSError, UnkillableError: As in `child_process`.
    """
    order = _Order(
        path=str(path),
        prompt_set=prompt_set,
        has_examples=has_examples,
        most_memory_bytes=most_memory_bytes,
    )
    temporary = new_temporary()
    with child_process(command, log_path=temporary / "log", temporary=temporary) as reader:
        reader.send(order)
        answer = reader.receive(_Answer)
        if answer is None:
            # The reader has ended without an answer.
            status = reader.popen.wait()
            raise DatasetError(_why_broken_off(path, status, most_memory_bytes))

    if answer.published is None:
        raise DatasetError(answer.refusal)
    return answer.published


def _why_broken_off(path: Path, status: int, most_memory_bytes: int) -> str:
    """Return the message about a file whose reader has ended without an answer.

    Args:
        path: the file.
        status: the reader's exit status, or the negative number of the signal that ended it.
        most_memory_bytes: how much memory the reader could use.
    """
    problem = f"takes more than {most_memory_bytes / 2**30:g} GiB of memory to read"
    if status != _OUT_OF_MEMORY:
        end = f"status {status}"
        if status < 0:
            end = signal.Signals(-status).name
        problem += f", or is broken: its reader ended with {end}"
    return f"prompt file '{path}': {problem}; give a file with the rows that are to be replayed"


def _main() -> None:
    """Read the file that a line of the standard input names, and answer with a line."""
    order = msgspec.json.decode(sys.stdin.buffer.readline(), type=_Order)

    # The limit is meant for the file, so the code of the decoder is imported before the limit is
    # set. If the decoder is missing, `load_published_rows` refuses the file.
    with contextlib.suppress(ImportError):
        importlib.import_module("pyarrow.parquet")
    limit_bytes = psutil.Process().memory_info().vms + order.most_memory_bytes
    _, highest_bytes = resource.getrlimit(resource.RLIMIT_AS)
    if highest_bytes != resource.RLIM_INFINITY:
        limit_bytes = min(limit_bytes, highest_bytes)
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, highest_bytes))
    load = load_examples if order.has_examples else load_published_rows
    try:
        answer = _Answer(published=load(Path(order.path), order.prompt_set))
    except SpecregError as error:
        answer = _Answer(refusal=str(error))

    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        _main()
    except MemoryError:
        sys.exit(_OUT_OF_MEMORY)
