"""What is expected of a case: looked up by likeness, written only when it is sound."""

import dataclasses
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.arrivals import Arrivals, Load
from specreg.baseline import Baseline, CaseSettings, baseline_path, load_baseline, record_baseline
from specreg.errors import BaselineError
from specreg.expectation import look_up, record_measurements, settings_of
from specreg.identity import Environment
from specreg.matrix import Limits
from specreg.measurement import Measurement
from specreg.models import model_sha256
from specreg.protocols import Form
from specreg.verdict import differing_settings
from tests.unit import builders

COUNTS = builders.counts(8, 0, 6, 6)
ALIKE = msgspec.structs.replace(builders.ENVIRONMENT, cores=8)
UNLIKE = msgspec.structs.replace(builders.OTHER_ENVIRONMENT, cpu="AMD EPYC")
GAMMA = Load(arrivals=Arrivals.GAMMA, requests_per_s=2.5)


def write(
    folder: Path, environment: Environment, settings: CaseSettings = builders.SETTINGS
) -> Baseline:
    """A baseline of the case, in the folder of its environment."""
    baseline = builders.baseline(
        {"speedup_ratio": 1.5}, of=COUNTS, environment=environment, settings=settings
    )
    record_baseline(baseline_path(folder, environment.name, builders.CASE.id), baseline)
    return baseline


def launch(length: float = 2.5, *, invalid: str | None = None) -> Measurement:
    """The measurement of a launch."""
    values = {"acceptance_length_tokens": length, "speedup_ratio": 1.5}
    measurement = builders.measurement(values, of=COUNTS)
    return dataclasses.replace(measurement, invalid=invalid)


def test_the_baseline_of_this_machine_is_found(tmp_path: Path) -> None:
    baseline = write(tmp_path, builders.ENVIRONMENT)
    found = look_up(tmp_path, builders.CASE, builders.SETTINGS, builders.ENVIRONMENT)
    assert found.exact == baseline
    assert found.neighbours == (baseline,)
    assert (found.settings, found.environment) == (builders.SETTINGS, builders.ENVIRONMENT)


def test_nothing_is_found_where_nothing_was_recorded(tmp_path: Path) -> None:
    found = look_up(tmp_path, builders.CASE, builders.SETTINGS, builders.ENVIRONMENT)
    assert (found.exact, found.nearest, found.neighbours) == (None, None, ())


def test_the_nearest_baseline_is_the_one_of_the_machine_most_alike(tmp_path: Path) -> None:
    write(tmp_path, UNLIKE)
    alike = write(tmp_path, ALIKE)
    write(tmp_path, builders.OTHER_ENVIRONMENT)
    found = look_up(tmp_path, builders.CASE, builders.SETTINGS, builders.ENVIRONMENT)
    assert (found.exact, found.nearest) == (None, alike)


def test_a_baseline_of_other_settings_is_not_near(tmp_path: Path) -> None:
    unlike = write(tmp_path, UNLIKE)
    write(tmp_path, ALIKE, msgspec.structs.replace(builders.SETTINGS, dtype="auto"))
    found = look_up(tmp_path, builders.CASE, builders.SETTINGS, builders.ENVIRONMENT)
    assert found.nearest == unlike


def test_a_machine_of_the_same_name_and_other_facts_is_not_this_one(tmp_path: Path) -> None:
    twin = msgspec.structs.replace(builders.ENVIRONMENT, cpu="Intel Xeon @ 2.50GHz")
    assert twin.name == builders.ENVIRONMENT.name
    baseline = write(tmp_path, twin)
    found = look_up(tmp_path, builders.CASE, builders.SETTINGS, builders.ENVIRONMENT)
    assert (found.exact, found.nearest) == (None, baseline)


def test_the_neighbours_are_all_cases_of_this_machine(tmp_path: Path) -> None:
    own = write(tmp_path, builders.ENVIRONMENT)
    write(tmp_path, ALIKE)
    other = builders.baseline({"speedup_ratio": 2.0})
    record_baseline(baseline_path(tmp_path, builders.ENVIRONMENT.name, "another-case"), other)
    found = look_up(tmp_path, builders.CASE, builders.SETTINGS, builders.ENVIRONMENT)
    assert found.neighbours == (other, own)


