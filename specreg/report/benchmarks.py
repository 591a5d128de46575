"""Render a run as benchmarks of pytest-benchmark.

A benchmark is a measured case with its rounds, and its times are the median TPOT of each round in
seconds. If one process measures the run, pytest-benchmark computes the statistics and writes the
file. For a merged run this module does the same.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from specreg.core.families import Family
from specreg.core.values import readable_values
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import BENCHMARK_METRIC, METRICS, Replay
from specreg.report.document import Report, last_verdicts
from specreg.report.summary import OUTCOMES
from specreg.telemetry.identity import Environment
from specreg.verdicts.verdict import Verdict

SAVING = ("json", "save", "autosave")
"""Options of pytest-benchmark that write its file."""
SHOWING = ("compare", "columns", "histogram", "only", "verbose")
"""Options of pytest-benchmark that ask for its table."""
BENCHMARKS = "benchmark.json"
_SPEEDS = {Family.THROUGHPUT, Family.LATENCY}
_MS_PER_S = 1000


def is_given(getoption: Callable[[str, object], object], names: Iterable[str]) -> bool:
    """Return True if one of these options of pytest-benchmark or `--benchmark-group-by` is given.

    Args:
        getoption: returns the value of an option; a second argument is the value without it.
        names: the names of options after `benchmark_`.
    """
    grouped = getoption("benchmark_group_by", "group") != "group"
    return grouped or any(getoption(f"benchmark_{name}", None) for name in names)


def times_of(measurement: Measurement) -> tuple[float, ...]:
    """Return the median TPOT of each round that has one, in seconds.

    Returns:
        Empty if the speed is invalid, or if there is no replay.
    """
    replay = measurement.replay
    if replay is None or not _SPEEDS.isdisjoint(measurement.invalid):
        return ()
    median_ms = METRICS["tpot_p50_ms"].value_of

    # A replay of one round has the figures of this round.
    replays = [Replay(rounds=(replay_round,)) for replay_round in replay.rounds]
    medians_ms = [median_ms(replay_of_round) for replay_of_round in replays]
    return tuple(median / _MS_PER_S for median in medians_ms if median is not None)


def benchmark_of(measurement: Measurement, verdicts: Iterable[Verdict]) -> Mapping[str, object]:
    """Return the entry of a case without its times: its group, its parameters and its figures.

    The outcome is that of the worst verdict on the case; empty without a verdict.
    """
    case = measurement.case
    params = {
        "engine": case.server.engine,
        "models": case.server.models,
        "dataset": case.request.dataset,
        "load": case.load.id,
        "method": case.server.method,
    }
    outcomes = [
        verdict.outcome for verdict in last_verdicts(verdicts) if verdict.case_id == case.id
    ]
    worst = min(outcomes, key=list(OUTCOMES).index, default="")

    # The methods of a group can be compared with each other.
    shared_params = [value for name, value in params.items() if name != "method"]
    return {
        "group": " ".join(shared_params),
        "params": params,
        "extra_info": {**measurement.values, "outcome": str(worst)},
        # specreg chooses the rounds, so the other options of pytest-benchmark mean nothing here.
        "options": {"timer": BENCHMARK_METRIC.name},
    }


def machine_info_of(environment: Environment) -> Mapping[str, object]:
    """Return what must be equal to compare two speeds. pytest-benchmark warns if it differs."""
    return {"name": environment.name, **msgspec.to_builtins(environment)}


def render_benchmarks(report: Report, measured: Mapping[str, Measurement]) -> Mapping[str, str]:
    """Return the file that `--benchmark-json` would write for a whole run.

    Args:
        report: the report of the run.
        measured: the measurement of each case on the launch that the report shows, by the case's
            id.

    Returns:
        The content by the file's name; empty if no case has a time.
    """
    benchmarks = []
    for case in report.cases:
        measurement = measured.get(case.case_id)
        times_s = times_of(measurement) if measurement is not None else ()
        if measurement is None or not times_s:
            continue
        param = f"{case.case_id}-{BENCHMARK_METRIC.name}"
        # The name of the test that records the case in a run of one process.
        name = f"test_throughput_is_recorded[{param}]"
        benchmark = {
            "name": name,
            "fullname": f"tests/perf/test_throughput.py::{name}",
            "param": param,
            **benchmark_of(measurement, report.run.verdicts),
            "stats": _statistics(times_s),
        }
        benchmarks.append(benchmark)

    if not benchmarks:
        return {}
    content = {
        "machine_info": machine_info_of(report.machine),
        "commit_info": {"id": report.origin.commit},
        "benchmarks": benchmarks,
        "datetime": report.ended_at,
        "version": f"specreg {report.origin.specreg_version}",
    }
    text = json.dumps(readable_values(content), indent=4)
    return {BENCHMARKS: f"{text}\n"}


def _statistics(times_s: Sequence[float]) -> Mapping[str, object]:
    """Return the statistics of one round or more, with the names that pytest-benchmark uses.

    pytest-benchmark counts outliers in two ways: values more than a standard deviation away from
    the mean, and values outside Tukey's fences of 1.5 interquartile ranges.
    """
    rounds = len(times_s)
    total = sum(times_s)
    mean = statistics.mean(times_s)
    stddev = statistics.stdev(times_s) if rounds > 1 else 0

    # Hazen's definition of quantiles is the one that pytest-benchmark uses.
    q1, median, q3 = map(float, np.quantile(times_s, (0.25, 0.5, 0.75), method="hazen"))
    iqr = q3 - q1
    low_fence = q1 - 1.5 * iqr
    high_fence = q3 + 1.5 * iqr
    inside_fences = [time for time in times_s if low_fence <= time <= high_fence]
    iqr_outliers = rounds - len(inside_fences)
    stddev_outliers = sum(abs(time - mean) > stddev for time in times_s)
    return {
        "min": min(times_s),
        "max": max(times_s),
        "ld15iqr": min(inside_fences),
        "hd15iqr": max(inside_fences),
        "mean": mean,
        "stddev": stddev,
        "q1": q1,
        "median": median,
        "q3": q3,
        "iqr": iqr,
        "stddev_outliers": stddev_outliers,
        "iqr_outliers": iqr_outliers,
        "outliers": f"{stddev_outliers};{iqr_outliers}",
        "iterations": 1,
        "data": list(times_s),
        "rounds": rounds,
        "total": total,
        "ops": rounds / total,
    }
