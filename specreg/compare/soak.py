"""A soak: one arm kept under its case's load for long, the last blocks against the first."""

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from types import MappingProxyType

import msgspec

from specreg.core.errors import (
    InvalidMeasurementError,
    SpecregError,
    UnsupportedError,
)
from specreg.core.files import append_lines
from specreg.core.processes import resident_bytes
from specreg.datasets.prompts import Prompt
from specreg.load.chat_client import Clock
from specreg.matrix.case import Case, Tier
from specreg.matrix.prompts import check_contexts, load_case_prompts
from specreg.measurement.arm import Arm
from specreg.measurement.measure import Plan, Workload, batch_of, measure
from specreg.measurement.metrics import METRICS, Family, Replay
from specreg.servers.server import StartedServer
from specreg.servers.sources import Source, parse_origin, source_of
from specreg.servers.start import start_server
from specreg.stats.intervals import BLOCK_PARTS, change_of_blocks, part_means
from specreg.telemetry.devices import held_bytes
from specreg.telemetry.identity import find_gpus
from specreg.verdicts.judge import Outcome, Verdict, outcome_of

LEAD_IN_FRAC = 0.1
"""Of a soak's time; buffers fill and caches warm then, and nothing is judged."""
LOOKS = (0.2, 0.4, 0.6, 0.8)
"""The fractions of a soak's time at which it is looked at before its end."""
LEVEL = 0.01
"""In how many soaks of a steady server an alarm is raised, at most."""
MEMORY_TOLERANCE_FRAC = 0.05
_BLOCKS = 100
"""How many a soak has, as near as the prompts allow; eight are needed after the lead-in."""
_NS_PER_S = 10**9
_S_PER_H = 3600.0


class Look(Enum):
    """A look at a soak, and its share of the level; all of them together use it up."""

    EARLY = LEVEL / 2 / len(LOOKS)
    LAST = LEVEL / 2


