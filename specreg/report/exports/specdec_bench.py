"""specdec_bench: `configuration.json`, `timing.json`, `acceptance_rate.json` and the profile.

The forms are those of NVIDIA's Model-Optimizer, examples/specdec_bench. It keys by acceptance
length, which counts the target's own token: length 1 is a step without an accepted draft. It reads
lengths off the chunks that reached the client; ours are those of the verifier.
"""

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from specreg.acceptance.record import AcceptanceRecord, StepCounts
from specreg.measurement import Measurement
from specreg.metrics import Replay, e2e_ms, ttft_ms
from specreg.report.document import CaseReport, Report
from specreg.report.exports._measured import Measured, drafting_cases, generating_s
from specreg.spread import Histogram, percentile

_ENGINES = {"vllm": "VLLM", "sglang": "SGLANG", "tensorrt_llm": "TRTLLM"}
_CHAINS = {"draft_model", "eagle", "eagle3"}
_QUANTILES = (0.25, 0.5, 0.75)
_MS_PER_S = 10**3
_NS_PER_S = 10**9
_PROFILE_VERSION = "1.0"
_TOLERANCE = 0.02


def export(report: Report, measured: Measured) -> Mapping[str, str]:
    """A folder for each case that the journal has."""
    files: dict[str, str] = {}
    for case in drafting_cases(report):
        found = measured.get(case.case_id)
        record = found.acceptance if found else None
        if found is None or found.replay is None or not found.replay.traces or record is None:
            continue
        folder = f"specdec_bench/{case.case_id}"
        files[f"{folder}/configuration.json"] = _text(_configuration(report, case, found))
        files[f"{folder}/timing.json"] = _text([_timing(found, found.replay)])
        files[f"{folder}/acceptance_rate.json"] = _text([acceptance_of(record)])
        files[f"{folder}/speculation_profile.json"] = _text(profile_of(case, found, record))
    return files


def acceptance_of(record: AcceptanceRecord) -> Mapping[str, object]:
    """What `acceptance_rate.json` says of a record."""
    by_question: dict[str, list[StepCounts]] = {}
    categories: dict[str, dict[str, None]] = {}
    for prompt in record.prompts:
        by_question.setdefault(prompt.prompt_id, []).append(prompt.counts)
        categories.setdefault(prompt.category, {})[prompt.prompt_id] = None
    lengths = {
        question: _length(sum(parts[1:], parts[0])) for question, parts in by_question.items()
    }
    known = {question: length for question, length in lengths.items() if length is not None}
    histogram = _by_length(record.total)
    conditional = _conditional(histogram)
    joint = itertools.accumulate(conditional.values(), lambda before, now: before * now)
    return {
        "Request_AL": known,
        "Category_AL": {
            name: statistics.fmean(known[question] for question in questions if question in known)
            for name, questions in sorted(categories.items())
            if any(question in known for question in questions)
        },
        "Average_AL": statistics.fmean(known.values()) if known else record.total.acceptance_length,
        "Acceptance_Length_Histogram": histogram,
        "Conditional_Acceptance_Rate": conditional,
        "Joint_Acceptance_Rate": dict(zip(conditional, joint, strict=True)),
    }


def profile_of(
    case: CaseReport, measurement: Measurement, record: AcceptanceRecord
) -> Mapping[str, object]:
    """`speculation_profile.json`, for simulators: position i there is the (i + 1)-th draft.

    Its own check is made of it: the mean must be 1 and the sum of the marginal rates.
    """
    counts, drafts = record.total, measurement.case.server.draft_tokens
    marginal = _dense(counts.marginal_acceptance, drafts)
    conditional = _dense(counts.conditional_acceptance, drafts)
    mean = counts.acceptance_length or 1.0
    implied = 1.0 + sum(marginal)
    rising = [i for i, (a, b) in enumerate(itertools.pairwise(marginal), start=1) if a < b]
    return {
        "schema_version": _PROFILE_VERSION,
        "measured": True,
        "method": case.method,
        "draft_checkpoint": _checkpoint(case.draft),
        "target_model": _checkpoint(case.target),
        "num_speculative_tokens": drafts,
        "block_size": None,
        "max_supported_k": drafts,
        "verification_method": "longest_prefix",
        "conditional_accept_rates": conditional,
        "marginal_accept_rates": marginal,
        "mean_accept_length": round(mean, 6),
        "mean_accept_length_per_request": _rounded(record.macro_acceptance_length),
        "accept_length_model": "chain_analytic" if case.method in _CHAINS else "measured_per_k",
        "accept_length_by_k": {str(drafts): round(mean, 6)},
        "acceptance_length_histogram": _by_length(counts),
        "per_category": acceptance_of(record)["Category_AL"],
        "measurement_conditions": {
            "dataset": case.dataset,
            "concurrency": measurement.case.load.concurrency,
            "engine": case.engine,
            "engine_version": measurement.engine_version,
            "temperature": measurement.case.temperature,
        },
        "validation": {
            "mean_consistency": {
                "implied_mean_accept_length": round(implied, 6),
                "reported_mean_accept_length": round(mean, 6),
                "abs_delta": round(abs(implied - mean), 6),
                "tolerance": _TOLERANCE,
                "passed": abs(implied - mean) <= _TOLERANCE,
            },
            "marginal_monotonicity": {"passed": not rising, "violations": rising},
        },
    }


