"""The suite on a server that somebody else runs."""

import contextlib
import dataclasses
import sys
from collections.abc import Iterator

from specreg.matrix.tier import load_tier
from specreg.servers.environments import EngineEnvironment
from specreg.servers.start import start_server
from tests.doubles.vllm.script import Fault, Script
from tests.plugin.conftest import ROOT, Suite
from tests.unit import builders

EAGLE3 = ("tests/perf", "-q", "-k", "eagle3")


@contextlib.contextmanager
def running(
    suite: Suite, script: Script, method: str = "eagle3", own_arguments: tuple[str, ...] = ()
) -> Iterator[str]:
    """The URL of a scripted server with a method of the suite's tier."""
    cases = load_tier(suite.folder, "cpu").cases
    spec = next(case.server for case in cases if case.server.method == method)
    spec = dataclasses.replace(spec, engine_args=own_arguments)
    with start_server(
        builders.scripted(spec, script, suite.folder),
        EngineEnvironment(python=sys.executable, package="", version="", torch_source=""),
        root=ROOT,
        log_path=suite.folder / "theirs.log",
        on_gpu=False,
        ready_within_s=30.0,
        show=lambda _: None,
    ) as server:
        yield server.base_url


def test_its_acceptance_is_judged_and_no_server_is_started(recorded_suite: Suite) -> None:
    with running(recorded_suite, Script()) as url:
        done = recorded_suite.run(*EAGLE3, f"--specreg-attach={url}/", "--engine=vllm")

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("  PASS") == 10
    # Nobody knows how it was started, and nothing stands beside it.
    assert done.stdout.count("  NOT_COMPARABLE") == 6
    assert "speedup" not in done.stdout
    assert not list(recorded_suite.runs.glob("*/logs/*"))
    verdict = recorded_suite.verdict()
    assert (verdict.attached, verdict.complete) == (url, False)
    assert not list(recorded_suite.runs.parent.glob("history/unknown*"))


def test_a_worse_drafter_is_asked_again_on_the_same_server(recorded_suite: Suite) -> None:
    worse = Script(acceptance_probs=(0.6, 0.5, 0.4))
    with running(recorded_suite, worse) as url:
        done = recorded_suite.run(
            *EAGLE3[:3], "eagle3 and acceptance_length", f"--specreg-attach={url}"
        )

    assert done.returncode == 1, done.stdout
    assert "\n2 failed, 32 deselected in " in done.stdout


def test_traffic_of_others_is_noticed(recorded_suite: Suite) -> None:
    """Without `--per-request-spec-decode-metrics`, vLLM's default, by the requests that ended."""
    own_arguments = ("--per-request-spec-decode-metrics", "none")
    script = Script(fault=Fault.COUNTERS_TOO_HIGH)
    with running(recorded_suite, script, own_arguments=own_arguments) as url:
        done = recorded_suite.run(
            *EAGLE3[:3], "eagle3 and c1 and acceptance_length", f"--specreg-attach={url}"
        )

    assert done.returncode == 10, done.stdout
    assert "FOREIGN_TRAFFIC" in done.stdout


def test_a_server_of_another_method_is_named_before_anything_is_measured(
    recorded_suite: Suite,
) -> None:
    with running(recorded_suite, Script(), "none") as url:
        done = recorded_suite.run(*EAGLE3, f"--specreg-attach={url}")

    assert done.returncode == 4
    assert f"server at {url}: its speculation is 'off', the case asks for 'on'" in done.stderr
    assert "Traceback" not in done.stderr
