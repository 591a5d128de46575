"""A run against recorded baselines: what is green, what is red, and what it says."""

import json
import re
import shlex
import subprocess
from collections import Counter
from xml.etree import ElementTree as ET

from specreg.report.files import FILE_NAME
from specreg.verdicts.verdict import Outcome
from tests.doubles.vllm.script import VARIABLE, Fault, Script, record_script
from tests.plugin.conftest import PAIR, Suite, cases_of

# The scripted server's steps are seeded, so acceptance repeats exactly; its times don't.
ACCEPTANCE = ("tests/perf", "-q", "-k", "acceptance_length")


def blocks(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """Return the block of each case that failed."""
    failures = done.stdout.partition("= FAILURES =")[2].partition("= specreg: tier")[0]
    parts = re.split(r"\n_+ (\S+) _+\n", failures)[1:]
    texts = [text.strip("=\n") for text in parts[1::2]]
    return dict(zip(parts[::2], texts, strict=True))


def test_a_worse_drafter_turns_its_cases_red_and_names_them(recorded_suite: Suite) -> None:
    recorded_suite.script = Script(acceptance_probs=(0.6, 0.5, 0.4))

    done = recorded_suite.run(*ACCEPTANCE)

    assert done.returncode == 1
    assert done.stdout.count("; seen on two launches, a first launch had") == 2
    assert "\n2 failed, 34 deselected in " in done.stdout
    shown = blocks(done)
    assert list(shown) == ["vllm-eagle3-tiny-toy-c1", "vllm-eagle3-tiny-toy-c4"]
    figures = r"accepted drafts 1\.\d+ a step, recorded 1\.\d+ a step"
    effect = r"worse by [\d.]+ % \([\d.]+ to [\d.]+ %\), tolerance 5 %"
    for block in shown.values():
        (line, reason) = block.splitlines()
        assert re.fullmatch(f"REGRESSED: {figures}: {effect}", line)
        assert reason.startswith("  accepted drafts by category: coding 1.")
    assert "Verdict(" not in done.stdout
    assert "AssertionError" not in done.stdout
    assert "-acceptance_length_tokens] - REGR" in done.stdout
    again = "look again, on a fresh launch:\n  pytest -k eagle3-"
    assert again in done.stdout


def test_a_slower_step_turns_speed_red_and_leaves_acceptance_green(recorded_suite: Suite) -> None:
    """What runs beside it without speculation slows too, and no software has changed.

    The step is three times as long, which is clear also where a busy machine makes launches differ.
    """
    recorded_suite.script = Script(step_ms=25.0)

    done = recorded_suite.run("tests/perf", "-q", "-k", "c4 and (throughput or acceptance)")

    assert done.returncode == 10
    shown = blocks(done)
    for case_id in ("vllm-none-tiny-toy-c4", "vllm-eagle3-tiny-toy-c4"):
        assert "INVALID: throughput " in shown[case_id]
        assert "  MACHINE_MOVED: " in shown[case_id]
    assert "REGRESSED: acceptance" not in done.stdout


def test_what_one_night_can_not_tell_passes_with_a_remark(recorded_suite: Suite) -> None:
    """Another seed draws other steps at the same rates."""
    recorded_suite.script = Script(seed=1)
    command = ("tests/perf", "-q", "-k", "acceptance_length and c1")

    done = recorded_suite.run(*command)

    assert done.returncode == 0
    assert "INCONCLUSIVE" in done.stdout
    assert "with 20 prompts, and the tolerance is 5.0%" in done.stdout  # 10, and the extension's
    assert (recorded_suite.verdict().exit_status, recorded_suite.verdict().complete) == (0, False)

    strict = recorded_suite.run(*command, "--specreg-inconclusive=fail")

    assert strict.returncode == 10
    assert "INCONCLUSIVE: accepted drafts " in blocks(strict)["vllm-eagle3-tiny-toy-c1"]


def test_what_no_number_of_nights_would_tell_is_red(recorded_suite: Suite) -> None:
    """The launches of the baseline lie ten thousand million times apart."""
    (path,) = recorded_suite.baselines.glob("*/vllm-eagle3-tiny-toy-c1.json")
    content = json.loads(path.read_text())
    for launch, factor in zip(content["launches"], (1e-5, 1e5), strict=True):
        launch["speedup_ratio"] *= factor
    path.write_text(json.dumps(content))
    for history in recorded_suite.folder.rglob("history/*.jsonl"):
        history.unlink()
    done = recorded_suite.run("tests/perf", "-q", "-k", "speedup and c1")

    assert done.returncode == 10, done.stdout
    assert "INCONCLUSIVE: speedup " in blocks(done)["vllm-eagle3-tiny-toy-c1"]
    assert "not even 100 nights would tell; raise its tolerance" in done.stdout


def test_a_second_night_stands_on_the_first_one(recorded_suite: Suite) -> None:
    """The history is an input of a run, unless the user leaves it out."""
    command = ("tests/perf", "-q", "-k", "acceptance_length and c1")
    nights = []
    for option in ("--quiet", "--quiet", "--specreg-history=none"):
        assert recorded_suite.run(*command, option).returncode == 0
        (verdict,) = recorded_suite.verdict().verdicts
        nights.append(verdict.nights)
    assert nights == [0, 1, 0]


def test_programs_read_the_same_as_people(recorded_suite: Suite) -> None:
    """The whole tier. Speeds are as the machine has them."""
    junit = recorded_suite.folder / "junit.xml"

    done = recorded_suite.run("tests/perf", "-v", "-rs", f"--junitxml={junit}")

    assert "RAPL: no processor's energy counter" in done.stdout
    assert "Power was not measured: RAPL: " in done.stdout
    verdict = recorded_suite.verdict()
    assert len(verdict.verdicts) == 26
    tests = [test.attrib["name"] for test in ET.parse(junit).iter("testcase")]  # noqa: S314
    assert len(set(tests)) == len(tests) == 34  # with those of power, which are skipped
    proved = [lossless for lossless in verdict.verdicts if lossless.metric == "lossless_frac"]
    assert [verdict.case_id for verdict in proved] == [
        "vllm-eagle3-tiny-toy-c1",
        "vllm-eagle3-tiny-toy-c4",
    ]
    assert {(verdict.outcome, verdict.value) for verdict in proved} == {(Outcome.PASS, 1.0)}
    assert verdict.exit_status == done.returncode
    assert verdict.complete
    table = done.stdout.partition("specreg: tier")[2].splitlines()
    ends = (row.split()[-1] for row in table if row.startswith("  ") and row.strip())
    shown = Counter(end for end in ends if end in set(Outcome))
    assert shown == verdict.outcomes
    junit_outcomes = Counter(
        element.get("value")
        for element in ET.parse(junit).iter("property")  # noqa: S314 - our own
        if element.get("name") == "specreg.outcome"
    )
    assert junit_outcomes == verdict.outcomes


def test_without_a_baseline_the_case_fails_with_the_command_that_records_one(suite: Suite) -> None:
    done = suite.run(*ACCEPTANCE, "-x")

    assert done.returncode == 11
    assert "NO_BASELINE" in done.stdout
    last_line = done.stdout.rstrip().splitlines()[-1]
    assert last_line.startswith("exit status 11: nothing is worse, but there is no baseline")
    order = ("\n? ", "\ncase and metric", "\nreport: ", "\nrecord what this machine does:")
    positions = [done.stdout.index(part) for part in order]
    assert positions == sorted(positions)
    record = "  pytest -k eagle3- --specreg-tier=cpu "
    (hint,) = {line for line in done.stdout.splitlines() if line.startswith(record)}
    assert hint.endswith(" --update-baselines")
    listed = suite.run(*shlex.split(hint)[1:], "--co", "-q")
    assert listed.returncode == 0, listed.stdout


FAULTS = {
    "foreign": ("INVALID: acceptance length\n  FOREIGN_TRAFFIC: ", Fault.COUNTERS_TOO_HIGH),
    "merged": ("NO_BASELINE: acceptance length ", Fault.MERGED_CHUNKS),
    "disabled": ("INVALID: acceptance length\n  SPEC_DISABLED: ", Fault.SPEC_DISABLED),
}
"""By model pair what is told of the fault of its server; a measurement's own tests have all."""


def test_each_fault_of_a_server_is_named_and_leaves_the_other_cases_alone(suite: Suite) -> None:
    """Each model pair has a server with a fault of its own."""
    tables = ["needs_gpus = 0"]
    for name, (_, fault) in FAULTS.items():
        folder = suite.folder / name
        folder.mkdir()
        engine_env = {
            f"engine_env.{VARIABLE}": record_script(Script(fault=fault), folder)[VARIABLE]
        }
        tables.append(PAIR.format(name=name))
        tables.append(cases_of(name, prompts=4, output_cap_tokens=12, **engine_env))
    suite.write_tier("\n".join(tables))

    done = suite.run("tests/perf", "-q", "-k", "acceptance_length")

    assert done.returncode == 10, done.stdout
    assert "Traceback" not in done.stdout
    shown = blocks(done)
    for name, (begins, _) in FAULTS.items():
        assert shown[f"vllm-eagle3-{name}-toy-c1"].startswith(begins)


def test_another_machine_judges_acceptance_and_skips_speed(recorded_suite: Suite) -> None:
    (folder,) = recorded_suite.baselines.iterdir()
    for path in folder.rename(folder.with_name("cpu-some-other-avx2-8c")).glob("*.json"):
        content = json.loads(path.read_text())
        content["environment"]["cpu"] = "some other"
        path.write_text(json.dumps(content))

    done = recorded_suite.run("tests/perf", "-q", "-rs", "-k", "c4")

    assert done.returncode == 0, done.stdout
    skipped = [line for line in done.stdout.splitlines() if line.startswith("SKIPPED")]
    (reason,) = (line for line in skipped if "vllm-none-tiny-toy-c4, throughput " in line)
    assert " tokens/s: NOT_COMPARABLE, nothing recorded in" in reason
    assert all(len(line.split(": ", 2)) == 3 for line in skipped)
    assert "record what this machine does" in done.stdout
    # Five of acceptance, and no token was changed.
    assert recorded_suite.verdict().outcomes["PASS"] == 6


def test_a_run_of_fewer_prompts_is_compared_prompt_by_prompt(recorded_suite: Suite) -> None:
    done = recorded_suite.run("tests/perf", "-q", "-k", "eagle3 and c4", "--num-prompts=6")

    assert done.returncode == 0, done.stdout
    verdicts = recorded_suite.verdict().verdicts
    by_metric = {verdict.metric: verdict.outcome for verdict in verdicts}
    assert by_metric.pop("lossless_frac") is Outcome.PASS
    speeds = {metric for metric in by_metric if not metric.startswith("acceptance")}
    assert len(speeds) == 4
    assert {by_metric[metric] for metric in speeds} == {Outcome.NOT_COMPARABLE}
    assert {by_metric[metric] for metric in by_metric.keys() - speeds} == {Outcome.PASS}
    remark = "--num-prompts replayed 6 prompts of each case: acceptance was compared on the"
    assert remark in done.stdout
    assert "--update-baselines" not in done.stdout
    (run,) = recorded_suite.runs.iterdir()
    assert (
        json.loads((run / FILE_NAME).read_text())["cases"][0]["figures"]["timing"]["requests"] == 6
    )
