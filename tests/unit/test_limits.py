"""The limits of tests end what hangs, and keep nobody from being slow on a busy machine."""

import time

import pytest

from tests.unit.builders.started_servers import at_most, at_most_cpu


def work(seconds: float) -> None:
    begun_s = time.process_time()
    while time.process_time() < begun_s + seconds:
        pass


def test_a_wait_is_ended() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"more than 0\.2 s"), at_most(0.2):
        time.sleep(60)


def test_work_is_ended() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"more than 0\.2 s"), at_most_cpu(0.2):
        work(10.0)


def test_what_others_work_meanwhile_does_not_count() -> None:
    with at_most_cpu(0.5):
        time.sleep(1)


def test_nothing_is_limited_afterwards() -> None:
    with at_most_cpu(0.2):
        pass
    work(0.4)
