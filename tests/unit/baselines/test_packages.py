"""The packages with which a baseline was recorded, and how a later run's differ from them."""

import dataclasses
from pathlib import Path

import msgspec
import pytest

from specreg.baselines.packages import (
    package_remarks,
    packages_path,
    record_packages,
    recorded_packages,
    render_differences,
)
from specreg.baselines.record import RecordingNotes, record_measurements
from specreg.baselines.schema import Baseline, load_baseline, read_baselines, render_baseline
from specreg.baselines.store import BaselineStore
from specreg.core.errors import BaselineError
from specreg.engines.launch_facts import LaunchFacts
from specreg.measurement.measure import Measurement
from specreg.servers.installer import packages_sha256
from tests.unit import builders

PACKAGES = ("numpy==2.4.5", "six==1.17.0")
SHA256 = packages_sha256(PACKAGES)
NEWER = ("numpy==2.4.6", "six==1.17.0")


def measured(*packages: str, version: str = "0.32.0") -> Measurement:
    measurement = builders.measurement({}, of=builders.counts(0, 1))
    return dataclasses.replace(measurement, packages=packages, engine_version=version)


def baseline(sha256: str = SHA256) -> Baseline:
    plain = builders.baseline(of=builders.counts(0, 1))
    provenance = msgspec.structs.replace(plain.provenance, packages_sha256=sha256)
    return msgspec.structs.replace(plain, provenance=provenance)


def test_a_list_of_packages_comes_back_as_it_was(tmp_path: Path) -> None:
    record_packages(tmp_path, PACKAGES)
    path = packages_path(tmp_path, SHA256)
    assert path == tmp_path / "packages" / f"{SHA256[:16]}.txt"
    assert path.read_text() == "numpy==2.4.5\nsix==1.17.0\n"
    assert recorded_packages(tmp_path, SHA256) == PACKAGES
    record_packages(tmp_path, ())
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_baseline_says_with_which_packages_it_was_recorded(tmp_path: Path) -> None:
    store = BaselineStore(folder=tmp_path, environment=builders.ENVIRONMENT)
    notes = RecordingNotes(reason="again")
    recorded = record_measurements([measured(*PACKAGES)], builders.SETTINGS, store, notes)
    loaded = load_baseline(recorded.path)
    assert loaded is not None
    assert loaded.provenance.packages_sha256 == SHA256
    assert recorded_packages(recorded.path.parent, SHA256) == PACKAGES
    baselines, errors = read_baselines(tmp_path.glob("*/*.json"))
    assert (list(baselines), errors) == ([recorded.path], [])


def test_a_baseline_says_what_its_server_ran_with(tmp_path: Path) -> None:
    store = BaselineStore(folder=tmp_path, environment=builders.ENVIRONMENT)
    facts = LaunchFacts(model_runner="v2", attention_backend="FLASH_ATTN")
    launch = dataclasses.replace(measured(), facts=facts)
    notes = RecordingNotes(reason="again")
    recorded = record_measurements([launch], builders.SETTINGS, store, notes)
    loaded = load_baseline(recorded.path)
    assert loaded is not None
    assert loaded.provenance.facts == facts
    assert '"facts"' not in render_baseline(baseline()), "nothing is known of it"


def test_a_list_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "packages").touch()
    with pytest.raises(BaselineError, match=r"packages '.*\.txt': not written, .*; make room"):
        record_packages(tmp_path, PACKAGES)


@pytest.mark.parametrize(
    ("measurement", "recorded", "words"),
    [
        (measured(*NEWER), SHA256, ["numpy 2.4.5 -> 2.4.6"]),
        (measured(*PACKAGES), SHA256, []),
        (measured(*NEWER, version="0.33.0"), SHA256, []),
        (measured(), SHA256, []),
        (measured(*NEWER), "", []),
    ],
    ids=["other", "same", "other-version", "unknown-here", "unknown-there"],
)
def test_packages_of_one_version_that_differ_are_named(
    measurement: Measurement, recorded: str, words: list[str], tmp_path: Path
) -> None:
    record_packages(tmp_path, PACKAGES)
    remarks = list(package_remarks(tmp_path, measurement, baseline(recorded)))
    assert len(remarks) == len(words)
    for remark, expected in zip(remarks, words, strict=True):
        assert remark.startswith("vllm 0.32.0 had other packages when its baseline was recorded")
        assert remark.endswith(expected)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "No such file or directory"),
        (b"numpy==2.4.7\n", "changed since it was written, as its checksum is another one"),
        (b"\xff", "'utf-8' codec can't decode byte 0xff in position 0: invalid start byte"),
    ],
    ids=["missing", "changed", "no-text"],
)
def test_a_list_that_cannot_be_used_is_named_and_recorded_again(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    path = packages_path(tmp_path, SHA256)
    if content is not None:
        path.parent.mkdir()
        path.write_bytes(content)
    (remark,) = package_remarks(tmp_path, measured(*NEWER), baseline())
    assert remark == (
        "vllm 0.32.0 had other packages when its baseline was recorded, which can't be named:"
        f" packages '{path}': {problem}; restore the file, or record the baseline again"
    )
    record_packages(tmp_path, PACKAGES)
    assert recorded_packages(tmp_path, SHA256) == PACKAGES


def test_of_many_packages_that_differ_the_first_dozen_is_named() -> None:
    before = [f"p{number:02}==1" for number in range(20)]
    after = [f"p{number:02}==2" for number in range(20)]
    text = render_differences(before, after)
    assert text.startswith("p00 1 -> 2, p01 1 -> 2, ")
    assert text.endswith("p11 1 -> 2 and 8 more")
