"""The suite: what it hands out, remembers and refuses."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from specreg.baselines.record import record_measurements
from specreg.baselines.store import BaselineStore, settings_in
from specreg.core.errors import (
    HungError,
    InvalidMeasurementError,
    MemoryHeldError,
    ServerDiedError,
    SpecregError,
)
from specreg.correctness.checks import LOSSLESS, CorrectnessCheck, RunningCase
from specreg.matrix.case import Case, Tier
from specreg.measurement.journal import Attempt, Journal, Key
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.measurement.validity import all_invalid
from specreg.plugin import _LINES, RECORD_PROPERTY, SUITE, _conclude
from specreg.servers.launch import Launch, Poll, Starting, launches_of
from specreg.servers.provision import Provision
from specreg.servers.server import Server
from specreg.suite.finish import record_baselines, record_runs
from specreg.suite.run import Suite
from specreg.verdicts.history import history_path, load_history
from specreg.verdicts.judge import Outcome, Verdict
from tests.unit import builders
from tests.unit.answering import answering

LENGTH = METRICS["acceptance_length_tokens"]
SPEED = METRICS["throughput_tokens_per_s"]
COUNTS = builders.counts(8, 0, 6, 6)
NOWHERE = Provision(on_gpu=False, version=None, python=None, url=None, show=lambda _: None)


def suite(folder: Path, *, update_reason: str | None = None, launches: int = 1) -> Suite:
    """A suite of one case whose baselines are in `folder`."""
    return Suite(
        root=builders.ROOT,
        tier=Tier(name="cpu", needs_gpus=0, cases=(builders.CASE,)),
        store=BaselineStore(folder=folder / "baselines", environment=builders.ENVIRONMENT),
        launches=launches,
        update_reason=update_reason,
        provision=NOWHERE,
        ready_within_s=1.0,
        run_folder=folder,
        history=folder / "history",
        journal=Journal(folder / "journal.jsonl"),
        earlier={},
        show=lambda _: None,
    )


def measured(one: Suite, *launches: Measurement) -> Suite:
    """The suite after it measured these launches."""
    numbers = range(1, len(launches) + 1)
    keys = [one.key(launch.case, number) for launch, number in zip(launches, numbers, strict=True)]
    one.earlier = dict(zip(keys, launches, strict=True))
    for launch, number in zip(launches, numbers, strict=True):
        one.measure(launch.case, started(number), None)
    return one


def started(number: int = 1) -> Starting:
    """A launch whose server is not needed."""
    return Starting(launch=dataclasses.replace(LAUNCH, number=number), start=unneeded)


def judged(one: Suite, metric: Metric, number: int = 1) -> Verdict:
    """The verdict on a metric of the case, which alone the run asks for."""
    one.asked = {builders.CASE.id: {*one.asked.get(builders.CASE.id, ()), metric.name}}
    return one.judge(metric, builders.CASE, started(number), None)


LAUNCH = Launch(spec=builders.SPEC, number=1)


class Terminal:
    """What pytest hands to a summary, as far as that asks for it."""

    def __init__(self, one: Suite) -> None:
        self.config, self.stash, self.hasmarkup = self, pytest.Stash(), False
        self.stash[SUITE], self.stash[_LINES] = one, ["a line"]
        self.text = ""

    def get_terminal_writer(self) -> "Terminal":
        """Itself, without colour."""
        return self

    def section(self, title: str) -> None:
        """A heading."""
        self.text += f"{title}\n"

    def write_line(self, line: str) -> None:
        """A line, or several."""
        self.text += f"{line}\n"


def spoken_for(engine: str, method: str, load: int) -> Case:
    """A case of an engine and a method under a load."""
    server = dataclasses.replace(builders.SPEC, engine=engine, method=method)
    return builders.with_concurrency(load, dataclasses.replace(builders.CASE, server=server))


@pytest.mark.parametrize(
    ("engine", "method", "alone"),
    [
        ("vllm", "suffix", True),
        ("triton", "suffix", True),
        ("sglang", "ngram", True),
        ("vllm", "ngram", False),
        ("sglang", "eagle3", False),
    ],
)
def test_a_drafter_that_learns_from_what_it_serves_serves_one_case(
    engine: str, method: str, *, alone: bool
) -> None:
    (control, one), (_, other) = (
        launches_of(spoken_for(engine, method, load), 2) for load in (1, 4)
    )
    assert (one != other) == alone
    assert control == one  # without a control of its own
    assert one.id == f"{engine}-{method}-toy{'-toy-c1' if alone else ''}-launch2"


def test_a_server_starts_when_it_is_first_asked_for_and_once() -> None:
    starts: list[Server] = []
    starting = Starting(launch=LAUNCH, start=lambda: running(starts))
    assert starts == []
    assert [starting.server, starting.server] == starts * 2
    assert len(starts) == 1


@contextlib.contextmanager
def running(starts: list[Server]) -> Iterator[Poll]:
    """A server that is ready at once; it is added to those that were started."""
    server = builders.server()
    starts.append(server)
    yield lambda: server


def test_a_server_that_failed_to_start_is_not_tried_again() -> None:
    tries = iter([ServerDiedError("first"), ServerDiedError("second")])

    def start() -> contextlib.AbstractContextManager[Poll]:
        raise next(tries)

    starting = Starting(launch=LAUNCH, start=start)
    for _ in range(2):
        with pytest.raises(ServerDiedError, match="first"):
            _ = starting.server


@pytest.mark.parametrize(
    ("reason", "outcome"), [(None, Outcome.NO_BASELINE), ("first run", Outcome.MEASURED)]
)
def test_a_measurement_is_judged_unless_it_is_recorded(
    tmp_path: Path, reason: str | None, outcome: Outcome
) -> None:
    one = measured(suite(tmp_path, update_reason=reason), MEASURED)
    verdict = judged(one, LENGTH)
    assert (verdict.outcome, verdict.value) == (outcome, 2.5)
    assert one.verdicts == [verdict]


def test_what_is_invalid_stays_so_while_it_is_recorded(tmp_path: Path) -> None:
    broken = dataclasses.replace(builders.measurement({}), invalid=all_invalid("SPEC_DISABLED: x"))
    for launch in (broken, builders.measurement({})):
        one = measured(suite(tmp_path, update_reason="first run"), launch)
        verdict = judged(one, LENGTH)
        assert verdict.outcome is Outcome.INVALID


def test_a_file_that_cannot_be_read_does_not_hinder_its_replacement_being_measured(
    tmp_path: Path,
) -> None:
    one = measured(suite(tmp_path, update_reason="again"), MEASURED)
    path = one.store.path(builders.CASE.id)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    verdict = judged(one, LENGTH)
    assert verdict.outcome is Outcome.MEASURED


def test_a_speed_waits_for_all_launches_and_acceptance_does_not(tmp_path: Path) -> None:
    launches = [
        builders.measurement({LENGTH.name: 2.5, SPEED.name: value}, of=COUNTS)
        for value in (100.0, 100.0)
    ]
    record_measurements(
        launches, settings_in(builders.ROOT, builders.CASE), suite(tmp_path).store, reason="first"
    )
    one = measured(suite(tmp_path, launches=2), *launches)
    one.asked = {builders.CASE.id: {LENGTH.name, SPEED.name}}
    outcomes = [
        (verdict.outcome, verdict.launches)
        for launch in (1, 2)
        for metric in (LENGTH, SPEED)
        for verdict in (judged(one, metric, launch),)
    ]
    assert outcomes == [
        (Outcome.PASS, 1),
        (Outcome.MEASURED, 1),
        (Outcome.PASS, 1),
        (Outcome.PASS, 2),
    ]


def test_a_verdict_that_the_whole_run_changes_is_named(tmp_path: Path) -> None:
    """The line of its test was written before, and says REGRESSED."""
    one = suite(tmp_path)
    for outcome, metric in ((Outcome.REGRESSED, LENGTH), (Outcome.PASS, SPEED)):
        one.confirmation.add(
            Verdict(case_id=builders.CASE.id, metric=metric.name, outcome=outcome, p_worse=0.5)
        )
    shown = Terminal(one)
    shown.stash[RECORD_PROPERTY] = lambda *_: None
    _conclude(cast("pytest.Config", shown), one)
    assert shown.stash[_LINES][-1] == (
        f"1 verdict changed when the whole run was looked at: {builders.CASE.id} {LENGTH.name}:"
        " REGRESSED -> INCONCLUSIVE"
    )


def test_a_failure_is_a_row_of_the_table(tmp_path: Path) -> None:
    one = suite(tmp_path)
    one.note_failure(builders.CASE, LENGTH.name, "server 'x': ended")
    (noted,) = one.verdicts
    assert (noted.case_id, noted.metric) == (builders.CASE.id, LENGTH.name)
    assert (noted.outcome, noted.reason) == (Outcome.INVALID, "server 'x': ended")


def test_a_case_of_which_a_launch_is_missing_is_not_recorded(tmp_path: Path) -> None:
    one = measured(suite(tmp_path, update_reason="first run", launches=3), MEASURED)
    recorded, complaints = record_baselines(one)
    assert recorded == ()
    complaint = complaints[builders.CASE.id]
    assert "not written, 1 of 3 launches were measured; select the whole case" in complaint
    assert not one.store.folder.exists()


def test_what_a_run_did_is_history_and_only_if_it_judged(tmp_path: Path) -> None:
    one = measured(suite(tmp_path), MEASURED)
    judged(one, LENGTH)
    record_runs(one)
    path = history_path(tmp_path / "history", builders.ENVIRONMENT.name)
    (past_run,) = load_history(path).of(builders.CASE.id)
    assert past_run.outcomes == {LENGTH.name: "NO_BASELINE"}
    assert past_run.values == {LENGTH.name: 2.5}
    assert past_run.engine_version == "0.32.0"
    recording = measured(suite(tmp_path, update_reason="again"), MEASURED)
    judged(recording, LENGTH)
    record_runs(recording)
    assert len(load_history(path).of(builders.CASE.id)) == 1


MEASURED = builders.measurement({LENGTH.name: 2.5}, of=COUNTS)


def unneeded() -> contextlib.AbstractContextManager[Poll]:
    """A server that nobody should start."""
    raise AssertionError


def dead(number: int = 1) -> Starting:
    """A server that is gone as soon as it is measured."""
    launch = dataclasses.replace(LAUNCH, number=number)
    return Starting(launch=launch, start=lambda: running([]))


def begun_key(one: Suite, case: Case = builders.CASE, *, launch: int = 1) -> Key:
    """Measures in vain: the key that the journal has of it."""
    with pytest.raises(ServerDiedError):
        one.measure(case, dead(launch), None)
    one.journal.close()
    return msgspec.json.decode(one.journal.path.read_bytes().splitlines()[-1], type=Attempt).key


def resumed(one: Suite, *keys: Key) -> Suite:
    """The suite after it was cut off with these measurements complete."""
    return dataclasses.replace(
        one, earlier=dict.fromkeys(keys, MEASURED), taken_over=[], _measured={}, _failed={}
    )


def test_what_an_earlier_run_measured_is_taken_over_without_a_server(tmp_path: Path) -> None:
    cut_off = suite(tmp_path)
    one = resumed(cut_off, begun_key(cut_off), begun_key(cut_off, launch=2))
    first = Starting(launch=LAUNCH, start=unneeded)
    second = Starting(launch=dataclasses.replace(LAUNCH, number=2), start=unneeded)
    assert one.measure(builders.CASE, first, first) is MEASURED
    assert one.measure(builders.CASE, second, None) is MEASURED
    assert one.measurements == (MEASURED, MEASURED)
    names = [builders.CASE.id, f"{builders.CASE.id}-launch2"]
    assert one.taken_over == names
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert figures == set(names)


@pytest.mark.parametrize(
    "changes",
    [
        {"store": BaselineStore(folder=Path("baselines"), environment=builders.OTHER_ENVIRONMENT)},
        {"asked": {builders.CASE.id: {LENGTH.name}}},
        {"provision": dataclasses.replace(NOWHERE, version="0.31.0")},
        {"provision": dataclasses.replace(NOWHERE, python="/some/bin/python")},
        {"provision": dataclasses.replace(NOWHERE, url="http://127.0.0.1:9")},
    ],
    ids=["environment", "asked", "version", "python", "url"],
)
def test_what_was_measured_in_other_circumstances_is_measured_again(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    one = suite(tmp_path)
    other = dataclasses.replace(resumed(one, begun_key(one)), **changes)
    assert begun_key(other) not in other.earlier
    assert other.taken_over == []


@pytest.mark.parametrize(
    ("case", "launch"),
    [
        pytest.param(dataclasses.replace(builders.CASE, turns=1), 1, id="case"),
        pytest.param(builders.CASE, 2, id="launch"),
    ],
)
def test_what_was_measured_of_something_else_is_measured_again(
    tmp_path: Path, case: Case, launch: int
) -> None:
    one = suite(tmp_path)
    other = resumed(one, begun_key(one))
    assert begun_key(other, case, launch=launch) not in other.earlier


def rooted(folder: Path, *, prompts: str = "", weights: bytes = b"weights") -> Suite:
    """A suite with prompts and a model of its own."""
    toy = (builders.ROOT / "fixtures/prompts/toy.jsonl").read_text()
    model = folder / "fixtures/model"
    for path, content in (
        (folder / "fixtures/prompts/toy.jsonl", (prompts + toy).encode()),
        (model / "config.json", b"{}"),
        (model / "model.safetensors", weights),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return dataclasses.replace(suite(folder), root=folder)


@pytest.mark.parametrize(
    ("target", "draft"), [("fixtures/model", "some/draft"), ("some/target", "fixtures/model")]
)
def test_changed_prompts_and_models_are_noticed_and_a_moved_folder_is_not(
    tmp_path: Path, target: str, draft: str
) -> None:
    spec = dataclasses.replace(builders.SPEC, target=target, draft=draft)
    case = dataclasses.replace(builders.CASE, server=spec)
    another = '{"id": "another", "category": "chat", "turns": ["Hello"]}\n'
    first, moved, asked, trained = (
        begun_key(one, case)
        for one in (
            rooted(tmp_path / "first"),
            rooted(tmp_path / "moved"),
            rooted(tmp_path / "asked", prompts=another),
            rooted(tmp_path / "trained", weights=b"others"),
        )
    )
    assert moved == first
    assert len({first, asked, trained}) == 3


@dataclasses.dataclass
class Elsewhere:
    """Who measures in other processes, and can't."""

    error: SpecregError

    def send(self, cases: Sequence[Case], launch: int) -> None:
        """Takes them."""

    def measurement(self, *_: object, **__: object) -> Measurement:
        """There is none."""
        raise self.error

    def verdict(self, *_: object, **__: object) -> Verdict:
        """Nor that."""
        raise self.error

    def kill(self) -> None:
        """Nothing runs."""

    def close(self, *, early: bool) -> str:
        """Nothing is to be said."""
        return f"{early}"


