"""The ledger: what was measured comes back as it was, and a cut-off run loses nothing else."""

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import random
import resource
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord, Source, View
from specreg.core.errors import SpecregError, UnsupportedError
from specreg.core.families import Family
from specreg.core.reasons import Reason
from specreg.engines.methods import Tree
from specreg.load.chat_client import FinishedRequest
from specreg.load.rounds import Round, RoundBuilder
from specreg.matrix.case import Arrivals, Case, Limits, Load
from specreg.measurement.measure import Measurement, values_of
from specreg.measurement.metrics import Replay
from specreg.runs.ledger import (
    ArmName,
    Checked,
    FailedLaunch,
    Key,
    Ledger,
    MeasuredLaunch,
    check_has_no_old_ledger,
    last_run,
    read_ledger,
)
from tests.unit import builders
from tests.unit.builders.ledgers import ACCEPTANCE, CASE, COUNTS, KEY, finished, key_of, recorded

ACCEPTANCE_ALONE = msgspec.structs.replace(KEY, purpose="acceptance")
SECOND_LAUNCH = msgspec.structs.replace(KEY, launch=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "ledger.jsonl"


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_measurement_is_read_back_unchanged(path: Path) -> None:
    measured = recorded(path)
    assert [line["type"] for line in lines_of(path)] == ["Launched", *["Replayed"] * 12, "Measured"]
    (again,) = read_ledger(path).measured.values()
    assert again == measured
    assert again.values["throughput_tokens_per_s"] > 0
    assert again.values["speedup_ratio"] > 0
    assert again.values["energy_j_per_token"] > 0
    assert again.replay is not None
    for part in (*again.replay.rounds, *again.replay.control_rounds):
        assert [trace.prompt_id for trace in part.traces] == ["one", "two", "two"]
        assert part.gaps.size == 3


def test_further_counters_are_read_back_with_their_rounds(path: Path) -> None:
    measured = recorded(path)
    lines = lines_of(path)
    for number, counters in enumerate(lines[-1]["counters"][0]):
        counters["queue_s"] = 0.5 + number
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (again,) = read_ledger(path).measured.values()
    assert again.replay is not None
    assert [part.counters for part in again.replay.rounds] == [{"queue_s": 0.5}, {"queue_s": 1.5}]
    assert again.values == measured.values

    # An earlier version wrote none.
    del lines[-1]["counters"]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (earlier,) = read_ledger(path).measured.values()
    assert earlier == measured


def ledgered_together(path: Path, keys: Sequence[Key]) -> list[Measurement]:
    """Two cases that were measured beside one control of three rounds, of which the first had two.

    The control is the arm after them, unless it is a case of its own with the last key.
    """
    control_arm = 2
    rounds_of_arms = (2, 3, 3)
    ledger = Ledger(path)
    ledger.begin(*keys)
    rounds: dict[int, list[Round]] = {0: [], 1: [], 2: []}
    for number, arm in itertools.product(range(3), range(3)):
        if number >= rounds_of_arms[arm]:
            continue
        builder = RoundBuilder()
        request = finished(f"prompt-{number}")
        ledger.record_round(arm, number)(request)
        builder.take(request)
        builder.lags.add_all((3, 4))
        rounds[arm].append(builder.as_round())
    measurements = []
    for arm, key in enumerate(keys):
        case = msgspec.json.decode(key.case, type=Case)
        is_control = arm == control_arm
        control_rounds = [] if is_control else rounds[control_arm][: rounds_of_arms[arm]]
        replay = Replay(
            rounds=tuple(rounds[arm]),
            control_rounds=tuple(control_rounds),
            concurrency=case.load.concurrency,
            acceptance=None if is_control else ACCEPTANCE,
        )
        measured = builders.measurement(values_of(case, replay), case=case)
        measurement = dataclasses.replace(measured, replay=replay)
        ledger.end(measurement, arm_number=arm, control_number=None if is_control else control_arm)
        measurements.append(measurement)
    ledger.close()
    return measurements


NGRAM = dataclasses.replace(builders.on_server(method="ngram"), control=builders.PLAIN_SPEC)
TOGETHER = (KEY, key_of(NGRAM), key_of(builders.PLAIN_CASE))


@pytest.mark.parametrize("keys", [TOGETHER[:2], TOGETHER], ids=["control", "control-is-a-case"])
def test_cases_beside_one_control_come_back_one_by_one(path: Path, keys: Sequence[Key]) -> None:
    measured = ledgered_together(path, keys)

    requests = [line for line in lines_of(path) if line["type"] == "Replayed"]
    assert len(requests) == 8, "those of the control stand once"
    assert dict(read_ledger(path).measured) == dict(zip(keys, measured, strict=True))


def test_of_cases_that_were_measured_together_those_that_ended_come_back(path: Path) -> None:
    first, *_ = ledgered_together(path, TOGETHER)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-2]) + lines[-2][:50])

    assert dict(read_ledger(path).measured) == {KEY: first}
    after = recorded(path, SECOND_LAUNCH)
    assert dict(read_ledger(path).measured) == {KEY: first, SECOND_LAUNCH: after}


