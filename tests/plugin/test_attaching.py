"""The suite on a server that somebody else runs."""

import contextlib
from collections.abc import Iterator

import pytest

from specreg.matrix.tier import load_tier
from tests.doubles.vllm.script import Script, Stream
from tests.plugin.conftest import PAIR, ROOT, Suite, cases_of
from tests.unit.builders.http_servers import gateway
from tests.unit.builders.started_servers import start

EAGLE3 = ("tests/perf", "-q", "-k", "eagle3")
LENGTHS = ("tests/perf", "-q", "-k", "eagle3 and acceptance_length")


@contextlib.contextmanager
def running(suite: Suite, script: Script, method: str = "eagle3") -> Iterator[str]:
    """The URL of a scripted server that speculates as the suite's tier says."""
    cases = load_tier(suite.folder, "cpu").cases
    spec = next(case.server for case in cases if case.server.method == method)
    with start(suite.folder, script, spec=spec, root=ROOT) as server:
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


def test_defaults_of_the_server_for_sampling_have_no_effect(recorded_suite: Suite) -> None:
    """Those of a model's generation_config.json, which apply to what a request leaves out."""
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    script = Script(sampling_defaults=("top_p", "top_k", "min_p", *penalties))
    with running(recorded_suite, script) as url:
        done = recorded_suite.run(*EAGLE3, f"--specreg-attach={url}")

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("  PASS") == 10


def test_a_run_names_the_parameters_that_a_gateway_refuses(recorded_suite: Suite) -> None:
    with (
        running(recorded_suite, Script()) as server_url,
        gateway(server_url, refuses=["top_k", "min_p"]) as url,
    ):
        done = recorded_suite.run(*LENGTHS, f"--specreg-attach={url}")

    assert done.returncode == 0, done.stdout
    remarks = [line for line in done.stdout.splitlines() if "the server refuses" in line]
    assert ["top_k, min_p" in remark for remark in remarks] == [True]


def test_a_worse_drafter_is_asked_again_on_the_same_server(recorded_suite: Suite) -> None:
    worse = Script(acceptance_probs=(0.6, 0.5, 0.4))
    with running(recorded_suite, worse) as url:
        done = recorded_suite.run(*LENGTHS, f"--specreg-attach={url}")

    assert done.returncode == 1, done.stdout
    assert "\n2 failed, 32 deselected in " in done.stdout


@pytest.mark.parametrize("method", ["ngram", "eagle3"])
def test_a_front_end_that_sends_each_token_alone_changes_no_acceptance(
    suite: Suite, method: str
) -> None:
    """The log of an attached server isn't there to say which steps it counts."""
    case = cases_of("tiny", methods=[method], output_cap_tokens=32, prompts=10)
    suite.write_tier(f"needs_gpus = 0\n{PAIR.format(name='tiny')}{case}")
    suite.record("-k", "acceptance_length")

    with running(suite, Script(stream=Stream.TOKENS), method) as url:
        done = suite.run("tests/perf", "-q", "-k", "acceptance_length", f"--specreg-attach={url}")

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("  PASS") == 1
    assert "the tokens of a step came in several chunks" in done.stdout
    assert "undrafted" not in done.stdout
