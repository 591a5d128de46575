"""RAPL: the counters of processors, in a folder that looks as the kernel's does."""

from pathlib import Path

import pytest

from specreg.core.errors import SensorError
from specreg.telemetry.devices import SENSORS
from specreg.telemetry.rapl import Rapl
from specreg.telemetry.sensor import Scope

RANGE_UJ = 262_143_328_850


def package(folder: Path, name: str, energy_uj: int, said: str = "package-0") -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "name").write_text(f"{said}\n")
    (path / "energy_uj").write_text(f"{energy_uj}\n")
    (path / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    return path / "energy_uj"


@pytest.fixture
def rapl(tmp_path: Path) -> Rapl:
    """A machine with two packages, whose parts are no packages of their own."""
    package(tmp_path / "powercap", "intel-rapl:0", 5_000_000)
    package(tmp_path / "powercap", "intel-rapl:0:0", 1_000, said="core")
    package(tmp_path / "powercap", "intel-rapl:1", 7_000_000, said="package-1")
    package(tmp_path / "powercap", "intel-rapl:2", 9_000_000, said="psys")
    (tmp_path / "machine-id").write_text("0123")
    return Rapl(folder=tmp_path / "powercap", machine=tmp_path / "machine-id")


def test_each_package_is_a_device_and_its_parts_are_not(rapl: Rapl) -> None:
    found = rapl.find({})
    assert [device.name for device in found] == ["package-0", "package-1"]
    assert [device.number for device in found] == [0, 1]
    assert {device.scope for device in found} == {Scope.PACKAGE}
    assert {device.why_not for device in found} == {""}
    assert not rapl.of_gpus


def test_a_package_is_another_one_on_another_machine(rapl: Rapl, tmp_path: Path) -> None:
    here = rapl.find({})
    (tmp_path / "machine-id").write_text("4567")
    there = rapl.find({})
    assert len({device.id for device in (*here, *there)}) == 4
    assert "0123" not in here[0].id


def test_a_counter_is_read_in_millijoules(rapl: Rapl) -> None:
    first, second = (rapl.open(device) for device in rapl.find({}))
    assert (first.energy_mj(), second.energy_mj()) == (5_000, 7_000)
    assert first.processes() is None
    assert first.state().average_mw is None


def test_a_counter_that_wraps_around_goes_on(rapl: Rapl) -> None:
    counter = rapl.folder / "intel-rapl:0/energy_uj"
    probe = rapl.open(rapl.find({})[0])
    counter.write_text(f"{RANGE_UJ - 1_000_000}\n")
    before = probe.energy_mj()
    counter.write_text("2000000\n")
    assert probe.energy_mj() == pytest.approx((before or 0) + 3_000, abs=1)
    counter.write_text("1000000\n")
    assert probe.energy_mj() == pytest.approx((before or 0) + 2_000 + RANGE_UJ / 1000, abs=1)


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    with pytest.raises(SensorError, match=r"RAPL: no processor's energy counter in '.*none'"):
        Rapl(folder=tmp_path / "none").find({})


def test_a_counter_that_nobody_may_read_says_what_to_do(rapl: Rapl) -> None:
    (rapl.folder / "intel-rapl:1/energy_uj").unlink()
    (rapl.folder / "intel-rapl:1/energy_uj").mkdir()  # root may read any file
    first, second = rapl.find({})
    assert first.why_not == ""
    assert second.why_not.startswith("RAPL: no permission to read '")
    assert "have root give it to a group of yours" in second.why_not


def test_a_counter_that_goes_away_is_an_error(rapl: Rapl) -> None:
    probe = rapl.open(rapl.find({})[0])
    (rapl.folder / "intel-rapl:0/energy_uj").write_text("gone")
    with pytest.raises(SensorError, match="can't be read any more"):
        probe.energy_mj()


def test_a_counter_of_unknown_range_is_refused(rapl: Rapl) -> None:
    device = rapl.find({})[0]
    (rapl.folder / "intel-rapl:0/max_energy_range_uj").unlink()
    with pytest.raises(SensorError, match="where its counter wraps around"):
        rapl.open(device)


def test_sensors_are_found_by_their_names() -> None:
    assert {name: sensor.of_gpus for name, sensor in SENSORS.items()} == {
        "nvml": True,
        "rapl": False,
    }
