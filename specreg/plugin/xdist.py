"""pytest-xdist: workers measure whole server groups, and the controller judges them together."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from specreg.core.errors import SpecregError
from specreg.plugin.state import REFUSAL, SUITE, Refusal, refuse
from specreg.suite.merge import WORKERS_FOLDER, take_workers
from specreg.suite.shards import make_scheduler
from specreg.telemetry.identity import find_gpus

RUN_FOLDER = "specreg_run_folder"
"""The key under which a worker is given the folder of the run that it has a share of."""
GROUPED = "specreg_grouped"
"""The key under which a worker is told whether the controller deals out whole server groups."""
GROUPED_DIST = "loadgroup"


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def has_workers(config: pytest.Config) -> bool:
    """Whether workers of pytest-xdist run the tests, and not this process."""
    return not is_worker(config) and config.getoption("dist", "no") != "no"


def worker_folder(config: pytest.Config) -> Path | None:
    """Return the folder for what this worker leaves; None if this process isn't a worker."""
    if not is_worker(config):
        return None
    given: dict[str, str] = config.workerinput  # type: ignore[attr-defined] # pytest-xdist's
    return Path(given[RUN_FOLDER]) / WORKERS_FOLDER / given["workerid"]


def is_grouped(config: pytest.Config) -> bool:
    """Whether the controller deals out whole server groups to this worker."""
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
    node.workerinput[RUN_FOLDER] = str(node.config.stash[SUITE].run_folder)
    node.workerinput[GROUPED] = node.config.option.dist == GROUPED_DIST


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:  # noqa: ANN401 - pytest-xdist's
    """Give a worker the tests of a server group together, in the order of the run."""
    if config.option.dist != GROUPED_DIST:
        return None
    return make_scheduler(config.stash[SUITE], config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 - its type is pytest-xdist's own
    """End the run when a worker refused to begin."""
    refusal = getattr(node, "workeroutput", {}).get(REFUSAL)
    if refusal is not None:
        refuse(node.config, Refusal(*refusal))
        pytest.exit("a worker refused to begin, see below")


def judge_workers(session: pytest.Session, *, cut_short: bool) -> Iterator[str]:
    """End the workers, judge what they measured, and yield lines for the summary."""
    controller = session.config.pluginmanager.getplugin("dsession")
    if controller is None:
        return
    controller.pytest_sessionfinish()
    suite = session.config.stash[SUITE]
    try:
        yield from take_workers(suite, whole=not cut_short)
    except SpecregError as error:
        yield str(error)
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
