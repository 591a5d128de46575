"""pytest-xdist: workers measure whole server groups, and the controller judges them together."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from specreg.matrix.case import Case
from specreg.plugin.state import CONTEXT, REFUSAL, Refusal, refuse
from specreg.runs.goals import CaseLaunch
from specreg.suite.context import RunContext
from specreg.suite.merge import WORKERS_FOLDER, merge_workers
from specreg.suite.run import Run
from specreg.telemetry.identity import find_gpus

RUN_FOLDER = "specreg_run_folder"
"""The key under which the controller sends a worker the folder of the run."""
GROUPED = "specreg_grouped"
"""The key under which the controller sends a worker whether it gets whole server groups."""
GROUPED_DIST = "loadgroup"
"""The value of --dist with which pytest-xdist sends groups of tests to its workers."""


def is_worker(config: pytest.Config) -> bool:
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def has_workers(config: pytest.Config) -> bool:
    """Return whether workers of pytest-xdist run the tests, and not this process."""
    return not is_worker(config) and config.getoption("dist", "no") != "no"


def worker_folder(config: pytest.Config) -> Path | None:
    """Return the folder for the files of this worker; None if this process isn't a worker."""
    if not is_worker(config):
        return None
    folders: dict[str, str] = config.workerinput  # type: ignore[attr-defined] # pytest-xdist's
    return Path(folders[RUN_FOLDER]) / WORKERS_FOLDER / folders["workerid"]


def is_grouped(config: pytest.Config) -> bool:
    """Return whether the controller sends whole server groups to this worker."""
    return bool(getattr(config, "workerinput", {}).get(GROUPED, False))


def deal_out_groups(config: pytest.Config) -> None:
    """Make pytest-xdist send whole server groups to workers if it would send single tests.

    A server would otherwise be started by several workers.
    """
    if has_workers(config) and config.option.dist in {"load", GROUPED_DIST}:
        config.option.dist = GROUPED_DIST
        # pytest-xdist would send the groups with the most tests first, and not in their order.
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of GPUs as the number of workers; None leaves it to pytest-xdist."""
    return len(find_gpus().devices) or None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - its type is pytest-xdist's own
    """Tell a worker which run it is part of, and whether it gets whole server groups."""
    node.workerinput[RUN_FOLDER] = str(node.config.stash[CONTEXT].run_folder)
    node.workerinput[GROUPED] = node.config.option.dist == GROUPED_DIST


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # noqa: ANN401 - pytest-xdist's
    """Return a scheduler that sends a worker the tests of a server group together."""
    if config.option.dist != GROUPED_DIST:
        return None
    return make_scheduler(config.stash[CONTEXT].tier.cases, config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 - its type is pytest-xdist's own
    """End the run if a worker refused to begin."""
    refusal = getattr(node, "workeroutput", {}).get(REFUSAL)
    if refusal is not None:
        refuse(node.config, Refusal(*refusal))
        pytest.exit("a worker refused to begin, see below")


def judge_workers(
    session: pytest.Session, context: RunContext, *, cut_short: bool
) -> tuple[Run | None, tuple[str, ...]]:
    """End the workers, and judge what they measured.

    Args:
        session: the session of the controller.
        cut_short: True if the run ended early, so that missing measurements are no fault.

    Returns:
        The run, and lines for the summary. The run is None if this process has no workers, or if
        none of them began to measure.

    Raises:
        SpecregError: a file of a worker can't be read.
    """
    controller = session.config.pluginmanager.getplugin("dsession")
    if controller is None:
        return None, ()
    # pytest-xdist ends its workers in this hook, which pytest would call later than ours.
    controller.pytest_sessionfinish()
    return merge_workers(context, missing_is_invalid=not cut_short) or (None, ())


def make_scheduler(cases: Iterable[Case], config: pytest.Config, log: Any) -> Any:  # noqa: ANN401 - pytest-xdist's
    """Return a scheduler that sends a worker the tests of a server group together.

    The groups keep the order of the tests, which is that of the run.

    pytest-xdist has the mark `xdist_group` for this, but with pytest 9 the mark doesn't reach
    pytest-xdist 3.8.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - an extra

    groups = {case.id: CaseLaunch.of(case, 1).server.id for case in cases}

    class ServerGroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # Any without its types
        """A scheduler that sends server groups, and any other test alone."""

        def _split_scope(self, nodeid: str) -> str:
            """Return the group of a test; the test's own id if it isn't the suite's."""
            # The parameters of a test of the suite begin with the case's id. No tier has a case
            # whose id has that of another case in it.
            for case_id, group in groups.items():
                if f"[{case_id}-" in nodeid:
                    return group
            return nodeid

        def _reschedule(self, node: Any) -> None:  # noqa: ANN401 - pytest-xdist's
            """Send a worker another group when only one test is left to it.

            A worker of pytest-xdist starts a test only once it has the next one, so it must get
            another group then. pytest-xdist itself sends a group when two tests are left, but a
            group of one case may have only two tests, and a worker would get two groups at once.
            """
            if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
                super()._reschedule(node)

    return ServerGroupScheduling(config, log)
