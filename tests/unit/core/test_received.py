"""Folders of other machines: only their own regular files are read, and nothing leads out of ours.

All that reads a file of this machine is here too: what is no regular file keeps nobody waiting.
"""

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath

import pytest

from specreg.baselines.schema import load_baseline, load_published
from specreg.core.errors import SpecregError
from specreg.core.files import file_sha256, replace_file
from specreg.core.names import MAX_CASE_CHARACTERS, check_spelling, is_name
from specreg.core.received import (
    copy_received,
    read_received,
    received_files,
    write_below,
    write_received,
)
from specreg.datasets.prepare import load_record
from specreg.datasets.prompt_files import load_prompt_file
from specreg.datasets.table import dataset_named
from specreg.matrix.models import vocabulary_of
from specreg.matrix.tier import load_tier
from specreg.report.files import load_report, load_verdict
from specreg.runs.ledger import Ledger, read_ledger
from specreg.verdicts.history import load_history
from tests.unit.builders.histories import LATER
from tests.unit.builders.started_servers import at_most_cpu

ODD_NAMES = (
    "..",
    ".",
    "",
    "a/../../x",
    "/etc/passwd",
    "a//b",
    "a\0b",
    "é",
    "\uff41",
    "x" * 300,
    "a\n",
)


def test_a_file_of_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/x.log").write_bytes(b"words")
    assert read_received(tmp_path, "logs/x.log", 5) == b"words"
    assert [str(name) for name in received_files(tmp_path)] == ["logs/x.log"]


def test_a_file_that_is_longer_than_it_may_be_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"words")
    with pytest.raises(OSError, match="is longer than"):
        read_received(tmp_path, "x", 4)


@pytest.mark.parametrize("name", ODD_NAMES)
def test_no_name_leads_out_of_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    for attempt in (
        lambda: read_received(tmp_path / "folder", name, 100),
        lambda: write_below(tmp_path / "folder", name, b"x"),
    ):
        with pytest.raises(OSError, match="is an odd name"):
            attempt()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_folder_on_the_way_is_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    folder = tmp_path / "folder"
    outside.mkdir()
    folder.mkdir()
    (outside / "x").write_text("secret")
    (folder / "logs").symlink_to(outside)
    with pytest.raises(OSError, match="is a symbolic link, needed a folder"):
        read_received(folder, "logs/x", 100)
    with pytest.raises(OSError, match="is a link, or no folder"):
        write_below(folder, "logs/y", b"x")
    with pytest.raises(OSError, match="is a symbolic link, needed a folder"):
        received_files(folder)
    assert not (outside / "y").exists()


def test_what_is_written_takes_the_place_of_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    folder = tmp_path / "folder"
    outside.write_text("theirs")
    folder.mkdir()
    (folder / "x").symlink_to(outside)
    write_below(folder, "x", b"ours")
    (folder / "y").symlink_to(outside)
    copy_received(folder, "x", folder, "y", 100)
    assert outside.read_text() == "theirs"
    assert (folder / "x").read_text() == (folder / "y").read_text() == "ours"


def test_a_part_file_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    """Its name can be guessed, and it lies in a folder that others may write to."""
    outside = tmp_path / "outside"
    outside.write_text("theirs")
    part = tmp_path / f".x.{os.uname().nodename}.{os.getpid()}.part"
    part.symlink_to(outside)
    replace_file(tmp_path / "x", b"ours")
    assert (outside.read_text(), (tmp_path / "x").read_text()) == ("theirs", "ours")


def test_a_folder_of_too_much_is_not_walked_to_its_end(tmp_path: Path) -> None:
    deep = tmp_path / "/".join("d" * 20)
    deep.mkdir(parents=True)
    with pytest.raises(OSError, match="folders deep"):
        received_files(tmp_path)


def test_a_folder_of_more_than_fits_a_disk_is_not_copied(tmp_path: Path) -> None:
    """Files with holes are small where they come from, and grow when they are copied."""
    for number in range(9):
        with (tmp_path / f"{number}.log").open("wb") as log:
            log.truncate(2**30)
    with pytest.raises(OSError, match="holds more than 8 GiB"):
        received_files(tmp_path)