def test_a_request_that_cannot_be_read_costs_all_that_were_measured_with_it(path: Path) -> None:
    ledgered_together(path, TOGETHER)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3][:50] + b"\xff\n"
    path.write_bytes(b"".join(lines))

    assert dict(read_ledger(path).measured) == {}


def test_a_round_that_has_a_request_twice_is_left_out(path: Path) -> None:
    """An extension once had the number of the round after it, in which prompts were replayed."""
    recorded(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join((lines[0], lines[1], *lines[1:])))

    assert dict(read_ledger(path).measured) == {}
    with pytest.raises(SpecregError, match="round 0 has a request twice; leave that run out"):
        read_ledger(path, known={KEY.case: CASE})


def test_a_ledger_of_an_earlier_form_is_left_out(path: Path) -> None:
    """Its requests said whether the control was asked, and not which arm."""
    recorded(path)
    lines = lines_of(path)
    for line in lines:
        if line["type"] == "Launched":
            (line["key"],) = line.pop("keys")
        elif line["type"] == "Replayed":
            line["control"] = bool(line.pop("arm"))
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    assert dict(read_ledger(path).measured) == {}


A_SUM = dataclasses.replace(builders.acceptance(COUNTS, Source.VLLM_COUNTERS), prompts=())
OF_CHUNKS = dataclasses.replace(
    builders.acceptance(dataclasses.replace(COUNTS, proposed=None), Source.STREAM_CHUNKS),
    view=View.EMITTED,
)
ALL_SETTINGS = builders.with_judging(
    builders.with_request(
        dataclasses.replace(
            CASE,
            load=Load(arrivals=Arrivals.POISSON, requests_per_s=500.0),
            server=dataclasses.replace(CASE.server, tree=Tree(branches=2, drafted_tokens=6)),
        ),
        turns=1,
        chat_template_args=(("tools", ["a", {"b": None}]), ("think", False)),
    ),
    limits=Limits(tpot_ms=5.0),
    tolerances=(("tpot_p50_ms", 0.2),),
)


@pytest.mark.parametrize(
    ("case", "acceptance"),
    [(CASE, A_SUM), (CASE, OF_CHUNKS), (builders.PLAIN_CASE, None), (ALL_SETTINGS, ACCEPTANCE)],
    ids=["a-sum-alone", "drafts-unknown", "plain", "all-settings"],
)
def test_any_measurement_is_read_back(
    path: Path, case: Case, acceptance: AcceptanceRecord | None
) -> None:
    measured = recorded(path, key_of(case), case, acceptance)
    assert dict(read_ledger(path).measured) == {key_of(case): measured}


