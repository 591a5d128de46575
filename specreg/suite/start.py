"""Start a run: lock its folder, write its plan, and connect its parts."""

from collections.abc import Collection, Sequence

from specreg.core.files import large_file_line
from specreg.core.timeline import Timeline
from specreg.report.document import record_document
from specreg.report.progress import Progress
from specreg.runs.ledger import LEDGER, Ledger
from specreg.servers.gpu_lease import GpuClaim
from specreg.servers.handle import Servers
from specreg.servers.launcher import ServerLauncher
from specreg.suite.case_runner import CaseRunner
from specreg.suite.context import RunContext
from specreg.suite.document import LOGS_FOLDER
from specreg.suite.group_judge import GroupJudge
from specreg.suite.live_page import LivePage
from specreg.suite.plan import PLAN, plan_of
from specreg.suite.recording import RecordingBudget
from specreg.suite.result import Run
from specreg.suite.selection import Selection

_S_PER_MIN = 60


def start_run(
    context: RunContext, selection: Selection, shards: Sequence[Collection[str]], progress: Progress
) -> Run[CaseRunner]:
    """Start a run on this machine; no server starts before it is needed.

    Args:
        context: What is fixed for the run.
        selection: The metrics and checks that it judges.
        shards: The ids of each shard's cases; empty if the run isn't sharded.
        progress: Shows the progress.

    Raises:
        SpecregError: Another process still writes the run that is resumed, or a file can't be read
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
    timeline = Timeline(listener=progress.watch)
    page = LivePage(progress=progress.run)

    def update_page() -> None:
        # A worker writes no page, because it only has a part of the run.
        if not context.is_worker:
            # `run` is assigned below, before the runner measures a case.
            page.update(run.result)

    runner = CaseRunner(
        context=context,
        selection=selection,
        servers=Servers(
            launcher=ServerLauncher(
                provision=context.provision,
                root=context.root,
                ready_within_s=context.options.ready_within_s,
                timeline=timeline,
            ),
            logs=context.run_folder / LOGS_FOLDER,
            claim=claim,
        ),
        ledger=ledger,
        timeline=timeline,
        progress=progress.run,
        on_new_case=update_page,
    )
    judge = GroupJudge(
        context=context,
        selection=selection,
        cases=runner,
        budget=RecordingBudget(left_s=_further_s(context), store=context.store),
        timeline=timeline,
    )
    run = Run(context=context, selection=selection, cases=runner, judge=judge)
    return run


def _further_s(context: RunContext) -> float:
    """Return the time for launches beyond the planned ones while recording, in seconds."""
    if context.options.launches is not None:
        # The user has chosen the number of launches.
        return 0.0
    return _S_PER_MIN * context.options.record_minutes
