"""The suite: what it hands out, remembers and refuses."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.datasets import Prompt
from specreg.errors import DatasetError, ServerDiedError
from specreg.expectation import record_measurements, settings_of
from specreg.journal import Begun, Journal, Key
from specreg.matrix import Case, Tier
from specreg.measurement import Measurement
from specreg.metrics import METRICS
from specreg.protocols import Form
from specreg.server import Server
from specreg.suite import Launch, Starting, Suite, check_form
from specreg.verdict import Outcome
from tests.unit import builders

LENGTH = METRICS["acceptance_length_tokens"]
SPEED = METRICS["throughput_tokens_per_s"]
COUNTS = builders.counts(8, 0, 6, 6)


def suite(folder: Path, *, update_reason: str | None = None, launches: int = 1) -> Suite:
    """A suite of one case whose baselines are in `folder`."""
    return Suite(
        root=builders.ROOT,
        tier=Tier(name="cpu", needs_gpus=0, cases=(builders.CASE,)),
        environment=builders.ENVIRONMENT,
        baselines=folder / "baselines",
        launches=launches,
        update_reason=update_reason,
        engine_version=None,
        engine_python=None,
        ready_within_s=1.0,
        run_folder=folder,
        journal=Journal(folder / "journal.jsonl"),
        earlier={},
        show=lambda _: None,
    )


def not_again() -> Measurement:
    """A second look where none is due."""
    raise AssertionError


def test_a_case_gets_the_prompts_it_asks_for(tmp_path: Path) -> None:
    prompts = suite(tmp_path).prompts(builders.CASE)
    assert len(prompts) == builders.CASE.prompts


def test_a_case_that_asks_for_more_prompts_than_there_are_is_refused(tmp_path: Path) -> None:
    greedy = dataclasses.replace(builders.CASE, prompts=41)
    with pytest.raises(DatasetError) as error:
        suite(tmp_path).prompts(greedy)
    assert str(error.value) == (
        f"dataset 'toy': has 40 prompts, '{greedy.id}' asks for 41; lower prompts in the matrix"
    )


def test_token_ids_are_no_chat() -> None:
    ids = Prompt(id="random-0", category="random", token_ids=(5, 6))
    completing = dataclasses.replace(builders.CASE, form=Form.COMPLETIONS)
    check_form(completing, [ids])
    check_form(builders.CASE, builders.PROMPTS)
    with pytest.raises(DatasetError, match='set form = "completions" for'):
        check_form(builders.CASE, [*builders.PROMPTS, ids])


LAUNCH = Launch(spec=builders.SPEC, number=1)


def test_the_same_server_beside_it_is_taken(tmp_path: Path) -> None:
    beside = Starting(launch=LAUNCH, start=builders.server)
    with suite(tmp_path).start(LAUNCH, beside=beside) as started:
        assert started is beside
    with suite(tmp_path).start(dataclasses.replace(LAUNCH, number=2), beside=beside) as started:
        assert started is not beside


def test_a_server_that_nobody_asks_for_does_not_start(tmp_path: Path) -> None:
    with suite(tmp_path).start(LAUNCH) as started:
        assert started.launch == LAUNCH
    assert list(tmp_path.iterdir()) == []


def test_a_server_starts_when_it_is_first_asked_for_and_once() -> None:
    starts: list[Server] = []

    def start() -> Server:
        starts.append(builders.server())
        return starts[-1]

    starting = Starting(launch=LAUNCH, start=start)
    assert starts == []
    assert [starting.server, starting.server] == starts * 2
    assert len(starts) == 1


def test_a_server_that_failed_to_start_is_not_tried_again() -> None:
    tries = iter([ServerDiedError("first"), ServerDiedError("second")])

    def start() -> Server:
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
    one = suite(tmp_path, update_reason=reason)
    verdict = one.judge(LENGTH, builders.measurement({LENGTH.name: 2.5}, of=COUNTS), not_again)
    assert (verdict.outcome, verdict.value) == (outcome, 2.5)
    assert one.verdicts == [verdict]


def test_what_is_invalid_stays_so_while_it_is_recorded(tmp_path: Path) -> None:
    one = suite(tmp_path, update_reason="first run")
    broken = dataclasses.replace(builders.measurement({}), invalid="SPEC_DISABLED: x")
    assert one.judge(LENGTH, broken, not_again).outcome is Outcome.INVALID
    assert one.judge(LENGTH, builders.measurement({}), not_again).outcome is Outcome.INVALID


def test_a_file_that_cannot_be_read_does_not_hinder_its_replacement_being_measured(
    tmp_path: Path,
) -> None:
    one = suite(tmp_path, update_reason="again")
    path = one.baselines / builders.ENVIRONMENT.name / f"{builders.CASE.id}.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    verdict = one.judge(LENGTH, builders.measurement({LENGTH.name: 2.5}, of=COUNTS), not_again)
    assert verdict.outcome is Outcome.MEASURED


def recorded_suite(folder: Path, *tokens_per_s: float) -> Suite:
    """A suite with a baseline of launches of so many tokens per second."""
    one = suite(folder)
    measurements = [
        builders.measurement({LENGTH.name: 2.5, SPEED.name: value}, of=COUNTS)
        for value in tokens_per_s
    ]
    settings = settings_of(measurements[0], one.prompts(builders.CASE))
    record_measurements(
        one.baselines, measurements, settings, builders.ENVIRONMENT, reason="first run"
    )
    return one


@pytest.mark.parametrize(
    ("second", "outcome", "words"),
    [
        pytest.param(99.0, Outcome.PASS, "which a second didn't confirm", id="worse-once"),
        pytest.param(80.0, Outcome.REGRESSED, "seen twice, a first look had 70", id="twice"),
    ],
)
def test_a_speed_is_called_worse_when_it_is_worse_twice(
    tmp_path: Path, second: float, outcome: Outcome, words: str
) -> None:
    one = recorded_suite(tmp_path, 100.0, 101.0)
    first = builders.measurement({SPEED.name: 70.0}, of=COUNTS)
    verdict = one.judge(SPEED, first, lambda: builders.measurement({SPEED.name: second}, of=COUNTS))
    assert (verdict.outcome, verdict.value) == (outcome, second)
    assert words in verdict.reason
    assert one.verdicts == [verdict]


def test_a_speed_that_holds_is_not_measured_again(tmp_path: Path) -> None:
    one = recorded_suite(tmp_path, 100.0, 101.0)
    held = builders.measurement({SPEED.name: 99.0}, of=COUNTS)
    assert one.judge(SPEED, held, not_again).outcome is Outcome.PASS


def test_a_worse_acceptance_needs_no_second_look(tmp_path: Path) -> None:
    one = recorded_suite(tmp_path, 100.0, 101.0)
    counts = builders.counts(14, 0, 3, 3)
    worse = builders.measurement({LENGTH.name: 1.75}, of=counts)
    assert one.judge(LENGTH, worse, not_again).outcome is Outcome.REGRESSED


def test_a_failure_is_a_row_of_the_table(tmp_path: Path) -> None:
    one = suite(tmp_path)
    one.note_failure(builders.CASE, LENGTH, "server 'x': ended")
    (noted,) = one.verdicts
    assert (noted.case_id, noted.metric) == (builders.CASE.id, LENGTH.name)
    assert (noted.outcome, noted.reason) == (Outcome.INVALID, "server 'x': ended")


def test_a_case_of_which_a_launch_is_missing_is_not_recorded(tmp_path: Path) -> None:
    one = suite(tmp_path, update_reason="first run", launches=3)
    one.measurements.append(builders.measurement({LENGTH.name: 2.5}, of=COUNTS))
    recorded, complaints = one.record()
    assert recorded == ()
    (complaint,) = complaints
    assert "not written, 1 of 3 launches were measured" in complaint
    assert complaint.endswith(f"select the whole case: -k {builders.CASE.id}-")
    assert not one.baselines.exists()


def test_a_case_with_lists_among_its_settings_is_recorded_too(tmp_path: Path) -> None:
    case = dataclasses.replace(builders.CASE, chat_template_args=(("tools", ["a"]),))
    one = suite(tmp_path, update_reason="first run")
    one.measurements.append(builders.measurement({LENGTH.name: 2.5}, of=COUNTS, case=case))
    (written,), refused = one.record()
    assert written.new.case.chat_template_args == (("tools", ["a"]),)
    assert refused == ()


MEASURED = builders.measurement({LENGTH.name: 2.5}, of=COUNTS)


def unneeded() -> Server:
    """A server that nobody should start."""
    raise AssertionError


def dead(number: int = 1) -> Starting:
    """A server that is gone as soon as it is measured."""
    return Starting(launch=dataclasses.replace(LAUNCH, number=number), start=builders.server)


def begun_key(one: Suite, case: Case = builders.CASE, *, launch: int = 1, look: int = 1) -> Key:
    """Measures in vain: the key that the journal has of it."""
    with pytest.raises(ServerDiedError):
        one.measure(case, dead(launch), None, look=look)
    one.journal.close()
    return msgspec.json.decode(one.journal.path.read_bytes().splitlines()[-1], type=Begun).key


def resumed(one: Suite, *keys: Key) -> Suite:
    """The suite after it was cut off with these measurements complete."""
    return dataclasses.replace(one, earlier=dict.fromkeys(keys, MEASURED), taken_over=[])


def test_what_an_earlier_run_measured_is_taken_over_without_a_server(tmp_path: Path) -> None:
    cut_off = suite(tmp_path)
    one = resumed(cut_off, begun_key(cut_off), begun_key(cut_off, launch=2, look=2))
    first = Starting(launch=LAUNCH, start=unneeded)
    second = Starting(launch=dataclasses.replace(LAUNCH, number=2), start=unneeded)
    assert one.measure(builders.CASE, first, first) is MEASURED
    assert one.measure(builders.CASE, second, None, look=2) is MEASURED
    assert one.measurements == [MEASURED, MEASURED]
    names = [builders.CASE.id, f"{builders.CASE.id}-launch2-look2"]
    assert one.taken_over == names
    figures = {path.stem for path in (tmp_path / "figures").iterdir()}
    assert figures == set(names)


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": builders.OTHER_ENVIRONMENT},
        {"engine_version": "0.31.0"},
        {"engine_python": "/some/bin/python"},
    ],
    ids=",".join,
)
def test_what_was_measured_in_other_circumstances_is_measured_again(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    one = suite(tmp_path)
    other = dataclasses.replace(resumed(one, begun_key(one)), **changes)
    assert begun_key(other) not in other.earlier
    assert other.taken_over == []


@pytest.mark.parametrize(
    ("case", "launch", "look"),
    [
        pytest.param(dataclasses.replace(builders.CASE, rounds=1), 1, 1, id="case"),
        pytest.param(builders.CASE, 2, 1, id="launch"),
        pytest.param(builders.CASE, 1, 2, id="look"),
    ],
)
def test_what_was_measured_of_something_else_is_measured_again(
    tmp_path: Path, case: Case, launch: int, look: int
) -> None:
    one = suite(tmp_path)
    other = resumed(one, begun_key(one))
    assert begun_key(other, case, launch=launch, look=look) not in other.earlier


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
