"""What processes leave in /dev/shm goes with them, and nobody else's does."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.core.supervisor import FOLDER, remove_shared, shared_files, used_by

# Has a file there: open, mapped alone, or as glibc makes a semaphore: mapped under another name,
# which is then taken away. Says so, and waits.
SHARING = """
import mmap, os, sys
name = sys.argv[1] + ("-first" if sys.argv[2] == "linked" else "")
file = open(name, "w+b")
file.truncate(mmap.PAGESIZE)
if sys.argv[2] == "linked":
    os.link(name, sys.argv[1])
    os.unlink(name)
if sys.argv[2] != "open":
    held = mmap.mmap(file.fileno(), mmap.PAGESIZE)
    file.close()
print(flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path() -> Iterator[Path]:
    path = FOLDER / f"specreg-test-{uuid.uuid4().hex[:8]}"
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["open", "mapped", "linked"])
def test_what_is_left_of_a_process_goes_and_not_before(path: Path, how: str) -> None:
    command = (sys.executable, "-c", SHARING, str(path), how)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert path.name in shared_files()
        assert used_by([process.pid]) == {path.name}
        remove_shared([path.name])
        assert path.exists(), "it is in use"
    assert path.exists()
    assert used_by([process.pid]) == set()
    remove_shared([path.name, "no-such-file"])
    assert not path.exists()
