"""Runs of one machine whose files are all in one folder; no server starts unless a test says so."""

import contextlib
import datetime as dt
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specreg.baselines.record import RecordingNotes, record_measurements
from specreg.baselines.schema import Baseline
from specreg.baselines.store import load_settings
from specreg.core.timeline import Timeline
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case, Tier
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.runs.execute import NightExecutor
from specreg.runs.ledger import LEDGER, Key, Ledger, Recorded
from specreg.runs.verdicts import Asked
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.server import Server
from specreg.suite.context import RunClock, RunContext, provision_of, store_of
from specreg.suite.engine_check import measure_by_gate
from specreg.suite.ledger_key import ledger_key
from specreg.suite.night import judge_of, night_goal, night_settings
from specreg.suite.options import Options
from specreg.suite.run import Run
from specreg.suite.selection import Selection, covers_tier
from specreg.suite.start import take_over_run
from specreg.telemetry.identity import Environment
from specreg.verdicts.verdict import Verdict
from tests.unit import builders

LENGTH = METRICS["acceptance_length_tokens"]
SPEED = METRICS["throughput_tokens_per_s"]
COUNTS = builders.counts(8, 0, 6, 6)
MEASURED = builders.measurement({LENGTH.name: 2.5}, of=COUNTS)
"""A launch of `builders.CASE` of which only the acceptance is known."""
LAUNCH = Launch(spec=builders.SPEC, number=1)


def context(
    folder: Path,
    *,
    cases: Sequence[Case] = (builders.CASE,),
    root: Path = builders.ROOT,
    environment: Environment = builders.ENVIRONMENT,
    is_worker: bool = False,
    **options: Any,  # noqa: ANN401 - any option
) -> RunContext:
    """The context of a run in a folder, of a tier with these cases."""
    files = {"baselines": str(folder / "baselines"), "history": str(folder / "history")}
    all_options = Options(matrix=str(folder), **{**files, **options})
    began_at = dt.datetime(2026, 11, 21, 2, 0, tzinfo=dt.UTC)
    return RunContext(
        name=f"{began_at:%Y%m%dT%H%M%S}-{folder.name}",
        root=root,
        tier=Tier(name="cpu", needs_gpus=0, cases=tuple(cases)),
        environment=environment,
        options=all_options,
        run_folder=folder,
        provision=provision_of(all_options, on_gpu=False, show=lambda _: None),
        store=store_of(all_options, root, environment, "cpu"),
        clock=RunClock(began_at=began_at, began_ns=0, monotonic_ns=lambda: 0),
        is_worker=is_worker,
    )


def selection(run_context: RunContext, names: Mapping[str, Iterable[str]]) -> Selection:
    """A selection of metrics and checks by case id."""
    selected = {case_id: frozenset(of_case) for case_id, of_case in names.items()}
    return Selection(
        names=selected,
        is_recording=run_context.is_recording,
        covers_tier=covers_tier(selected, run_context),
    )


def everything(run_context: RunContext) -> Selection:
    """A selection of all that the run can judge."""
    metrics = METRICS.values()
    names = {
        case.id: [metric.name for metric in metrics if metric.is_judged(case)]
        for case in run_context.tier.cases
    }
    return selection(run_context, names)


def run(
    run_context: RunContext,
    selected: Selection | None = None,
    *,
    resumed: Recorded | None = None,
    servers: Servers | None = None,
    **executor: Any,  # noqa: ANN401 - any field of NightExecutor
) -> Run:
    """A run that has started; without a selection it judges everything."""
    chosen = selected or everything(run_context)
    ledger = Ledger(run_context.run_folder / LEDGER, resumed or Recorded())
    take_over_run(ledger, chosen, run_context)
    timeline = Timeline()
    verdicts = judge_of(run_context, chosen, ledger, timeline)
    return Run(
        context=run_context,
        selection=chosen,
        ledger=ledger,
        judge=verdicts,
        night=night_goal(run_context, chosen, verdicts),
        executor=NightExecutor(
            root=run_context.root,
            run_folder=run_context.run_folder,
            provision=run_context.provision,
            servers=servers or all_servers(run_context),
            ledger=ledger,
            settings=night_settings(run_context, chosen, ledger),
            timeline=timeline,
            **{"compare": functools.partial(measure_by_gate, run_context), **executor},
        ),
    )


def all_servers(run_context: RunContext) -> Servers:
    """The servers of a run."""
    launcher = ServerLauncher(
        provision=run_context.provision, root=run_context.root, ready_within_s=1.0
    )
    return Servers(launcher=launcher, logs=run_context.run_folder / "logs")


def resumed_from(
    run_context: RunContext, selected: Selection, *launches: Measurement, first: int = 1
) -> Recorded:
    """What an interrupted run had measured: launches of their cases, numbered from `first`."""
    measurements: dict[Key, Measurement] = {}
    for number, launch in enumerate(launches, start=first):
        measurements[ledger_key(launch.case, number, selected, run_context)] = launch
    return Recorded(measured=measurements)


def measured_run(
    run_context: RunContext, *launches: Measurement, selected: Selection | None = None
) -> Run:
    """A run that has measured these launches of the case."""
    chosen = selected or everything(run_context)
    return run(run_context, chosen, resumed=resumed_from(run_context, chosen, *launches))


def judge(started: Run, metric: Metric, number: int = 1) -> Verdict:
    """The verdict on a metric of the case."""
    return started.verdict(metric, builders.CASE, number)


def note(started: Run, *verdicts: Verdict) -> None:
    """Let the tests of a run have come to these verdicts."""
    for verdict in verdicts:
        started.noted.verdicts[Asked(verdict.case_id, verdict.metric, 1)] = verdict


def handle(
    launch: Launch, start: Callable[[ServerSpec], AbstractContextManager[Server]] | None = None
) -> ServerHandle:
    """The handle of a launch whose server `start` makes; one that is ready at once by default."""
    launcher = ScriptedLauncher(start or (lambda _: contextlib.nullcontext(builders.server())))
    return ServerHandle(launch=launch, launcher=launcher, log_path=Path("/dev/null"))


@dataclass
class ScriptedLauncher:
    """A launcher without servers to install or GPUs to lock."""

    make: Callable[[ServerSpec], AbstractContextManager[Server]]

    def prepare(self, spec: ServerSpec, log_path: Path) -> None:
        """Do nothing: all is there."""

    def reserve(self, spec: ServerSpec) -> AbstractContextManager[None]:
        """Lock nothing."""
        del spec
        return contextlib.nullcontext()

    def start(self, spec: ServerSpec, log_path: Path) -> AbstractContextManager[Server]:
        """The server that the test gives."""
        del log_path
        return self.make(spec)


def ready(started: list[Server]) -> AbstractContextManager[Server]:
    """A server that is ready at once, and whose process has ended; it is added to a list."""
    server = builders.server()
    started.append(server)
    return contextlib.nullcontext(server)


def record(run_context: RunContext) -> tuple[Measurement, Baseline]:
    """A launch of the case, and the baseline that two launches of it were recorded as."""
    launch = builders.measurement({LENGTH.name: 2.5, SPEED.name: 100.0}, of=COUNTS)
    settings = load_settings(builders.ROOT, builders.CASE)
    notes = RecordingNotes(reason="first")
    recorded = record_measurements([launch, launch], settings, run_context.store, notes)
    return launch, recorded.new
