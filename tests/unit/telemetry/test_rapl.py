"""RAPL: the counters of processors, in a folder that looks as the kernel's does."""

from pathlib import Path

import pytest

from specreg.core.errors import SensorError
from specreg.telemetry import rapl
from specreg.telemetry.sensor import Scope

RANGE_UJ = 262_143_328_850


def package(folder: Path, name: str, energy_uj: int, kind: str = "package-0") -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "name").write_text(f"{kind}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return path / "energy_uj"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A machine with two packages, whose parts are no packages of their own."""
    folder = tmp_path / "powercap"
    package(folder, "intel-rapl:0", 5_000_000)
    package(folder, "intel-rapl:0:0", 1_000, kind="core")
    package(folder, "intel-rapl:1", 7_000_000, kind="package-1")
    package(folder, "intel-rapl:2", 9_000_000, kind="psys")
    return folder


def test_each_package_is_a_device_and_its_parts_are_not(folder: Path) -> None:
    devices_found = rapl.find(folder)
    assert [device.name for device in devices_found] == ["package-0", "package-1"]
    assert [device.number for device in devices_found] == [0, 1]
    assert {device.scope for device in devices_found} == {Scope.PACKAGE}
    assert {device.why_not for device in devices_found} == {""}


def test_the_highest_power_limit_of_a_package_is_that_of_moments(folder: Path) -> None:
    """A processor that rests for most of the time draws 30 times as much for moments."""
    for number, limit_uw in enumerate(("125000000", "253000000", "0")):
        (folder / f"intel-rapl:0/constraint_{number}_power_limit_uw").write_text(f"{limit_uw}\n")
    first, second = rapl.find(folder)
    assert first.highest_limit_w == 253.0
    assert second.highest_limit_w is None, "AMD's has no limit"


def test_a_package_is_another_one_on_another_machine(folder: Path, tmp_path: Path) -> None:
    machines = tmp_path / "here", tmp_path / "there"
    for machine, digits in zip(machines, ("0123", "4567"), strict=True):
        machine.write_text(digits)
    here, there = (rapl.find(folder, machine) for machine in machines)
    assert len({device.id for device in (*here, *there)}) == 4
    assert "0123" not in here[0].id


def test_a_counter_is_read_in_millijoules(folder: Path) -> None:
    first, second = (rapl.open_probe(device, folder) for device in rapl.find(folder))
    assert (first.energy_mj(), second.energy_mj()) == (5_000, 7_000)
    assert first.processes() is None
    assert first.state().average_mw is None


def test_a_counter_that_wraps_around_goes_on(folder: Path) -> None:
    counter = folder / "intel-rapl:0/energy_uj"
    probe = rapl.open_probe(rapl.find(folder)[0], folder)
    counter.write_text(f"{RANGE_UJ - 1_000_000}\n")
    before = probe.energy_mj()
    counter.write_text("2000000\n")
    assert probe.energy_mj() == pytest.approx((before or 0) + 3_000, abs=1)
    counter.write_text("1000000\n")
    assert probe.energy_mj() == pytest.approx((before or 0) + 2_000 + RANGE_UJ / 1000, abs=1)


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    with pytest.raises(SensorError, match=r"RAPL: no processor's energy counter in '.*none'"):
        rapl.find(tmp_path / "none")


def test_a_counter_that_nobody_may_read_says_what_to_do(folder: Path) -> None:
    (folder / "intel-rapl:1/energy_uj").unlink()
    (folder / "intel-rapl:1/energy_uj").mkdir()  # root may read any file
    first, second = rapl.find(folder)
    assert first.why_not == ""
    assert second.why_not.startswith("RAPL: no permission to read '")
    assert "let one group that you belong to read it" in second.why_not


def test_a_counter_that_goes_away_or_whose_range_is_unknown_is_an_error(folder: Path) -> None:
    device = rapl.find(folder)[0]
    probe = rapl.open_probe(device, folder)
    (folder / "intel-rapl:0/energy_uj").write_text("gone")
    with pytest.raises(SensorError, match="can't be read any more"):
        probe.energy_mj()
    (folder / "intel-rapl:0/max_energy_range_uj").unlink()
    with pytest.raises(SensorError, match="the value at which its counter starts again"):
        rapl.open_probe(device, folder)
