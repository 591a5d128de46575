"""Where the time goes: phases on a clock that a test moves."""

import contextlib
import functools
import io
import time
from collections.abc import Sequence

import msgspec
import pytest

from specreg.core.timeline import Phase, RunningPhase, RunTime, Timeline, process_began_ns
from specreg.load.chat_client import FinishedRequest
from specreg.report.progress import ExpectedTime, Progress, RunProgress
from specreg.report.screen import Screen
from specreg.report.tables import render_times
from tests.doubles.screen import lines_of
from tests.unit import builders

NS = 10**9


class Clock:
    now_s = 0.0

    def __call__(self) -> int:
        return round(self.now_s * NS)

    def passes(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def two_pairs(timeline: Timeline, clock: Clock) -> None:
    """A pair that starts, is measured and judged, which takes a fresh launch of another."""
    clock.passes(2)
    with timeline.during(Phase.STARTING, "eagle3"):
        clock.passes(40)
    with timeline.during(Phase.MEASURING, "eagle3", of="eagle3-c4"):
        timeline.turn_to(Phase.WARMING_UP)
        clock.passes(3)
        timeline.turn_to(Phase.MEASURING)
        clock.passes(10)
    clock.passes(1)
    with timeline.during(Phase.JUDGING, "eagle3"):
        clock.passes(0.5)
        with timeline.during(Phase.CONFIRMING, "eagle3-launch2"):
            with timeline.during(Phase.STARTING, "eagle3-launch2"):
                clock.passes(20)
            with timeline.during(Phase.STOPPING):
                clock.passes(4)
        clock.passes(0.5)


def test_each_moment_belongs_to_the_innermost_phase_and_all_of_them_to_the_run(
    clock: Clock,
) -> None:
    timeline = Timeline(clock=clock, began_ns=0)
    two_pairs(timeline, clock)

    run_time = timeline.so_far()
    first, second = run_time.pairs
    assert first.phases_s == {"starting": 40, "warming up": 3, "measuring": 10, "judging": 1}
    assert {name: s for name, s in second.phases_s.items() if s} == {"starting": 20, "stopping": 4}
    assert (run_time.idle_s, run_time.wall_s) == (3, 81)
    assert sum(pair.total_s for pair in run_time.pairs) + run_time.idle_s == run_time.wall_s


def test_a_phase_that_is_interrupted_as_it_begins_ends_all_the_same(clock: Clock) -> None:
    seen: list[int] = []

    def watch(steps: Sequence[RunningPhase]) -> None:
        seen.append(len(steps))
        if steps:
            raise KeyboardInterrupt

    timeline = Timeline(clock=clock, began_ns=0, listener=watch)
    with contextlib.suppress(KeyboardInterrupt), timeline.during(Phase.MEASURING, "eagle3"):
        clock.passes(5)
    clock.passes(7)
    assert seen == [1, 0]
    assert timeline.so_far().idle_s == 7


def test_a_run_counts_from_the_start_of_its_process() -> None:
    began_ns = process_began_ns()
    assert began_ns < time.monotonic_ns()
    assert abs(process_began_ns() - began_ns) < NS  # the kernel counts in hundredths


def test_the_time_is_shown_in_a_line_for_each_pair(clock: Clock) -> None:
    timeline = Timeline(clock=clock, began_ns=0)
    two_pairs(timeline, clock)

    shown = render_times(timeline.so_far(), Screen(verbose=True))
    assert [line.split("  ")[0] for line in shown.splitlines()] == [
        *("where the time went, s", "eagle3", "eagle3-launch2"),
        *("without a server", "since the process began"),
    ]
    assert [line.split()[-6:] for line in shown.splitlines()[1:3]] == [
        ["40.0", "3.0", "10.0", "1.0", "0.0", "54.0"],
        ["20.0", "0.0", "0.0", "0.0", "4.0", "24.0"],
    ]
    assert [line.split()[-1] for line in shown.splitlines()[3:]] == ["3.0", "81.0"]
    assert len(render_times(timeline.so_far()).splitlines()) == 1
    assert render_times(RunTime(pairs=(), idle_s=1, wall_s=1)) == ""


class Kept(io.StringIO):
    """A file whose content outlives its end."""

    content = ""

    def close(self) -> None:
        if not self.closed:
            self.content = self.getvalue()
        super().close()


def test_a_log_has_a_line_for_each_phase_and_one_more_each_minute(clock: Clock) -> None:
    log = Kept()
    progress = Progress(log, clock=clock)
    progress.run.expect(
        {
            "eagle3-c1": ExpectedTime(case_s=100.0, start_s=50.0, is_of_this_machine=True),
            "eagle3-c4": ExpectedTime(case_s=60.0, is_of_this_machine=True),
        }
    )
    progress.run.begin("eagle3-c1")
    timeline = Timeline(clock=clock, began_ns=0, listener=progress.watch)
    with timeline.during(Phase.INSTALLING, "eagle3", of="vllm"):
        progress.tick()  # it was there already
    with timeline.during(Phase.JUDGING, "eagle3"):
        progress.tick()  # that is done at once
    with timeline.during(Phase.STARTING, "eagle3"):
        for seconds in (5, 20, 50):
            clock.passes(seconds)
            progress.tick()
    requests = list[FinishedRequest]()
    progress.run.count(1, lambda _arm, _number: requests.append)
    with timeline.during(Phase.MEASURING, "eagle3", of="eagle3-c1"):
        clock.passes(50)
        progress.tick()
    progress.leave_line()  # pytest writes a dot
    progress.run.begin("eagle3-c4")
    with timeline.during(Phase.MEASURING, "eagle3", of="eagle3-c4"):
        clock.passes(2)
        progress.tick()
        progress.show("round 2 of 8")
        clock.passes(60)
        progress.tick()
    progress.close()

    assert log.content.split("\n") == [
        "specreg 0:00, case 1 of 2: starting eagle3",
        "specreg 1:15, case 1 of 2: starting eagle3",
        "specreg 1:15 of about 3:55, case 1 of 2: measuring eagle3-c1",
        "",
        "specreg 2:05 of about 2:35, case 2 of 2: measuring eagle3-c4",
        "specreg 3:07, case 2 of 2: measuring eagle3-c4, round 2 of 8",  # longer than was thought
        "",
    ]


def test_the_end_is_expected_by_how_long_this_machine_takes_for_what_ended(clock: Clock) -> None:
    """A run was said to take 12:16 and took 2:18, by a step that was guessed."""
    progress = RunProgress(clock=clock)
    requests = list[FinishedRequest]()
    ask = functools.partial(progress.count, 1, lambda _arm, _number: requests.append)
    elsewhere = ExpectedTime(case_s=60.0, start_s=30.0)
    here = ExpectedTime(case_s=60.0, start_s=30.0, is_of_this_machine=True)
    progress.expect({"a": elsewhere, "b": here, "c": elsewhere})
    progress.begin("a")
    assert progress.ends_ns == 0  # nothing is known of this machine
    clock.passes(10)
    ask()
    assert progress.ends_ns == 0  # a start says nothing of the cases that other machines took
    clock.passes(30)
    progress.begin("b")
    # A start takes a third of what was expected, and a case half.
    assert progress.ends_ns == clock() + (10 + 30 + 10 + 30) * NS


def test_what_this_machine_recorded_tells_the_end_from_the_first_start_on(clock: Clock) -> None:
    progress = RunProgress(clock=clock)
    requests = list[FinishedRequest]()
    here = ExpectedTime(case_s=60.0, start_s=30.0, is_of_this_machine=True)
    progress.expect({"a": here, "b": here})
    progress.begin("a")
    clock.passes(10)
    progress.count(1, lambda _arm, _number: requests.append)
    assert progress.ends_ns == clock() + (60 + 10 + 60) * NS


def test_a_line_says_once_what_starts(clock: Clock) -> None:
    terminal = Kept()
    progress = Progress(terminal, clock=clock, column=lambda: 0)
    timeline = Timeline(clock=clock, began_ns=0, listener=progress.watch)
    with timeline.during(Phase.STARTING, "vllm-eagle3-tiny"):
        progress.show("starting vllm-eagle3-tiny")
        progress.tick()
        assert lines_of(terminal.getvalue()) == ["0:00 starting vllm-eagle3-tiny"]
    progress.close()


def test_a_line_in_place_is_below_pytests_own_which_goes_on_where_it_ended(clock: Clock) -> None:
    terminal = Kept()
    terminal.write("tests/perf/test_acceptance.py .")
    progress = Progress(terminal, clock=clock, column=lambda: 31)
    progress.leave_line()
    timeline = Timeline(clock=clock, began_ns=0, listener=progress.watch)
    with timeline.during(Phase.STARTING, "eagle3"):
        progress.tick()
        assert lines_of(terminal.getvalue())[1:] == ["0:00 starting eagle3"]
        clock.passes(65)
        progress.tick()
        assert lines_of(terminal.getvalue())[1:] == ["1:05 starting eagle3"]
    terminal.write(".")
    assert lines_of(terminal.getvalue()) == ["tests/perf/test_acceptance.py ..", ""]

    with timeline.during(Phase.MEASURING, "eagle3", of=200 * "x"):
        progress.tick()
        assert len(lines_of(terminal.getvalue())[1]) < 80
        progress.tell("waiting for a GPU")
        progress.tick()
        progress.close()
    assert lines_of(terminal.content)[1:] == ["waiting for a GPU", ""]


def test_a_case_has_its_tokens_per_second_and_acceptance_length_so_far(clock: Clock) -> None:
    progress = RunProgress(clock=clock)
    requests = list[FinishedRequest]()
    assert progress.case_position == progress.figures_in(Phase.MEASURING) == ""
    trace = msgspec.structs.replace(
        builders.trace(builders.chunk(500 * 10**6), builders.chunk(NS, 9)),  # 10 tokens in 1 s
        acceptance=builders.counts(2, 2, 2, 2),  # 12 drafts accepted in 8 steps
    )
    record_round = progress.count(4, lambda _arm, _number: requests.append)
    for arm in (0, 1):  # the control's are kept and not counted
        record_round(arm, 0)(FinishedRequest(conversation_index=0, trace=trace, chunks=(), text=""))
    assert progress.figures_in(Phase.MEASURING) == "40 tokens/s, 2.50 tokens a step"
    assert progress.figures_in(Phase.WARMING_UP) == ""
    assert len(requests) == 2

    progress.count(0, lambda _arm, _number: requests.append)(0, 0)(requests[0])
    assert progress.figures_in(Phase.MEASURING).startswith("10 tokens/s per request")
    progress.count(4, lambda _arm, _number: requests.append)
    assert progress.figures_in(Phase.MEASURING) == ""
