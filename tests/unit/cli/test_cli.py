"""The command: what is done with baselines besides running the suite."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from specreg import __version__ as specreg_version
from specreg.baselines.schema import baseline_path, record_baseline
from specreg.baselines.store import settings_in
from specreg.cli import app, main
from specreg.core.errors import SpecregError
from specreg.matrix.case import Case
from specreg.matrix.tier import load_tier
from specreg.report.document import record_document
from specreg.telemetry.identity import current_environment
from specreg.verdicts.history import RunRecord, history_path, record_history
from tests.unit import builders, reports
from tests.unit.baselines.test_published import PUBLISHED

HERE = current_environment(needs_gpus=0)
MATRIX = """
needs_gpus = 0
[models.tiny]
target = "some/target"
drafts = { eagle3 = "some/draft" }
[[cases]]
engine = "vllm"
methods = ["none", "eagle3"]
models = "tiny"
dataset = "toy"
concurrency = [4]
prompts = 10
rounds = 2
output_cap_tokens = 64
"""
CASE_ID = "vllm-eagle3-tiny-toy-c4"
COUNTS = builders.counts(8, 0, 6, 6)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with a tier, the toy prompts and nothing recorded."""
    matrix = tmp_path / "fixtures/matrix/cpu.toml"
    matrix.parent.mkdir(parents=True)
    matrix.write_text(MATRIX)
    prompts = tmp_path / "fixtures/prompts"
    prompts.mkdir()
    (prompts / "toy.jsonl").symlink_to(builders.ROOT / "fixtures/prompts/toy.jsonl")
    return tmp_path


def case(root: Path, case_id: str = CASE_ID) -> Case:
    """A case of the tier."""
    cases = load_tier(root / "fixtures/matrix", "cpu").cases
    return next(one for one in cases if one.id == case_id)


def recorded(root: Path, *, case_id: str = CASE_ID, tokens_per_s: float = 100.0) -> Path:
    """Records a baseline of a case for this machine."""
    baseline = builders.baseline(
        *({"throughput_tokens_per_s": tokens_per_s * ratio} for ratio in (1.0, 1.01, 0.99)),
        of=COUNTS,
        environment=HERE,
        settings=settings_in(root, case(root)),
    )
    path = baseline_path(root / "baselines", HERE.name, case_id)
    record_baseline(path, baseline)
    return path


def specreg(root: Path, *arguments: str) -> Result:
    """Runs the command in a repository."""
    return CliRunner().invoke(app, [*arguments, "--root", str(root)])


def test_a_case_without_a_baseline_is_explained_by_how_to_record_one(root: Path) -> None:
    done = specreg(root, "explain", CASE_ID, "--tier", "cpu")
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{CASE_ID} on {HERE.name}\n10 prompts of toy, c4, up to 64")
    assert f"nothing is expected: record one with\n  pytest tests/perf -k {CASE_ID}-" in done.output


def test_a_case_is_explained_by_what_is_expected_and_what_it_can_see(root: Path) -> None:
    recorded(root)
    past_run = RunRecord(
        run="first",
        case_id=CASE_ID,
        settings_sha256="",
        engine_version="0.32.0",
        draft_sha256="",
        values={},
        outcomes={"throughput_tokens_per_s": "INCONCLUSIVE"},
    )
    second = msgspec.structs.replace(past_run, run="second")
    record_history(history_path(root / ".specreg/history", HERE.name), [past_run, second])
    done = specreg(root, "explain", CASE_ID, "--tier", "cpu")
    assert "expected: what was recorded on 2026-11-21, with vllm 0.32.0, 6 prompts" in done.output
    assert "3 launches: first run" in done.output
    rows = {line.split()[0]: line.split() for line in done.output.splitlines() if line.strip()}
    # 1 % of spread, three launches: (t(0.004, 2) + t(0.1, 2)) × 0.01 × √(1 + 1/3).
    assert rows["throughput_tokens_per_s"][1:4] == ["100", "5.0%", "13.9%"]
    assert rows["throughput_tokens_per_s"][4:] == ["INCONCLUSIVE", "INCONCLUSIVE"]
    assert rows["acceptance_length_tokens"][1:] == ["2.5", "5.0%", "0.0%", "–"]
    assert rows["ttft_p50_ms"][1:] == ["–", "5.0%", "–", "–"]


def test_a_case_that_nobody_declared_is_answered_with_those_there_are(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = specreg(root, "explain", "vllm-eagle3-tiny-toy-c5", "--tier", "cpu")
    assert isinstance(done.exception, SpecregError)
    arguments = ["specreg", "explain", "vllm-eagle3-tiny-toy-c5", "--tier=cpu", f"--root={root}"]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("tier 'cpu': unknown case 'vllm-eagle3-tiny-toy-c5'; did you mean")
    assert "Traceback" not in said


def test_all_baselines_are_listed_and_one_that_cannot_be_read_says_why(root: Path) -> None:
    recorded(root)
    torn = baseline_path(root / "baselines", HERE.name, "torn")
    torn.write_text("{")
    done = specreg(root, "baselines", "list")
    assert done.exit_code == 1
    (row,) = (line.split() for line in done.output.splitlines() if CASE_ID in line)
    assert row == [
        f"{HERE.name}/{CASE_ID}",
        "2026-11-21",
        "vllm==0.32.0",
        "3",
        "2.5",
        "100",
        *["first", "run"],
    ]
    assert f"baseline '{torn}': " in done.output


def committed(root: Path) -> None:
    """Commits what there is."""
    git = ("git", "-C", str(root), "-c", "user.name=n", "-c", "user.email=e")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "first")):
        subprocess.run((*git, *arguments), check=True)


