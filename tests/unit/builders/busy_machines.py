"""What a busy machine may do to a measurement of a scripted server."""

from collections.abc import Mapping, Sequence

from specreg.core.reasons import Invalidity
from specreg.load.rounds import Round
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Family


def invalid_if_idle(measurement: Measurement) -> Mapping[Family, Invalidity]:
    """The invalid families, without those whose client a busy machine kept from running."""
    return {
        family: invalidity
        for family, invalidity in measurement.invalid.items()
        if invalidity.code != "CLIENT_BEHIND"
    }


def duration_s(rounds: Sequence[Round]) -> float:
    """How long rounds took together, in seconds of the clock that measured them."""
    return sum(part.ended_ns - part.started_ns for part in rounds) / 1e9
