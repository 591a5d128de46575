"""All figures of a measurement as JSON; docs/explanation/measuring.md has their formulas."""

import functools
import itertools
import operator
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from specreg.acceptance.record import AcceptanceRecord, Source, StepCounts, View
from specreg.acceptance.trace import Reply, RequestTrace
from specreg.core.names import ReportedCase
from specreg.core.reasons import Invalidity
from specreg.engines.methods import METHODS
from specreg.measurement import metrics
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Family, Replay
from specreg.stats.percentiles import Summary, TimeHistogram, summarize
from specreg.telemetry.power_record import PowerRecord

_NS_PER_MS = 10**6


class PartFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The acceptance of some requests; null where there is no value.

    Attributes:
        steps, accepted, proposed: S, A, D.
        acceptance_length_tokens: micro AL; acceptance_rate_frac: AR, also called draft efficiency.
        requests: how many, R; macro_acceptance_length_tokens: the mean of the AL of each that had a
            step, in which short answers weigh like long ones; never compared with AL. Both are null
            where the source only knows the sum.
        undrafted_steps: how many steps drafted nothing, U, at least; none of them is among S.
        tokens_per_step: the client's view, over all steps: (N - R) / (S + U); truncated_tokens:
            R + Σ (a + 1) + U - N, emitted, then cut off by the end of a text or the output cap;
            null in the emitted view. Both are null where N or U isn't known.
        histogram: entry j counts the steps with j drafts accepted.
        marginal_frac, conditional_frac, joint_frac: by position, from the first.
    """

    requests: int | None
    steps: int
    accepted: int
    proposed: int | None
    acceptance_length_tokens: float | None
    macro_acceptance_length_tokens: float | None
    acceptance_rate_frac: float | None
    tokens_per_step: float | None
    truncated_tokens: int | None
    histogram: tuple[int, ...]
    marginal_frac: tuple[float, ...]
    conditional_frac: tuple[float, ...]
    joint_frac: tuple[float, ...]
    undrafted_steps: int | None = None


class AcceptanceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The acceptance of a measurement: all of it, and its parts.

    Attributes:
        source, view: where it was read, and whose tokens are counted.
        category_acceptance_length_tokens: the mean over categories of their AL.
        drafts_every_step: whether the method drafts in every step, unless the server turns it off.
        by_part: of thoughts and of answers apart, "thought" and "answer", where the server tells
            thoughts apart. No server counts them apart, so each chunk is taken for a step: an
            estimate in the emitted view, and empty where chunks merged.
    """

    source: Source
    view: View
    total: PartFigures
    category_acceptance_length_tokens: float | None
    by_category: dict[str, PartFigures]
    by_turn: dict[str, PartFigures]
    by_part: dict[str, PartFigures] = {}
    drafts_every_step: bool = True


class AnswerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the answers hold, so that a workload that says little is seen.

    Attributes:
        requests: how many; all others but `prompts` and `distinct` count some of them.
        unfinished_thoughts: answers that never left the thought.
        without_text: answers without a thought or a text.
        without_tokens, of_one_token: answers that are as short.
        looping: answers whose second half repeats itself.
        after_empty_replies: later turns that were asked with an empty reply before them.
        prompts, distinct: how many prompts had a first turn, and how many different answers these
            had; null where an answer isn't known in full.
    """

    requests: int
    unfinished_thoughts: int
    without_text: int
    without_tokens: int
    of_one_token: int
    looping: int
    after_empty_replies: int
    prompts: int
    distinct: int | None


class PaceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How fast some requests came; a spread without values is null.

    Attributes:
        requests: how many; tokens: N of all.
        tpot_ms, output_tokens_per_s: see docs/explanation/measuring.md.
    """

    requests: int
    tokens: int
    tpot_ms: Summary | None
    output_tokens_per_s: Summary | None


class ArmFigures(PaceFigures, frozen=True, kw_only=True):
    """The timing of one server's requests; a spread without values is null.

    Attributes:
        good_requests: how many kept the case's limits.
        prompt_tokens: of each request, with what was said before; total_tokens_per_s: of prompts
            and answers, over the windows of throughput. Null where the server doesn't say.
        tokens_per_chunk: of all chunks but each request's first; of any step, drafted or not.
        send_delay_ms: sent - planned; client_lag_ms: of the client's event loop.
        by_category: the pace of each category's requests.
        others: see docs/explanation/measuring.md.
    """

    good_requests: int
    tokens_per_chunk: float | None
    ttft_ms: Summary | None
    e2e_ms: Summary | None
    step_ms: Summary | None
    prompt_tokens: Summary | None
    completion_tokens: Summary | None
    throughput_tokens_per_s: float | None
    total_tokens_per_s: float | None
    requests_per_s: float | None
    goodput_requests_per_s: float | None
    send_delay_ms: Summary | None
    client_lag_ms: Summary | None
    by_category: dict[str, PaceFigures]


class SpeedupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation gains over the target alone, 1 being nothing; null without a value.

    Attributes:
        throughput_ratio: throughput over the control's, as judged; round_ratio: of each round.
        tpot_ratio: the control's median TPOT over the case's.
        tpot_ratio_by_category: the same of each category's requests.
    """

    throughput_ratio: float | None
    round_ratio: Summary | None
    tpot_ratio: float | None
    tpot_ratio_by_category: dict[str, float | None]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one measurement.

    Attributes:
        case_id, launch: of what; engine_version: by the server's own word.
        invalid: by family why there are none, null where there are all.
        judged: the metrics that are held against baselines.
        acceptance: null without speculation.
        timing: of the case's server, null where a speed is invalid; control: of the one beside it.
        speedup: of one over the other; null without a control, and where speeds mean nothing.
        power: what the devices drew; null where that wasn't watched.
        answers: what the answers of the case's server hold; null where nothing was measured.
    """

    case_id: ReportedCase
    launch: int
    engine_version: str
    invalid: dict[Family, Invalidity] | None
    judged: dict[str, float]
    acceptance: AcceptanceFigures | None
    timing: ArmFigures | None
    control: ArmFigures | None
    speedup: SpeedupFigures | None
    power: PowerRecord | None
    answers: AnswerFigures | None = None


def figures_of(measurement: Measurement, launch: int) -> Figures:
    """The figures of a measurement; of an invalid family only why it is."""
    replay, invalid = measurement.replay, measurement.invalid
    acceptance = measurement.acceptance
    timed = replay if invalid.keys().isdisjoint({Family.THROUGHPUT, Family.LATENCY}) else None
    timing = _arm(timed) if timed else None
    compares = timed is not None and timed.control_rounds and Family.SPEEDUP not in invalid
    control = _arm(timed.control_replay) if timed and compares else None
    return Figures(
        case_id=measurement.case.id,
        launch=launch,
        engine_version=measurement.engine_version,
        invalid=dict(invalid) or None,
        judged=dict(measurement.values),
        acceptance=_acceptance(acceptance, measurement) if acceptance else None,
        timing=timing,
        control=control,
        speedup=_speedup(measurement, timing, control),
        power=replay.power if replay and Family.POWER not in invalid else None,
        answers=_answers(replay.traces) if replay and replay.traces else None,
    )


def _answers(traces: Sequence[RequestTrace]) -> AnswerFigures:
    replies = Counter(trace.reply for trace in traces)
    lengths = Counter(trace.tokens for trace in traces)
    first_turns = [trace for trace in traces if trace.turn == 1]
    digests = {trace.answer_sha256 for trace in first_turns}
    return AnswerFigures(
        requests=len(traces),
        unfinished_thoughts=replies[Reply.UNFINISHED_THOUGHT],
        without_text=replies[Reply.NOTHING],
        without_tokens=lengths[0],
        of_one_token=lengths[1],
        looping=sum(trace.loops for trace in traces),
        after_empty_replies=sum(trace.empty_replies > 0 for trace in traces),
        prompts=len({trace.prompt_id for trace in first_turns}),
        distinct=None if "" in digests else len(digests),
    )


def _by_part(traces: Sequence[RequestTrace], draft_tokens: int) -> dict[str, PartFigures]:
    """The acceptance of thoughts and answers apart, each later chunk being taken for a step."""
    sizes = {"thought": Counter[int](), "answer": Counter[int]()}
    for trace in traces:
        for tokens, chunks in enumerate(trace.thought_chunk_sizes):
            sizes["thought"][tokens] += chunks
            sizes["answer"][tokens] -= chunks
        for tokens, chunks in enumerate(trace.chunk_sizes):
            sizes["answer"][tokens] += chunks
    longest = max((tokens for part in sizes.values() for tokens in +part), default=0)
    if not sizes["thought"].total() or longest > draft_tokens + 1:
        return {}
    return {
        name: _part(
            AcceptanceRecord(
                source=Source.STREAM_CHUNKS,
                view=View.EMITTED,
                total=StepCounts.from_histogram(
                    [part[tokens] for tokens in range(1, draft_tokens + 2)], proposed=None
                ),
                prompts=(),
            ),
            drafts_every_step=False,
        )
        for name, part in sizes.items()
        if part.total()
    }


def _acceptance(record: AcceptanceRecord, measurement: Measurement) -> AcceptanceFigures:
    case, replay = measurement.case, measurement.replay or Replay()
    drafts_every_step = METHODS[case.server.method].drafts_every_step
    part = functools.partial(_part, drafts_every_step=drafts_every_step)
    return AcceptanceFigures(
        source=record.source,
        view=record.view,
        total=part(record),
        category_acceptance_length_tokens=_mean_length(
            one.total for one in record.by_category.values()
        ),
        by_category={name: part(one) for name, one in record.by_category.items()},
        by_turn={str(turn): part(one) for turn, one in record.by_turn.items()},
        by_part=_by_part(replay.traces, case.server.draft_tokens),
        drafts_every_step=drafts_every_step,
    )