def test_a_diff_shows_what_changes_against_a_revision(root: Path) -> None:
    recorded(root)
    committed(root)
    assert specreg(root, "baselines", "diff").output == "as in HEAD\n"
    recorded(root, tokens_per_s=90.0)
    recorded(root, case_id="another")
    lines = specreg(root, "baselines", "diff").output.splitlines()
    rows = [line.split() for line in lines if "throughput" in line]
    assert rows[0][:4] == ["throughput_tokens_per_s", "–", "100", "–"]
    assert rows[1][:4] == ["throughput_tokens_per_s", "100", "90", "-10.0%"]
    assert rows[1][4].startswith("-1")
    unknown = specreg(root, "baselines", "diff", "v9")
    assert str(unknown.exception).startswith("revision 'v9': git knows none of this name")


def ran(root: Path, name: str, *, complete: bool = True, exit_status: int = 0) -> None:
    """Leaves the verdict of a run."""
    run = msgspec.structs.replace(reports.run_of(), tier="cpu", environment=HERE.name)
    verdict = msgspec.structs.replace(run, run=name, complete=complete, exit_status=exit_status)
    record_document(root / ".specreg/runs" / name / "verdict.json", verdict)


def test_prune_removes_what_no_case_asks_for(root: Path) -> None:
    kept, gone = recorded(root), recorded(root, case_id="vllm-gone-tiny-toy-c4")
    ran(root, "20261121T000000-1")
    done = specreg(root, "baselines", "prune", "--tier", "cpu")
    assert done.exit_code == 0, done.output
    assert (kept.exists(), gone.exists()) == (True, False)
    assert f"removed {gone}" in done.output


@pytest.mark.parametrize("why", ["never-ran", "filtered", "failed", "cut-short"])
def test_prune_is_refused_unless_the_last_run_saw_everything(root: Path, why: str) -> None:
    gone = recorded(root, case_id="vllm-gone-tiny-toy-c4")
    if why != "never-ran":
        status = 10 if why == "failed" else 0
        ran(root, "20261121T000000-1", complete=why != "filtered", exit_status=status)
    if why == "cut-short":
        (root / ".specreg/runs/20261121T000001-1").mkdir()
    done = specreg(root, "baselines", "prune", "--tier", "cpu")
    assert str(done.exception).startswith("prune: refused, the last run must have judged")
    assert gone.exists()


def test_a_published_figure_is_expected_where_nothing_was_recorded(root: Path) -> None:
    cases = {case.id: case for case in load_tier(root / "fixtures/matrix", "cpu").cases}
    server = cases[CASE_ID].server
    figure = msgspec.structs.replace(
        PUBLISHED,
        method=server.method,
        target=server.target,
        draft=server.draft,
        draft_tokens=server.draft_tokens,
        position_frac=(),
    )
    path = root / "baselines/published/one.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(msgspec.json.encode(figure))
    explained = specreg(root, "explain", CASE_ID, "--tier", "cpu").output
    assert f"expected: published by {PUBLISHED.source}; {PUBLISHED.conditions}" in explained
    (row,) = (line.split() for line in explained.splitlines() if "acceptance_length" in line)
    assert row[1] == "2.6"


@pytest.mark.parametrize(
    ("command", "schema"),
    [("baselines schema", "Baseline"), ("report --schema", "Report"), ("matrix --schema", "")],
)
def test_a_schema_is_printed(command: str, schema: str) -> None:
    done = CliRunner().invoke(app, command.split())
    assert schema in str(json.loads(done.output).get("$ref"))


READING = (
    ("--help",),
    ("engines",),
    ("baselines", "list"),
    ("matrix", "--tier=cpu"),
    ("history", "--help"),
    ("explain", CASE_ID, "--tier=cpu"),
)
IMPORTED = """
import sys
from specreg.cli import main
try:
    main()
finally:
    print([name for name in sys.argv_of_modules if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", READING, ids=" ".join)
def test_what_only_reads_imports_nothing_that_asks_a_server(arguments: tuple[str, ...]) -> None:
    slow = ["aiohttp", "httpx", "uvloop", "pytest", "specreg.compare.gate", "huggingface_hub"]
    slow += ["numpy", "pynvml", "specreg.engines"] if arguments[0].startswith("--") else []
    program = IMPORTED.replace("sys.argv_of_modules", repr(slow))
    done = subprocess.run(
        (sys.executable, "-c", program, *arguments),
        check=False,
        cwd=builders.ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout
    assert done.stderr.splitlines()[-1] == "[]"


def test_every_command_is_listed_with_its_first_line() -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"specreg {specreg_version}\n"
    shown = " ".join(CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output.split())
    for name, words in (("baselines", "List, compare"), ("selftest", "Plant known")):
        assert f"{name} " in shown
        assert words in shown


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [(("basline", "list"), "'baselines'"), (("matrix", "--teir=cpu"), "--tier")],
    ids=["a-command", "an-option"],
)
def test_what_is_misspelled_is_answered_with_what_is_meant(
    arguments: tuple[str, ...], meant: str
) -> None:
    done = CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert meant in done.output
