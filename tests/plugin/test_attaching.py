"""The suite on a server that somebody else runs."""

import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest

from specreg.engines.server_spec import ServerSpec
from specreg.matrix.models import served_models
from specreg.matrix.tier import load_tier
from specreg.verdicts.verdict import Outcome
from tests.doubles.ingress import Ingress, make_certificate
from tests.doubles.vllm.launch import Launch
from tests.doubles.vllm.script import Script, Stream
from tests.plugin.conftest import PAIR, ROOT, Suite, cases_of
from tests.unit.builders.http_servers import gateway, replicas
from tests.unit.builders.started_servers import start

EAGLE3 = ("tests/perf", "-q", "-k", "eagle3")
LENGTHS = ("tests/perf", "-q", "-k", "eagle3 and acceptance_length")


@contextlib.contextmanager
def running(suite: Suite, script: Script, method: str = "eagle3") -> Iterator[str]:
    """The URL of a scripted server that speculates as the suite's tier says."""
    with start(suite.folder, script, spec=spec_of(suite, method), root=ROOT) as server:
        yield server.address.url


def counts_of(suite: Suite) -> Counter[Outcome]:
    """How many figures have each outcome; the terminal folds those that pass."""
    return Counter(verdict.outcome for verdict in suite.verdict().verdicts)


def test_its_acceptance_is_judged_and_no_server_is_started(recorded_suite: Suite) -> None:
    with running(recorded_suite, Script()) as url:
        done = recorded_suite.run(*EAGLE3, f"--specreg-attach={url}/", "--engine=vllm")

    assert done.returncode == 0, done.stdout
    # Nobody knows how it was started, and nothing stands beside it.
    assert counts_of(recorded_suite) == {Outcome.PASS: 10, Outcome.NOT_COMPARABLE: 6}
    assert "speedup" not in done.stdout
    assert not list(recorded_suite.runs.glob("*/logs/*"))
    verdict = recorded_suite.verdict()
    assert (verdict.attached, verdict.complete) == (url, False)
    assert not list(recorded_suite.runs.parent.glob("history/unknown*"))

    # The server is gone, and what it measured is judged again without it.
    (run,) = recorded_suite.runs.glob("*")
    again = recorded_suite.judge(run)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "speedup" not in again.stdout
    assert "10 figures of 2 cases hold" in again.stdout


def test_defaults_of_the_server_for_sampling_have_no_effect(recorded_suite: Suite) -> None:
    """Those of a model's generation_config.json, which apply to what a request leaves out."""
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    script = Script(sampling_defaults=("top_p", "top_k", "min_p", *penalties))
    with running(recorded_suite, script) as url:
        done = recorded_suite.run(*EAGLE3, f"--specreg-attach={url}")

    assert done.returncode == 0, done.stdout
    assert counts_of(recorded_suite)[Outcome.PASS] == 10


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


def spec_of(suite: Suite, method: str = "eagle3") -> ServerSpec:
    """The server of the suite's tier."""
    cases = load_tier(suite.folder, "cpu").cases
    return next(case.server for case in cases if case.server.method == method)


def replica_of(spec: ServerSpec) -> Launch:
    """A scripted server as the specification says."""
    target, _ = served_models(ROOT, spec)
    k = spec.draft_tokens
    return Launch(model=target, name="toy", draft_tokens=k, counts=k > 0)


TOKEN = "planted-token-0123"  # noqa: S105 - planted


