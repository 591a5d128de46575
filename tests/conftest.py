"""What the project's own tests share; `tests/perf`, the product, takes signals as they come."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doubles.nvml.device import build
from tests.plugin.preloaded import PreloadedPython

_PRODUCT = Path(__file__).parent / "perf"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make warnings errors in our own tests. A user's run in this checkout isn't one of them."""
    for item in items:
        if not item.path.is_relative_to(_PRODUCT):
            item.add_marker(pytest.mark.filterwarnings("error"), append=False)


@pytest.fixture(autouse=True)
def _ended_by_signals(request: pytest.FixtureRequest) -> Iterator[None]:
    """Has signals end the children of a test where nohup or `&` had us ignore them.

    Children inherit what is ignored, and get the default for what is handled.
    """
    numbers = () if request.path.is_relative_to(_PRODUCT) else (signal.SIGINT, signal.SIGHUP)
    ignored = [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, lambda *_: None)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripted driver of NVIDIA's GPUs."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PreloadedPython]:
    """A process that runs commands in forks of itself."""
    process = PreloadedPython(tmp_path_factory.mktemp("preloaded"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def gpu_python(library: Path) -> Iterator[PreloadedPython]:
    """A process that runs commands in forks of itself, which find the scripted driver."""
    process = PreloadedPython(library.parent, variables={"LD_LIBRARY_PATH": str(library.parent)})
    yield process
    process.close()
