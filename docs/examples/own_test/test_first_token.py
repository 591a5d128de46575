"""A promise of one team: the first token of this prompt comes within 200 ms."""

import pytest

from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Metric, ttft_ms


@pytest.mark.family("acceptance")
def test_the_first_token_comes_within_200_ms(measurement: Measurement, metric: Metric) -> None:
    if metric.name != "acceptance_length_tokens" or measurement.replay is None:
        pytest.skip("one metric of each case is enough")
    traces = [trace for trace in measurement.replay.traces if trace.prompt_id == "coding-0"]
    assert traces
    assert all((ttft_ms(trace) or 0) < 200 for trace in traces)
