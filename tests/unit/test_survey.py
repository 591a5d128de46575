"""A survey: what is told of a device's trace, and what it says of one that can't be trusted."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from specreg.errors import SensorError
from specreg.power.sampler import sample
from specreg.power.samples import Line, PowerTrace, load_traces
from specreg.power.survey import Survey, survey
from specreg.report.survey import render_surveys
from specreg.sensors import Device, Scope, Settings, State
from specreg.sensors.rapl import Rapl

NS_PER_S = 10**9
GPU = Device(
    sensor="nvml", id="GPU-00", name="Scripted GPU", number=0, scope=Scope.GPU, memory_bytes=2**34
)
WINDOW = (10**9, 11 * 10**9)


@dataclass(slots=True)
class Clock:
    """Time that goes on only when somebody waits; it ends at 12 s."""

    now_ns: int = 0
    tells: Callable[[int], None] = lambda _: None

    def __call__(self) -> int:
        return self.now_ns

    def wait_until(self, moment_ns: int) -> bool:
        self.now_ns = max(self.now_ns, moment_ns)
        self.tells(self.now_ns)
        return self.now_ns >= 12 * NS_PER_S


@dataclass(slots=True)
class Meter:
    """Reads a GPU of 100 W; its fields and counter say what they are scripted to.

    Attributes:
        factor: of the counter, None for none; tick_ns: how often it moves.
        average_mw, instant_mw: what the fields say, None for one that it hasn't.
        throttled_from_s: from when on a power cap holds it; users: who computes on it;
            lost_from_s: from when on it is gone.
    """

    clock: Clock
    factor: float | None = 1.0
    tick_ns: int = 10**8
    average_mw: int | None = 100_000
    instant_mw: int | None = 100_000
    throttled_from_s: float = 6.0
    users: tuple[int, ...] | None = (7, 5)
    lost_from_s: float = 99.0

    def energy_mj(self) -> int | None:
        ticked_ns = self.clock.now_ns // self.tick_ns * self.tick_ns
        return None if self.factor is None else round(self.factor * 100_000 * ticked_ns / NS_PER_S)

    def state(self) -> State:
        if self.clock.now_ns >= self.lost_from_s * NS_PER_S:
            raise SensorError("it is gone")
        return State(
            average_mw=self.average_mw,
            instant_mw=self.instant_mw,
            sm_clock_mhz=1_500,
            memory_clock_mhz=2_000,
            temperature_c=60,
            throttle_mask=4 if self.clock.now_ns >= self.throttled_from_s * NS_PER_S else 0,
            utilisation_frac=0.5,
            used_bytes=2**33,
        )

    def pids(self) -> tuple[int, ...] | None:
        return self.users

    def settings(self) -> Settings:
        return Settings()


def trace_of(path: Path, device: Device, probe: Meter, clock: Clock) -> PowerTrace:
    """What the sampler writes of a device in 12 s."""
    with path.open("wb") as file:

        def write(line: Line) -> None:
            file.write(msgspec.json.encode(line) + b"\n")

        sample([device], [probe], write, wait_until=clock.wait_until, clock=clock)
    return load_traces(path)[0]


def surveyed(folder: Path, **scripted: object) -> Survey:
    """The survey of ten seconds of a GPU."""
    clock = Clock()
    probe = Meter(clock, **scripted)  # type: ignore[arg-type]
    return survey(trace_of(folder / "samples.jsonl", GPU, probe, clock), WINDOW)


def test_a_device_is_measured_by_its_counter_and_by_both_fields(tmp_path: Path) -> None:
    found = surveyed(tmp_path, average_mw=98_000, instant_mw=99_000)
    assert found.window_s == 10.0
    assert found.record is not None
    assert found.record.from_counter
    assert found.record.energy_mj == pytest.approx(1_000_000, rel=0.002)
    assert found.mean_mw == pytest.approx(100_000, rel=0.002)
    assert found.average_mw == pytest.approx(98_000)
    assert found.instant_mw == pytest.approx(99_000)
    assert found.wrong == ""


def test_samples_reasons_and_users_are_counted_in_the_window(tmp_path: Path) -> None:
    found = surveyed(tmp_path, throttled_from_s=9.0)
    assert found.samples_per_s == pytest.approx(20.4, abs=0.1)
    assert found.held_back_frac is not None
    assert dict(found.held_back_frac) == {"power cap": pytest.approx(0.2, abs=0.01)}
    assert found.pids == (5, 7)


def test_what_a_device_has_not_is_none(tmp_path: Path) -> None:
    found = surveyed(tmp_path, factor=None, instant_mw=None, users=None)
    assert (found.instant_mw, found.pids) == (None, None)
    assert found.record is not None
    assert not found.record.from_counter
    assert found.mean_mw == pytest.approx(100_000)


@pytest.mark.parametrize(
    ("scripted", "words", "measured"),
    [
        ({"factor": 1.7}, "its energy counter says 1.70 times what its power says", True),
        ({"tick_ns": 10**12}, "its energy counter wasn't seen to tick", False),
    ],
    ids=["off", "stuck"],
)
def test_a_counter_that_cannot_be_trusted_is_said_to_be_wrong(
    tmp_path: Path,
    scripted: dict[str, object],
    words: str,
    measured: bool,  # noqa: FBT001 - a column
) -> None:
    found = surveyed(tmp_path, **scripted)
    assert words in found.wrong
    assert (found.record is not None) == measured
    assert found.average_mw == pytest.approx(100_000)


def test_a_device_that_is_lost_has_the_power_of_the_time_before(tmp_path: Path) -> None:
    """The power rises by 20 W a second, and it is gone after 6 s: the mean is of 1 to 6 s."""
    clock = Clock()

    class Rising(Meter):
        def state(self) -> State:
            said = super().state()
            return msgspec.structs.replace(said, instant_mw=20 * clock.now_ns // 10**6)

    path = tmp_path / "samples.jsonl"
    trace = trace_of(path, GPU, Rising(clock, lost_from_s=6.0), clock)
    found = survey(trace, WINDOW)
    assert found.wrong == "Scripted GPU: it is gone"
    assert found.record is None
    assert found.instant_mw == pytest.approx(70_000, rel=0.02)
    assert survey(trace, (7 * NS_PER_S, 9 * NS_PER_S)).instant_mw is None


def test_a_processors_package_is_measured_across_its_wrap_around(tmp_path: Path) -> None:
    """50 W; the counter goes back to 0 at 300 J, which is after 6 s."""
    folder = tmp_path / "intel-rapl:0"
    folder.mkdir()
    (folder / "name").write_text("package-0\n")
    (folder / "max_energy_range_uj").write_text("300000000\n")

    def tells(now_ns: int) -> None:
        (folder / "energy_uj").write_text(f"{now_ns // 20 % 300_000_000}\n")

    tells(0)
    rapl = Rapl(folder=tmp_path)
    (device,) = rapl.find({})
    clock = Clock(tells=tells)
    probe = rapl.open(device)
    found = survey(trace_of(tmp_path / "samples.jsonl", device, probe, clock), WINDOW)  # type: ignore[arg-type]
    assert found.wrong == ""
    assert found.mean_mw == pytest.approx(50_000, rel=0.002)
    assert (found.average_mw, found.instant_mw) == (None, None)
    assert (found.held_back_frac, found.pids) == (None, None)
    text = render_surveys([found], width=110)
    assert "package-0, number 0 (" in text
    assert "50.0 W, 500.0 J; ticks every" in text
    for absent in ("field", "clocks", "processes", "None", "INVALID"):
        assert absent not in text


def test_a_survey_is_shown_with_its_ratios_and_the_total(tmp_path: Path) -> None:
    found = surveyed(tmp_path, average_mw=98_000, users=())
    other = msgspec.structs.replace(found, record=None, wrong="its sensor is off")
    lines = render_surveys([found, other], width=110).splitlines()
    assert lines[0] == "Scripted GPU, number 0 (GPU-00); power of the gpu"
    said = dict(line.strip().split("  ", maxsplit=1) for line in lines[1:12])
    assert said["energy counter"].startswith("100.0 W, 1000.0 J; ticks every 100.0 ms, edges off")
    assert said["average field"].strip() == "98.0 W; the counter says 1.0204 times that"
    assert said["instant field"].strip() == "100.0 W; the counter says 1.0000 times that"
    assert said["peak"].strip() == "100.0 W"
    assert said["clocks"].strip() == "SM 1500 MHz, memory 2000 MHz (medians)"
    assert said["temperature"].strip() == "60 °C at most"
    assert said["utilisation"].strip() == "50%"
    assert said["memory used"].strip() == "8.0 GiB at most"
    assert said["samples"].strip() == "20.4 per second, 0.0% missing"
    assert said["clocks held"].strip() == "power cap in 50% of them"
    assert said["processes"].strip() == "none"
    assert "  INVALID        its sensor is off" in lines
    assert lines[-1] == "total: 100.0 W, 1000.0 J; 1 of 2 device(s) in 10.0 s"
