"""What a busy machine may do to a measurement of a scripted server."""

from collections.abc import Mapping, Sequence

from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.load.rounds import Round
from specreg.measurement.measure import Measurement


def invalid_if_idle(measurement: Measurement) -> Mapping[Family, Reason]:
    """The invalid families, without those whose client a busy machine kept from running."""
    return {
        family: invalidity
        for family, invalidity in measurement.invalid.items()
        if invalidity.code not in {"CLIENT_BEHIND", "ANSWERS_AT_ONCE"}
    }


def duration_s(rounds: Sequence[Round]) -> float:
    """How long rounds took together, in seconds of the clock that measured them."""
    return sum(part.ended_ns - part.started_ns for part in rounds) / 1e9
