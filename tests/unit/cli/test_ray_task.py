"""What ends the task of a shard on a cluster, and what is taken of its result."""

import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from specreg.cli.suite import interruptible, run_folders


@pytest.fixture
def ignored_sigint() -> Iterator[None]:
    """SIGINT as it is in a cluster that was started in the background."""
    usual_handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, usual_handler)


@pytest.mark.usefixtures("ignored_sigint")
def test_sigint_ends_a_task_of_a_cluster_that_ignores_it() -> None:
    with pytest.raises(KeyboardInterrupt), interruptible():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


class Cluster:
    """A cluster whose task has ended with a result."""

    exceptions = SimpleNamespace(RayError=ConnectionError)

    def __init__(self, result: object) -> None:
        self.result = result

    def wait(self, waiting: Sequence[str], num_returns: int) -> tuple[Sequence[str], object]:
        return waiting[:num_returns], ()

    def get(self, _: str) -> object:
        return self.result


def test_the_files_of_a_shard_are_written_to_a_folder_of_its_own(tmp_path: Path) -> None:
    cluster = Cluster((1, "1 failed", {"plan.json": b"{}", "logs/x.log": b"words"}))
    assert list(run_folders(cluster, {"task": 2}, 4, tmp_path)) == [tmp_path / "2"]
    assert (tmp_path / "2/logs/x.log").read_bytes() == b"words"


@pytest.mark.parametrize(
    "result",
    [
        None,
        (1, "1 failed"),
        (1, "1 failed", b"an archive"),
        (1, "1 failed", {"plan.json": 10**400}),
        (1, "1 failed", {1: b"{}"}),
        (1, "1 failed", {"../x": b"{}"}),
        (10**400, "", {}),
        (1, "1 failed", {}),
    ],
    ids=lambda result: repr(result)[:40],
)
def test_a_shard_that_returns_no_run_folder_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], result: object
) -> None:
    assert list(run_folders(Cluster(result), {"task": 2}, 4, tmp_path / "home")) == []
    assert "shard 2/4" in capsys.readouterr().err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
