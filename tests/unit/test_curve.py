"""What a device drew, thinned out to be drawn: no watt is invented, and none is lost."""

import pytest

from specreg.power.curve import curve_of
from specreg.power.samples import PowerTrace, Sample
from specreg.sensors import Device, Scope, State

NS_PER_S = 10**9
DEVICE = Device(sensor="nvml", id="GPU-1", name="H100", number=0, scope=next(iter(Scope)))


def trace(*samples: Sample) -> PowerTrace:
    """Of one device."""
    return PowerTrace(device=DEVICE, every_ns=NS_PER_S, samples=list(samples))


def sample(at_s: float, *, power_w: float | None = None, energy_j: float | None = None) -> Sample:
    """What a device said at a moment."""
    return Sample(
        device=0,
        at_ns=round(at_s * NS_PER_S),
        energy_mj=None if energy_j is None else round(energy_j * 1000),
        state=State(instant_mw=None if power_w is None else round(power_w * 1000)),
    )


def test_few_samples_are_drawn_as_they_are() -> None:
    curve = curve_of(trace(sample(10, power_w=100), sample(11, power_w=300)))
    assert curve.device == "H100"
    assert [point.power_w for point in curve.points] == [100, 300]
    assert curve.points[0].at_s == pytest.approx(0, abs=0.01)
    assert curve.points[1].at_s == pytest.approx(1, abs=0.01)


def test_many_samples_are_thinned_and_keep_their_mean() -> None:
    powers = [100.0 + n % 7 for n in range(5040)]
    curve = curve_of(trace(*(sample(n / 10, power_w=p) for n, p in enumerate(powers))))
    assert len(curve.points) <= 120
    shown = [point.power_w for point in curve.points]
    assert sum(shown) / len(shown) == pytest.approx(103, rel=0.001)


def test_a_device_that_counts_energy_alone_is_drawn_by_its_counter() -> None:
    curve = curve_of(trace(*(sample(n, energy_j=50 * n) for n in range(5))))
    assert [point.power_w for point in curve.points] == [50] * 4


def test_of_nothing_there_is_no_curve() -> None:
    assert curve_of(trace()).points == ()
    assert curve_of(trace(sample(0), sample(1))).points == ()
