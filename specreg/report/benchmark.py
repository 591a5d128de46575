"""The benchmarks of pytest-benchmark: a measured case is one, and its rounds are the case's.

What is timed is TPOT, the median of each round, in seconds. Where one process measures,
pytest-benchmark computes the statistics and writes the file; a merged run gets the same from here.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec
import numpy as np

from specreg.core.redaction import hide_known
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, RECORDED, Family, Replay
from specreg.report.document import Report, last_words
from specreg.report.summary import OUTCOMES
from specreg.telemetry.identity import Environment
from specreg.verdicts.judge import Verdict

SAVING = ("json", "save", "autosave")
SHOWING = ("compare", "columns", "histogram", "only", "verbose")
"""Options of pytest-benchmark: those that take its file, and those that take its table."""
BENCHMARKS = "benchmark.json"
_SPEEDS = {Family.THROUGHPUT, Family.LATENCY}
_MS_PER_S = 1000


def is_given(getoption: Callable[[str, object], object], names: Iterable[str]) -> bool:
    """Whether one of pytest-benchmark's options is given, or it is told what to group by."""
    grouped = getoption("benchmark_group_by", "group") != "group"
    return grouped or any(getoption(f"benchmark_{name}", None) for name in names)


def times_of(measurement: Measurement) -> tuple[float, ...]:
    """The median TPOT of each round that has one, in seconds; none where speeds mean nothing."""
    replay = measurement.replay
    if replay is None or not _SPEEDS.isdisjoint(measurement.invalid):
        return ()
    median_ms = METRICS["tpot_p50_ms"].function
    found_ms = [median_ms(Replay(rounds=(part,))) for part in replay.rounds]
    return tuple(one / _MS_PER_S for one in found_ms if one is not None)


def describe(measurement: Measurement, verdicts: Iterable[Verdict]) -> Mapping[str, object]:
    """What the entry of a case says beside its times: what it can be grouped by, and its figures.

    The outcome is the worst of a run's verdicts on the case, empty without any.
    """
    case, server = measurement.case, measurement.case.server
    names = ("engine", "models", "dataset", "load", "method")
    values = (server.engine, server.models, case.dataset, case.load.id, server.method)
    words = [one.outcome for one in last_words(verdicts) if one.case_id == case.id]
    outcome = min(words, key=list(OUTCOMES).index, default="")
    return {
        "group": " ".join(values[:-1]),
        "params": dict(zip(names, values, strict=True)),
        "extra_info": {**measurement.values, "outcome": str(outcome)},
        "options": {"timer": RECORDED.name},  # pytest-benchmark's own choose no rounds here
    }


def machine_info_of(environment: Environment) -> Mapping[str, object]:
    """What must be equal for two speeds to be comparable; pytest-benchmark warns where it isn't."""
    return {"name": environment.name, **msgspec.to_builtins(environment)}


def render_benchmarks(report: Report, measured: Mapping[str, Measurement]) -> Mapping[str, str]:
    """What `--benchmark-json` writes, of a whole run, by its file; none where no case has a time.

    Args:
        report: the run's.
        measured: by case's id, the launch whose figures the report has.
    """
    benchmarks = []
    for case in report.cases:
        one = measured.get(case.case_id)
        if one and (times_s := times_of(one)):
            param = f"{case.case_id}-{RECORDED.name}"
            name = f"test_throughput_is_recorded[{param}]"  # as pytest calls the test of a case
            test = {"name": name, "fullname": f"tests/perf/test_throughput.py::{name}"}
            of = describe(one, report.run.verdicts)
            benchmarks.append({**test, "param": param, **of, "stats": _stats(times_s)})
    content = {
        "machine_info": machine_info_of(report.machine),
        "commit_info": {"id": report.origin.commit},
        "benchmarks": benchmarks,
        "datetime": report.ended_at,
        "version": f"specreg {report.origin.specreg_version}",
    }
    return {BENCHMARKS: hide_known(json.dumps(content, indent=4)) + "\n"} if benchmarks else {}


def _stats(times_s: Sequence[float]) -> Mapping[str, object]:
    """pytest-benchmark's statistics of one round or more, with Tukey's rule for outliers."""
    q1, median, q3 = map(float, np.quantile(times_s, (0.25, 0.5, 0.75), method="hazen"))
    rounds, total, mean, iqr = len(times_s), sum(times_s), statistics.mean(times_s), q3 - q1
    stddev = statistics.stdev(times_s) if rounds > 1 else 0
    near = [one for one in times_s if q1 - 1.5 * iqr <= one <= q3 + 1.5 * iqr]
    far = sum(abs(one - mean) > stddev for one in times_s)
    ends = {"min": min(times_s), "max": max(times_s), "ld15iqr": min(near), "hd15iqr": max(near)}
    middle = {"mean": mean, "stddev": stddev, "q1": q1, "median": median, "q3": q3, "iqr": iqr}
    outliers = {"stddev_outliers": far, "iqr_outliers": rounds - len(near)}
    words = {"outliers": f"{far};{rounds - len(near)}", "iterations": 1, "data": list(times_s)}
    sums = {"rounds": rounds, "total": total, "ops": rounds / total}
    return {**ends, **middle, **outliers, **words, **sums}