class Block(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The same prompts once more; a line of `soak.jsonl`.

    Attributes:
        number: from 1.
        at_s: its middle, counted from the first block's start; lasted_s: how long it took.
        requests: that ended.
        acceptance_length_tokens: per step; None without speculation, or without a step.
        step_ms: the mean time between two chunks of a request, which chunks that are read at once
            leave as it is; None where no request had two, or the client was late, which
            `client_late` says.
        memory_bytes: what the server's processes hold of the machine's memory.
        gpu_memory_bytes: of its GPUs'; None without one, or where it isn't known.
    """

    number: int
    at_s: float
    lasted_s: float
    requests: int
    acceptance_length_tokens: float | None = None
    step_ms: float | None = None
    memory_bytes: float | None = None
    gpu_memory_bytes: float | None = None
    client_late: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of each block that should stay as it is.

    Attributes:
        name: the block's field.
        sign: 1 where less is worse, -1 where more is.
        origin: where it begins to count; changes are relative to what is beyond.
        metric: whose tolerance is its own; empty for `MEMORY_TOLERANCE_FRAC`.
    """

    name: str
    sign: int = -1
    origin: float = 0.0
    metric: str = ""

    def tolerance_frac(self, case: Case) -> float:
        """The loss in an hour that is still fine, relative."""
        if not self.metric:
            return MEMORY_TOLERANCE_FRAC
        return dict(case.tolerances).get(self.metric, METRICS[self.metric].tolerance_frac)


_ALL = (
    Figure(name="acceptance_length_tokens", sign=1, origin=1.0, metric="acceptance_length_tokens"),
    Figure(name="step_ms", metric="tpot_p50_ms"),
    Figure(name="memory_bytes"),
    Figure(name="gpu_memory_bytes"),
)
FIGURES: Mapping[str, Figure] = MappingProxyType({one.name: one for one in _ALL})


def figures_of_soak(case: Case, *, on_gpu: bool) -> tuple[Figure, ...]:
    """What is watched of a case: what it can't have, or what means nothing of it, isn't."""
    left_out = {
        "acceptance_length_tokens": not case.speculates,
        "step_ms": not case.speed,
        "gpu_memory_bytes": not on_gpu,
    }
    return tuple(one for one in _ALL if not left_out.get(one.name, False))


def judge_figure(
    figure: Figure,
    blocks: Sequence[Block],
    *,
    case_id: str,
    lead_in_s: float,
    level: float,
    tolerance_frac: float,
) -> Verdict:
    """The verdict on how a figure moved over the blocks after the lead-in.

    Args:
        figure: which.
        blocks: so far, in order.
        case_id: whose.
        lead_in_s: blocks whose middle lies before it aren't judged.
        level: how often the interval misses the truth on either side, 0..0.5.
        tolerance_frac: the loss in an hour that is still fine.

    Returns:
        PASS where the interval excludes a loss beyond the tolerance, REGRESSED where the whole
        interval is a loss and the estimate is beyond it; its change is that of an hour.
    """
    told = [
        (block, float(value))
        for block in blocks
        if block.at_s >= lead_in_s and (value := getattr(block, figure.name)) is not None
    ]
    verdict = Verdict(
        case_id=case_id,
        metric=figure.name,
        outcome=Outcome.INCONCLUSIVE,
        tolerance_frac=tolerance_frac,
        against="the first blocks",
        reason=f"no telling from {len(told)} blocks",
    )
    if len(told) < BLOCK_PARTS:
        why = f"{verdict.reason}, {BLOCK_PARTS} are needed; soak longer, or with fewer --prompts"
        return dataclasses.replace(verdict, reason=why)
    values = [value for _, value in told]
    means = part_means(values)
    beyond = float(means[0]) - figure.origin
    if beyond <= 0:
        why = f"it is never beyond {figure.origin:g}; there is nothing to lose"
        return dataclasses.replace(verdict, reason=why)
    hours = [block.at_s / _S_PER_H for block, _ in told]
    change = change_of_blocks(values, hours, figure.sign / beyond)
    low, high = change.bounds(level)
    outcome = outcome_of(change.estimate_frac, low, high, tolerance_frac)
    judged_s = sum(block.lasted_s for block, _ in told)
    return dataclasses.replace(
        verdict,
        outcome=outcome,
        expected=float(means[0]),
        value=float(means[-1]),
        change_frac=change.estimate_frac,
        low_frac=low,
        high_frac=high,
        p_worse=change.p_worse,
        reason=_reason(outcome, change.estimate_frac, low, tolerance_frac, judged_s),
    )


def _reason(
    outcome: Outcome, change_frac: float, low_frac: float, tolerance_frac: float, judged_s: float
) -> str:
    """What is to be known of a figure that isn't steady, and done.

    An interval of blocks that are as many, but longer, shrinks with the time to the power 3/2: its
    ends lie further apart, and each mean is of more.
    """
    if outcome is Outcome.REGRESSED:
        lost_after_h = -tolerance_frac / change_frac
        return (
            f"worse by {-change_frac:.1%} in an hour; what is fine for one is lost after"
            f" {lost_after_h:.1f} h; look at the server's log for what grows or fills"
        )
    if outcome is not Outcome.INCONCLUSIVE:
        return ""
    room = tolerance_frac + change_frac
    if room <= 0:
        return "no telling yet; soak longer"
    longer = math.pow(max((change_frac - low_frac) / room, 1.0), 2 / 3)
    minutes = math.ceil(judged_s / (1 - LEAD_IN_FRAC) / 60 * longer)
    return f"no telling yet; soak for {minutes} minutes or more"


@dataclass(slots=True, kw_only=True)
class Soak:
    """One soak, and what has come of it so far.

    Attributes:
        case: whose load it is; on_gpu: whether its engine runs on a GPU.
        length_s: how long it takes, from the first block's start.
        prompts: of a block, None for as many as make a hundredth of that time.
        tolerance_frac: the loss in an hour that is fine, of all figures; None for each one's own.
        path: of the file that gets each block as it ends.
        show: is told what goes on.
        clock: monotonic, in nanoseconds.
        blocks: so far.
        alarms: by figure, the verdict of the look that first saw it drift; alarms_s: when it did.
    """

    case: Case
    on_gpu: bool
    length_s: float
    prompts: int | None
    tolerance_frac: float | None
    path: Path
    show: Callable[[str], None]
    clock: Clock = time.monotonic_ns
    blocks: list[Block] = field(default_factory=list)
    alarms: dict[str, Verdict] = field(default_factory=dict)
    alarms_s: dict[str, float] = field(default_factory=dict)

    def run(self, server: StartedServer, prompts: Sequence[Prompt]) -> None:
        """Measure block after block, until the time is over.

        Args:
            server: running, with no other client using it.
            prompts: the dataset's; a block takes the first ones.

        Raises:
            InvalidMeasurementError: the warm-up generated nothing, a request failed, or a check of
                the meter broke: what came until then stays.
            ServerDiedError: the server went away.
            SpecregError: the disk refuses.
        """
        # A block is prompts, not a time, and each begins at full load.
        load = dataclasses.replace(self.case.load, duration_s=None, ramp_up_s=0.0)
        arm = Arm(case=dataclasses.replace(self.case, load=load), server=server)
        self.show(f"{self.case.id}: warming up")
        taken = prompts[: self._warm_up(arm, prompts)]
        self.show(f"{self.case.id}: {len(taken)} prompts in each block")
        started_ns, looks = self.clock(), list(LOOKS)
        while (passed_s := (self.clock() - started_ns) / _NS_PER_S) < self.length_s:
            if looks and passed_s >= looks[0] * self.length_s:
                looks.pop(0)
                self.look(Look.EARLY)
            block = self._block(arm, server, taken, started_ns)
            self.blocks.append(block)
            record_block(self.path, block)

    def look(self, look: Look) -> tuple[Verdict, ...]:
        """The verdict on each figure so far; what drifts raises an alarm, once each."""
        figures = figures_of_soak(self.case, on_gpu=self.on_gpu)
        verdicts = tuple(
            judge_figure(
                figure,
                self.blocks,
                case_id=self.case.id,
                lead_in_s=LEAD_IN_FRAC * self.length_s,
                level=look.value / len(figures),
                tolerance_frac=figure.tolerance_frac(self.case)
                if self.tolerance_frac is None
                else self.tolerance_frac,
            )
            for figure in figures
        )
        for one in verdicts:
            if one.outcome is Outcome.REGRESSED and one.metric not in self.alarms:
                self.alarms[one.metric], self.alarms_s[one.metric] = one, self.passed_s
                self.show(f"after {self.passed_s / 60:.1f} min: {one.metric}: {one.reason}")
        return verdicts

    def conclude(self) -> tuple[Verdict, ...]:
        """The verdicts at the end: one of an alarm stays, whatever came after it."""
        return tuple(self.alarms.get(one.metric, one) for one in self.look(Look.LAST))

    @property
    def passed_s(self) -> float:
        """From the start of the first block to the end of the last, in seconds."""
        return self.blocks[-1].at_s + self.blocks[-1].lasted_s / 2 if self.blocks else 0.0

    def _warm_up(self, arm: Arm, prompts: Sequence[Prompt]) -> int:
        """Warm the server up; how many prompts a block takes then."""
        size = batch_of(arm.case)
        (done,) = self._measured(arm, prompts[:size], warm_up=prompts)[0].rounds
        lasted_s = (done.ended_ns - done.started_ns) / _NS_PER_S
        return self.prompts or prompts_in(self.length_s / _BLOCKS, arm.case, size, lasted_s)

    def _measured(
        self, arm: Arm, prompts: Sequence[Prompt], warm_up: Sequence[Prompt] = ()
    ) -> tuple[Replay, str]:
        """What some prompts made of the server, and why their times mean nothing, if they don't."""
        plan = Plan(show=lambda _: None, parts=1, warms_up=bool(warm_up), clock=self.clock)
        (found,) = measure([arm], Workload(prompts=prompts, warm_up=warm_up), plan)
        why = found.invalid.get(Family.ACCEPTANCE, "")
        if found.replay is None or why:
            raise InvalidMeasurementError(*why.split(": ", 1))
        return found.replay, found.invalid.get(Family.LATENCY, "")

    def _block(
        self, arm: Arm, server: StartedServer, prompts: Sequence[Prompt], started_ns: int
    ) -> Block:
        replay, late = self._measured(arm, prompts)
        (done,), found = replay.rounds, replay.acceptance
        timed = bool(done.gaps.size) and not late
        variables = {**os.environ, **dict(server.spec.engine_env)}
        gpus = server.spec.parallel.gpus
        return Block(
            number=len(self.blocks) + 1,
            at_s=((done.started_ns + done.ended_ns) / 2 - started_ns) / _NS_PER_S,
            lasted_s=(done.ended_ns - done.started_ns) / _NS_PER_S,
            requests=len(done.traces),
            acceptance_length_tokens=found.total.acceptance_length if found else None,
            step_ms=done.gaps.total_ns / done.gaps.size / 1e6 if timed else None,
            memory_bytes=resident_bytes(server.process) or None,
            gpu_memory_bytes=held_bytes(gpus, variables, server.pids()) if self.on_gpu else None,
            client_late=late,
        )


def prompts_in(within_s: float, case: Case, size: int, lasted_s: float) -> int:
    """How many prompts of a case take a time, in whole batches: one at least, all at most.

    Args:
        within_s: the time.
        case: its load.
        size: prompts of a batch of the warm-up, as many as are in flight at once.
        lasted_s: how long it took.
    """
    if case.load.requests_per_s:
        fit = math.floor(within_s * case.load.requests_per_s)
    else:
        fit = size * math.floor(within_s / lasted_s) if lasted_s else size
    return min(max(fit, size), case.prompts)


def record_block(path: Path, block: Block) -> None:
    """Add a line to a soak's file, all at once.

    Raises:
        SpecregError: the disk refuses.
    """
    try:
        append_lines(path, msgspec.json.encode(block) + b"\n")
    except OSError as error:
        message = f"soak '{path}': {error.strerror}; make room or mend its rights"
        raise SpecregError(message) from error


def open_soak(  # noqa: PLR0913 - an option each
    tier: Tier,
    case: Case,
    *,
    engine: str,
    minutes: float,
    prompts: int | None,
    tolerance_frac: float | None,
    root: Path,
    out: Path | None,
    waits: bool,
    show: Callable[[str], None],
) -> tuple[Soak, Source]:
    """A soak that may start, and where its server comes from.

    Args:
        tier: of the case.
        case: whose load it is.
        engine: where the server comes from, as `specreg gate` takes it; empty for what the tier
            runs.
        minutes: how long.
        prompts: of each block, None for as many as make a hundredth of that.
        tolerance_frac: the loss in an hour that is fine, None for each figure's own.
        root: the repository's root.
        out: the soak's folder, None for a new one in `.specreg`.
        waits: whether to wait for a GPU on which another run of specreg measures.
        show: is told what goes on.

    Raises:
        SpecregError: something can't be measured as it is asked for; nothing was.
    """
    on_gpu = tier.needs_gpus > 0
    folder = out or root / ".specreg" / "soaks" / time.strftime("%Y-%m-%dT%H-%M-%S")
    path = folder.resolve() / "soak.jsonl"
    if path.exists():
        raise UnsupportedError(f"--out '{folder}': holds a soak already; name another folder")
    unmet = tier.unmet(find_gpus().memory_gib)
    if case.id in unmet:
        raise UnsupportedError(f"{unmet[case.id]}; choose another case")
    origin = parse_origin(engine or case.server.engine)
    if origin.engine not in {"", case.server.engine}:
        message = (
            f"--engine '{engine}': '{case.id}' is of '{case.server.engine}', not of"
            f" '{origin.engine}'; name that one, or another case"
        )
        raise UnsupportedError(message)
    source = source_of(origin, on_gpu=on_gpu, show=show, waits=waits)
    source.check((case,))
    for said in check_contexts(root, [case]):
        show(said)
    soak = Soak(
        case=case,
        on_gpu=on_gpu,
        length_s=60 * minutes,
        prompts=prompts,
        tolerance_frac=tolerance_frac,
        path=path,
        show=show,
    )
    return soak, source


def run_soak(soak: Soak, source: Source, *, root: Path, ready_within_s: float) -> None:
    """Start the server and soak it.

    Args:
        soak: which.
        source: where its server comes from.
        root: the repository's root.
        ready_within_s: how long the server may take to its first token.

    Raises:
        SpecregError: it didn't start, went away or couldn't be measured; or the disk refuses.
    """
    case = soak.case
    prompts = load_case_prompts(root, case)
    environment = source.environment(case)
    with (
        source.leased(case),
        start_server(
            case.server,
            environment,
            root=root,
            log_path=soak.path.parent / "logs" / f"{case.server.id}.log",
            on_gpu=soak.on_gpu,
            ready_within_s=ready_within_s,
            show=soak.show,
        ) as server,
    ):
        soak.run(server, prompts)
