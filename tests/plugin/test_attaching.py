"""The suite on a server that somebody else runs."""

import contextlib
import sys
from collections.abc import Iterator

from specreg.environments import EngineEnvironment
from specreg.matrix import load_tier
from specreg.server import start_server
from tests.plugin.conftest import ROOT, Suite
from tests.scripted.vllm.script import Fault, Script
from tests.unit import builders

EAGLE3 = ("tests/perf", "-q", "-k", "eagle3")


@contextlib.contextmanager
def running(suite: Suite, script: Script, method: str = "eagle3") -> Iterator[str]:
    """The URL of a scripted server with a method of the suite's tier."""
    cases = load_tier(suite.folder, "cpu").cases
    spec = next(case.server for case in cases if case.server.method == method)
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

    assert done.stdout.count("acceptance_length_tokens") == 2, done.stdout
    assert done.stdout.count("  PASS") >= 10
    assert "speedup" not in done.stdout  # nothing stands beside it
    assert not list(recorded_suite.runs.glob("*/logs/*"))


def test_a_worse_drafter_is_asked_again_on_the_same_server(recorded_suite: Suite) -> None:
    worse = Script(acceptance_probs=(0.6, 0.5, 0.4))
    with running(recorded_suite, worse) as url:
        done = recorded_suite.run(
            *EAGLE3[:3], "eagle3 and acceptance_length", f"--specreg-attach={url}"
        )

    assert done.returncode == 1, done.stdout
    assert "2 failed, 2 skipped" in done.stdout


def test_traffic_of_others_is_noticed(recorded_suite: Suite) -> None:
    with running(recorded_suite, Script(fault=Fault.COUNTERS_TOO_HIGH)) as url:
        done = recorded_suite.run(
            *EAGLE3[:3], "eagle3 and c1 and acceptance_length", f"--specreg-attach={url}"
        )

    assert done.returncode == 10, done.stdout
    assert "FOREIGN_TRAFFIC" in done.stdout


def test_one_url_is_one_server(recorded_suite: Suite) -> None:
    done = recorded_suite.run("tests/perf", "-q", "--specreg-attach=http://127.0.0.1:9")

    assert done.returncode == 4
    assert "is one server, the run asks for vllm-eagle3-tiny, vllm-none-tiny" in done.stderr


def test_a_server_of_another_method_is_named_before_anything_is_measured(
    recorded_suite: Suite,
) -> None:
    with running(recorded_suite, Script(), "none") as url:
        done = recorded_suite.run(*EAGLE3, f"--specreg-attach={url}")

    assert done.returncode == 10
    assert f"server at {url}: doesn't speculate, the case is one with speculation" in done.stdout
    assert "Traceback" not in done.stdout


def test_an_attached_server_has_one_launch(suite: Suite) -> None:
    done = suite.run(*EAGLE3, "--specreg-attach=http://127.0.0.1:9", "--specreg-launches=2")

    assert done.returncode == 4
    assert "--specreg-launches: got 2, needed 1: --specreg-attach starts none" in done.stderr


def test_an_engine_that_the_tier_lacks_is_named(suite: Suite) -> None:
    done = suite.run(*EAGLE3, "--engine=sglang")

    assert done.returncode == 4
    assert "unknown engine of tier 'cpu' 'sglang'; known: vllm" in done.stderr