def test_a_control_behind_an_ingress_judges_losslessness(recorded_suite: Suite) -> None:
    """With a prefix, a token and TLS; the token is in no file that the run writes."""
    certificate = make_certificate(recorded_suite.folder / "certificate")
    recorded_suite.variables["TEAM_A"] = TOKEN
    spec = spec_of(recorded_suite)
    launches = (replica_of(spec), replica_of(spec.without_speculation))
    with replicas(*launches) as (pod, plain_pod):
        ingress = Ingress(backends=[pod], prefix="/team-a", token=TOKEN)
        control = Ingress(backends=[plain_pod], prefix="/team-a", token=TOKEN)
        with ingress.listening(certificate), control.listening(certificate):
            done = recorded_suite.run_undisturbed(
                *(*EAGLE3, f"--specreg-attach={ingress.url}/v1"),
                f"--specreg-control-url={control.url}/v1",
                "--specreg-url-token-env=TEAM_A",
                f"--specreg-url-ca-file={certificate}",
            )

    assert done.returncode == 0, done.stdout
    verdict = recorded_suite.verdict()
    assert (verdict.attached, verdict.attached_control) == (ingress.url, control.url)
    outcomes = {(judged.metric, judged.outcome) for judged in verdict.verdicts}
    assert ("lossless_frac", "PASS") in outcomes
    # The machine of the servers isn't known, but the speedup is measured beside the control.
    speedups = [one.value for one in verdict.verdicts if one.metric == "speedup_ratio"]
    assert len(speedups) == 2
    assert all(speedups)
    for server in (ingress, control):
        assert {authorization for _, authorization in server.seen} == {f"Bearer {TOKEN}"}
    written = [path for path in recorded_suite.folder.rglob("*") if path.is_file()]
    assert written
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    assert TOKEN not in done.stdout


def test_a_token_that_an_ingress_refuses_and_echoes_is_not_shown(suite: Suite) -> None:
    suite.variables["TEAM_A"] = TOKEN
    with Ingress(backends=[], token="another-token").listening() as ingress:  # noqa: S106 - planted
        done = suite.run(
            *(*LENGTHS, f"--specreg-attach={ingress.url}", "--specreg-url-token-env=TEAM_A")
        )

    assert done.returncode == 4, done.stdout
    assert "HTTP 403" in done.stdout + done.stderr
    assert "the token of --specreg-url-token-env isn't valid there" in done.stdout + done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_a_speedup_is_compared_with_the_baselines_of_the_servers_machine(
    recorded_suite: Suite,
) -> None:
    (folder,) = recorded_suite.baselines.iterdir()
    spec = spec_of(recorded_suite)
    launches = (replica_of(spec), replica_of(spec.without_speculation))
    with replicas(*launches) as (url, control_url):
        done = recorded_suite.run_undisturbed(
            *("tests/perf", "-q", "-k", "eagle3 and (speedup or throughput or length)"),
            *(f"--specreg-attach={url}", f"--specreg-control-url={control_url}"),
            f"--specreg-url-environment={folder.name}",
        )

    assert done.returncode == 0, done.stdout
    verdicts = recorded_suite.verdict().verdicts
    against = {verdict.metric: verdict.comparison.against for verdict in verdicts}
    assert against["speedup_ratio"] == against["acceptance_length_tokens"] == folder.name
    # The way to the servers is in their times.
    outcomes = {verdict.outcome for verdict in verdicts if "throughput" in verdict.metric}
    assert outcomes == {Outcome.NOT_COMPARABLE}
    assert not list(recorded_suite.runs.parent.glob("history/*"))


def test_the_counters_of_replicas_are_added_up(recorded_suite: Suite) -> None:
    replica = replica_of(spec_of(recorded_suite))
    with replicas(replica, replica) as pods, Ingress(backends=pods).listening() as balancer:
        attach = f"--specreg-attach={balancer.url}"
        pages = ",".join(f"{pod}/metrics" for pod in pods)
        done = recorded_suite.run(*LENGTHS, attach, f"--specreg-metrics-url={pages}")
        hidden = recorded_suite.run(*LENGTHS, attach)
        lacking = recorded_suite.run(*LENGTHS, attach, f"--specreg-metrics-url={pods[0]}/metrics")

    assert done.returncode == 0, done.stdout
    assert done.stdout.count("  PASS") == 2
    assert "come from several replicas in turn" in hidden.stdout
    assert "COUNTS_DISAGREE" in lacking.stdout
    assert "--specreg-metrics-url" in lacking.stdout
