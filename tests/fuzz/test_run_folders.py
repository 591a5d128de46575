"""Run folders with something wrong in them are merged and rendered in words, or validly.

Plans, ledgers and reports may come from other machines. A history is of this one.
"""

import dataclasses
import functools
import itertools
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import SpecregError
from specreg.measurement.figures import figures_of
from specreg.measurement.metrics import METRICS
from specreg.report.aiperf import render_aiperf
from specreg.report.benchmarks import render_benchmarks
from specreg.report.document import ComparedReport, SideReport
from specreg.report.exports import EXPORT_FORMATS
from specreg.report.files import FILE_NAME, load_report
from specreg.report.page import render_page
from specreg.report.screen import Screen
from specreg.report.side_by_side import side_by_side
from specreg.report.terminal import render_report
from specreg.runs.ledger import LEDGER, Ledger, read_ledger
from specreg.stats.intervals import Spread
from specreg.suite.document import run_verdict
from specreg.suite.merge import merge_shards, open_merged
from specreg.suite.options import Options
from specreg.suite.plan import PLAN
from specreg.suite.shard_runs import load_shard, with_ledger
from specreg.verdicts.history import comparable, load_history, noise_of
from tests.fuzz.mutations import json_of, rows_of
from tests.fuzz.trying import Sample, read_all_sound, try_all
from tests.unit import builders
from tests.unit.builders import reports
from tests.unit.builders.histories import LATER
from tests.unit.builders.nights import judge_speed, references
from tests.unit.builders.shard_folders import MergingMachine, merging_machine

SPEED = "throughput_tokens_per_s"
Kinds = tuple[tuple[Sample, ...], ...]


def shard_with(shard: Path, folder: Path, name: str, content: bytes) -> Path:
    """A copy of a shard's folder in which one file has another content."""
    copy = folder / "shard"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(shard, copy)
    (copy / name).write_bytes(content)
    return copy


def read_plan(machine: MergingMachine, shard: Path, folder: Path, content: bytes) -> None:
    """What a plan says, as far as a run is opened by it and what was measured is judged."""
    copy = shard_with(shard, folder, PLAN, content)
    shards = [load_shard(copy)]
    context = open_merged(machine.root, Options(), shards, folder / "merged")
    merge_shards(context, shards, missing_is_invalid=True)
    assert (folder / "merged").is_dir()
    assert context.environment.name == context.store.path("x").parent.name


def read_foreign_ledger(machine: MergingMachine, shard: Path, folder: Path, content: bytes) -> None:
    """What a ledger says, calculated with as a merge and a report do."""
    copy = shard_with(shard, folder, LEDGER, content)
    known = {case.key: case for case in machine.tier.cases}
    loaded = with_ledger(load_shard(copy), known, is_ours=False)
    for key, measurement in loaded.recorded.measured.items():
        assert measurement.case.id == key.case_id
        msgspec.json.encode(figures_of(measurement, key.launch))
        measured = {key.case_id: measurement}
        render_aiperf(reports.REPORT, measured)
        render_benchmarks(reports.REPORT, measured)


def read_own_ledger(_: MergingMachine, shard: Path, folder: Path, content: bytes) -> None:
    """What is left of a ledger of this machine, which is continued and added to another."""
    copy = shard_with(shard, folder, LEDGER, content)
    measured = read_ledger(copy / LEDGER).measured
    for key, measurement in measured.items():
        msgspec.json.encode(figures_of(measurement, key.launch))
    ledger = Ledger(folder / "whole.jsonl")
    ledger.path.unlink(missing_ok=True)
    ledger.take(copy / LEDGER)
    if content:
        assert read_ledger(ledger.path).measured == measured


def read_merged_ledger(machine: MergingMachine, shard: Path, folder: Path, content: bytes) -> None:
    """What a ledger says, judged."""
    copy = shard_with(shard, folder, LEDGER, content)
    shards = [load_shard(copy)]
    context = open_merged(machine.root, Options(), shards, folder / "merged")
    run, _ = merge_shards(context, shards, missing_is_invalid=True)
    msgspec.json.encode(run.verdicts)