def _part(record: AcceptanceRecord, *, drafts_every_step: bool) -> PartFigures:
    counts: StepCounts = record.total
    later_tokens = record.later_tokens
    if record.prompts:
        later_tokens = sum(prompt.completion_tokens - 1 for prompt in record.prompts)
    undrafted_steps = record.undrafted_steps
    if undrafted_steps is None and drafts_every_step:
        undrafted_steps = 0
    tokens_per_step = truncated_tokens = None
    if later_tokens is not None and undrafted_steps is not None:
        steps = counts.steps + undrafted_steps
        tokens_per_step = later_tokens / steps if steps else None
        if record.view is View.VERIFIER:
            truncated_tokens = counts.accepted + steps - later_tokens
    return PartFigures(
        requests=len(record.prompts) or None,
        steps=counts.steps,
        accepted=counts.accepted,
        proposed=counts.proposed,
        acceptance_length_tokens=counts.acceptance_length,
        macro_acceptance_length_tokens=_mean_length(one.counts for one in record.prompts),
        acceptance_rate_frac=counts.acceptance_rate,
        undrafted_steps=undrafted_steps,
        tokens_per_step=tokens_per_step,
        truncated_tokens=truncated_tokens,
        histogram=counts.histogram,
        marginal_frac=counts.marginal_acceptance,
        conditional_frac=counts.conditional_acceptance,
        joint_frac=tuple(itertools.accumulate(counts.conditional_acceptance, operator.mul)),
    )


def _mean_length(parts: Iterable[StepCounts]) -> float | None:
    lengths = [one.acceptance_length for one in parts if one.acceptance_length is not None]
    return statistics.fmean(lengths) if lengths else None


def _arm(replay: Replay) -> ArmFigures:
    traces = replay.traces
    told = all(trace.prompt_tokens is not None for trace in traces)
    all_tokens_per_s = metrics.per_s(replay, lambda one: one.tokens + (one.prompt_tokens or 0))
    by_category: dict[str, list[RequestTrace]] = {}
    for trace in traces:
        by_category.setdefault(trace.category, []).append(trace)
    return ArmFigures(
        **msgspec.structs.asdict(_pace(traces)),
        good_requests=sum(metrics.is_good(trace, replay.limits) for trace in traces),
        tokens_per_chunk=metrics.tokens_per_step(replay),
        ttft_ms=summarize(map(metrics.ttft_ms, traces)),
        e2e_ms=summarize(map(metrics.e2e_ms, traces)),
        step_ms=replay.gaps.summary_ms(),
        prompt_tokens=summarize(trace.prompt_tokens for trace in traces),
        completion_tokens=summarize(trace.tokens for trace in traces),
        throughput_tokens_per_s=metrics.throughput_tokens_per_s(replay),
        total_tokens_per_s=all_tokens_per_s if told else None,
        requests_per_s=metrics.per_s(replay, lambda _: 1.0),
        goodput_requests_per_s=metrics.goodput_requests_per_s(replay),
        send_delay_ms=summarize((one.sent_ns - one.planned_ns) / _NS_PER_MS for one in traces),
        client_lag_ms=TimeHistogram.merged(part.lags for part in replay.rounds).summary_ms(),
        by_category={name: _pace(part) for name, part in by_category.items()},
    )


def _pace(traces: Sequence[RequestTrace]) -> PaceFigures:
    return PaceFigures(
        requests=len(traces),
        tokens=sum(trace.tokens for trace in traces),
        tpot_ms=summarize(map(metrics.tpot_ms, traces)),
        output_tokens_per_s=summarize(map(metrics.output_tokens_per_s, traces)),
    )


def _speedup(
    measurement: Measurement, timing: ArmFigures | None, control: ArmFigures | None
) -> SpeedupFigures | None:
    if timing is None or control is None or not measurement.case.speed:
        return None
    return SpeedupFigures(
        throughput_ratio=measurement.values.get("speedup_ratio"),
        round_ratio=summarize(metrics.round_ratios(measurement.replay or Replay())),
        tpot_ratio=_ratio(control.tpot_ms, timing.tpot_ms),
        tpot_ratio_by_category={
            name: _ratio(control.by_category[name].tpot_ms, pace.tpot_ms)
            for name, pace in timing.by_category.items()
            if name in control.by_category
        },
    )


def _ratio(theirs: Summary | None, ours: Summary | None) -> float | None:
    """Divide medians, which a stalled request doesn't move."""
    return theirs.p50 / ours.p50 if theirs and ours and ours.p50 else None
