"""Locks of files: a folder in which none can be made is refused by its name."""

from pathlib import Path

import pytest

from specreg.core.errors import SpecregError
from specreg.core.locks import check_locks


def test_a_folder_in_which_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    """As root one may write anywhere, says `os.access`, which isn't true of every file system."""
    check_locks(tmp_path / "not/there/yet")
    folder = Path("/proc/cache")
    with pytest.raises(SpecregError, match="folder '/proc/cache': no file can be written") as error:
        check_locks(folder)
    assert "SPECREG_CACHE" in str(error.value)
    assert isinstance(error.value.__cause__, OSError)
