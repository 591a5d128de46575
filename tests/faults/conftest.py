"""What tests share that start servers in this process, and not in a run of their own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.core.supervisor import shared_files
from tests.faults.running import shared_left


@pytest.fixture
def empty_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A folder for temporary files, in which nothing may be left; nor in /dev/shm."""
    del tmp_path  # which is made before, elsewhere
    before = shared_files()
    with tempfile.TemporaryDirectory(prefix="hurt-") as folder:  # short, as sockets lie in it
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield
        assert not list(Path(folder).iterdir())
    assert not shared_left(before)