@pytest.mark.parametrize("seed", range(40))
def test_a_measurement_is_read_back_whichever_word_is_secret(
    path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Any part of the ledger, as a variable may have it. A package's address may be hidden."""
    recorded(path)
    content = path.read_text()
    path.unlink()
    begin = random.Random(seed).randrange(len(content) - 20)  # noqa: S311 - a case, no secret
    monkeypatch.setenv("X_TOKEN", content[begin : begin + 8 + seed % 12])
    expected = dataclasses.replace(recorded(path), packages=())

    (read,) = read_ledger(path).measured.values()

    assert dataclasses.replace(read, packages=()) == expected


def test_a_request_is_on_disk_as_soon_as_it_has_ended(path: Path) -> None:
    ledger = Ledger(path)
    ledger.begin(KEY)
    for request in map(finished, ("one", "two")):
        ledger.record_round(arm_number=1, number=3)(request)
        line = lines_of(path)[-1]
        assert path.read_bytes().endswith(b"\n")
        assert (line["arm"], line["round"]) == (1, 3)
        assert msgspec.convert(line["finished"], FinishedRequest) == request
    ledger.close()


def test_the_first_of_two_measurements_with_one_key_counts(path: Path) -> None:
    """A worker that was given up may come to its end after the one that took its place."""
    first, second = recorded(path), recorded(path)
    assert first != second
    assert dict(read_ledger(path).measured) == {KEY: first}
    assert dict(read_ledger(path, last=True).measured) == {KEY: second}


@pytest.mark.parametrize("value", [0.3, 0.999], ids=["in-a-request", "in-the-last-line"])
def test_a_measurement_that_was_cut_off_is_absent_and_harms_no_other(
    path: Path, value: float
) -> None:
    first = recorded(path)
    content = path.read_bytes()
    recorded(path, ACCEPTANCE_ALONE)
    both = path.read_bytes()
    path.write_bytes(both[: len(content) + int((len(both) - len(content)) * value)])
    assert dict(read_ledger(path).measured) == {KEY: first}
    again = recorded(path, ACCEPTANCE_ALONE)
    assert dict(read_ledger(path).measured) == {KEY: first, ACCEPTANCE_ALONE: again}


@pytest.mark.parametrize("broken", [0, 1, 13], ids=["begun", "a-request", "ended"])
def test_an_unreadable_line_loses_only_its_own_measurement(path: Path, broken: int) -> None:
    before = recorded(path, SECOND_LAUNCH)
    content_before = path.read_bytes()
    recorded(path)
    lines = path.read_bytes().removeprefix(content_before).splitlines(keepends=True)
    lines[broken] = lines[broken][:50] + b"\xff\n"
    path.write_bytes(content_before + b"".join(lines))
    after = recorded(path, ACCEPTANCE_ALONE)
    assert dict(read_ledger(path).measured) == {SECOND_LAUNCH: before, ACCEPTANCE_ALONE: after}


@pytest.mark.parametrize("launch", [-1, 10**5, 10**9, 10**30])
def test_a_launch_that_no_run_has_is_left_out(path: Path, launch: int) -> None:
    """A resumed gate would plan as many launches as the highest number in its ledger."""
    recorded(path, msgspec.structs.replace(KEY, launch=7_777))
    path.write_bytes(path.read_bytes().replace(b"7777", str(launch).encode()))
    measured = recorded(path, SECOND_LAUNCH)
    assert dict(read_ledger(path).measured) == {SECOND_LAUNCH: measured}


def test_unknown_fields_are_ignored_and_missing_ones_have_defaults(path: Path) -> None:
    measured = recorded(path)
    lines = lines_of(path)
    assert lines[-1].pop("invalid") == {}
    changed_lines = [json.dumps(line | {"weather": "fair"}) for line in lines]
    pause = '{"type": "Paused", "at_s": 1.5}'
    path.write_text("\n".join((pause, *changed_lines, pause, "")))
    ledger = recorded(path, ACCEPTANCE_ALONE)
    assert dict(read_ledger(path).measured) == {KEY: measured, ACCEPTANCE_ALONE: ledger}


def test_a_case_or_a_look_of_another_version_is_not_taken_over(path: Path) -> None:
    """Written by a version whose cases had other fields: nobody can ask for it."""
    recorded(path, SECOND_LAUNCH)
    path.write_bytes(path.read_bytes().replace(b'"look":"FULL"', b'"look":"SIXTH"'))
    recorded(path, msgspec.structs.replace(KEY, case='{"server": "vllm"}'))
    measured = recorded(path)
    assert dict(read_ledger(path).measured) == {KEY: measured}


@pytest.mark.parametrize(("field", "name"), [("method", "eagle4"), ("engine", "vlln")])
def test_a_case_of_an_unknown_engine_or_method_is_left_out(
    path: Path, field: str, name: str
) -> None:
    """Another version may have had it, or a bit of the disk is wrong."""
    recorded(path)
    lines = lines_of(path)
    for line in lines:
        for key in line.get("keys", ()):
            case = json.loads(key["case"])
            case["server"][field] = name
            key["case"] = json.dumps(case)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_ledger(path).measured == {}


def test_an_invalid_measurement_is_never_complete(path: Path) -> None:
    ledger = Ledger(path)
    ledger.begin(KEY)
    ledger.record_round(arm_number=0, number=0)(finished("one"))
    invalid = dict.fromkeys(Family, Reason(code="X", text="y"))
    ledger.end(dataclasses.replace(builders.measurement({}), replay=None, invalid=invalid))
    ledger.close()
    assert dict(read_ledger(path).measured) == {}
    assert [line["type"] for line in lines_of(path)] == ["Launched", "Replayed"]


def test_invalid_families_and_an_empty_round_are_read_back_unchanged(path: Path) -> None:
    measured = recorded(path)
    assert measured.replay is not None
    invalid = dict.fromkeys((Family.LATENCY, Family.POWER), Reason(code="THROTTLED", text="92 °C"))
    rounds = (*measured.replay.rounds, RoundBuilder().as_round())
    replay = dataclasses.replace(measured.replay, rounds=rounds)
    values = values_of(CASE, replay, invalid)
    assert 0 < len(values) < len(measured.values)
    part = dataclasses.replace(measured, invalid=invalid, replay=replay, values=values)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]))
    Ledger(path).end(part, control_number=1)
    assert dict(read_ledger(path).measured) == {KEY: part}


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ledger = Ledger(tmp_path / "file" / "ledger.jsonl")
    for attempt in (functools.partial(ledger.begin, KEY), ledger.hold):
        with pytest.raises(
            SpecregError, match=r"ledger '.*; make room or repair its righ"
        ) as error:
            attempt()
        assert isinstance(error.value.__cause__, OSError)


