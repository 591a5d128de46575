"""Start a run: take its folder, load what it continues, and write down what it is about to do."""

from collections.abc import Collection, Sequence

from specreg.core.timeline import Timeline
from specreg.measurement.journal import Journal
from specreg.report.document import record_document
from specreg.report.progress import Progress
from specreg.servers.gpu_lease import GpuClaim
from specreg.servers.launch import Servers
from specreg.suite.case_runner import CaseRunner
from specreg.suite.context import RunContext
from specreg.suite.document import LOGS_FOLDER
from specreg.suite.group_judge import GroupJudge
from specreg.suite.live_page import LivePage
from specreg.suite.plan import JOURNAL, PLAN, plan_of
from specreg.suite.recording import RecordingBudget
from specreg.suite.result import Run
from specreg.suite.resumed import load_resumed
from specreg.suite.selection import Selection

_S_PER_MIN = 60


def start_run(
    context: RunContext, selection: Selection, shards: Sequence[Collection[str]], progress: Progress
) -> Run[CaseRunner]:
    """Start a run on this machine; no server starts before it is needed.

    Args:
        context: what is fixed for the run.
        selection: what it judges.
        shards: the cases of each shard, if the run is one of them.
        progress: shows what goes on.

    Raises:
        SpecregError: another process still writes the run that is continued, or the disk refuses.
    """
    journal = Journal(context.run_folder / JOURNAL)
    # The journal is locked before anything is read, because another process might still write it.
    journal.hold()
    record_document(context.run_folder / PLAN, plan_of(context, selection, shards))
    # The journals of all workers of the same run count, because one of them may have died.
    whole_run = context.run_folder
    claim = None
    if context.is_worker:
        whole_run = context.run_folder.parents[1]
        claim = GpuClaim()
    resumed = load_resumed([*whole_run.glob(f"shards/*/{JOURNAL}"), whole_run / JOURNAL])
    timeline = Timeline(listener=progress.watch)
    page = LivePage(progress=progress.run)

    def update_page() -> None:
        # A worker has a part of the run only, so it writes no page.
        if not context.is_worker:
            page.update(run.result)

    runner = CaseRunner(
        context=context,
        selection=selection,
        servers=Servers(
            root=context.root,
            provision=context.provision,
            ready_within_s=context.options.ready_within_s,
            logs=context.run_folder / LOGS_FOLDER,
            timeline=timeline,
            claim=claim,
        ),
        journal=journal,
        timeline=timeline,
        resumed=resumed,
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
    """Return the time for launches beyond the first ones, in seconds.

    A user who says how many launches to measure gets no further ones.
    """
    if context.options.launches is not None:
        return 0.0
    return _S_PER_MIN * context.options.record_minutes
