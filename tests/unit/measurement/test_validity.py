"""Which families a failed check makes invalid, and which reason of several they keep."""

import pytest

from specreg.core.errors import InvalidMeasurementError
from specreg.core.families import TIMED, Family
from specreg.core.reasons import Reason
from specreg.measurement.metrics import note_invalidity, render_invalid

HOT = {"device": "GPU 0", "share_frac": 0.5, "causes": "heat"}
OTHERS = {"ours": "8 ended", "counted": "9 ended"}


def test_the_first_reason_of_a_family_stays() -> None:
    """Also where what is checked says something of that family alone."""
    invalid: dict[Family, Reason] = {}
    with note_invalidity(invalid, frozenset({Family.SPEEDUP})):
        raise InvalidMeasurementError("HTTP_ERROR", answer="HTTP 500")
    with note_invalidity(invalid):
        raise InvalidMeasurementError("THROTTLED", **HOT)
    assert invalid == {
        **dict.fromkeys(TIMED, Reason.of("THROTTLED", **HOT)),
        Family.SPEEDUP: Reason.of("HTTP_ERROR", answer="HTTP 500"),
    }


def test_a_reason_that_spoils_everything_ends_the_measurement() -> None:
    invalid: dict[Family, Reason] = {}
    with pytest.raises(InvalidMeasurementError, match="FOREIGN_TRAFFIC"), note_invalidity(invalid):
        raise InvalidMeasurementError("FOREIGN_TRAFFIC", **OTHERS)
    assert invalid == {}


def test_a_reason_stands_behind_the_families_that_it_spoils() -> None:
    invalid = {
        Family.POWER: Reason(code="POWER_INVALID", text="b"),
        Family.LATENCY: Reason(code="CLIENT_BEHIND", text="a"),
        Family.THROUGHPUT: Reason(code="CLIENT_BEHIND", text="a"),
    }
    assert (
        render_invalid(invalid) == "throughput, latency: CLIENT_BEHIND: a; power: POWER_INVALID: b"
    )
    assert render_invalid(dict.fromkeys(Family, Reason(code="HUNG", text="c"))) == "HUNG: c"
    assert render_invalid({}) == ""