@pytest.mark.parametrize("name", ["a", "a.b-c_1", "A" * 64, "...", "-"])
def test_names_are_spelled_so(name: str) -> None:
    assert is_name(name)
    check_spelling("pair", name)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "a\n", "é", "\u0430", "a\0", "A" * 65]
)
def test_other_spellings_are_refused(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(SpecregError, match="give it another name"):
        check_spelling("pair", name)


def test_an_id_of_a_case_may_be_longer() -> None:
    check_spelling("case", "x" * MAX_CASE_CHARACTERS, MAX_CASE_CHARACTERS)
    with pytest.raises(SpecregError, match="1 to 128"):
        check_spelling("case", "x" * (MAX_CASE_CHARACTERS + 1), MAX_CASE_CHARACTERS)


def read_history(path: Path) -> None:
    if wrong := load_history(path, LATER).problem:
        raise SpecregError(wrong)


def read_verdict(path: Path) -> None:
    if load_verdict(path) is None:
        raise SpecregError("none that can be read")


def read_published(path: Path) -> None:
    published = path.parent / "published"
    published.mkdir()
    path.rename(published / "one.json")
    load_published(path.parent)


def read_pairs(path: Path) -> None:
    (path.parent / "matrix").mkdir()
    (path.parent / "matrix/one.toml").write_text("needs_gpus = 0\ncases = []\n")
    (path.parent / "models").mkdir()
    path.rename(path.parent / "models/pairs.toml")
    load_tier(path.parent / "matrix", "one")


def read_tier(path: Path) -> None:
    path.rename(path.with_name("one.toml"))
    load_tier(path.parent, "one")


def read_prompts(path: Path) -> None:
    load_prompt_file(path)


def read_parquet(path: Path) -> None:
    load_prompt_file(path.rename(path.with_name("rows.parquet")))


def read_prepared(path: Path) -> None:
    path.rename(path.with_name("gsm8k.json"))
    load_record(path.parent, dataset_named("gsm8k"))


def read_prepared_prompts(path: Path) -> None:
    path.rename(path.with_name("gsm8k.jsonl"))
    (path.parent / "gsm8k.json").write_text("{}")
    load_record(path.parent, dataset_named("gsm8k"))


def read_config(path: Path) -> None:
    path.rename(path.with_name("config.json"))
    vocabulary_of(str(path.parent))


def read_weights(path: Path) -> None:
    try:
        file_sha256(path)
    except OSError as error:
        raise SpecregError(str(error.strerror)) from error


def take_ledger(path: Path) -> None:
    Ledger(path.with_name("ours.jsonl")).take(path)


READERS: tuple[Callable[[Path], object], ...] = (
    *(load_baseline, read_published, read_tier, read_pairs, read_prompts, read_parquet),
    *(read_prepared, read_prepared_prompts, read_config, read_weights, read_history),
    *(load_report, read_verdict, read_ledger, take_ledger),
)


@pytest.mark.parametrize("read", READERS)
def test_a_fifo_ends_in_words_whatever_it_stands_for(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "file"
    os.mkfifo(path)
    with at_most_cpu(5.0), pytest.raises(SpecregError):
        read(path)


@pytest.mark.parametrize("read", READERS)
def test_a_link_to_a_device_ends_in_words_whatever_it_stands_for(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    """It never ends."""
    path = tmp_path / "file"
    path.symlink_to("/dev/zero")
    with at_most_cpu(5.0), pytest.raises(SpecregError):
        read(path)


@pytest.mark.parametrize("read", READERS)
def test_a_socket_ends_in_words_whatever_it_stands_for(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    path = tmp_path / "file"
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))
    with at_most_cpu(5.0), pytest.raises(SpecregError):
        read(path)


def test_the_files_of_a_run_folder_are_written_by_their_names(tmp_path: Path) -> None:
    write_received({"plan.json": b"{}", "logs/server.log": b"words"}, tmp_path / "1")
    assert received_files(tmp_path / "1") == [
        PurePosixPath("logs/server.log"),
        PurePosixPath("plan.json"),
    ]
    assert (tmp_path / "1/logs/server.log").read_bytes() == b"words"


UNWRITTEN = {
    "too-many": dict.fromkeys(map(str, range(20_001)), b""),
    "too-deep": {"a/" * 9 + "x": b""},
    "outside": {"../x": b"x"},
    "outside-from-within": {"logs/../../x": b"x"},
    "absolute": {"/etc/x": b"x"},
    "no-name": {"": b"x"},
    "below-a-file": {"x": b"x", "x/y": b"x"},
    "for-a-folder": {"x/y": b"x", "x": b"x"},
}


@pytest.mark.parametrize("files", UNWRITTEN.values(), ids=UNWRITTEN)
def test_files_that_make_no_run_folder_are_refused(
    tmp_path: Path, files: Mapping[str, bytes]
) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - the system refuses some of them
        write_received(files, tmp_path / "runs/1")
    paths = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert all(path.is_relative_to(tmp_path / "runs/1") for path in paths)