def test_a_second_look_goes_on_after_what_cannot_be_measured(tmp_path: Path) -> None:
    one = suite(tmp_path)
    one.away = Elsewhere(SpecregError("server 'x': ended\nits log"))
    assert one.measure_afresh([builders.CASE], 1) == {builders.CASE.id: "server 'x': ended"}


def test_a_second_look_at_what_was_measured_for_an_earlier_launch_stops_no_server(
    tmp_path: Path,
) -> None:
    """With three launches, a loss in each of them asks for the fourth."""
    one = suite(tmp_path, launches=3)
    one.earlier = {one.key(builders.CASE, 4): MEASURED}
    with one.servers.start(LAUNCH) as starting:
        starting.start = lambda: running([])
        for stays in (False, True):
            _ = starting.server
            assert one.measure_afresh([builders.CASE], 1) == {builders.CASE.id: MEASURED}
            assert starting.running == stays


def test_a_second_look_ends_where_memory_is_not_back(tmp_path: Path) -> None:
    one = suite(tmp_path)
    one.away = Elsewhere(MemoryHeldError("GPU 0: 40 GiB are still taken"))
    with pytest.raises(MemoryHeldError):
        one.measure_afresh([builders.CASE], 1)


def test_a_case_of_which_only_a_check_is_asked_is_not_measured(tmp_path: Path) -> None:
    one, other = measured(suite(tmp_path), MEASURED), builders.with_concurrency(4)
    one.tier = dataclasses.replace(one.tier, cases=(builders.CASE, other))
    one.asked = {builders.CASE.id: {LENGTH.name}, other.id: {LOSSLESS}}
    one.judge(LENGTH, builders.CASE, started(), None)
    assert one.measurements == (MEASURED,)


