"""The steps of docs/how-to/run-nightly-on-gpus.md: a scripted driver, and a hub on this machine."""

from pathlib import Path

from specreg.datasets.hub import why_gated
from specreg.verdicts.verdict import Outcome
from tests.doubles.hub import FakeHub
from tests.doubles.nvml.device import ScriptedGpu
from tests.plugin.conftest import ROOT, Suite, cases_of

GPU = ScriptedGpu(memory_total_bytes=80 * 2**30)
TINY = ROOT / "fixtures/models/tiny/target"
CASE = "vllm-none-far-toy-c1"
PAIR = """
[models.far]
target = "org/target"
target_gib = 0.1
token_kib = 1
"""
NIGHT = ("tests/perf", "-q", "-k", "acceptance or throughput", "--specreg-require-tier")


def on_machine(suite: Suite, hub: FakeHub, folder: Path, *, needs_gpus: int) -> Suite:
    """A machine with a driver or without one, whose hub's cache is empty at first."""
    cases = cases_of("far", methods=["none"], prompts=10, power_s=0, output_cap_tokens=8)
    suite.write_tier(f"needs_gpus = {needs_gpus}\n{PAIR}\n{cases}")
    suite.gpus = (GPU,) if needs_gpus else ()
    suite.variables |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "hub")}
    return suite


def test_from_a_bare_driver_to_the_first_green_night(gpu_suite: Suite, tmp_path: Path) -> None:
    files = {path.name: path.read_bytes() for path in TINY.iterdir() if path.is_file()}
    with FakeHub(models={"org/target": files}, gated=frozenset({"org/target"})).running() as hub:
        night = on_machine(gpu_suite, hub, tmp_path, needs_gpus=1)

        refused = night.run(*NIGHT)
        assert refused.returncode == 10, refused.stdout
        assert why_gated(has_token=False) in refused.stdout.replace("\n", " ")
        assert hub.contents() == []
        assert not list(night.runs.rglob(f"{CASE}*.log"))

        night.variables["HF_TOKEN"] = "hf_" + "x" * 30
        first = night.run(*NIGHT)
        assert first.returncode != 0
        assert "fetching weights: " in first.stderr, first.stderr
        assert "model.safetensors" in hub.contents()
        judged = {verdict.outcome for verdict in night.verdict().verdicts}
        assert judged == {Outcome.NO_BASELINE}

        # No baseline is recorded of a scripted GPU, so the same tier goes on without one.
        hub.requests.clear()
        night = on_machine(gpu_suite, hub, tmp_path, needs_gpus=0)
        recorded = night.run(*NIGHT, "--update-baselines", "--specreg-launches=2")
        assert recorded.returncode == 0, recorded.stdout
        # A busy machine can't always resolve a speed, which is not what these steps are about.
        green = night.run(*NIGHT, "--specreg-inconclusive=warn-speed")
        assert green.returncode == 0, green.stdout
        assert hub.contents() == []