@contextlib.contextmanager
def full_after(path: Path, size_bytes: int) -> Iterator[None]:
    """Lets this process write no file beyond what is in it and so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_was_full_for_a_while_costs_no_other_measurement(path: Path) -> None:
    ledger = Ledger(path)
    ledger.begin(ACCEPTANCE_ALONE)
    record = ledger.record_round(arm_number=0, number=0)
    with full_after(path, 100), pytest.raises(SpecregError, match="File too large; make room"):
        record(finished("one"))
    measured = recorded(path)
    assert dict(read_ledger(path).measured) == {KEY: measured}


def test_a_ledger_that_cannot_be_read_is_named(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(
        SpecregError, match=r"ledger '.*': is a folder, needed a regular file; name a run"
    ):
        read_ledger(path)


def write(folder: Path, *, at_s: float, name: str = "ledger.jsonl") -> None:
    """A file of a run, as if all of the run had been written then."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    for path in (folder, folder / name):
        os.utime(path, (at_s, at_s))


def test_the_last_run_is_the_one_that_was_written_last(tmp_path: Path) -> None:
    with pytest.raises(SpecregError, match=r"there is no run in '.*'; run without it"):
        last_run(tmp_path)
    write(tmp_path / "b", at_s=1000.0)
    write(tmp_path / "a", at_s=2000.0)
    (tmp_path / "notes.txt").touch()
    assert last_run(tmp_path) == tmp_path / "a"
    os.utime(tmp_path / "b" / "ledger.jsonl", (3000.0, 3000.0))  # it was continued
    assert last_run(tmp_path) == tmp_path / "b"
    write(tmp_path / "c" / "shards" / "gw0", at_s=4000.0)  # its workers alone wrote
    for at, shard in enumerate(("d-1of2", "e-2of2")):
        write(tmp_path / shard, at_s=5000.0 + at)
    assert last_run(tmp_path) == tmp_path / "c"
    assert last_run(tmp_path, "-1of2") == tmp_path / "d-1of2"


