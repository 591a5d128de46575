"""Calculate all figures of a measurement. docs/explanation/measuring.md has their formulas."""

import itertools
import operator
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from specreg.acceptance.record import AcceptanceRecord, Source, StepCounts, View
from specreg.acceptance.trace import Reply, RequestTrace
from specreg.core.families import Family
from specreg.core.names import ReportedCase
from specreg.core.readable import Label
from specreg.core.reasons import Reason
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.engines.methods import METHODS
from specreg.matrix.case import Case
from specreg.measurement import metrics
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import Replay
from specreg.stats.percentiles import Summary, TimeHistogram, summarize
from specreg.telemetry.power_record import PowerRecord

_NS_PER_MS = 10**6


class PartFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The acceptance of some requests; null where there is no value.

    Attributes:
        requests: the number of requests, R; null where the source only has the sum.
        steps: the steps that drafted, S.
        accepted: the drafted tokens that were accepted, A.
        proposed: the drafted tokens, D.
        acceptance_length_tokens: the acceptance length, 1 + A / S, also called micro AL.
        macro_acceptance_length_tokens: the mean of the AL of each request that had a step. In it, a
            short answer counts as much as a long one. It is never compared with AL. Null where the
            source only has the sum.
        acceptance_rate_frac: the acceptance rate, AR, also called draft efficiency.
        tokens_per_step: the client's view over all steps: (N - R) / (S + U), where N is the number
            of tokens in the answers, and U is `undrafted_steps`. Null where N or U isn't known.
        truncated_tokens: R + A + S + U - N, the tokens that were emitted and then cut off by the
            end of a text or by the output cap. Null in the emitted view, and where N or U isn't
            known.
        histogram: entry j counts the steps with j drafts accepted.
        marginal_frac: for each draft position, from the first, the share of the steps that accepted
            the draft there.
        conditional_frac: for each position that a step reached, the same share among only those
            steps that accepted the draft at the position before.
        joint_frac: for each of these positions, the product of the conditional shares up to it.
        undrafted_steps: at least this many steps drafted nothing, U; they aren't part of S. Null
            where their number isn't known.
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
        source: where acceptance was read.
        view: which tokens are counted: all that the verifier accepted, or only those that reached
            the client.
        total: the acceptance of all requests.
        category_acceptance_length_tokens: the mean of the categories' AL.
        by_category: the acceptance of each category's requests.
        by_turn: the acceptance of each turn's requests.
        by_part: the acceptance of thoughts under "thought", and of all other text under "answer";
            empty if neither the server nor a mark in the text separates a thought, or if chunks
            aren't steps. No server counts the two separately, so each chunk after the first is
            taken for a step, which makes this an estimate in the emitted view.
        drafts_every_step: whether the method drafts in every step, unless the server turns drafting
            off.
        chunks_split_steps: whether the tokens of a step came in several chunks, according to the
            counts of the server; then the time between two chunks isn't the time of a step.
    """

    source: Source
    view: View
    total: PartFigures
    category_acceptance_length_tokens: float | None
    by_category: dict[Label, PartFigures]
    by_turn: dict[Label, PartFigures]
    by_part: dict[Label, PartFigures] = {}
    drafts_every_step: bool = True
    chunks_split_steps: bool = False


class AnswerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What the answers contain, which shows if a workload says little about speculation.

    Each field counts requests, except for `thinking`, `prompts` and `distinct`.

    Attributes:
        requests: all requests.
        thinking: whether the case switches thinking on or off; null where the template decides.
        with_thought: answers with a thought, even if they never left it. A thought that ended
            within the first chunk isn't counted.
        unfinished_thoughts: answers that never left the thought.
        without_text: answers with neither a thought nor a text, or whose text consists of blanks.
        without_tokens: answers without a token.
        of_one_token: answers of a single token.
        looping: answers whose second half repeats itself.
        after_empty_replies: later turns with an empty reply among the turns before them.
        prompts: how many prompts had their first turn answered.
        distinct: how many of the answers to first turns differ from each other; null where one of
            them isn't known in full.
        other_texts: answers with the tokens of an answer of the control, but another streamed text.
        cut_short: answers that the server ended before the output cap of the case, although neither
            the model nor the case ended them.
    """

    requests: int
    thinking: bool | None = None
    with_thought: int = 0
    unfinished_thoughts: int
    without_text: int
    without_tokens: int
    of_one_token: int
    looping: int
    after_empty_replies: int
    prompts: int
    distinct: int | None
    other_texts: int = 0
    cut_short: int = 0


class PaceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """How fast the tokens of some requests came; a summary without values is null.

    Attributes:
        requests: the number of requests.
        tokens: the tokens of all answers, N.
        tpot_ms: the time per output token.
        output_tokens_per_s: the output speed of each request, 1 / TPOT.
    """

    requests: int
    tokens: int
    tpot_ms: Summary | None
    output_tokens_per_s: Summary | None


class ArmFigures(PaceFigures, frozen=True, kw_only=True):
    """The timing of one server's requests; a summary without values is null.

    Attributes:
        good_requests: how many requests kept the case's limits.
        tokens_per_chunk: the mean number of tokens of a chunk, without each request's first chunk.
        ttft_ms: the time to first token.
        e2e_ms: the end-to-end latency.
        step_ms: the time between two chunks of an answer.
        prompt_tokens: the tokens of each request's prompt, with the turns before it; null where
            the server doesn't report them.
        completion_tokens: the tokens of each answer.
        throughput_tokens_per_s: the tokens of answers per second while the load was full.
        total_tokens_per_s: the tokens of prompts and answers over the same time; null where the
            server doesn't report those of prompts.
        requests_per_s: the requests over the same time.
        goodput_requests_per_s: the requests that kept the case's limits, over the same time.
        send_delay_ms: how much later than planned each request was sent.
        client_lag_ms: how late the client's event loop was.
        by_category: the pace of each category's requests.
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
    by_category: dict[Label, PaceFigures]


class SpeedupFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation gains over the target alone; 1 is no gain, null is no value.

    Attributes:
        throughput_ratio: the case's throughput over the control's, as it is judged.
        round_ratio: the throughput ratio of each round.
        tpot_ratio: the control's median TPOT over the case's.
        tpot_ratio_by_category: the TPOT ratio of each category's requests.
    """

    throughput_ratio: float | None
    round_ratio: Summary | None
    tpot_ratio: float | None
    tpot_ratio_by_category: dict[Label, float | None]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one measurement.

    Attributes:
        case_id: the case that was measured.
        launch: which launch of its server was measured, from 1.
        engine_version: the version that the server reports.
        facts: what the server ran with that neither its settings nor its version say.
        invalid: for each invalid family the reason why it has no figures; null if all are valid.
        judged: the values of the case's valid metrics, also of those that are only shown.
        acceptance: null without speculation, and where acceptance is invalid.
        timing: the timing of the case's server; null where a speed is invalid.
        control: the timing of the control; null without a control, and where speeds are invalid.
        speedup: null without a control, and where speeds aren't measured or are invalid.
        power: what the devices drew; null where their power wasn't sampled or is invalid.
        answers: what the answers of the case's server hold; null where nothing was measured.
    """

    case_id: ReportedCase
    launch: int
    engine_version: str
    invalid: dict[Family, Reason] | None
    judged: dict[Label, float]
    acceptance: AcceptanceFigures | None
    timing: ArmFigures | None
    control: ArmFigures | None
    speedup: SpeedupFigures | None
    power: PowerRecord | None
    facts: LaunchFacts = NOTHING_KNOWN
    answers: AnswerFigures | None = None


def figures_of(measurement: Measurement, launch: int) -> Figures:
    """Return the figures of a measurement; for an invalid family, there is only the reason."""
    replay = measurement.replay
    invalid = measurement.invalid
    acceptance = None
    if measurement.acceptance is not None:
        acceptance = _acceptance(measurement.acceptance, measurement)

    # Invalid figures aren't shown, so that nobody uses them.
    timing = None
    control = None
    has_speeds = Family.THROUGHPUT not in invalid and Family.LATENCY not in invalid
    if replay is not None and has_speeds:
        timing = _arm(replay)
        if replay.control_rounds and Family.SPEEDUP not in invalid:
            control = _arm(replay.control_replay)

    power = None
    if replay is not None and Family.POWER not in invalid:
        power = replay.power
    answers = None
    if replay is not None and replay.traces:
        answers = _answers(replay, measurement.case)
    return Figures(
        case_id=measurement.case.id,
        launch=launch,
        engine_version=measurement.engine_version,
        facts=measurement.facts,
        invalid=dict(invalid) or None,
        judged=dict(measurement.values),
        acceptance=acceptance,
        timing=timing,
        control=control,
        speedup=_speedup(measurement, timing, control),
        power=power,
        answers=answers,
    )


def _answers(replay: Replay, case: Case) -> AnswerFigures:
    """Count what the answers contain."""
    traces = replay.traces

    # If the end of the text is ignored, every answer has to reach the cap.
    cut_short = [
        trace
        for trace in traces
        if trace.tokens < case.request.output_cap_tokens
        and (
            trace.finish_reason == "length"
            or (case.request.ignore_eos and trace.finish_reason == "stop")
        )
    ]

    # `thought_chunk_sizes` leaves out the first chunk, so it is empty for a thought of one chunk.
    thoughts = [
        trace
        for trace in traces
        if trace.thought_chunk_sizes or trace.reply is Reply.UNFINISHED_THOUGHT
    ]
    replies = Counter(trace.reply for trace in traces)
    lengths = Counter(trace.tokens for trace in traces)
    first_turns = [trace for trace in traces if trace.turn == 1]
    digests = {trace.answer_sha256 for trace in first_turns}
    prompt_ids = {trace.prompt_id for trace in first_turns}
    distinct_answers: int | None = len(digests)
    if "" in digests:
        # An answer that isn't known in full has an empty digest.
        distinct_answers = None
    return AnswerFigures(
        requests=len(traces),
        thinking=case.request.thinking,
        with_thought=len(thoughts),
        unfinished_thoughts=replies[Reply.UNFINISHED_THOUGHT],
        without_text=replies[Reply.NOTHING],
        without_tokens=lengths[0],
        of_one_token=lengths[1],
        looping=sum(trace.loops for trace in traces),
        after_empty_replies=sum(trace.empty_replies > 0 for trace in traces),
        prompts=len(prompt_ids),
        distinct=distinct_answers,
        other_texts=_other_texts(traces, replay.control_replay.traces),
        cut_short=len(cut_short),
    )


def _other_texts(traces: Sequence[RequestTrace], control_traces: Sequence[RequestTrace]) -> int:
    """Count the answers with the tokens of an answer of the control, but another streamed text."""
    control_texts: dict[tuple[str, int, str], set[str]] = {}
    for trace in control_traces:
        key = (trace.prompt_id, trace.turn, trace.ids_sha256)
        control_texts.setdefault(key, set()).add(trace.answer_sha256)
    other_texts = 0
    for trace in traces:
        texts = control_texts.get((trace.prompt_id, trace.turn, trace.ids_sha256))
        # Without the ids of all tokens, it isn't known whether the tokens are equal.
        if trace.ids_sha256 and texts and trace.answer_sha256 not in texts:
            other_texts += 1

    return other_texts


def _by_part(traces: Sequence[RequestTrace], draft_tokens: int) -> dict[str, PartFigures]:
    """Return the acceptance of thoughts and answers; each chunk after the first counts as a step.

    Args:
        draft_tokens: the most drafts that a step can accept, k.

    Returns:
        The parts by name. It is empty if no later chunk carries only a thought, or if a later chunk
        holds more tokens than a step can emit.
    """
    thought_sizes = Counter[int]()
    answer_sizes = Counter[int]()
    for trace in traces:
        # The sizes of all chunks include those of the thought.
        for tokens, chunks in enumerate(trace.thought_chunk_sizes):
            thought_sizes[tokens] += chunks
            answer_sizes[tokens] -= chunks
        for tokens, chunks in enumerate(trace.chunk_sizes):
            answer_sizes[tokens] += chunks

    # The unary plus of a counter leaves out the sizes that no chunk has.
    used_sizes = (*+thought_sizes, *+answer_sizes)
    longest_tokens = max(used_sizes, default=0)

    # A longer chunk holds several steps, so chunks can't be taken for steps.
    if not thought_sizes.total() or longest_tokens > draft_tokens + 1:
        return {}
    parts = {"thought": _part_of_chunks(thought_sizes, draft_tokens)}
    if answer_sizes.total():
        parts["answer"] = _part_of_chunks(answer_sizes, draft_tokens)
    return parts


def _part_of_chunks(sizes: Counter[int], draft_tokens: int) -> PartFigures:
    """Return the acceptance of chunks that are taken for steps.

    Args:
        sizes: how many chunks have each size in tokens.
        draft_tokens: the most drafts that a step can accept, k.
    """
    histogram = [sizes[tokens] for tokens in range(1, draft_tokens + 2)]
    record = AcceptanceRecord(
        source=Source.STREAM_CHUNKS,
        view=View.EMITTED,
        total=StepCounts.from_histogram(histogram, proposed=None),
        prompts=(),
    )
    return _part(record, drafts_every_step=False)


def _acceptance(record: AcceptanceRecord, measurement: Measurement) -> AcceptanceFigures:
    """Return the acceptance of a measurement and of its categories, turns and parts."""
    case = measurement.case
    replay = measurement.replay or Replay()
    drafts_every_step = METHODS[case.server.method].drafts_every_step

    def figures_of_part(part: AcceptanceRecord) -> PartFigures:
        return _part(part, drafts_every_step=drafts_every_step)

    totals = [category.total for category in record.by_category.values()]
    by_category = {name: figures_of_part(part) for name, part in record.by_category.items()}

    # The keys of an object in JSON are texts.
    by_turn = {str(turn): figures_of_part(part) for turn, part in record.by_turn.items()}
    by_part: dict[str, PartFigures] = {}
    if not record.chunks_split_steps:
        by_part = _by_part(replay.traces, case.server.draft_tokens)
    return AcceptanceFigures(
        source=record.source,
        view=record.view,
        total=figures_of_part(record),
        category_acceptance_length_tokens=_mean_length(totals),
        by_category=by_category,
        by_turn=by_turn,
        by_part=by_part,
        drafts_every_step=drafts_every_step,
        chunks_split_steps=record.chunks_split_steps,
    )


def _part(record: AcceptanceRecord, *, drafts_every_step: bool) -> PartFigures:
    """Return the figures of one part of the acceptance.

    Args:
        record: the acceptance of the part.
        drafts_every_step: whether the method drafts in every step. If it does and the source
            doesn't report steps without a draft, there were none.
    """
    counts: StepCounts = record.total

    # N - R: the prefill emits the first token of each request.
    later_tokens = record.later_tokens
    if record.prompts:
        later_tokens = sum(prompt.later_tokens for prompt in record.prompts)

    # U: the steps without a draft.
    undrafted_steps = record.undrafted_steps
    if undrafted_steps is None and drafts_every_step:
        undrafted_steps = 0
    tokens_per_step = None
    truncated_tokens = None
    if later_tokens is not None and undrafted_steps is not None:
        steps = counts.steps + undrafted_steps
        if steps:
            tokens_per_step = later_tokens / steps
        if record.view is View.VERIFIER:
            # A step emits its accepted drafts and one token. Tokens that weren't delivered were
            # cut off by the end of the text or by the output cap.
            truncated_tokens = counts.accepted + steps - later_tokens

    conditional_frac = counts.conditional_acceptance
    joint_frac = itertools.accumulate(conditional_frac, operator.mul)
    macro_length_tokens = _mean_length(prompt.counts for prompt in record.prompts)
    return PartFigures(
        requests=len(record.prompts) or None,
        steps=counts.steps,
        accepted=counts.accepted,
        proposed=counts.proposed,
        acceptance_length_tokens=counts.acceptance_length,
        macro_acceptance_length_tokens=macro_length_tokens,
        acceptance_rate_frac=counts.acceptance_rate,
        undrafted_steps=undrafted_steps,
        tokens_per_step=tokens_per_step,
        truncated_tokens=truncated_tokens,
        histogram=counts.histogram,
        marginal_frac=counts.marginal_acceptance,
        conditional_frac=conditional_frac,
        joint_frac=tuple(joint_frac),
    )


def _mean_length(parts: Iterable[StepCounts]) -> float | None:
    """Return the mean of the parts' AL; None if no part had a step."""
    lengths = [part.acceptance_length for part in parts if part.acceptance_length is not None]
    if not lengths:
        return None
    return statistics.fmean(lengths)