EQUAL = Verdict(case_id=builders.CASE.id, metric=LOSSLESS, outcome=Outcome.PASS)


def check_of(*came: Verdict | SpecregError) -> CorrectnessCheck:
    """A check whose verdicts these are, one by one."""
    left = iter(came)

    def check(_: RunningCase) -> Verdict:
        one = next(left)
        if isinstance(one, SpecregError):
            raise one
        return one

    return CorrectnessCheck(name=LOSSLESS, applies_to=lambda _: True, check=check)


def test_what_was_asked_of_a_server_that_died_is_checked_once_more_on_a_fresh_one(
    tmp_path: Path,
) -> None:
    one, starts = suite(tmp_path), list[Server]()
    starting = Starting(launch=LAUNCH, start=lambda: running(starts))
    gone = InvalidMeasurementError("HTTP_ERROR", "connection refused")
    assert one.check(check_of(gone, EQUAL), builders.CASE, starting, None) is EQUAL
    assert len(starts) == 2
    assert one.verdicts == [EQUAL]
    (said,) = one.retried
    assert said.startswith(f"{builders.CASE.id}: lossless_frac checked again, server '")
    assert "ended with status 1" in said


def test_it_is_checked_twice_at_most(tmp_path: Path) -> None:
    one, starts = suite(tmp_path), list[Server]()
    starting = Starting(launch=LAUNCH, start=lambda: running(starts))
    gone = InvalidMeasurementError("HTTP_ERROR", "connection refused")
    with pytest.raises(ServerDiedError, match="ended with status 1"):
        one.check(check_of(gone, gone, EQUAL), builders.CASE, starting, None)
    assert len(starts) == 2
    assert not starting.running


@pytest.mark.parametrize(
    ("error", "stays"),
    [(HungError(120.0), False), (InvalidMeasurementError("CONTROL_UNSTEADY", "it parts"), True)],
    ids=["hung", "unsteady"],
)
def test_a_server_that_hangs_in_a_check_is_ended_and_no_other(
    tmp_path: Path, error: SpecregError, *, stays: bool
) -> None:
    with answering(lambda _, __: {}) as url:
        alive = Server(
            spec=builders.SPEC,
            engine=builders.server().engine,
            base_url=url,
            model="toy",
            target="some/target",
            draft=None,
            engine_version="1",
        )
        starting, control = (
            Starting(launch=LAUNCH, start=lambda: contextlib.nullcontext(lambda: alive))
            for _ in range(2)
        )
        with pytest.raises(type(error)):
            suite(tmp_path).check(check_of(error), builders.CASE, starting, control)
    assert (starting.running, control.running) == (stays, stays)
