"""Share a run out among workers of pytest-xdist on one machine; the controller merges."""

import shutil
from typing import Any

from specreg.core.errors import SpecregError
from specreg.measurement.metrics import METRICS
from specreg.suite.merge import PLAN, journalled, load_shard, take_shards
from specreg.suite.run import Suite
from specreg.suite.shards import group_key

WORKERS_FOLDER = "shards"
"""In a run's folder, those of its workers."""
_NOT_GROUPED = (
    "pytest-xdist: cases that share a server stay together; leave out --dist, or give"
    " --dist=loadgroup"
)
_TIMED = (
    "pytest-xdist: without a GPU servers share the processor, and speeds measured at the same time"
    " mean nothing; leave out -n, or choose acceptance alone: -k acceptance"
)


def make_scheduler(suite: Suite, config: Any, log: Any) -> Any:  # noqa: ANN401 - xdist's
    """What hands a worker the tests of a server group together, in our order.

    The group that a mark names doesn't reach pytest-xdist 3.8 with pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - an extra

    groups = {case.id: group_key(case)[1].id for case in suite.tier.cases}

    class ServerGroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # Any without its types
        """Deals out server groups, and any other test alone."""

        def _split_scope(self, nodeid: str) -> str:
            found = [group for case, group in groups.items() if f"[{case}-" in nodeid]
            return found[0] if found else nodeid

        def _reschedule(self, node: Any) -> None:  # noqa: ANN401 - xdist's
            """Give a worker a group more once its last test is left, which waits for the next one.

            pytest-xdist gives it with two left, which are all that a group of one case may have.
            """
            if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
                super()._reschedule(node)

    return ServerGroupScheduling(config, log)


def check_workers(suite: Suite, *, grouped: bool) -> None:
    """Check that workers keep server groups together, and disturb no speed.

    Raises:
        SpecregError: they don't.
    """
    if not suite.shares_machine:
        return
    if not grouped:
        raise SpecregError(_NOT_GROUPED)
    names = {name for asked in suite.asked.values() for name in asked if name in METRICS}
    if not suite.tier.needs_gpus and any(METRICS[name].by_launch for name in names):
        raise SpecregError(_TIMED)


def take_workers(suite: Suite, *, whole: bool) -> tuple[str, ...]:
    """Judge what the workers of a run measured, and have all that they left in its own folder.

    Args:
        suite: the run.
        whole: as of `take_shards`.

    Returns:
        What is to be said of the workers; nothing without any.
    """
    folder = suite.run_folder / WORKERS_FOLDER
    shards = [load_shard(path) for path in sorted(folder.glob("*")) if (path / PLAN).exists()]
    if not shards:
        return ()
    own = journalled(suite.run_folder, shards[0].plan, shards[0].report)  # gone on with
    went_on = own.measured or own.checked
    taken = take_shards(suite, [own, *shards] if went_on else shards, whole=whole)
    shutil.rmtree(folder, ignore_errors=True)
    return taken
