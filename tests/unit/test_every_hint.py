"""Each place that tells a user what to type prints commands that run, and no place is forgotten."""

import ast
import dataclasses
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from specreg.cli import app
from specreg.core.errors import SensorError
from specreg.measurement.metrics import METRICS
from specreg.report.document import RunVerdict
from specreg.report.files import load_report
from specreg.report.next_steps import next_steps
from specreg.report.page import render_page
from specreg.report.parts import Commands
from specreg.report.trend import render_trend
from specreg.suite.machine import check_usable
from specreg.suite.new_baselines import record_baselines
from specreg.suite.options import Options
from specreg.telemetry.identity import Gpus
from specreg.verdicts.history import RunRecord
from specreg.verdicts.verdict import Lack, Outcome, Verdict
from tests.unit import builders
from tests.unit.builders import reports, runs
from tests.unit.builders.collection import Collection, collect
from tests.unit.builders.histories import LATER
from tests.unit.builders.library_source import trees
from tests.unit.builders.nights import judge_speed, references, without_noise
from tests.unit.builders.pages import EXAMPLE

TIER = ("--specreg-tier=cpu",)
CASES = ("vllm-eagle3-tiny-toy-c1", "vllm-eagle3-tiny-toy-c4")
NAMES_COMMANDS = {"run_command", "record_command"}
COMMAND = re.compile(r"pytest (?:tests/perf|-k (?:\"[^\"]*\"|\S+))(?: --[a-z-]+(?:=[^\s<]+)?)*")
TTFT = "ttft_p50_ms"


def end_of_a_run(_: Path) -> str:
    """The end of a run with a case of each kind that needs a command."""
    undecided = Verdict(
        case_id=CASES[0], metric=TTFT, outcome=Outcome.INCONCLUSIVE, needed_launches=5
    )
    lost = dataclasses.replace(undecided, outcome=Outcome.REGRESSED)
    invalid = dataclasses.replace(undecided, case_id=CASES[1], outcome=Outcome.INVALID)
    unrecorded = dataclasses.replace(
        invalid, outcome=Outcome.NO_BASELINE, lacks=Lack.BASELINE, metric="tpot_p50_ms"
    )
    return commands_after(reports.run_of(undecided, lost, invalid, unrecorded))


def commands_after(run: RunVerdict, *records: RunRecord) -> str:
    """The commands after a run of a tier, of which another case wasn't judged."""
    run = msgspec.structs.replace(run, complete=False)
    origin = msgspec.structs.replace(reports.REPORT.origin, options=TIER)
    case = msgspec.structs.replace(reports.CASE_REPORT, case_id=CASES[0], history=records)
    report = msgspec.structs.replace(
        reports.REPORT, run=run, origin=origin, cases=(case,), tier_cases=(*CASES, "another")
    )
    parts = [part for part in next_steps(report) if isinstance(part, Commands)]
    return "\n".join(command for part in parts for command in part.commands)


def run_without_a_verdict(_: Path) -> str:
    """A `-k` that no case has."""
    return commands_after(reports.run_of())


def part_of_a_tier_without_baselines(_: Path) -> str:
    """The end of a run of two cases of three."""
    new = [
        dataclasses.replace(reports.HELD, case_id=case_id, outcome=Outcome.NO_BASELINE)
        for case_id in CASES
    ]
    return commands_after(reports.run_of(*new))


def written_baselines(_: Path) -> str:
    """The end of a recording."""
    run = reports.run_of(Verdict(case_id=CASES[0], metric=TTFT, outcome=Outcome.MEASURED))
    record = msgspec.structs.replace(reports.past_run(1), run=run.run, recorded=True)
    return commands_after(run, record)


def page_of_a_green_run(_: Path) -> str:
    """The page of a run in which nothing needs to be done, and of each case how it is repeated."""
    return render_page(load_report(EXAMPLE))


def cases_of_a_report(_: Path) -> str:
    """How each case of a run is repeated."""
    return "\n".join(case.reproduce for case in load_report(EXAMPLE).cases)


def verdict_without_a_baseline(_: Path) -> str:
    """Why a figure has nothing to compare with."""
    known = dataclasses.replace(builders.known(), options=TIER)
    launch = builders.measurement({TTFT: 2.5}, of=runs.COUNTS)
    return judge_speed(METRICS[TTFT], [launch], references(known)).explanation


