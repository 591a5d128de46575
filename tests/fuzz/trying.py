"""Samples with something wrong in them; silent where each ends in words or in a reading."""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from specreg.core.errors import SpecregError
from tests.fuzz.mutations import Mutation
from tests.unit.builders.started_servers import at_most

_BLOCK_S = 900.0
"""How long a block of cases may take on a machine as busy as any: none may wait for ever."""
_CASE_CPU_S = 20.0
"""How much time of a processor a case may take, however busy the machine is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What a server has answered, or a file; `read` reads it as a run does, in an own folder."""

    content: bytes
    wrong: Mutation
    read: Callable[[Path, bytes], object]


def try_all(numbers: Iterable[int], kinds: Sequence[Sequence[Sample]], folder: Path) -> None:
    """Tries each number, the seed of a case; the error of one says how to try it alone.

    What is read may raise a SpecregError of one line or more, and nothing else.
    """
    with at_most(_BLOCK_S):
        for number in numbers:
            rng = random.Random(number)  # noqa: S311 - a case, no secret
            kind = rng.choice(rng.choice(kinds))
            content = kind.wrong(rng, kind.content)
            began_s = time.process_time()
            try:
                kind.read(folder, content)
            except SpecregError as error:
                words = str(error)
                assert words.strip(), f"case {number}: it says nothing"
                assert len(words) < 20_000, f"case {number}: it says too much"
            except Exception as error:
                error.add_note(f"case {number}: nox -s fuzz -- --only {number}")
                raise
            except pytest.fail.Exception:
                pytest.fail(f"case {number} takes too long: nox -s fuzz -- --only {number}")
            cpu_s = time.process_time() - began_s
            assert cpu_s < _CASE_CPU_S, f"case {number} takes {cpu_s:.0f} s of a processor"


def read_all_sound(samples: Iterable[Sample], folder: Path) -> None:
    """Read each sample as it is, in a folder of its own: what is sound must not be refused."""
    for number, sample in enumerate(samples):
        own_folder = folder / str(number)
        own_folder.mkdir()
        sample.read(own_folder, sample.content)