def test_a_baseline_that_cannot_be_read_is_an_error_and_not_none(tmp_path: Path) -> None:
    path = baseline_path(tmp_path, builders.ENVIRONMENT.name, builders.CASE.id)
    path.parent.mkdir()
    path.write_text("{")
    with pytest.raises(BaselineError, match="not JSON at line 1"):
        look_up(tmp_path, builders.CASE, builders.SETTINGS, builders.ENVIRONMENT)


def test_files_that_cannot_be_read_disturb_no_other_case(tmp_path: Path) -> None:
    baseline = write(tmp_path, builders.ENVIRONMENT)
    for environment, case_id in (
        (builders.ENVIRONMENT, "another-case"),
        (builders.OTHER_ENVIRONMENT, builders.CASE.id),
    ):
        path = baseline_path(tmp_path, environment.name, case_id)
        path.parent.mkdir(exist_ok=True)
        path.write_text("<<<<<<< HEAD\n")
    found = look_up(tmp_path, builders.CASE, builders.SETTINGS, builders.ENVIRONMENT)
    assert (found.exact, found.nearest, found.neighbours) == (baseline, baseline, (baseline,))


def test_a_folder_is_known_by_its_checksum_and_not_by_its_place(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    settings = settings_of(dataclasses.replace(launch(), target=str(tmp_path)), builders.PROMPTS)
    assert settings.target == ""
    assert settings.target_sha256 == model_sha256(str(tmp_path)) != ""


def test_a_hub_id_is_all_there_is_to_know_a_target_by() -> None:
    settings = settings_of(launch(), builders.PROMPTS)
    assert (settings.target, settings.target_sha256) == ("some/target", "")


@pytest.mark.parametrize("is_repository", [True, False])
def test_a_baseline_has_the_commit_of_the_folder_it_lies_in(
    tmp_path: Path, *, is_repository: bool
) -> None:
    git = ("git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e")
    if is_repository:
        for arguments in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "first")):
            subprocess.run((*git, *arguments), check=True)
    recorded = record_measurements(
        *(tmp_path / "baselines", [launch()], builders.SETTINGS, builders.ENVIRONMENT),
        reason="first run",
    )
    commit = recorded.new.provenance.commit
    assert len(commit) == (12 if is_repository else 0)


def test_a_disk_that_refuses_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = baseline_path(tmp_path, builders.ENVIRONMENT.name, builders.CASE.id)
    path.parent.symlink_to("nowhere")
    with pytest.raises(BaselineError, match=f"baseline '{path}': not written, File exists; "):
        record_measurements(
            tmp_path, [launch()], builders.SETTINGS, builders.ENVIRONMENT, reason="first run"
        )


def test_the_settings_are_those_of_the_case_and_what_it_was_asked() -> None:
    settings = settings_of(launch(), builders.PROMPTS)
    assert msgspec.structs.replace(settings, prompts_sha256="ab") == builders.SETTINGS
    assert settings == settings_of(launch(), builders.PROMPTS[: builders.CASE.prompts])
    assert settings != settings_of(launch(), builders.PROMPTS[::-1])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"load": Load(concurrency=4)}, "concurrency: 2 -> 4", id="concurrency"),
        pytest.param(
            {"load": dataclasses.replace(GAMMA, burstiness=0.5)},
            "arrivals: closed -> gamma, requests_per_s: 0.0 -> 2.5, burstiness: 1.0 -> 0.5",
            id="arrivals",
        ),
        pytest.param(
            {"load": Load(concurrency=2, ramp_up_s=1.0, duration_s=60.0)},
            "ramp_up_s: 0.0 -> 1.0, duration_s: None -> 60.0",
            id="duration",
        ),
        pytest.param({"turns": 1}, "turns: None -> 1", id="turns"),
        pytest.param({"form": Form.COMPLETIONS}, "form: chat -> completions", id="form"),
        pytest.param({"chat_template_args": (("t", 1),)}, "() -> (('t', 1),)", id="template"),
        pytest.param({"ignore_eos": True}, "ignore_eos: False -> True", id="ignore-eos"),
        pytest.param({"limits": Limits(tpot_ms=20.0)}, "tpot_ms=20.0)", id="limits"),
        pytest.param({"output_cap_tokens": 8}, "output_cap_tokens: 20 -> 8", id="cap"),
        pytest.param({"temperature": 1.0}, "temperature: 0.0 -> 1.0", id="temperature"),
        pytest.param({"rounds": 1}, "rounds: 2 -> 1", id="rounds"),
    ],
)
def test_what_a_case_asks_otherwise_is_another_setting_and_named(
    changes: dict[str, Any], words: str
) -> None:
    case = dataclasses.replace(builders.CASE, **changes)
    theirs = settings_of(launch(), builders.PROMPTS)
    ours = settings_of(dataclasses.replace(launch(), case=case), builders.PROMPTS)
    assert differing_settings(theirs, ours).endswith(words)