def _arm(replay: Replay) -> ArmFigures:
    """Return the timing of one server's requests."""
    traces = replay.traces
    total_tokens_per_s = None

    # Without the prompt tokens of each request, the sum would be too small.
    if all(trace.prompt_tokens is not None for trace in traces):
        total_tokens_per_s = metrics.per_s(replay, _total_tokens)
    traces_by_category: dict[str, list[RequestTrace]] = {}
    for trace in traces:
        traces_by_category.setdefault(trace.category, []).append(trace)
    by_category = {name: _pace(part) for name, part in traces_by_category.items()}

    # What the client itself adds: a late request and a busy event loop make a server look slow.
    send_delays_ms = [(trace.sent_ns - trace.planned_ns) / _NS_PER_MS for trace in traces]
    lags = TimeHistogram.merged(replayed_round.lags for replayed_round in replay.rounds)
    good_requests = sum(metrics.is_good(trace, replay.limits) for trace in traces)
    return ArmFigures(
        **msgspec.structs.asdict(_pace(traces)),
        good_requests=good_requests,
        tokens_per_chunk=metrics.tokens_per_chunk(replay),
        ttft_ms=summarize(map(metrics.ttft_ms, traces)),
        e2e_ms=summarize(map(metrics.e2e_ms, traces)),
        step_ms=replay.gaps.summary_ms(),
        prompt_tokens=summarize(trace.prompt_tokens for trace in traces),
        completion_tokens=summarize(trace.tokens for trace in traces),
        throughput_tokens_per_s=metrics.throughput_tokens_per_s(replay),
        total_tokens_per_s=total_tokens_per_s,
        requests_per_s=metrics.per_s(replay, lambda _: 1.0),
        goodput_requests_per_s=metrics.goodput_requests_per_s(replay),
        send_delay_ms=summarize(send_delays_ms),
        client_lag_ms=lags.summary_ms(),
        by_category=by_category,
    )