def read_merged_report(machine: MergingMachine, shard: Path, folder: Path, content: bytes) -> None:
    """The report of a shard, as a merge reads it beside what the shard measured."""
    copy = shard_with(shard, folder, FILE_NAME, content)
    shards = [load_shard(copy)]
    context = open_merged(machine.root, Options(), shards, folder / "merged")
    run, _ = merge_shards(context, shards, missing_is_invalid=True)
    assert all(isinstance(loaded_shard.failed_otherwise, bool) for loaded_shard in shards)
    msgspec.json.encode(run_verdict(run.result(), 0, cut_short=False))


def read_report(folder: Path, content: bytes) -> None:
    """A report, in each form that is rendered from it alone, and beside another one."""
    (folder / FILE_NAME).write_bytes(content)
    report = load_report(folder / FILE_NAME)
    render_report(report, Screen(color=True))
    for form in EXPORT_FORMATS.values():
        if not form.takes_ledger:
            form.render(report, {})
    if isinstance(report, ComparedReport):
        return
    with_words = [(report, reports.REPORT), (reports.REPORT, report)]
    for a, b in with_words:
        try:
            both = side_by_side(a, b)
        except SpecregError:
            continue
        assert both.sides


def read_history(folder: Path, content: bytes) -> None:
    """A history, as a run that judges, a recording and a report read it."""
    path = folder / "history.jsonl"
    path.write_bytes(content)
    history = load_history(path, LATER)
    records = history.of(reports.CASE.id)
    baseline = builders.baseline({SPEED: 100.0}, {SPEED: 101.0})
    known = references(builders.known(baseline), case_ids=(reports.CASE.id,))
    compared_with = dataclasses.replace(known, history=history)
    launch = builders.measurement({SPEED: 100.0}, case=reports.CASE)
    judge_speed(METRICS[SPEED], [launch], compared_with)
    noise_of(
        records, {SPEED: Spread(within_frac=0.01, between_frac=0.0, freedom=2, between_freedom=0)}
    )
    comparable(records, SPEED)
    with_history = reports.with_case(history=records)
    render_page(with_history)


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Kinds:
    machine = merging_machine(tmp_path_factory.mktemp("merging"))
    shard = machine.shard(launches=2)
    plan, ledger = ((shard / name).read_bytes() for name in (PLAN, LEDGER))
    reading = functools.partial(read_plan, machine, shard)
    plans = (Sample(content=plan, wrong=json_of, read=reading),)
    readings = [
        functools.partial(read, machine, shard)
        for read in (read_foreign_ledger, read_own_ledger, read_merged_ledger)
    ]
    ledgers = tuple(Sample(content=ledger, wrong=rows_of, read=read) for read in readings)
    past = [
        msgspec.structs.replace(reports.past_run(number, **{SPEED: 100.0}), case_id=reports.CASE.id)
        for number in range(1, 7)
    ]
    lines = b"".join(msgspec.json.encode(record) + b"\n" for record in past)
    histories = (Sample(content=lines, wrong=rows_of, read=read_history),)
    report = Sample(
        content=msgspec.json.encode(reports.REPORT),
        wrong=json_of,
        read=functools.partial(read_merged_report, machine, shard),
    )
    return plans, ledgers, (*rendered_reports(), report), histories


def rendered_reports() -> Iterable[Sample]:
    """The report of a run and of a gate."""
    side_a, side_b = (SideReport(name=name, text="vllm", overrides=("a=1",)) for name in "AB")
    of_sides = reports.gate_of(reports.REPORT.run, (side_a, side_b))
    gate = msgspec.structs.replace(of_sides, control=(reports.HELD,), hints=("type it",))
    for report in (reports.REPORT, gate):
        yield Sample(content=msgspec.json.encode(report), wrong=json_of, read=read_report)


def test_what_is_sound_is_read(kinds: Kinds, tmp_path: Path) -> None:
    """Otherwise no case would get as far as what is wrong in it."""
    read_all_sound(itertools.chain(*kinds), tmp_path)


def test_any_run_folder_ends_in_words_or_in_a_reading(
    numbers: range, kinds: Kinds, tmp_path: Path
) -> None:
    try_all(numbers, kinds, tmp_path)