@pytest.mark.parametrize(
    "changes",
    [
        {"client_processes": 2},
        {"request_timeout_s": 1.0},
        {"warm_up_stable_frac": 1.0},
        {"tolerances": (("tpot_p50_ms", 0.2),)},
    ],
    ids=",".join,
)
def test_how_a_case_is_measured_and_judged_is_no_setting(changes: dict[str, Any]) -> None:
    case = dataclasses.replace(builders.CASE, **changes)
    ours = settings_of(dataclasses.replace(launch(), case=case), builders.PROMPTS)
    assert ours == settings_of(launch(), builders.PROMPTS)


def test_a_recorded_baseline_holds_its_launches_and_where_it_comes_from(tmp_path: Path) -> None:
    recorded = record_measurements(
        tmp_path,
        [launch(), launch(2.505)],
        builders.SETTINGS,
        builders.ENVIRONMENT,
        reason="first run",
    )
    assert recorded.path == baseline_path(tmp_path, builders.ENVIRONMENT.name, builders.CASE.id)
    assert recorded.old is None
    assert '"burstiness"' not in recorded.path.read_text()
    assert load_baseline(recorded.path) == recorded.new
    assert recorded.new.launches == ({"speedup_ratio": 1.5},) * 2
    assert recorded.new.acceptance == builders.stored(COUNTS)
    assert recorded.new.provenance.reason == "first run"
    assert recorded.new.provenance.engine_version == "0.32.0"


def test_the_baseline_that_is_replaced_is_handed_back(tmp_path: Path) -> None:
    old = write(tmp_path, builders.ENVIRONMENT)
    recorded = record_measurements(
        tmp_path, [launch()], builders.SETTINGS, builders.ENVIRONMENT, reason="again"
    )
    assert recorded.old == old


@pytest.mark.parametrize(
    ("launches", "words"),
    [
        pytest.param(
            [launch(), launch(invalid="SPEC_DISABLED: nothing")],
            "not written, SPEC_DISABLED: nothing",
            id="invalid",
        ),
        pytest.param(
            [launch(2.5), launch(2.52)],
            "its launches disagree on the acceptance length (2.5000, 2.5200); find out why first",
            id="disagreeing",
        ),
    ],
)
def test_launches_that_cannot_be_trusted_are_not_recorded(
    tmp_path: Path, launches: list[Measurement], words: str
) -> None:
    with pytest.raises(BaselineError) as error:
        record_measurements(
            tmp_path, launches, builders.SETTINGS, builders.ENVIRONMENT, reason="first run"
        )
    assert str(error.value).startswith("baseline of 'vllm-draft_model-toy-toy-c2': not written, ")
    assert words in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_read_is_not_overwritten(tmp_path: Path) -> None:
    path = baseline_path(tmp_path, builders.ENVIRONMENT.name, builders.CASE.id)
    path.parent.mkdir()
    path.write_text("<<<<<<< HEAD\n")
    with pytest.raises(BaselineError, match="restore it with git"):
        record_measurements(
            tmp_path, [launch()], builders.SETTINGS, builders.ENVIRONMENT, reason="first run"
        )
    assert path.read_text() == "<<<<<<< HEAD\n"
