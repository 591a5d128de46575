"""Start a run: lock its folder, write its plan, and connect its parts."""

import functools
from collections.abc import Collection, Sequence

from specreg.core.errors import SpecregError
from specreg.core.files import large_file_line
from specreg.core.timeline import Timeline
from specreg.report.files import record_document
from specreg.report.progress import Progress
from specreg.runs.execute import NightExecutor
from specreg.runs.goals import CaseLaunch
from specreg.runs.ledger import LEDGER, Key, Ledger
from specreg.servers.gpu_lease import GpuClaim
from specreg.servers.handle import Servers
from specreg.servers.launcher import ServerLauncher
from specreg.suite.context import RunContext
from specreg.suite.document import LOGS_FOLDER
from specreg.suite.engine_check import measure_by_gate
from specreg.suite.ledger_key import ledger_key
from specreg.suite.live_page import LivePage
from specreg.suite.night import judge_of, night_goal, night_settings
from specreg.suite.plan import PLAN, plan_of
from specreg.suite.run import Run
from specreg.suite.selection import Selection


def start_run(
    context: RunContext, selection: Selection, shards: Sequence[Collection[str]], progress: Progress
) -> Run:
    """Start a run on this machine; no server starts before it is needed.

    Args:
        context: what is fixed for the run.
        selection: the metrics and checks that it judges.
        shards: the ids of each shard's cases; empty if the run isn't sharded.
        progress: shows the progress.

    Raises:
        SpecregError: another process still writes the run that is resumed, or a file can't be read
            or written.
    """
    # Lock the ledger before anything is read, because another process may still write it.
    ledger = Ledger(context.run_folder / LEDGER)
    ledger.hold()
    record_document(context.run_folder / PLAN, plan_of(context, selection, shards))

    # Load the ledgers of all workers of the run: a worker may have died, and then its cases are
    # now those of other workers.
    whole_run_folder = context.run_folder
    claim = None
    if context.is_worker:
        whole_run_folder = context.run_folder.parents[1]
        claim = GpuClaim()
    worker_ledgers = whole_run_folder.glob(f"shards/*/{LEDGER}")
    ledgers = [*worker_ledgers, whole_run_folder / LEDGER]
    for line in filter(None, map(large_file_line, ledgers)):
        context.provision.show(line)
    ledger.read(ledgers)
    for name in take_over_run(ledger, selection, context):
        progress.run.begin(name)
    timeline = Timeline(listener=progress.watch)
    judge = judge_of(context, selection, ledger, timeline)
    page = LivePage(progress=progress.run)

    def begin(name: str) -> None:
        # A worker writes no page, because it only has a part of the run.
        if progress.run.begin(name) and not context.is_worker:
            page.update(run.result)

    executor = executor_of(context, selection, ledger, timeline, claim)
    executor.on_begin = begin
    executor.count = progress.run.count
    run = Run(
        context=context,
        selection=selection,
        ledger=ledger,
        judge=judge,
        night=night_goal(context, selection, judge),
        executor=executor,
    )
    return run


def executor_of(
    context: RunContext,
    selection: Selection,
    ledger: Ledger,
    timeline: Timeline,
    claim: GpuClaim | None = None,
) -> NightExecutor:
    """Return what measures and checks on this machine; no server starts before it is needed."""
    launcher = ServerLauncher(
        provision=context.provision,
        root=context.root,
        ready_within_s=context.options.ready_within_s,
        timeline=timeline,
    )
    return NightExecutor(
        root=context.root,
        run_folder=context.run_folder,
        provision=context.provision,
        servers=Servers(launcher=launcher, logs=context.run_folder / LOGS_FOLDER, claim=claim),
        ledger=ledger,
        settings=night_settings(context, selection, ledger),
        timeline=timeline,
        compare=functools.partial(measure_by_gate, context),
    )


def take_over_run(ledger: Ledger, selection: Selection, context: RunContext) -> list[str]:
    """Take over what an interrupted run has measured and checked with the settings of now.

    Returns:
        The names of the cases that were measured, each on its launch.
    """
    cases = {case.id: case for case in selection.cases_of(context.tier)}

    def is_ours(recorded_key: Key) -> bool:
        case = cases.get(recorded_key.case_id)
        if case is None:
            return False
        try:
            return ledger_key(case, recorded_key.launch, selection, context) == recorded_key
        except SpecregError:
            # Its models or prompts are unreadable. Its own tests fail with that error.
            return False

    ledger.take_over(is_ours)
    return [CaseLaunch.of(launch.case, launch.number).name for launch in ledger.measured]