def _configuration(
    report: Report, case: CaseReport, measurement: Measurement
) -> Mapping[str, object]:
    """The arguments of its `run.py` as far as a case has them, and what it adds to them."""
    server = measurement.case.server
    return {
        "engine": _ENGINES.get(case.engine, case.engine.upper()),
        "model_dir": case.target,
        "draft_model_dir": case.draft or None,
        "speculative_algorithm": case.method.upper(),
        "draft_length": server.draft_tokens,
        "dataset": case.dataset,
        "num_requests": measurement.case.prompts,
        "output_length": measurement.case.output_cap_tokens,
        "concurrency": measurement.case.load.concurrency,
        "tp_size": server.parallel.tensor,
        "ignore_eos": measurement.case.ignore_eos,
        "runtime_params": {"sampling_kwargs": {"temperature": measurement.case.temperature}},
        "engine_version": measurement.engine_version,
        "gpu": next(iter(report.machine.gpus), None),
        "python_version": report.origin.python_version,
        "argv": [report.origin.command],
    }


def _timing(measurement: Measurement, replay: Replay) -> Mapping[str, object]:
    """Seconds throughout. Steps come from a histogram: its percentiles are off by 0.25 %."""
    traces = replay.traces
    per_s = sum(trace.tokens for trace in traces) / generating_s(measurement)
    found: dict[str, object] = {
        "Output TPS": per_s,
        "Output TPS/gpu": per_s / max(measurement.case.server.parallel.gpus, 1),
        "E2E Request Time": _statistics(map(e2e_ms, traces), _MS_PER_S),
        "TTFT Time": _statistics(map(ttft_ms, traces), _MS_PER_S),
    }
    steps = Histogram()
    for part in replay.rounds:
        steps.merge(part.gaps)
    if steps.size:
        found["Request Generation Step Time"] = _step_statistics(steps)
        speeds = (
            trace.later_tokens * _NS_PER_S / (trace.last_ns - trace.first_ns)
            for trace in traces
            if trace.first_ns is not None and trace.last_ns and trace.last_ns > trace.first_ns
        )
        found["Request Generation Tokens Per Second"] = _statistics(speeds, 1)
    found["Number of Output Tokens"] = _statistics((trace.tokens for trace in traces), 1)
    return found


def _statistics(values: Iterable[float | None], divided_by: float) -> Mapping[str, object] | None:
    ordered = sorted(value / divided_by for value in values if value is not None)
    if not ordered:
        return None
    return _shown(
        ordered[0],
        ordered[-1],
        statistics.fmean(ordered),
        statistics.pstdev(ordered),
        [percentile(ordered, frac) for frac in _QUANTILES],
    )


def _step_statistics(steps: Histogram) -> Mapping[str, object]:
    mean_ns = steps.total_ns / steps.size
    variance = max(steps.total_ns2 / steps.size - mean_ns**2, 0.0)
    return _shown(
        steps.min_ns / _NS_PER_S,
        steps.max_ns / _NS_PER_S,
        mean_ns / _NS_PER_S,
        math.sqrt(variance) / _NS_PER_S,
        [steps.quantile_ns(frac) / _NS_PER_S for frac in _QUANTILES],
    )


def _shown(
    low: float, high: float, mean: float, deviation: float, quantiles: Sequence[float]
) -> Mapping[str, object]:
    """Texts of four digits, as it writes them."""
    return {
        "min": f"{low:.4f}",
        "max": f"{high:.4f}",
        "mean": f"{mean:.4f}",
        "std": f"{deviation:.4f}",
        "quantiles": {
            str(frac): f"{value:.4f}" for frac, value in zip(_QUANTILES, quantiles, strict=True)
        },
    }


def _by_length(counts: StepCounts) -> Mapping[int, int]:
    """Steps by the tokens that they emitted; lengths that never came aren't there."""
    return {accepted + 1: steps for accepted, steps in enumerate(counts.histogram) if steps}


def _conditional(histogram: Mapping[int, int]) -> Mapping[int, float]:
    """By length: how often a step got there of those that got to the length before it."""
    left = before = sum(histogram.values())
    found = {}
    for length, steps in histogram.items():
        found[length] = left / before
        before, left = left, left - steps
    return found


def _dense(rates: Sequence[float], drafts: int) -> list[float]:
    """A rate for each draft of a step; a position that no step reached has 0."""
    return [round(rate, 6) for rate in (*rates, *[0.0] * drafts)][:drafts]


def _length(counts: StepCounts) -> float | None:
    return counts.acceptance_length


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _checkpoint(path: str) -> str | None:
    """The last two parts of a folder or hub id: what is published says nothing of a disk."""
    parts = [part for part in path.split("/") if part]
    return "/".join(parts[-2:]) or None


def _text(content: object) -> str:
    return json.dumps(msgspec.to_builtins(content, str_keys=True), indent=4) + "\n"
