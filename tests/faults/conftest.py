"""What is to be hurt, and that nothing is left of it afterwards."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.core.shared_memory import shared_files
from tests.faults.running import Hurt, shared_left


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Hurt]:
    """A run on the scripted server, which a module or a test changes before it starts."""
    run = Hurt(folder=tmp_path)
    yield run
    assert run.left() == []


@pytest.fixture
def empty_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For servers in this process: none of its temporary files may be left, nor shared memory."""
    del tmp_path  # which is made before, elsewhere
    before = shared_files()
    with tempfile.TemporaryDirectory(prefix="hurt-") as folder:  # short, as sockets lie in it
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
        assert not list(Path(folder).iterdir())
    assert not shared_left(before)