def _total_tokens(trace: RequestTrace) -> int:
    return trace.tokens + (trace.prompt_tokens or 0)


def _pace(traces: Sequence[RequestTrace]) -> PaceFigures:
    """Return how fast the tokens of these requests arrived."""
    return PaceFigures(
        requests=len(traces),
        tokens=sum(trace.tokens for trace in traces),
        tpot_ms=summarize(map(metrics.tpot_ms, traces)),
        output_tokens_per_s=summarize(map(metrics.output_tokens_per_s, traces)),
    )


def _speedup(
    measurement: Measurement, timing: ArmFigures | None, control: ArmFigures | None
) -> SpeedupFigures | None:
    """Return the speedup; None without a control, or if speeds aren't measured or are invalid."""
    if timing is None or control is None or not measurement.case.judging.speed:
        return None
    tpot_ratio_by_category = {}
    for name, pace in timing.by_category.items():
        if name in control.by_category:
            control_tpot_ms = control.by_category[name].tpot_ms
            tpot_ratio_by_category[name] = _median_ratio(control_tpot_ms, pace.tpot_ms)

    round_ratios = metrics.round_ratios(measurement.replay or Replay())
    return SpeedupFigures(
        throughput_ratio=measurement.values.get("speedup_ratio"),
        round_ratio=summarize(round_ratios),
        tpot_ratio=_median_ratio(control.tpot_ms, timing.tpot_ms),
        tpot_ratio_by_category=tpot_ratio_by_category,
    )


def _median_ratio(control: Summary | None, case: Summary | None) -> float | None:
    """Return the control's median divided by the case's. Stalled requests don't affect medians."""
    if control is None or case is None or not case.p50:
        return None
    return control.p50 / case.p50