@pytest.mark.parametrize("target", ["../precious", "/nowhere/at/all", "x"])
@pytest.mark.parametrize("name", ["x", "ledger.lock", "ledger.jsonl", "logs"])
def test_a_run_folder_with_a_link_in_it_is_not_continued(
    tmp_path: Path, name: str, target: str
) -> None:
    """It may come from another machine, and what the run writes would lie elsewhere."""
    write(tmp_path / "runs" / "a", at_s=1000.0, name="a.jsonl")
    (tmp_path / "runs" / "a" / name).symlink_to(target)
    (tmp_path / "runs" / "precious").write_text("precious")
    with pytest.raises(SpecregError, match=r"'.*/a': '.*' is a symbolic link, needed .*; remove"):
        last_run(tmp_path / "runs")
    assert (tmp_path / "runs" / "precious").read_text() == "precious"


def test_a_run_of_an_earlier_version_is_not_continued(tmp_path: Path) -> None:
    write(tmp_path / "old" / "shards" / "gw0", at_s=1000.0, name="journal.jsonl")
    words = r"journal.jsonl': was written by an earlier version .*; run without --specreg-resume"
    with pytest.raises(UnsupportedError, match=words):
        last_run(tmp_path)


def test_an_old_run_further_below_a_folder_is_no_obstacle(tmp_path: Path) -> None:
    """A gate may be told to write to a folder that has runs in it."""
    write(tmp_path / "runs" / "old", at_s=1000.0, name="journal.jsonl")
    check_has_no_old_ledger(tmp_path, remedy="")


def test_a_run_that_measured_nothing_does_not_hand_over_an_older_one(tmp_path: Path) -> None:
    """Otherwise a start that was cut off would pass off last week's figures as today's."""
    write(tmp_path / "old", at_s=1000.0)
    write(tmp_path / "new" / "logs", at_s=2000.0, name="server.log")
    with pytest.raises(SpecregError, match=r"the last run, '.*/new', has no ledger: .* run with"):
        last_run(tmp_path)


@pytest.mark.parametrize("number", [1, 2])
def test_a_repetition_that_failed_takes_the_place_of_the_last_measurement(
    path: Path, number: int
) -> None:
    recorded(path)
    failure = FailedLaunch(case_id=CASE.id, number=number, reason=Reason(text="it died"))
    check = dataclasses.replace(failure, number=KEY.launch, check="lossless")
    Ledger(path).extend([failure, check])
    assert (KEY in read_ledger(path, last=True).measured) == (number != KEY.launch)
    assert KEY in read_ledger(path).measured


def side_key(side: ArmName, launch: int = 2) -> Key:
    """The key of a side of a gate on a launch."""
    return msgspec.structs.replace(KEY, arm=side, launch=launch)


def fail(path: Path, side: ArmName, ledger: Ledger | None = None) -> None:
    """Record that a side failed on the second launch."""
    failure = FailedLaunch(case_id=CASE.id, arm=side, number=2, reason=Reason(text="it died"))
    (ledger or Ledger(path)).extend([failure])


def sides_left(path: Path) -> list[tuple[str, int]]:
    """The sides that a resumed gate takes over, each with the number of its launch."""
    return [(key.arm, key.launch) for key in read_ledger(path, last=True).measured]


