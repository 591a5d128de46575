"""What ends the task of a shard on a cluster."""

import signal
from collections.abc import Iterator

import pytest

from specreg.cli.suite import interruptible


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