def verdict_on_a_gain(_: Path) -> str:
    """Why a gain should be recorded."""
    recorded = {TTFT: 2.5}
    known = dataclasses.replace(builders.known(builders.baseline(recorded)), options=TIER)
    launch = builders.measurement({TTFT: 1.0}, of=runs.COUNTS)
    nights = without_noise(recorded)
    return judge_speed(METRICS[TTFT], [launch], references(known, *nights)).explanation


def baselines_to_record_again(folder: Path) -> str:
    """The end of a recording that couldn't be written, though no test failed."""
    for name in ("matrix/cpu.toml", "models/pairs.toml"):
        (folder / name).parent.mkdir()
        shutil.copy(builders.ROOT / "fixtures" / name, folder / name)
    launch = builders.measurement({TTFT: 2.5}, of=runs.COUNTS)
    context = runs.context(folder / "matrix", update_baselines=True, launches=2)
    return "\n".join(record_baselines(runs.measured_run(context, launch).result())[0])


def doctor_of(tier: str) -> str:
    """What specreg doctor says of a tier."""
    return CliRunner().invoke(app, ["doctor", "--tier", tier]).output


def machine_whose_gpus_are_unusable(_: Path) -> str:
    """The refusal to take such a machine for one without GPUs."""
    gpus = Gpus(devices=(), why_none="GPU is lost", is_unusable=True)
    with pytest.raises(SensorError) as error:
        check_usable(gpus, Options(), needs_gpus=True)
    return str(error.value)


PLACES: Mapping[tuple[str, str], Callable[[Path], str]] = {
    ("report/files.py", "_with_own_commands"): page_of_a_green_run,
    ("report/document.py", "reproduce_command"): cases_of_a_report,
    ("report/next_steps.py", "_after_recording"): written_baselines,
    ("report/next_steps.py", "_after_run"): part_of_a_tier_without_baselines,
    ("report/next_steps.py", "_repairs"): end_of_a_run,
    ("report/next_steps.py", "next_steps"): run_without_a_verdict,
    ("report/trend.py", "_view_of"): lambda _: render_trend([], LATER),
    ("suite/configure.py", "unmet_need"): lambda _: doctor_of("gpu"),
    ("suite/machine.py", "check_usable"): machine_whose_gpus_are_unusable,
    ("suite/new_baselines.py", "record_baselines"): baselines_to_record_again,
    ("suite/preflight.py", "_examine_baselines"): lambda _: doctor_of("cpu"),
    ("verdicts/judge.py", "not_compared"): verdict_without_a_baseline,
    ("verdicts/speeds.py", "_outcome_and_reason"): verdict_on_a_gain,
}
"""By file and function that names a command to run the suite, what makes it do so."""


def test_each_place_that_names_a_command_is_tried() -> None:
    places = set()
    for name, tree in trees():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef) or function.name in NAMES_COMMANDS:
                continue
            called = {
                call.func.id
                for call in ast.walk(function)
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
            }
            if called & NAMES_COMMANDS:
                places.add((name, function.name))
    assert places == set(PLACES)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Mapping[tuple[str, str], list[str]]:
    """The commands that each place names, for cases that the tier `cpu` has."""
    named = {}
    for place, make in PLACES.items():
        text = make(tmp_path_factory.mktemp("place"))
        words = " ".join(text.replace(builders.CASE.id, CASES[0]).replace("&#34;", '"').split())
        named[place] = [command.rstrip(".;,<") for command in COMMAND.findall(words)]
    return named


@pytest.fixture(scope="module")
def collections(commands: Mapping[tuple[str, str], list[str]]) -> Mapping[str, Collection]:
    """What each of the commands would run."""
    return collect(sorted({command for named in commands.values() for command in named}))


@pytest.mark.parametrize("place", PLACES, ids=" ".join)
def test_each_command_that_a_place_names_collects_tests(
    place: tuple[str, str],
    commands: Mapping[tuple[str, str], list[str]],
    collections: Mapping[str, Collection],
) -> None:
    assert commands[place]
    for command in commands[place]:
        collection = collections[command]
        assert collection.exit_code == 0, (command, collection.output)
        assert collection.tests, command