@pytest.mark.parametrize(("first", "second"), [("A", "B"), ("B", "A"), ("A2", "A1")])
def test_a_repeated_side_is_not_compared_with_the_other_side_of_another_hour(
    path: Path, first: ArmName, second: ArmName
) -> None:
    fail(path, first)
    recorded(path, side_key(second))
    recorded(path, side_key(second, launch=3))
    assert sides_left(path) == [(second, 2), (second, 3)]

    # The gate is resumed hours later, makes launch 2 again, and is killed after its first side.
    recorded(path, side_key(first))
    assert sides_left(path) == [(second, 3), (first, 2)]

    # It is resumed once more, and makes both sides of launch 2 again.
    fail(path, first)
    recorded(path, side_key(second))
    assert sides_left(path) == [(second, 3), (second, 2)]
    recorded(path, side_key(first))
    recorded(path, side_key(second))
    assert sides_left(path) == [(second, 3), (first, 2), (second, 2)]


def test_a_gate_doesnt_compare_two_looks_either(path: Path) -> None:
    """Side A is launched beside itself. At the first look A2 failed, at the next one both are made
    again."""
    ledger = Ledger(path)

    def launch(side: ArmName) -> MeasuredLaunch:
        measurement = builders.measurement({})
        return MeasuredLaunch(case_id=CASE.id, arm=side, number=2, measurement=measurement)

    fail(path, "A2", ledger)
    ledger.extend([launch("A1")])
    ledger.begin(side_key("A2"))
    ledger.extend([launch("A2")])
    assert [measured.arm for measured in ledger.measured] == ["A2"]

    ledger.begin(side_key("A1"))
    ledger.extend([launch("A1")])
    assert [measured.arm for measured in ledger.measured] == ["A2", "A1"]


def test_sides_that_run_together_stay_together_after_one_has_failed(path: Path) -> None:
    fail(path, "B")
    both = (side_key("B"), side_key("A"))
    measurement = builders.measurement({}, case=CASE)
    ledger = Ledger(path)
    ledger.begin(*both)
    for arm in (1, 0):
        ledger.end(measurement, arm_number=arm)
    assert set(sides_left(path)) == {("A", 2), ("B", 2)}


def test_a_ledger_takes_the_lines_of_another_and_a_check_hides_no_measurement(path: Path) -> None:
    measured = builders.measurement({})
    part = path.parent / "shards" / "gw0" / "ledger.jsonl"
    worker = Ledger(part)
    worker.begin(KEY)
    worker.extend([Checked.of(KEY, "lossless_frac", {"outcome": "PASS"})])
    worker.end(measured)
    worker.close()
    with part.open("ab") as file:
        file.write(b'{"type": "Repl')  # it was killed in the midst of a line
    ledger = Ledger(path)
    ledger.take(part)
    ledger.take(part.with_name("of-nobody"))
    ledger.begin(SECOND_LAUNCH)
    ledger.end(measured)
    ledger.close()
    assert list(read_ledger(path).measured) == [KEY, SECOND_LAUNCH]
    checked = read_ledger(path).checked
    assert checked[KEY, "lossless_frac"].verdict == {"outcome": "PASS"}


def test_a_check_by_an_earlier_definition_of_equal_answers_is_left_out(tmp_path: Path) -> None:
    """The first definition left thoughts out, so that it called answers equal that weren't."""
    path = tmp_path / "ledger.jsonl"
    line = {"type": "Checked", "key": msgspec.to_builtins(KEY), "check": "lossless_frac"}
    for digest in ({}, {"digest": 1}):
        path.write_bytes(msgspec.json.encode(line | {"verdict": {"outcome": "PASS"}} | digest))
        assert read_ledger(path).checked == {}
    path.write_bytes(msgspec.json.encode(line | {"verdict": {"outcome": "PASS"}, "digest": 2}))
    checked = read_ledger(path).checked
    assert checked[KEY, "lossless_frac"].verdict == {"outcome": "PASS"}


def test_a_run_that_still_goes_on_cannot_be_continued(path: Path) -> None:
    living, dead = Ledger(path), Ledger(path)
    living.hold()
    words = r"'.*': is still running; wait for its end, or end"
    for ask in (dead.hold, lambda: last_run(path.parent.parent)):
        with pytest.raises(SpecregError, match=words):
            ask()
    living.begin(KEY)
    living.close()
    assert last_run(path.parent.parent) == path.parent
    dead.hold()
    dead.close()
