"""Merging run folders of other machines: what they say is data, and nothing in them leads out."""

import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.acceptance.trace import ANSWER_DIGEST_VERSION
from specreg.core.errors import SpecregError
from specreg.report.files import load_verdict
from specreg.runs.ledger import LEDGER, Ledger, read_ledger
from specreg.suite.merged_shards import MergedShards
from specreg.suite.plan import PLAN, PlanOptions
from specreg.suite.shard_runs import load_shard, with_ledger
from tests.unit import builders
from tests.unit.builders.shard_folders import (
    LENGTH,
    TPOT,
    MergingMachine,
    change_json,
    merging_machine,
)
from tests.unit.builders.started_servers import at_most_cpu

SECRET = "the secret of the machine that merges"  # noqa: S105 - a text to look for


@pytest.fixture
def machine(tmp_path: Path) -> MergingMachine:
    return merging_machine(tmp_path)


def files_of(folder: Path) -> set[Path]:
    """All files below a folder."""
    return {path for path in folder.rglob("*") if path.is_file()}


def write_program(path: Path, mark: Path) -> Path:
    """Write a program that leaves a mark when it is run, and calls itself torch 6.6.6."""
    path.write_text(f"#!{sys.executable}\nopen({str(mark)!r}, 'w')\nprint('6.6.6')\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_a_shard_is_judged_as_if_it_had_been_measured_here(machine: MergingMachine) -> None:
    done = machine.merge(machine.shard())
    assert done.exit_code == 11, done.output
    verdict = load_verdict(machine.into / "verdict.json")
    assert verdict is not None
    (length,) = verdict.verdicts
    assert (length.case_id, length.metric) == (machine.case.id, LENGTH)
    assert length.value == pytest.approx(2.0)
    assert (machine.into / "logs/server.log").read_text() == "a server's words\n"


def test_a_merge_starts_no_program_that_a_shard_names(
    machine: MergingMachine, tmp_path: Path
) -> None:
    shard = machine.shard(reason="theirs", launches=2)
    mark = tmp_path / "mark"
    program = str(write_program(shard / "python", mark))
    options = json.loads((shard / PLAN).read_text())["options"]
    change_json(shard / PLAN, {"options": {**options, "engine_python": program}})
    done = machine.merge(shard, arguments=("--update-baselines",))
    assert isinstance(done.exception, SpecregError)
    assert "unknown field `engine_python`" in str(done.exception)
    change_json(shard / PLAN, {"options": options, "python": program})
    assert isinstance(machine.merge(shard).exception, SpecregError)
    assert not mark.exists()


def test_a_recorded_baseline_has_the_torch_of_the_shard_and_none_of_ours(
    machine: MergingMachine,
) -> None:
    shard = machine.shard(reason="theirs", launches=2)
    done = machine.merge(shard, arguments=("--update-baselines",))
    assert done.exit_code == 1, "the shard had died"
    (path,) = machine.baselines.glob("*/*.json")
    provenance = json.loads(path.read_text())["provenance"]
    assert provenance["torch_version"] == ""
    assert provenance["reason"] == "theirs"
    assert len(provenance["draft_sha256"]) == 64, "of the draft in this repository"


@pytest.mark.parametrize(("reason", "typed"), [("theirs", ()), (None, ("--update-baselines",))])
def test_baselines_are_written_where_both_the_shards_and_the_merge_record(
    machine: MergingMachine, reason: str | None, typed: tuple[str, ...]
) -> None:
    done = machine.merge(machine.shard(reason=reason, launches=2), arguments=typed)
    assert isinstance(done.exception, SpecregError)
    assert "--update-baselines" in str(done.exception)
    assert not machine.baselines.exists()


def test_how_to_judge_is_the_merging_side_s(machine: MergingMachine) -> None:
    shard = machine.shard(options=PlanOptions(inconclusive="warn"))
    done = machine.merge(shard)
    words = "the shards ran with --specreg-inconclusive=warn, this merge judges with 'nights'"
    assert words in done.output
    assert words not in machine.merge(shard, arguments=("--inconclusive=warn",)).output


PLACES = (
    {"options.history": "{outside}"},
    {"options.baselines": "{outside}"},
    {"options.matrix": "{outside}"},
    {"options.runs": "{outside}"},
    {"environment.instruction_set": "../../../{name}"},
    {"environment.instruction_set": "{outside}/x"},
    {"environment.instruction_set": "avx2\n"},
    {"environment.kind": "../x"},
    {"environment.gpus": ["../../x"], "environment.kind": "gpu"},
    {"environment.cpu": "x" * 5_000},
    {"environment.cpu": "../../x"},
    {"environment.cores": "/x"},
    {"environment.power_limit_w": 1e300, "environment.kind": "gpu"},
    {"run": "../../x"},
    {"run": "{outside}"},
    {"run": ".."},
    {"run": "x" * 300},
    {"run": "a\u0000b"},
    {"run": "\uff41"},
    {"tier": "../../{name}/tier"},
    {"tier": "{outside}/tier"},
    {"tier": "cpu\n"},
)
"""Fields of a plan that lead, or led, to a path."""


@pytest.mark.parametrize(
    "changes", PLACES, ids=lambda changes: " ".join(map(repr, changes.items()))[:60]
)
def test_no_field_of_a_plan_leads_to_a_path(
    machine: MergingMachine, tmp_path: Path, changes: Mapping[str, Any]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "tier.toml").write_bytes((machine.root / "fixtures/matrix/cpu.toml").read_bytes())
    shard = machine.shard(reason="theirs", launches=2)
    before = files_of(tmp_path)
    text = json.dumps(changes).replace("{outside}", str(outside)).replace("{name}", outside.name)
    change_json(shard / PLAN, json.loads(text))
    done = machine.merge(shard, arguments=("--update-baselines",))
    new_files = files_of(tmp_path) - before
    allowed = (machine.into, machine.baselines, machine.root / ".specreg")
    assert all(any(path.is_relative_to(folder) for folder in allowed) for path in new_files), (
        new_files
    )
    baselines = {path.parent.parent for path in new_files if path.is_relative_to(machine.baselines)}
    assert baselines <= {machine.baselines}
    assert done.exception is None or isinstance(done.exception, (SpecregError, SystemExit))


def linked_log(shard: Path, secret: Path) -> None:
    (shard / "logs/x.log").symlink_to(secret)


def linked_logs(shard: Path, secret: Path) -> None:
    (shard / "logs/server.log").unlink()
    (shard / "logs").rmdir()
    (shard / "logs").symlink_to(secret.parent)


def linked_power(shard: Path, secret: Path) -> None:
    (shard / "power").symlink_to(secret.parent)


def linked_deeper(shard: Path, secret: Path) -> None:
    (shard / "logs/server").mkdir()
    (shard / "logs/server/files").symlink_to(secret.parent)


def hard_linked(shard: Path, secret: Path) -> None:
    os.link(secret, shard / "logs/x.log")


def linked_plan(shard: Path, secret: Path) -> None:
    secret.write_bytes((shard / "plan.json").read_bytes())
    (shard / "plan.json").unlink()
    (shard / "plan.json").symlink_to(secret)


def linked_ledger(shard: Path, secret: Path) -> None:
    secret.write_bytes((shard / "ledger.jsonl").read_bytes())
    (shard / "ledger.jsonl").unlink()
    (shard / "ledger.jsonl").symlink_to(secret)


def linked_report(shard: Path, secret: Path) -> None:
    (shard / "report.json").symlink_to(secret)


def link_to_nothing(shard: Path, secret: Path) -> None:
    (shard / "report.json").symlink_to(secret.with_name("gone"))


def fifo_for_a_log(shard: Path, _: Path) -> None:
    os.mkfifo(shard / "logs/x.log")


LINKS = (
    *(linked_log, linked_logs, linked_power, linked_deeper, hard_linked, linked_plan),
    *(linked_ledger, linked_report, link_to_nothing, fifo_for_a_log),
)


@pytest.mark.parametrize("attack", LINKS)
def test_nothing_in_a_shard_leads_out_of_it(
    machine: MergingMachine,
    tmp_path: Path,
    attack: Any,  # noqa: ANN401 - any of those above
) -> None:
    secret = tmp_path / "home" / "secret.log"
    secret.parent.mkdir()
    secret.write_text(SECRET)
    shard = machine.shard()
    attack(shard, secret)
    done = machine.merge(shard)
    assert isinstance(done.exception, SpecregError), done.output
    assert "needed" in str(done.exception)
    copied = [path for path in files_of(machine.into) if SECRET in path.read_text()]
    assert not copied


@pytest.mark.parametrize("folder", ["logs", "power"])
def test_a_merge_writes_through_no_link_in_the_folder_that_it_fills(
    machine: MergingMachine, tmp_path: Path, folder: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    shard = machine.shard()
    (shard / "power").mkdir()
    (shard / "power/watts.jsonl").write_text("{}\n")
    machine.into.mkdir()
    (machine.into / folder).symlink_to(outside)
    done = machine.merge(shard)
    assert done.exit_code == 11, done.output
    assert not files_of(outside)
    assert files_of(machine.into / folder)


def test_a_measurement_counts_for_the_case_here_alone(machine: MergingMachine) -> None:
    """Its settings, its models and its files are those of the repository."""
    shard = machine.shard(names={machine.case.id: (LENGTH, TPOT)})
    ledger = shard / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for line in lines:
        if line["type"] == "Launched":
            (key,) = line["keys"]
            case = json.loads(key["case"])
            case["server"]["target"] = "/etc"
            key["case"] = json.dumps(case)
    ledger.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = machine.merge(shard)
    assert "with other settings than the case has here" in str(done.exception)


@pytest.mark.parametrize(
    "changes",
    [
        {"asked": {"another-case": [LENGTH]}},
        {"skipped": {"../../x": "why"}},
        {"shards": [["another-case"]]},
        {"asked": {"{case}": ["no_such_metric"]}},
    ],
)
def test_a_shard_speaks_of_cases_and_metrics_that_there_are(
    machine: MergingMachine, changes: Mapping[str, Any]
) -> None:
    shard = machine.shard()
    text = json.dumps(changes).replace("{case}", machine.case.id)
    change_json(shard / PLAN, json.loads(text))
    assert isinstance(machine.merge(shard).exception, SpecregError)


MISFIT_PLANS = (
    {"schema_version": 2},
    {"schema_version": "1"},
    {"schema_version": 10**400},
    {"began_at": "yesterday"},
    {"began_at": "2026-13-01T00:00:00Z"},
    {"began_at": "2026-01-01T00:00:00"},
    {"began_at": "9" * 400},
    {"launches": 0},
    {"launches": 10**7},
    {"launches": 10**400},
    {"launches": "3"},
    {"options.inconclusive": "never"},
    {"options.num_prompts": 10**12},
    {"options.engine": "../../x"},
    {"options": {"attach": "http://127.0.0.1:1"}},
    {"number": -1},
    {"of": 10**9},
    {"gpus_gib": [1e300]},
    {"gpus_gib": [80.0] * 5_000},
    {"environment.kind": "tpu"},
    {"environment.cores": 10**400},
    {"environment": None},
    {"machine": "x" * 10_000},
    {"reason": ["x"]},
    {"asked": {"x": ["y" * 1_000]}},
    {"machine": "\x1b[31m"},
    {"machine": "a\n::error::x"},
)


@pytest.mark.parametrize("changes", MISFIT_PLANS, ids=lambda changes: repr(changes)[:60])
def test_a_plan_of_another_form_is_refused(
    machine: MergingMachine, changes: Mapping[str, Any]
) -> None:
    shard = machine.shard()
    change_json(shard / PLAN, changes)
    with at_most_cpu(5.0):
        done = machine.merge(shard)
    assert isinstance(done.exception, SpecregError), done.output
    assert PLAN in str(done.exception)


DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize("name", [PLAN, "ledger.jsonl", "report.json"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"null", DEEP, b"1" * 10_000, b'{"a": ' * 50_000]
)
def test_a_document_that_is_none_ends_in_words(
    machine: MergingMachine, name: str, content: bytes
) -> None:
    shard = machine.shard()
    (shard / name).write_bytes(content)
    with at_most_cpu(10.0):
        done = machine.merge(shard)
    assert isinstance(done.exception, SpecregError | SystemExit), done.output


@pytest.mark.parametrize("name", [PLAN, "ledger.jsonl", "report.json"])
def test_a_fifo_keeps_nobody_waiting(machine: MergingMachine, name: str) -> None:
    shard = machine.shard()
    (shard / name).unlink(missing_ok=True)
    os.mkfifo(shard / name)
    with at_most_cpu(5.0):
        done = machine.merge(shard)
    assert "is a FIFO, needed a regular file" in str(done.exception)


def drawn(**changes: float) -> dict[str, Any]:
    """The power of a case, with these numbers in it."""
    record: dict[str, Any] = msgspec.to_builtins(builders.power())
    record["case"] |= changes
    return record


MISFIT_LINES = (
    ("Replayed", {"finished.trace.sent_ns": 10**400}),
    ("Replayed", {"finished.trace.sent_ns": -1}),
    ("Replayed", {"finished.trace.last_ns": 10**30}),
    ("Replayed", {"finished.trace.first_ns": 2**62, "finished.trace.last_ns": 1}),
    ("Replayed", {"finished.trace.chunk_sizes": [-1]}),
    ("Replayed", {"finished.trace.first_chunk_tokens": 0, "finished.trace.chunk_sizes": []}),
    ("Replayed", {"finished.trace.acceptance.steps": 10**400}),
    ("Replayed", {"finished.chunks": [{"at_ns": 10**400, "tokens": 1}]}),
    ("Replayed", {"finished.conversation_index": 10**400}),
    ("Measured", {"look": "NEVER"}),
    ("Measured", {"lags": [[{"counts": {"99999999999": 1}}], []]}),
    ("Measured", {"acceptance.total.steps": 10**400}),
    ("Measured", {"acceptance.total.accepted": -1}),
    ("Measured", {"acceptance.total.position_counts": [2, 2, -2]}),
    ("Measured", {"acceptance.prompts.0.counts.accepted": -(2**52)}),
    ("Measured", {"acceptance.prompts.1.counts.steps": -3}),
    ("Measured", {"acceptance.later_tokens": -1}),
    ("Measured", {"power": drawn(energy_j_per_token=-2.0)}),
    ("Measured", {"power": drawn(mean_w=-200.0)}),
    ("Measured", {"power": drawn(tokens=-1)}),
    ("Replayed", {"finished.trace.acceptance.proposed": -1}),
    ("Replayed", {"finished.trace.empty_replies": -1}),
    ("Measured", {"invalid": {"beauty": "why"}}),
    ("Launched", {"keys.0.launch": "one"}),
    ("Launched", {"keys.0.case_id": "another"}),
    ("Launched", {"keys.0.arm": "A"}),
    ("Launched", {"keys.0.environment": "::error::x"}),
    ("Replayed", {"arm": 10**400}),
    ("Measured", {"arm": -1}),
    ("Measured", {"control": "one"}),
    ("Measured", {"target": "a\n##[error]"}),
    ("Replayed", {"finished.trace.prompt_id": "\x1b[31m"}),
)


@pytest.mark.parametrize(("kind", "changes"), MISFIT_LINES, ids=repr)
def test_a_ledger_that_says_what_cannot_be_is_refused(
    machine: MergingMachine, kind: str, changes: Mapping[str, Any]
) -> None:
    shard = machine.shard()
    ledger = shard / "ledger.jsonl"
    lines = ledger.read_text().splitlines()
    index = next(n for n, line in enumerate(lines) if json.loads(line)["type"] == kind)
    (shard / "line.json").write_text(lines[index])
    change_json(shard / "line.json", changes)
    lines[index] = (shard / "line.json").read_text()
    ledger.write_text("\n".join(lines) + "\n")
    with at_most_cpu(5.0):
        done = machine.merge(shard)
    assert isinstance(done.exception, SpecregError), done.output
    assert "ledger" in str(done.exception)


def test_a_ledger_that_says_what_its_devices_drew_is_taken(machine: MergingMachine) -> None:
    shard = machine.shard()
    ledger = shard / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for line in lines:
        if line["type"] == "Measured":
            line["power"] = drawn()
    ledger.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    done = machine.merge(shard)
    assert done.exit_code == 11, done.output


def test_who_reads_a_merged_run_finds_the_measurement_that_counted(machine: MergingMachine) -> None:
    """A shard that was repeated with other packages, which is the later one in the ledger."""
    first = machine.shard("one", packages_sha256="old", at_s=1.0)
    again = machine.shard("two", packages_sha256="new", at_s=2.0)
    done = machine.merge(first, again)
    assert "the first measurement counts" in done.output
    (key,) = read_ledger(machine.into / LEDGER).measured
    assert key.packages_sha256 == "old"


@pytest.mark.parametrize(("newest_counts", "counts"), [(True, "new"), (False, "old")])
def test_of_several_measurements_the_newest_of_workers_counts_and_else_that_of_the_first_shard(
    machine: MergingMachine, *, newest_counts: bool, counts: str
) -> None:
    """A run was cut off, and resumed with workers and with another version of the engine."""
    folders = {
        packages: machine.shard(packages, at_s=at_s, packages_sha256=packages)
        for packages, at_s in (("old", 1.0), ("new", 2.0))
    }
    known = {machine.case.key: machine.case}
    shards = [with_ledger(load_shard(folder), known, is_ours=True) for folder in folders.values()]
    ledger = Ledger(machine.root / LEDGER)
    merged = MergedShards(shards=shards)
    merged.fill(ledger, [machine.case], machine.root, newest_counts=newest_counts)
    for folder in folders.values():
        ledger.take(folder / LEDGER)
    (launch,) = ledger.measured
    assert launch.read_from == folders[counts] / LEDGER
    (key,) = read_ledger(ledger.path).measured
    assert key.packages_sha256 == counts


@pytest.mark.parametrize(("times_s", "newest"), [((1.0, 2.0), "two"), ((2.0, 1.0), "one")])
def test_of_several_measurements_in_one_ledger_the_newest_counts(
    machine: MergingMachine, times_s: tuple[float, float], newest: str
) -> None:
    """As of a run that was resumed with another version of the engine."""
    one, two = (
        machine.shard(name, at_s=at_s, packages_sha256=name)
        for name, at_s in zip(("one", "two"), times_s, strict=True)
    )
    with (one / LEDGER).open("ab") as file:
        file.write((two / LEDGER).read_bytes())
    shard = with_ledger(load_shard(one), {machine.case.key: machine.case}, is_ours=True)
    replays = {key.packages_sha256: found.replay for key, found in shard.recorded.measured.items()}
    ledger = Ledger(machine.root / LEDGER)
    MergedShards(shards=[shard]).fill(ledger, [machine.case], machine.root, newest_counts=False)
    (launch,) = ledger.measured
    assert launch.measurement.replay is replays[newest]


def test_a_torn_line_loses_no_other_measurement(machine: MergingMachine) -> None:
    shard = machine.shard()
    with (shard / "ledger.jsonl").open("ab") as ledger:
        ledger.write(b'{"type":"Launched","keys":[{"case":"')
    done = machine.merge(shard)
    assert done.exit_code == 11, done.output
    assert b"null\n" in (machine.into / "ledger.jsonl").read_bytes()


@pytest.mark.parametrize(
    "verdict",
    [
        {"outcome": "FINE"},
        {"value": 10**400},
        {"metric": "../x"},
        {"reason": {"text": "why", "code": "\x1b[31m"}},
        {"cause": {"parts": [["a\n::error::x", 0.5]]}},
    ],
)
def test_the_verdict_of_a_check_is_one(machine: MergingMachine, verdict: Mapping[str, Any]) -> None:
    shard = machine.shard(names={machine.case.id: ("lossless_frac",)})
    lines = (shard / "ledger.jsonl").read_text().splitlines()
    checked = {
        "type": "Checked",
        "key": json.loads(lines[0])["keys"][0],
        "check": "lossless_frac",
        "verdict": {"case_id": machine.case.id, "metric": "x", "outcome": "PASS", **verdict},
        "digest": ANSWER_DIGEST_VERSION,
    }
    with (shard / "ledger.jsonl").open("a") as ledger:
        ledger.write(f"{json.dumps(checked)}\n")
    assert isinstance(machine.merge(shard).exception, SpecregError)


def test_logs_of_one_name_are_told_apart_by_a_sign_that_no_name_has(
    machine: MergingMachine,
) -> None:
    first = machine.shard("first", shard_number=1, shards_in_all=2, shards=((machine.case.id,), ()))
    second = machine.shard(
        "second", shard_number=2, shards_in_all=2, shards=((machine.case.id,), ())
    )
    (first / "logs/server~2.log").write_text("the second attempt")
    done = machine.merge(first, second)
    assert done.exit_code == 11, done.output
    logs = {path.name for path in (machine.into / "logs").iterdir()}
    assert logs == {"server~shard1.log", "server~shard2.log", "server~2.log"}


def test_a_folder_that_cannot_be_made_is_named(machine: MergingMachine) -> None:
    shard = machine.shard()
    machine.into.write_text("a file")
    assert "name a folder" in str(machine.merge(shard).exception)
    machine.into.unlink()
    (machine.into / "ledger.jsonl").mkdir(parents=True)
    assert "name another folder" in str(machine.merge(shard).exception)


@pytest.mark.parametrize("name", ["\u0430.log", "a b.log", "a\n.log", "x" * 250, "-\udcff"])
def test_a_log_of_an_odd_name_is_named_before_anything_is_judged(
    machine: MergingMachine, name: str
) -> None:
    shard = machine.shard()
    (shard / "logs" / name).touch()
    assert "is an odd name" in str(machine.merge(shard).exception)
    assert not list(machine.into.iterdir())


def test_a_long_ledger_is_read_in_a_time_that_its_lines_take(machine: MergingMachine) -> None:
    shard = machine.shard()
    ledger = shard / "ledger.jsonl"
    lines = ledger.read_text().splitlines()
    request = next(line for line in lines if json.loads(line)["type"] == "Replayed")
    with ledger.open("a") as file:
        file.writelines([f"{request}\n"] * 20_000)
    with at_most_cpu(60.0):
        assert machine.merge(shard).exit_code == 11
