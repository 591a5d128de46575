"""Baselines on disk: reviewable, never torn, never overwritten when they can't be read."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.acceptance.record import (
    NO_STEPS,
    AcceptanceRecord,
    RoundAcceptance,
    Source,
    StepCounts,
)
from specreg.baselines import schema
from specreg.baselines.comparison import differing_settings, without_num_prompts
from specreg.baselines.record import record_baseline
from specreg.baselines.schema import (
    BASELINE_SCHEMA_VERSION,
    Baseline,
    load_baseline,
    render_baseline,
)
from specreg.baselines.store import load_settings
from specreg.core.errors import BaselineError
from specreg.engines.methods import Tree
from specreg.matrix.case import CaseSettings
from specreg.matrix.tier import load_tier
from specreg.measurement.metrics import METRICS
from specreg.telemetry.sensor import Scope
from tests.unit import builders

COUNTS = builders.counts(8, 0, 6, 6)
BASELINE = builders.baseline({"speedup_ratio": 1.5}, {"speedup_ratio": 1.25}, of=COUNTS)
PLAIN = builders.baseline({"tpot_p50_ms": 2.0})
CONFLICT = '{\n<<<<<<< HEAD\n "schema_version": 1\n=======\n "schema_version": 1\n>>>>>>> b\n}\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cpu-x/case.json"


H100 = schema.RecordedDevice(
    id="GPU-1", name="H100", scope=Scope.GPU, from_counter=True, sm_clock_mhz=1980.0
)
WATCHED = msgspec.structs.replace(PLAIN, devices=(H100,))


@pytest.mark.parametrize(
    "baseline", [BASELINE, PLAIN, WATCHED], ids=["speculating", "plain", "of devices"]
)
def test_a_baseline_comes_back_as_it_was_recorded(path: Path, baseline: Baseline) -> None:
    record_baseline(path, baseline)
    assert load_baseline(path) == baseline
    assert ('"devices"' in path.read_text()) == bool(baseline.devices)


def test_each_prompt_is_a_line(path: Path) -> None:
    prompts = (
        builders.prompt_acceptance(COUNTS, cut_tokens=2),
        builders.prompt_acceptance(builders.counts(1, 1, 1, 1)),
    )
    record = builders.acceptance_of(prompts)
    record_baseline(
        path, msgspec.structs.replace(BASELINE, acceptance=schema.stored_acceptance(record))
    )
    lines = [line.strip().rstrip(",") for line in path.read_text().splitlines()]
    assert '["chat-0", "chat", 30, 20, 60, 49, [12, 12, 6], 1]' in lines
    assert '["chat-0", "chat", 6, 4, 12, 11, [3, 2, 1], 1]' in lines


def test_a_failing_write_leaves_the_old_file_and_nothing_else(path: Path) -> None:
    record_baseline(path, BASELINE)
    before = path.read_bytes()
    with pytest.raises(UnicodeEncodeError):
        record_baseline(path, msgspec.structs.replace(BASELINE, launches=({"\ud800": 1.0},)))
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def edited(**changes: Any) -> str:  # noqa: ANN401 - JSON
    return json.dumps(json.loads(render_baseline(BASELINE)) | changes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"schema_version": 1,\n  oops', "JSON is malformed"),
        ("", "Input data was truncated"),
        (CONFLICT, "a merge conflict, from line 2 on"),
        (edited(extra=1), "`extra`"),
        ("{}", "`schema_version`"),
        (edited(launches=[{"speedup_ratio": 0.0}]), "speedup_ratio is 0.0"),
        (edited(launches=[{"tpot_p50_ms": 2.0}]).replace("2.0", "1e999"), "out of range"),
        (
            render_baseline(BASELINE).replace(" 30, 20, 60,", " 29, 20, 60,"),
            "COUNTS_INCONSISTENT: prompt 'chat-0': steps, accepted, drafted = 20, 29, 60",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_left_alone(
    path: Path, content: str, words: str
) -> None:
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(BaselineError) as error:
        load_baseline(path)
    assert str(error.value).startswith(f"baseline '{path}': ")
    assert words in str(error.value)
    assert str(error.value).endswith("; restore it with git, or remove it and record it anew")
    with pytest.raises(BaselineError, match="restore it with git"):
        record_baseline(path, BASELINE)
    assert path.read_text() == content


def test_a_baseline_that_would_take_minutes_to_read_is_neither_read_nor_written(path: Path) -> None:
    """Each metric of a case adds up all answers of the baseline."""
    record_baseline(path, BASELINE)
    before = path.read_text()
    assert BASELINE.acceptance is not None
    answers = BASELINE.acceptance.prompts * 15_000
    long = msgspec.structs.replace(BASELINE.acceptance, further_launches={"2": answers})
    huge = msgspec.structs.replace(BASELINE, acceptance=long)

    words = "not written, it has [0-9.]+ MiB, and 4 are read at most; record it with fewer launches"
    with pytest.raises(BaselineError, match=words):
        record_baseline(path, huge)
    assert path.read_text() == before

    path.write_text(render_baseline(huge))
    with pytest.raises(BaselineError, match="is longer than 4 MiB; restore it with git"):
        load_baseline(path)


def test_a_disk_that_refuses_is_named_with_the_file(path: Path) -> None:
    path.parent.symlink_to("nowhere")
    with pytest.raises(BaselineError, match="make room or repair its rights") as error:
        record_baseline(path, BASELINE)
    assert str(error.value).startswith(f"baseline '{path}': not written, File exists; ")
    assert isinstance(error.value.__cause__, OSError)


def test_an_unreadable_file_among_baselines_is_left_out(tmp_path: Path) -> None:
    record_baseline(tmp_path / "a/case.json", BASELINE)
    (tmp_path / "a/broken.json").write_text(CONFLICT)
    record_baseline(tmp_path / "b/case.json", PLAIN)
    baselines, unreadable = schema.read_baselines(schema.baseline_files(tmp_path))
    assert tuple(baselines.values()) == (BASELINE, PLAIN)
    assert len(unreadable) == 1


def test_a_prompt_keeps_its_turn_and_a_file_without_turns_is_of_first_ones() -> None:
    record = builders.acceptance(builders.counts(8, 0, 6, 6))
    second = dataclasses.replace(record.prompts[0], turn=2)
    loaded = schema.load_acceptance(
        schema.stored_acceptance(dataclasses.replace(record, prompts=(second,)))
    )
    assert loaded is not None
    assert loaded.prompts == (second,)
    line = b'["chat-0", "chat", 30, 20, 60, 49, [12, 12, 6]]'
    assert msgspec.json.decode(line, type=schema.StoredPrompt).turn == 1


def varied(*accepted: int) -> AcceptanceRecord:
    """One launch, whose prompts accepted so many drafts in 60 steps each."""
    prompts = [
        builders.prompt_acceptance(builders.counts(60 - drafts, drafts), prompt_id=f"chat-{number}")
        for number, drafts in enumerate(accepted)
    ]
    return builders.acceptance_of(prompts)


def test_launches_that_differ_all_stand_in_the_file_one_prompt_a_line(path: Path) -> None:
    launches = varied(10, 20), varied(11, 20), varied(10, 22)
    baseline = msgspec.structs.replace(BASELINE, acceptance=schema.stored_acceptance(*launches))

    record_baseline(path, baseline)

    text = path.read_text()
    prompts = text[text.index('"further_launches"') : text.index('"prompts"')]
    assert [line.strip().rstrip(",") for line in prompts.splitlines()][1:-1] == [
        '"2": [',
        '["chat-0", "chat", 11, 60, 60, 72, [11], 1]',
        '["chat-1", "chat", 20, 60, 60, 81, [20], 1]',
        "]",
        '"3": [',
        '["chat-0", "chat", 10, 60, 60, 71, [10], 1]',
        '["chat-1", "chat", 22, 60, 60, 83, [22], 1]',
        "]",
        "}",
    ]
    loaded = load_baseline(path)
    assert loaded == baseline
    acceptance = schema.load_acceptance(loaded.acceptance)
    assert acceptance is not None
    assert acceptance.total.accepted == 10 + 20 + 11 + 20 + 10 + 22
    assert acceptance.total.steps == 6 * 60


def test_each_of_twelve_launches_gets_back_its_own_answers(path: Path) -> None:
    """In a file, the keys of the launches are sorted as texts: "10" comes before "2"."""
    launches = [varied(10, 20 + number) for number in range(1, 13)]
    stored = schema.stored_acceptance(*launches)
    record_baseline(path, msgspec.structs.replace(BASELINE, acceptance=stored))

    loaded = load_baseline(path)

    assert loaded is not None
    acceptance = schema.load_acceptance(loaded.acceptance)
    assert acceptance is not None
    assert acceptance.prompts == tuple(prompt for launch in launches for prompt in launch.prompts)


def test_launches_that_repeat_are_stored_once() -> None:
    """The second launch has half of the prompts, as only the first replays the extension."""
    once = schema.stored_acceptance(varied(10, 20))
    assert schema.stored_acceptance(varied(10, 20), varied(10), varied(10, 20)) == once
    assert '"further_launches"' not in render_baseline(BASELINE)


def counted(*accepted: int) -> AcceptanceRecord:
    """One launch, whose counters were read between rounds of two prompts."""
    rounds = [
        RoundAcceptance(
            prompt_ids=(f"chat-{2 * number}", f"chat-{2 * number + 1}"),
            counts=builders.counts(60 - drafts, drafts),
            completion_tokens=2 + 60 + drafts,
            requests=2,
        )
        for number, drafts in enumerate(accepted)
    ]
    total = sum((part.counts for part in rounds), NO_STEPS)
    record = builders.acceptance(total, Source.VLLM_COUNTERS)
    return dataclasses.replace(record, prompts=(), rounds=tuple(rounds))


def test_rounds_between_two_readings_of_the_counters_are_kept(path: Path) -> None:
    launches = counted(10, 20), counted(11, 20)
    stored = schema.stored_acceptance(*launches)
    baseline = msgspec.structs.replace(BASELINE, acceptance=stored)

    record_baseline(path, baseline)

    lines = [line.strip().rstrip(",") for line in path.read_text().splitlines()]
    assert '[["chat-0", "chat-1"], 10, 60, 60, 72, 2, [10], 1]' in lines
    assert '[["chat-0", "chat-1"], 11, 60, 60, 73, 2, [11], 2]' in lines
    loaded = load_baseline(path)
    assert loaded == baseline
    acceptance = schema.load_acceptance(loaded.acceptance)
    assert acceptance is not None
    assert acceptance.rounds == (*launches[0].rounds, *launches[1].rounds)
    assert schema.stored_acceptance(counted(10), counted(10)) == schema.stored_acceptance(
        counted(10)
    )


def test_an_answer_of_another_length_is_no_repeat() -> None:
    first = varied(10, 20)
    longer = dataclasses.replace(first.prompts[1], completion_tokens=90)
    second = dataclasses.replace(first, prompts=(first.prompts[0], longer))
    stored = schema.stored_acceptance(first, second)
    assert stored is not None
    assert list(stored.further_launches) == ["2"]


def test_a_file_of_one_launch_alone_is_still_read(tmp_path: Path) -> None:
    """Schema version 4 has no further launches."""
    older = reread(tmp_path, edited(schema_version=4))
    assert older == msgspec.structs.replace(BASELINE, schema_version=4)


def test_counts_without_prompts_are_kept_as_their_sum(path: Path) -> None:
    record = dataclasses.replace(builders.acceptance(COUNTS, Source.VLLM_COUNTERS), prompts=())
    baseline = msgspec.structs.replace(BASELINE, acceptance=schema.stored_acceptance(record))
    record_baseline(path, baseline)
    loaded = load_baseline(path)
    assert loaded == baseline
    assert schema.load_acceptance(loaded.acceptance) == record
    assert loaded.expected_value(METRICS["acceptance_length_tokens"]) == 2.5
    assert '"total"' not in render_baseline(BASELINE)


NO_SUM = msgspec.structs.replace(
    builders.stored(COUNTS), prompts=(), total=dataclasses.replace(COUNTS, accepted=29)
)


def noisy(between_frac: float, runs: int) -> Baseline:
    noise = {"speedup_ratio": schema.Noise(between_frac=between_frac, runs=runs)}
    return msgspec.structs.replace(BASELINE, noise=noise)


NO_GOODPUT = builders.baseline({"goodput_requests_per_s": 0.0})


@pytest.mark.parametrize(
    ("baseline", "words"),
    [
        (NO_GOODPUT, r"_IMPOSSIBLE: goodput_.* is 0\.0, needed a positive .*; raise the limits"),
        (msgspec.structs.replace(BASELINE, acceptance=NO_SUM), "_INCONSISTENT: all prompts"),
        (noisy(-0.1, 5), "_IMPOSSIBLE: noise of speedup"),
        (noisy(float("inf"), 5), "_IMPOSSIBLE: noise of speedup"),
        (noisy(0.1, 1), "_IMPOSSIBLE: noise of speedup"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(
    path: Path, baseline: Baseline, words: str
) -> None:
    """Such a file could be neither judged against nor replaced."""
    with pytest.raises(BaselineError, match=rf"not written, \w+{words}"):
        record_baseline(path, baseline)
    assert not path.exists()


def reread(folder: Path, text: str) -> Baseline | None:
    (folder / "case.json").write_text(text)
    return load_baseline(folder / "case.json")


def test_steps_without_a_draft_that_an_earlier_specreg_stored_are_not_used(tmp_path: Path) -> None:
    stored = builders.stored(COUNTS, prompts=2)
    earlier = msgspec.structs.replace(stored, undrafted_steps=(3, 3))
    text = render_baseline(msgspec.structs.replace(BASELINE, acceptance=earlier))
    assert '"undrafted_steps"' in text
    baseline = reread(tmp_path, text)
    assert baseline is not None
    assert schema.load_acceptance(baseline.acceptance) == schema.load_acceptance(stored)


def test_a_committed_baseline_is_read_and_written_as_it_was_recorded(tmp_path: Path) -> None:
    paths = sorted((builders.ROOT / "baselines").glob("[!p]*/*.json"))
    assert paths
    for path in paths:
        written = json.loads(path.read_text())
        committed = load_baseline(path)
        assert committed is not None
        assert reread(tmp_path, render_baseline(committed)) == committed
        again = json.loads(render_baseline(committed))
        settings = again.pop("case")
        recorded_settings = written.pop("case")
        assert again == written
        # A setting that came after the recording has its default.
        assert {name: settings[name] for name in recorded_settings} == recorded_settings
        defaults = {field.name: field.default for field in dataclasses.fields(CaseSettings)}
        assert settings.keys() == defaults.keys()
        for name in settings.keys() - recorded_settings.keys():
            assert getattr(committed.case, name) == defaults[name]


def test_a_setting_that_is_not_known_is_refused(tmp_path: Path) -> None:
    case = json.loads(render_baseline(BASELINE))["case"]
    with pytest.raises(BaselineError, match=r"unknown field `unheard_of` - at `\$\.case`"):
        reread(tmp_path, edited(case=case | {"unheard_of": 1}))


def test_an_older_file_is_to_be_recorded_anew(tmp_path: Path) -> None:
    with pytest.raises(BaselineError, match=r"schema version 3, .* reads 4 to 5; record it anew"):
        reread(tmp_path, edited(schema_version=3))


def test_a_newer_file_is_left_alone_and_takes_a_newer_specreg(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    newer = edited(schema_version=BASELINE_SCHEMA_VERSION + 1).replace('"schema', '\n"schema')
    path.write_text(newer)
    with pytest.raises(BaselineError) as error:
        record_baseline(path, BASELINE)
    assert str(error.value) == (
        f"baseline '{path}': schema version {BASELINE_SCHEMA_VERSION + 1}, this specreg reads 4 to"
        f" {BASELINE_SCHEMA_VERSION}; use a newer specreg"
    )
    assert path.read_text() == newer


def test_the_committed_schema_is_that_of_the_code() -> None:
    committed = builders.ROOT / "baselines/schema.json"
    assert committed.read_text() == schema.render_baseline_schema()


def test_a_tree_drafts_more_than_its_positions(path: Path) -> None:
    six = StepCounts.from_histogram((2, 0, 1, 4), proposed=42)
    chain = builders.baseline(of=six)
    with pytest.raises(BaselineError, match="COUNTS_INCONSISTENT"):
        record_baseline(path, chain)
    settings = dataclasses.replace(builders.SETTINGS, tree=Tree(branches=2, drafted_tokens=6))
    record_baseline(path, builders.baseline(of=six, settings=settings))
    loaded = load_baseline(path)
    assert loaded is not None
    assert loaded.case.tree == settings.tree


def test_every_committed_baseline_still_applies_to_a_case_of_a_tier() -> None:
    """A setting that moves, a path for instance, would leave a baseline behind unseen."""
    root = builders.ROOT
    files = (root / "fixtures/matrix").glob("*.toml")
    cases = [case for path in files for case in load_tier(path.parent, path.stem).cases]
    for path in sorted((root / "baselines").glob("[!p]*/*.json")):
        committed = load_baseline(path)
        assert committed is not None
        current = [
            without_num_prompts(load_settings(root, case)) for case in cases if case.id == path.stem
        ]
        differ = [differing_settings(committed.case, settings) for settings in current]
        assert "" in differ or not differ, f"{path}: {differ}"


def test_recording_a_case_writes_the_case_of_its_committed_baseline() -> None:
    """Not only equal to what is read: the same keys and values in the file."""
    root = builders.ROOT
    files = (root / "fixtures/matrix").glob("*.toml")
    cases = [case for path in files for case in load_tier(path.parent, path.stem).cases]
    compared = 0
    for path in sorted((root / "baselines").glob("[!p]*/*.json")):
        committed = load_baseline(path)
        assert committed is not None
        for case in cases:
            if case.id != path.stem:
                continue
            settings = without_num_prompts(load_settings(root, case))
            # Tiers may have cases of the same name with other settings.
            if settings == committed.case:
                again = render_baseline(msgspec.structs.replace(committed, case=settings))
                written = json.loads(again)["case"]
                # A setting that was added later isn't in older files.
                assert written | json.loads(path.read_text())["case"] == written
                compared += 1
    assert compared > 50
