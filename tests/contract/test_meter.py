"""The meter against real vLLM: an acceptance that is pinned beforehand is read back exactly.

Starts a real server: about a minute. `nox -s contract` runs it.
"""

import dataclasses

import pytest

from specreg.acceptance.record import AcceptanceRecord
from specreg.engines.drafter.scheduled import schedule_of, step_after
from specreg.matrix.case import Case
from specreg.measurement.measure import Measurement
from tests.contract.engines import case_of, measure, start
from tests.unit import builders

LENGTHS_TOKENS = (2.5, 1.75)


def pinned_case(length_tokens: float, concurrency: int) -> Case:
    """A case of the tier `cpu_pinned`, with another length and load."""
    case = case_of("cpu_pinned", "vllm-scheduled-tiny-al2.5-toy-c4")
    server = dataclasses.replace(case.server, pinned_length_tokens=length_tokens)
    return builders.with_concurrency(
        concurrency, dataclasses.replace(case, server=server, control=None)
    )


@pytest.fixture(scope="module", params=LENGTHS_TOKENS)
def measurements(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, tuple[Measurement, AcceptanceRecord]]:
    """By concurrency: the scheduled drafter as the suite measures it."""
    cases = {concurrency: pinned_case(request.param, concurrency) for concurrency in (1, 4)}
    with start(cases[1], tmp_path_factory.mktemp("scheduled")) as server:
        return {n: measure(case, server) for n, case in cases.items()}


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_pinned_acceptance_is_read_back_exactly(
    concurrency: int, measurements: dict[int, tuple[Measurement, AcceptanceRecord]]
) -> None:
    measurement, acceptance = measurements[concurrency]
    length_tokens = measurement.case.server.pinned_length_tokens
    assert length_tokens is not None
    schedule = schedule_of(length_tokens, 3)
    for prompt in acceptance.prompts:
        steps_taken = range(step_after(prompt.completion_tokens, schedule))
        steps = [schedule[step % len(schedule)] for step in steps_taken]
        assert prompt.counts.steps == len(steps)
        assert prompt.counts.accepted == sum(steps)
        assert prompt.counts.proposed == 3 * len(steps)
        assert prompt.counts.histogram == tuple(steps.count(j) for j in range(4))
    assert acceptance.total.acceptance_length == pytest.approx(length_tokens, abs=0.02)
