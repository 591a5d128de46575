"""Measurements of a case."""

import re
from collections.abc import Mapping, Sequence

import pytest

from specreg.acceptance.record import AcceptanceRecord, StepCounts
from specreg.core.errors import InvalidMeasurementError
from specreg.core.reasons import Reason
from specreg.datasets.prompts import Prompt
from specreg.matrix.case import Case
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Measurement, Plan, measure, workload_of
from specreg.measurement.metrics import Replay
from specreg.servers.server import Server
from tests.unit.builders.acceptance import PROMPTS_MEASURED, acceptance
from tests.unit.builders.cases import CASE, PROMPTS


def invalid(
    code: str, words: str = "", **facts: object
) -> pytest.RaisesExc[InvalidMeasurementError]:
    """Expects an INVALID measurement with the facts given, or with words, of any facts."""
    pattern = f"(?s)^{code}: .*{words}"
    if facts:
        pattern = f"^{re.escape(str(Reason.of(code, **facts)))}$"
    return pytest.raises(InvalidMeasurementError, match=pattern)


def measurement(
    values: Mapping[str, float],
    *,
    of: StepCounts | AcceptanceRecord | None = None,
    case: Case = CASE,
) -> Measurement:
    """A valid measurement with the values and counts given, of each of its prompts or of all."""
    record = acceptance(of, prompts=PROMPTS_MEASURED) if isinstance(of, StepCounts) else of
    return Measurement(
        case=case,
        engine_version="0.32.0",
        target="some/target",
        draft=case.server.draft,
        replay=Replay(acceptance=record),
        values=values,
    )


def measure_alone(
    case: Case,
    server: Server,
    prompts: Sequence[Prompt] = PROMPTS,
    plan: Plan = Plan(show=lambda _: None),  # noqa: B008 - frozen
) -> Measurement:
    (measurement,) = measure([Arm(case=case, server=server)], workload_of(case, prompts), plan)
    return measurement
