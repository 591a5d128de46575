"""pytest-xdist: workers measure whole server groups, and the controller judges them together."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from specreg.matrix.case import Case
from specreg.plugin.state import CONTEXT, REFUSAL, Refusal, refuse
from specreg.suite.context import CaseLaunch, RunContext
from specreg.suite.merge import WORKERS_FOLDER, merge_workers
from specreg.suite.merged_cases import MergedCases
from specreg.suite.result import Run
from specreg.telemetry.identity import find_gpus

RUN_FOLDER = "specreg_run_folder"
"""The key under which a worker is given the folder of the run that it has a share of."""
GROUPED = "specreg_grouped"
"""The key under which a worker is told whether the controller deals out whole server groups."""
GROUPED_DIST = "loadgroup"


def is_worker(config: pytest.Config) -> bool:
    """Return True if this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def has_workers(config: pytest.Config) -> bool:
    """Return True if workers of pytest-xdist run the tests, and not this process."""
    return not is_worker(config) and config.getoption("dist", "no") != "no"


def worker_folder(config: pytest.Config) -> Path | None:
    """Return the folder for what this worker leaves; None if this process isn't a worker."""
    if not is_worker(config):
        return None
    folders: dict[str, str] = config.workerinput  # type: ignore[attr-defined] # pytest-xdist's
    return Path(folders[RUN_FOLDER]) / WORKERS_FOLDER / folders["workerid"]


def is_grouped(config: pytest.Config) -> bool:
    """Return True if the controller deals out whole server groups to this worker."""
    return bool(getattr(config, "workerinput", {}).get(GROUPED, False))


def deal_out_groups(config: pytest.Config) -> None:
    """Deal out whole server groups where pytest-xdist would deal out single tests."""
    if has_workers(config) and config.option.dist in {"load", GROUPED_DIST}:
        config.option.dist = GROUPED_DIST
        config.option.loadscopereorder = False


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Return the number of GPUs as the number of workers; None leaves it to pytest-xdist."""
    return len(find_gpus().devices) or None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:  # noqa: ANN401 - its type is pytest-xdist's own
    """Tell a worker which run it has a share of."""
    node.workerinput[RUN_FOLDER] = str(node.config.stash[CONTEXT].run_folder)
    node.workerinput[GROUPED] = node.config.option.dist == GROUPED_DIST


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # noqa: ANN401 - pytest-xdist's
    """Give a worker the tests of a server group together, in the order of the run."""
    if config.option.dist != GROUPED_DIST:
        return None
    return make_scheduler(config.stash[CONTEXT].tier.cases, config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 - its type is pytest-xdist's own
    """End the run when a worker refused to begin."""
    refusal = getattr(node, "workeroutput", {}).get(REFUSAL)
    if refusal is not None:
        refuse(node.config, Refusal(*refusal))
        pytest.exit("a worker refused to begin, see below")


def judge_workers(
    session: pytest.Session, context: RunContext, *, cut_short: bool
) -> tuple[Run[MergedCases] | None, tuple[str, ...]]:
    """End the workers, and judge what they measured.

    Returns:
        The run, None if no worker began one, and lines for the summary.

    Raises:
        SpecregError: what a worker left can't be read.
    """
    controller = session.config.pluginmanager.getplugin("dsession")
    if controller is None:
        return None, ()
    controller.pytest_sessionfinish()
    return merge_workers(context, missing_is_invalid=not cut_short) or (None, ())


def make_scheduler(cases: Iterable[Case], config: pytest.Config, log: Any) -> Any:  # noqa: ANN401 - pytest-xdist's
    """Return a scheduler that gives a worker the tests of a server group together, in our order.

    The group that a mark names doesn't reach pytest-xdist 3.8 with pytest 9.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 - an extra

    groups = {case.id: CaseLaunch.of(case, 1).server.id for case in cases}

    class ServerGroupScheduling(LoadScopeScheduling):  # type: ignore[misc] # Any without its types
        """Deals out server groups, and any other test alone."""

        def _split_scope(self, nodeid: str) -> str:
            for case_id, group in groups.items():
                if f"[{case_id}-" in nodeid:
                    return group
            return nodeid

        def _reschedule(self, node: Any) -> None:  # noqa: ANN401 - pytest-xdist's
            """Give a worker a group more once its last test is left, which waits for the next one.

            pytest-xdist gives it with two left, which are all that a group of one case may have.
            """
            if not self.workqueue or self._pending_of(self.assigned_work[node]) <= 1:
                super()._reschedule(node)

    return ServerGroupScheduling(config, log)
