"""Server groups are dealt out to the workers of pytest-xdist as a whole."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from specreg.plugin.xdist import make_scheduler
from tests.unit import builders


class Worker:
    """A worker of pytest-xdist, as far as its scheduler asks; notes the tests that it is sent."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.sent: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def test_a_worker_gets_a_group_more_only_once_its_last_test_is_left() -> None:
    """A group of one case may have two tests, and its worker would hold back another group."""
    pytest.importorskip("xdist")
    cases = tuple(builders.on_server(draft_tokens=tokens) for tokens in (2, 3, 4))
    tests = [f"test_{name}[{case.id}-1]" for case in cases for name in ("acceptance", "speed")]
    option = SimpleNamespace(loadscopereorder=False, tx=["popen"])
    config = SimpleNamespace(option=option, getvalue=lambda name: getattr(option, name))
    scheduling: Any = make_scheduler(cases, cast("pytest.Config", config), None)
    worker = Worker("gw0")
    scheduling.add_node(worker)
    scheduling.add_node_collection(worker, tests)
    scheduling.schedule()
    assert worker.sent == [0, 1]
    scheduling.mark_test_complete(worker, 0)
    assert worker.sent == [0, 1, 2, 3]
    scheduling.mark_test_complete(worker, 1)
    assert worker.sent == [0, 1, 2, 3]
    assert not worker.shutting_down
