"""The suite: what it hands out, remembers and refuses."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from specreg.baselines.record import RecordingNotes, record_measurements
from specreg.baselines.schema import Baseline
from specreg.baselines.store import settings_in
from specreg.core.errors import (
    HungError,
    InvalidMeasurementError,
    MemoryHeldError,
    ModelError,
    ServerDiedError,
    SpecregError,
)
from specreg.core.reasons import Reason
from specreg.correctness.checks import LOSSLESS, CorrectnessCheck, RunningCase
from specreg.matrix.case import Tier
from specreg.measurement.arm import Arm
from specreg.measurement.journal import load_checks
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Metric
from specreg.servers.launch import Launch, Poll, Servers, Starting, launches_of
from specreg.servers.server import Server
from specreg.suite.finish import record_runs
from specreg.suite.options import Options
from specreg.suite.run import Suite
from specreg.verdicts.history import load_history
from specreg.verdicts.verdict import Comparison, Outcome, Verdict
from tests.unit import builders
from tests.unit.answering import answering

LENGTH = METRICS["acceptance_length_tokens"]
SPEED = METRICS["throughput_tokens_per_s"]
COUNTS = builders.counts(8, 0, 6, 6)
RECORDING = {"update_baselines": True, "launches": 1}


def parts(folder: Path, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - any option
    """What a suite of one case is made of, whose files are all in `folder`."""
    own = {"baselines": str(folder / "baselines"), "history": str(folder / "history")}
    return {
        "options": Options(matrix=str(folder), **{**own, **options}),
        "root": builders.ROOT,
        "tier": Tier(name="cpu", needs_gpus=0, cases=(builders.CASE,)),
        "environment": builders.ENVIRONMENT,
        "run_folder": folder,
        "show": lambda _: None,
    }


def suite(folder: Path, **options: Any) -> Suite:  # noqa: ANN401 - any option
    """A suite of one case whose files are all in `folder`."""
    return Suite(**parts(folder, **options))


def measured(one: Suite, *launches: Measurement) -> Suite:
    """The suite after it measured these launches."""
    for number, launch in enumerate(launches, start=1):
        one.earlier = {one.key(launch.case, number): launch}
        one.measure(launch.case, (started(number), None))
    return one


def recorded(one: Suite) -> tuple[Measurement, Baseline]:
    """A launch of the case, two of which are recorded, and its baseline."""
    launch = builders.measurement({LENGTH.name: 2.5, SPEED.name: 100.0}, of=COUNTS)
    settings = settings_in(builders.ROOT, builders.CASE)
    return launch, record_measurements(
        [launch, launch], settings, one.store, RecordingNotes(reason="first")
    ).new


def started(number: int = 1) -> Starting:
    """A launch whose server is not needed."""
    return Starting(launch=dataclasses.replace(LAUNCH, number=number), start=unneeded)


def judged(one: Suite, metric: Metric, number: int = 1) -> Verdict:
    """The verdict on a metric of the case, which alone the run asks for."""
    one.asked = {builders.CASE.id: {*one.asked.get(builders.CASE.id, ()), metric.name}}
    return one.judge(metric, builders.CASE, (started(number), None))


LAUNCH = Launch(spec=builders.SPEC, number=1)


ALONE = ("vllm-suffix", "triton-suffix", "sglang-ngram")


@pytest.mark.parametrize("name", [*ALONE, "vllm-ngram", "sglang-eagle3"])
def test_a_drafter_that_learns_from_what_it_serves_serves_one_case(name: str) -> None:
    engine, method = name.split("-")
    case = builders.on_server(engine=engine, method=method)
    cases = (builders.with_concurrency(load, case) for load in (1, 4))
    (control, one), (_, other) = (launches_of(case, 2) for case in cases)
    assert (one != other) == (name in ALONE)
    assert control == one  # without a control of its own
    assert one.id == f"{name}-toy{'-toy-c1' if name in ALONE else ''}-launch2"


@contextlib.contextmanager
def running(starts: list[Server]) -> Iterator[Poll]:
    """A server that is ready at once; it is added to those that were started."""
    server = builders.server()
    starts.append(server)
    yield lambda: server


def test_a_server_that_failed_to_start_is_not_tried_again() -> None:
    tries = iter([ServerDiedError("first"), ServerDiedError("second")])

    def start() -> AbstractContextManager[Poll]:
        raise next(tries)

    starting = Starting(launch=LAUNCH, start=start)
    for _ in range(2):
        with pytest.raises(ServerDiedError, match="first"):
            _ = starting.server


def test_a_file_that_cannot_be_read_does_not_hinder_its_replacement_being_measured(
    tmp_path: Path,
) -> None:
    one = measured(suite(tmp_path, **RECORDING), MEASURED)
    path = one.store.path(builders.CASE.id)
    path.parent.mkdir(parents=True)
    path.write_text("{")
    verdict = judged(one, LENGTH)
    assert (verdict.outcome, verdict.value) == (Outcome.MEASURED, 2.5)


@pytest.mark.parametrize(
    ("options", "is_timed"), [({}, [False, True, False]), (RECORDING, [True, True, False])]
)
def test_a_case_is_timed_where_that_is_recorded_or_its_speeds_are_all_shown_alone(
    tmp_path: Path, options: dict[str, Any], *, is_timed: list[bool]
) -> None:
    speeds = tuple(name for name, one in METRICS.items() if one.by_launch)
    shown = dataclasses.replace(builders.CASE, shown=speeds)
    one = suite(tmp_path, **options)
    one.asked = {builders.CASE.id: {LENGTH.name}}
    cases = (builders.CASE, shown, dataclasses.replace(shown, speed=False))
    assert [one.asks_speed(case) for case in cases] == is_timed


def test_a_speed_waits_for_all_launches_and_acceptance_does_not(tmp_path: Path) -> None:
    launch, _ = recorded(suite(tmp_path))
    one = measured(suite(tmp_path, launches=2), launch, launch)
    one.asked = {builders.CASE.id: {LENGTH.name, SPEED.name}}
    places = ((LENGTH, 1), (SPEED, 1), (LENGTH, 2), (SPEED, 2))
    verdicts = [judged(one, metric, number) for metric, number in places]
    outcomes = [Outcome.PASS, Outcome.MEASURED, Outcome.PASS, Outcome.PASS]
    assert [verdict.outcome for verdict in verdicts] == outcomes
    assert [verdict.launches for verdict in verdicts] == [1, 1, 1, 2]


def test_a_least_time_is_asked_only_where_speeds_are_recorded_or_compared(tmp_path: Path) -> None:
    one, lasting = suite(tmp_path), dataclasses.replace(builders.CASE, least_s=8.0)
    assert one.least_s(lasting) == 0, "nothing is recorded"
    assert suite(tmp_path, **RECORDING).least_s(lasting) == 8
    recorded(one)
    assert suite(tmp_path).least_s(lasting) == 8
    one.asked = {builders.CASE.id: {LENGTH.name}}
    assert one.least_s(lasting) == 0, "no speed is asked for"


def test_what_a_run_did_is_history_and_only_if_it_judged(tmp_path: Path) -> None:
    one = measured(suite(tmp_path), MEASURED)
    judged(one, LENGTH)
    record_runs(one)
    (past_run,) = load_history(one.history).of(builders.CASE.id)
    assert past_run.outcomes == {LENGTH.name: "NO_BASELINE"}
    assert past_run.values == {LENGTH.name: 2.5}
    assert past_run.engine_version == "0.32.0"
    recording = measured(suite(tmp_path, **RECORDING), MEASURED)
    judged(recording, LENGTH)
    record_runs(recording)
    assert len(load_history(one.history).of(builders.CASE.id)) == 1


MEASURED = builders.measurement({LENGTH.name: 2.5}, of=COUNTS)


def unneeded() -> AbstractContextManager[Poll]:
    """A server that nobody should start."""
    raise AssertionError


EQUAL = Verdict(case_id=builders.CASE.id, metric=LOSSLESS, outcome=Outcome.PASS)


def check_of(*came: Verdict | SpecregError) -> CorrectnessCheck:
    """A check whose verdicts these are, one by one."""
    left = iter(came)

    def check(_: RunningCase) -> Verdict:
        one = next(left)
        if isinstance(one, SpecregError):
            raise one
        return one

    return CorrectnessCheck(LOSSLESS, check)


def test_what_was_asked_of_a_server_that_died_is_checked_once_more_on_a_fresh_one(
    tmp_path: Path,
) -> None:
    one, starts = suite(tmp_path), list[Server]()
    starting = Starting(launch=LAUNCH, start=lambda: running(starts))
    gone = InvalidMeasurementError("HTTP_ERROR", "connection refused")
    assert one.check(check_of(gone, EQUAL), builders.CASE, (starting, None)) is EQUAL
    assert len(starts) == 2
    assert one.verdicts == [EQUAL]
    (said,) = one.retried
    assert said.startswith(f"{builders.CASE.id}: lossless_frac checked again, SERVER_DIED: ")
    assert "ended with status 1" in said
    one.journal.close()
    again = dataclasses.replace(suite(tmp_path), earlier_checks={**load_checks(one.journal.path)})
    assert again.check(check_of(), builders.CASE, (starting, None)) == EQUAL, "resumed: as it was"


@pytest.mark.parametrize("error", [HungError(120.0), InvalidMeasurementError("UNSTEADY", "x")])
def test_a_server_that_hangs_in_a_check_is_ended_and_no_other(
    tmp_path: Path, error: SpecregError
) -> None:
    with answering(lambda _, __: {}) as url:
        gone = builders.server(url)
        names = (field.name for field in dataclasses.fields(Server))
        alive = Server(**{name: getattr(gone, name) for name in names})
        starting, control = (
            Starting(launch=LAUNCH, start=lambda: contextlib.nullcontext(lambda: alive))
            for _ in range(2)
        )
        with pytest.raises(type(error)):
            suite(tmp_path).check(check_of(error), builders.CASE, (starting, control))
    stays = not isinstance(error, HungError)
    assert (starting.running, control.running) == (stays, stays)


def test_what_was_measured_in_other_circumstances_is_another_measurement(tmp_path: Path) -> None:
    one, case = suite(tmp_path), builders.CASE
    engines = (
        {"engine_version": "0.31.0"},
        {"engine_python": "/bin/python"},
        {"attach": "http://h"},
    )
    others = [suite(tmp_path, **options) for options in engines]
    others.append(dataclasses.replace(one, environment=builders.OTHER_ENVIRONMENT))
    others.append(dataclasses.replace(one, asked={case.id: {LENGTH.name}}))
    keys = [one.key(case, 1), one.key(case, 2), one.key(dataclasses.replace(case, turns=1), 1)]
    keys += [other.key(case, 1) for other in others]
    assert len(set(keys)) == 8


def rooted(folder: Path, *, prompts: str = "", weights: str = "weights") -> Suite:
    """A suite with prompts and a model of its own."""
    toy, model = Path("fixtures/prompts/toy.jsonl"), Path("fixtures/model")
    contents = {toy: prompts + (builders.ROOT / toy).read_text()}
    contents |= {model / "config.json": "{}", model / "model.safetensors": weights}
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
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
    first = rooted(tmp_path / "first").key(case, 1)
    assert rooted(tmp_path / "moved").key(case, 1) == first
    assert rooted(tmp_path / "asked", prompts=another).key(case, 1) != first
    assert rooted(tmp_path / "trained", weights="others").key(case, 1) != first


def test_a_second_look_goes_on_after_what_cannot_be_measured_unless_memory_is_not_back(
    tmp_path: Path,
) -> None:
    held, ended = MemoryHeldError("GPU 0: 40 GiB"), SpecregError("server 'x': ended\nits log")
    second = dataclasses.replace(LAUNCH, number=2)
    one, other = suite(tmp_path), suite(tmp_path)
    for run, error in ((one, held), (other, ended)):
        failing = Starting(launch=second, start=unneeded, _error=error)
        with pytest.raises(type(error)):
            run.measure(builders.CASE, (failing, None))
    with pytest.raises(MemoryHeldError):
        one.measure_afresh([builders.CASE], 1)
    assert other.measure_afresh([builders.CASE], 1) == {
        builders.CASE.id: Reason(text="server 'x': ended")
    }


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


def test_a_case_of_which_only_a_check_is_asked_is_not_measured(tmp_path: Path) -> None:
    one, other = measured(suite(tmp_path), MEASURED), builders.with_concurrency(4)
    one.tier = dataclasses.replace(one.tier, cases=(builders.CASE, other))
    one.asked = {builders.CASE.id: {LENGTH.name}, other.id: {LOSSLESS}}
    one.judge(LENGTH, builders.CASE, (started(), None))
    assert one.measurements == (MEASURED,)


def test_a_verdict_that_the_whole_run_changes_is_told_apart(tmp_path: Path) -> None:
    """The line of its test was written before, and says REGRESSED."""
    one = suite(tmp_path)
    for outcome, metric in ((Outcome.REGRESSED, LENGTH), (Outcome.PASS, SPEED)):
        verdict = Verdict(case_id=builders.CASE.id, metric=metric.name, outcome=outcome)
        one.confirmation.verdicts.append(
            dataclasses.replace(verdict, comparison=Comparison(p_worse=0.5))
        )
    properties: dict[str, object] = {}
    one.record_property = properties.__setitem__
    (said,) = one.conclude()
    place = f"{builders.CASE.id} {LENGTH.name}"
    change = f"{place}: REGRESSED -> INCONCLUSIVE"
    assert said == f"1 verdict changed when the whole run was looked at: {change}"
    assert [*properties] == [f"specreg.final.{place.replace(' ', '.')}"]
    assert [found.outcome for found in one.verdicts] == [Outcome.INCONCLUSIVE, Outcome.PASS]


def test_a_measurement_whose_server_dies_is_tried_twice_and_not_again(tmp_path: Path) -> None:
    one, starts = suite(tmp_path), list[Server]()
    starting = Starting(launch=LAUNCH, start=lambda: running(starts))
    for _ in range(2):
        with pytest.raises(ServerDiedError):
            one.measure(builders.CASE, (starting, None))
    one.journal.close()
    assert len(starts) == 2
    (said,) = one.retried
    assert said.startswith(f"{builders.CASE.id}: measured again, SERVER_DIED: ")


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the last arm was said to be warm, of each measurement; nothing is asked for it."""
    found: list[bool] = []

    def measure(arms: Sequence[Arm], *_: object) -> list[Measurement]:
        found.append(arms[-1].warm)
        return [dataclasses.replace(builders.measurement({}), case=arm.case) for arm in arms]

    monkeypatch.setattr("specreg.suite.run.measure", measure)
    return found


