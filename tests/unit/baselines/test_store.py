"""What is expected of a case: looked up by likeness, written only when it is sound."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.acceptance.record import AcceptanceRecord, StepCounts
from specreg.baselines.comparison import CaseBaselines, differing_settings
from specreg.baselines.record import RecordedBaseline, RecordingNotes, record_measurements
from specreg.baselines.schema import Baseline, Noise, load_baseline
from specreg.baselines.store import BaselineStore, settings_of
from specreg.core.errors import BaselineError, DatasetError
from specreg.core.families import TIMED, Family
from specreg.core.reasons import Reason
from specreg.datasets.prompts import Prompt
from specreg.engines.methods import Tree
from specreg.engines.server_spec import Parallel
from specreg.engines.wire_format import Form
from specreg.matrix.case import Case, CaseSettings
from specreg.matrix.prompts import check_form, load_case_prompts
from specreg.measurement.measure import Measurement
from specreg.measurement.metrics import METRICS, Invalid, Replay
from specreg.telemetry.identity import Environment
from specreg.telemetry.power_record import PowerRecord
from tests.unit import builders

COUNTS = builders.counts(8, 0, 6, 6)
ALIKE = msgspec.structs.replace(builders.ENVIRONMENT, cores=8)
UNLIKE = msgspec.structs.replace(builders.OTHER_ENVIRONMENT, cpu="AMD EPYC")


def write(
    folder: Path, environment: Environment, settings: CaseSettings = builders.SETTINGS
) -> Baseline:
    baseline = builders.baseline(
        {"speedup_ratio": 1.5}, of=COUNTS, environment=environment, settings=settings
    )
    builders.record(folder, baseline)
    return baseline


def store(folder: Path) -> BaselineStore:
    return BaselineStore(folder=folder, environment=builders.ENVIRONMENT)


def look_up(folder: Path, case: Case = builders.CASE) -> CaseBaselines:
    return store(folder).look_up(case, builders.SETTINGS)


def launch(
    of: StepCounts | AcceptanceRecord = COUNTS,
    *,
    speedup: float = 1.5,
    invalid: Invalid | None = None,
) -> Measurement:
    measurement = builders.measurement({"speedup_ratio": speedup}, of=of)
    return dataclasses.replace(measurement, invalid=invalid or {})


def record(folder: Path, *launches: Measurement, **options: Any) -> RecordedBaseline:  # noqa: ANN401
    notes = RecordingNotes(reason="again")
    return record_measurements(launches, builders.SETTINGS, store(folder), notes, **options)


def test_the_baseline_of_this_machine_is_found(tmp_path: Path) -> None:
    baseline = write(tmp_path, builders.ENVIRONMENT)
    baselines = look_up(tmp_path)
    assert baselines.exact == baseline
    assert (baselines.settings, baselines.environment) == (builders.SETTINGS, builders.ENVIRONMENT)


def test_the_files_of_a_case_are_this_machines_or_else_all_others(tmp_path: Path) -> None:
    this_store, path = store(tmp_path), tmp_path / f"other/{builders.CASE.id}.json"
    path.parent.mkdir()
    path.write_text("<<<<<<< ")
    assert [*this_store.files([builders.CASE.id])] == [path]
    write(tmp_path, builders.ENVIRONMENT)
    assert [*this_store.files([builders.CASE.id])] == [this_store.path(builders.CASE.id)]


def test_the_nearest_baseline_is_the_one_of_the_machine_most_alike(tmp_path: Path) -> None:
    different = write(tmp_path, UNLIKE)
    similar = write(tmp_path, ALIKE)
    baselines = look_up(tmp_path)
    assert (baselines.exact, baselines.nearest) == (None, similar)
    write(tmp_path, ALIKE, dataclasses.replace(builders.SETTINGS, dtype="auto"))
    assert look_up(tmp_path).nearest == different, "the other's settings are others now"


def test_a_machine_of_the_same_name_and_other_facts_is_not_this_one(tmp_path: Path) -> None:
    twin = msgspec.structs.replace(builders.ENVIRONMENT, cpu="Intel Xeon @ 2.50GHz")
    assert twin.name == builders.ENVIRONMENT.name
    baseline = write(tmp_path, twin)
    baselines = look_up(tmp_path)
    assert (baselines.exact, baselines.nearest) == (None, baseline)


def test_the_control_is_the_same_load_without_speculation(tmp_path: Path) -> None:
    case = dataclasses.replace(builders.CASE, control=builders.PLAIN_SPEC)
    assert look_up(tmp_path, case).control is None
    plain = dataclasses.replace(builders.SETTINGS, method="none", draft_tokens=0)
    control = builders.baseline({"tpot_p50_ms": 5.0}, settings=plain)
    path = builders.record(tmp_path, control, builders.PLAIN_CASE.id)
    assert look_up(tmp_path, case).control == control
    assert look_up(tmp_path).control is None
    longer = dataclasses.replace(plain, output_cap_tokens=8)
    builders.record(tmp_path, msgspec.structs.replace(control, case=longer), path.stem)
    assert look_up(tmp_path, case).control is None
    path.write_text("{")
    assert look_up(tmp_path, case).control is None


@pytest.mark.parametrize(
    "further_settings",
    [
        {"pinned_length_tokens": 2.5},
        {"speculation": (("draft_sample_method", "greedy"),)},
        {"tree": Tree(branches=2, drafted_tokens=6)},
        {"parallel": Parallel(tensor=2, draft_tensor=1)},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_the_control_has_none_of_the_settings_of_speculation(
    tmp_path: Path, further_settings: dict[str, Any]
) -> None:
    """A setting that the control doesn't have must not hide the control's baseline."""
    server = dataclasses.replace(builders.SPEC, **further_settings)
    case = dataclasses.replace(builders.CASE, server=server, control=server.without_speculation)
    settings = settings_of(case, "some/target", [])
    control_settings = settings_of(case.control_case, "some/target", [])
    assert settings != control_settings
    control = builders.baseline({"tpot_p50_ms": 5.0}, settings=control_settings)
    builders.record(tmp_path, control, case.control_case.id)
    assert store(tmp_path).look_up(case, settings).control == control


def test_a_published_figure_is_the_last_resort(tmp_path: Path) -> None:
    path = tmp_path / "published/figure.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(builders.published()))
    assert look_up(tmp_path).published == builders.published()
    write(tmp_path, UNLIKE)
    assert look_up(tmp_path).published is None


def test_unused_are_the_files_of_this_machine_that_no_case_asks_for(tmp_path: Path) -> None:
    write(tmp_path, builders.ENVIRONMENT)
    write(tmp_path, ALIKE)
    path = builders.record(tmp_path, builders.baseline(), "gone")
    assert store(tmp_path).unused([builders.CASE.id]) == (path,)
    assert store(tmp_path).unused([builders.CASE.id, "gone", "new"]) == ()


def settings(
    case: Case = builders.CASE, prompts: Sequence[Prompt] = builders.PROMPTS
) -> CaseSettings:
    return settings_of(case, "some/target", prompts)


def test_the_settings_are_those_of_the_case_and_the_prompts_of_a_run_and_of_its_extension() -> None:
    assert dataclasses.replace(settings(), prompts_sha256="ab") == builders.SETTINGS
    assert settings() != settings(prompts=builders.PROMPTS[::-1])
    fewer = builders.with_request(builders.CASE, prompts=2)
    assert settings(fewer) == settings(fewer, builders.PROMPTS[:4])
    assert settings(fewer) != settings(fewer, builders.PROMPTS[:3])


def test_a_run_of_another_number_of_prompts_is_known_by_the_prompts_of_the_matrix() -> None:
    fewer = builders.with_request(
        builders.CASE, prompts=2, matrix_prompts=builders.CASE.request.prompts
    )
    assert differing_settings(settings(), settings(fewer)) == "num_prompts: None -> 2"


def test_a_recorded_baseline_holds_its_launches_and_where_it_comes_from(tmp_path: Path) -> None:
    written = record(tmp_path, launch(), launch(speedup=1.51))
    assert written.path == tmp_path / builders.ENVIRONMENT.name / f"{builders.CASE.id}.json"
    assert written.old is None
    assert load_baseline(written.path) == written.new
    assert written.new.launches == ({"speedup_ratio": 1.5}, {"speedup_ratio": 1.51})
    assert written.new.acceptance == builders.stored(COUNTS)
    assert written.new.provenance.reason == "again"
    assert written.new.provenance.engine_version == "0.32.0"


@pytest.mark.parametrize(
    ("second", "words"),
    [
        (
            launch(invalid=dict.fromkeys(Family, Reason(code="SPEC_DISABLED", text="nothing"))),
            "SPEC_DISABLED: nothing",
        ),
        (
            launch(builders.counts(8, 0, 5, 7)),
            "its launches disagree on the acceptance length (2.5000, 2.5500); find the cause first",
        ),
    ],
)
def test_launches_that_cannot_be_trusted_are_not_recorded(
    tmp_path: Path, second: Measurement, words: str
) -> None:
    with pytest.raises(BaselineError) as error:
        record(tmp_path, launch(), second)
    beginning = "baseline of 'vllm-draft_model-toy-toy-c2': not written, "
    assert str(error.value) == beginning + words
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("of", "family"),
    [(COUNTS, Family.ACCEPTANCE), (None, Family.SPEEDUP)],
    ids=["acceptance", "speed"],
)
def test_a_refusal_names_what_has_to_be_mended_and_not_the_power(
    tmp_path: Path, of: StepCounts | None, family: Family
) -> None:
    """Power is recorded separately, so it forbids no recording."""
    measurement = builders.measurement({"speedup_ratio": 1.5}, of=of)
    power = PowerRecord(invalid=Reason(code="POWER_INVALID", text="the sensor was too slow"))
    measurement = dataclasses.replace(
        measurement,
        replay=Replay(acceptance=measurement.acceptance, power=power),
        invalid={family: Reason(code="COUNTS_DISAGREE", text="7 of 8 steps")},
    )
    with pytest.raises(BaselineError, match="not written, COUNTS_DISAGREE: 7 of 8 steps"):
        record(tmp_path, measurement, measurement)


THROTTLED: Invalid = dict.fromkeys(TIMED, Reason(code="THROTTLED", text="92 °C"))


def test_of_a_throttled_launch_the_acceptance_alone_is_recorded(tmp_path: Path) -> None:
    speeds = record(tmp_path, launch(), launch()).new.launches
    better = builders.counts(8, 4, 4, 4)
    slow = dataclasses.replace(launch(better, invalid=THROTTLED), values={})
    written = record(tmp_path, launch(better, speedup=3.0), slow)
    assert written.new.launches == speeds
    assert written.new.acceptance == builders.stored(better)
    assert written.left_out == (
        "baseline of 'vllm-draft_model-toy-toy-c2': written without new values of throughput,"
        " latency, speedup, power: THROTTLED: 92 °C"
    )


def test_a_speed_that_means_nothing_leaves_what_was_recorded_of_it_before(tmp_path: Path) -> None:
    """In as many launches as it was recorded in."""
    earlier = builders.measurement({"speedup_ratio": 1.5, "tpot_p50_ms": 5.0}, of=COUNTS)
    record(tmp_path, earlier, earlier, earlier)
    later = dataclasses.replace(
        earlier,
        values={"tpot_p50_ms": 6.0},
        invalid={Family.SPEEDUP: Reason(code="CLIENT_BEHIND", text="x")},
    )
    assert record(tmp_path, later, later).new.launches == (
        {"speedup_ratio": 1.5, "tpot_p50_ms": 6.0},
        {"speedup_ratio": 1.5, "tpot_p50_ms": 6.0},
        {"speedup_ratio": 1.5},
    )


@pytest.mark.parametrize("of", [COUNTS, None], ids=["speculating", "plain"])
def test_power_that_means_nothing_is_left_out_in_words_and_the_speeds_are_recorded(
    tmp_path: Path, of: StepCounts | None
) -> None:
    speeds = {"throughput_tokens_per_s": 100.0}
    measurement = builders.measurement(speeds, of=of)
    power = PowerRecord(invalid=Reason(code="POWER_INVALID", text="the sampler ended"))
    measurement = dataclasses.replace(
        measurement, replay=Replay(acceptance=measurement.acceptance, power=power)
    )
    written = record(tmp_path, measurement, measurement)
    assert written.new.launches == (speeds, speeds)
    assert written.left_out.endswith("new values of power: POWER_INVALID: the sampler ended")


def test_the_acceptance_of_the_launch_with_the_most_prompts_is_kept(tmp_path: Path) -> None:
    launches = [launch(builders.acceptance(COUNTS, prompts=prompts)) for prompts in (6, 12, 6)]
    acceptance = record(tmp_path, *launches).new.acceptance
    assert acceptance is not None
    assert len(acceptance.prompts) == 12
    assert not acceptance.further_launches


def test_each_launch_of_answers_that_do_not_repeat_is_kept(tmp_path: Path) -> None:
    """The launch with the most prompts comes first."""

    def launch_of(*accepted: int) -> Measurement:
        prompts = [
            builders.prompt_acceptance(builders.counts(20 - drafts, drafts), prompt_id=f"chat-{n}")
            for n, drafts in enumerate(accepted)
        ]
        return launch(builders.acceptance_of(prompts))

    lengths = (5, 6, 7, 8, 9), (6, 5, 7, 9, 8, 7), (5, 7, 6, 8, 9)
    acceptance = record(tmp_path, *(launch_of(*accepted) for accepted in lengths)).new.acceptance
    assert acceptance is not None
    assert [prompt.accepted for prompt in acceptance.prompts] == [6, 5, 7, 9, 8, 7]
    further = {
        number: [prompt.accepted for prompt in prompts]
        for number, prompts in acceptance.further_launches.items()
    }
    assert further == {"2": [5, 6, 7, 8, 9], "3": [5, 7, 6, 8, 9]}


def test_the_history_of_identical_runs_becomes_the_noise(tmp_path: Path) -> None:
    noise = {"speedup_ratio": Noise(between_frac=0.05, runs=5)}
    written = record(
        tmp_path,
        launch(),
        launch(),
        complete=lambda baseline: msgspec.structs.replace(baseline, noise=noise),
    )
    assert written.new.noise == noise
    assert load_baseline(written.path) == written.new
    assert record(tmp_path, launch(), launch()).new.noise == noise, "it outlives a recording"


def test_one_launch_records_acceptance_and_leaves_the_speeds_as_they_were(tmp_path: Path) -> None:
    assert record(tmp_path, launch()).new.launches == ()
    speeds = record(tmp_path, launch(), launch()).new.launches
    worse = record(tmp_path, launch(builders.counts(8, 4, 4, 4))).new
    assert worse.launches == speeds
    assert worse.acceptance == builders.stored(builders.counts(8, 4, 4, 4))


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("prompts", [6, 4])
def test_a_launch_that_accepts_nothing_disagrees(tmp_path: Path, first: int, prompts: int) -> None:
    launch_counts = (COUNTS, builders.counts(20, 0, 0, 0))
    both = [launch(builders.acceptance(counts, prompts=prompts)) for counts in launch_counts]
    with pytest.raises(BaselineError, match="its launches disagree on the acceptance length"):
        record(tmp_path, both[first], both[1 - first])


def test_a_baseline_in_which_nothing_was_accepted_is_refused(tmp_path: Path) -> None:
    nothing = builders.counts(20, 0, 0, 0)
    with pytest.raises(BaselineError) as error:
        record(tmp_path, launch(nothing), launch(nothing))
    assert str(error.value) == (
        "baseline of 'vllm-draft_model-toy-toy-c2': not written, none of 720 drafts was accepted,"
        " so no loss of acceptance could ever show; choose prompts or settings with which drafts"
        " are accepted, or add acceptance_length_tokens, acceptance_rate_frac,"
        " acceptance_pos1_frac, acceptance_pos2_frac, acceptance_pos3_frac to 'shown' in the"
        " tier"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_baseline_in_which_nothing_was_drafted_is_refused(tmp_path: Path) -> None:
    nothing = launch(builders.counts(0, 0, 0, 0))
    with pytest.raises(BaselineError, match="not written, nothing was drafted, so no loss of"):
        record(tmp_path, nothing)


def test_nothing_accepted_is_recorded_where_acceptance_is_only_shown(tmp_path: Path) -> None:
    shown = tuple(name for name in METRICS if name.startswith("acceptance_"))
    case = builders.with_judging(builders.CASE, shown=shown)
    nothing = builders.counts(20, 0, 0, 0)
    measured = builders.measurement({"speedup_ratio": 1.5}, of=nothing, case=case)
    assert record(tmp_path, measured, measured).new.launches == ({"speedup_ratio": 1.5},) * 2


def test_launches_may_differ_by_chance(tmp_path: Path) -> None:
    """With a temperature each launch says something else; AL 2.5 and 2.53 of prompts that vary."""
    histograms = ((8, 0, 6, 6), (2, 8, 4, 6), (10, 4, 2, 4), (4, 4, 8, 4))
    several = [builders.counts(*histogram) for histogram in histograms]

    def drawn(shift: int) -> AcceptanceRecord:
        ids = [(several[(n + shift) % 4], f"chat-{n}") for n in range(7)]
        prompts = [builders.prompt_acceptance(of, prompt_id=name) for of, name in ids]
        return builders.acceptance_of(prompts)

    lengths = [drawn(shift).total.acceptance_length or 0 for shift in (0, 1)]
    assert abs(lengths[0] / lengths[1] - 1) > 0.005
    assert record(tmp_path, launch(drawn(0)), launch(drawn(1))).new.acceptance is not None


def test_a_case_that_asks_for_more_prompts_than_there_are_is_refused() -> None:
    greedy = builders.with_request(builders.CASE, prompts=161)
    with pytest.raises(DatasetError) as error:
        load_case_prompts(builders.ROOT, greedy)
    assert str(error.value) == (
        f"dataset 'toy': has 160 prompts, '{greedy.id}' needs 161; lower prompts in the tier,"
        " or ask for fewer"
    )


def test_token_ids_are_no_chat() -> None:
    ids = Prompt(id="random-0", category="random", token_ids=(5, 6))
    completing = builders.with_request(builders.CASE, form=Form.COMPLETIONS)
    check_form(completing, [ids])
    check_form(builders.CASE, builders.PROMPTS)
    with pytest.raises(DatasetError, match='set form = "completions" for'):
        check_form(builders.CASE, [*builders.PROMPTS, ids])


def test_a_drafter_that_learns_needs_prompts_that_are_measured_nowhere() -> None:
    server = dataclasses.replace(builders.SPEC, engine="sglang", method="ngram", target="a/b")
    case = builders.with_request(dataclasses.replace(builders.CASE, server=server), prompts=79)
    assert len(load_case_prompts(builders.ROOT, case)) == 160
    for prompts in (80, 160):
        with pytest.raises(DatasetError, match="its warm-up needs prompts that aren't measured"):
            load_case_prompts(builders.ROOT, builders.with_request(case, prompts=prompts))