METHODS = [
    dataclasses.replace(builders.on_server(method=name), control=builders.PLAIN_SPEC)
    for name in ("draft_model", "eagle3", "ngram")
]


def starting(one: Launch) -> Starting:
    """A launch whose server is there at once."""
    return Starting(launch=one, start=lambda: running([]))


def test_a_control_is_warmed_up_once_for_each_load_and_again_after_its_start(
    tmp_path: Path, warm: list[bool]
) -> None:
    one = suite(tmp_path, update_baselines=True)
    control = starting(launches_of(METHODS[0], 1)[0])
    for case, load in zip((*METHODS, METHODS[0]), (1, 4, 1, 1), strict=True):
        loaded = builders.with_concurrency(load, case)
        one.measure(loaded, (starting(launches_of(loaded, len(warm) + 1)[1]), control))
        if len(warm) == len(METHODS):
            control.stop()
    one.journal.close()
    assert warm == [False, False, True, False]


@pytest.mark.parametrize(
    ("draft", "unfetched", "starts"),
    [(None, [], True), ("./gone", [], False), (None, [METHODS[2].id], False)],
    ids=["at-hand", "no-folder", "unfetched"],
)
def test_the_next_server_that_is_asked_for_starts_with_another_beside_the_same_control(
    tmp_path: Path,
    warm: list[bool],
    monkeypatch: pytest.MonkeyPatch,
    draft: str | None,
    unfetched: list[str],
    *,
    starts: bool,
) -> None:
    ahead: list[Launch | None] = []
    start_all = Servers.start_all

    def noting(self: Servers, startings: Sequence[Starting], launch: Launch | None) -> None:
        ahead.append(launch)
        start_all(self, startings)

    monkeypatch.setattr(Servers, "start_all", noting)
    third = dataclasses.replace(METHODS[2].server, draft=draft)
    cases = *METHODS[:2], dataclasses.replace(METHODS[2], server=third)
    tier = Tier(name="cpu", needs_gpus=0, cases=(*cases, builders.on_server(method="suffix")))
    one = Suite(**{**parts(tmp_path, update_baselines=True, launches=1), "tier": tier})
    one.asked = {case.id: set() for case in tier.cases}
    one.unfetched = dict.fromkeys(unfetched, "the hub doesn't give it")
    control, *methods = map(
        starting, (launches_of(cases[0], 1)[0], *(launches_of(case, 1)[1] for case in cases))
    )
    for case, method in zip(cases[:2], methods, strict=False):
        one.measure(case, (method, control))
    with pytest.raises(ModelError) if draft else contextlib.nullcontext():
        one.measure(cases[2], (methods[2], control))
    one.journal.close()
    assert len(warm) == len(cases) - bool(draft)
    assert ahead[:2] == [None, methods[2].launch if starts else None]
    assert not any(ahead[2:])
