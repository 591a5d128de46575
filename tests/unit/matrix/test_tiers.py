"""The tiers of the repository: what they run, and what that needs."""

import functools
import json
import tomllib
from pathlib import Path

import pytest

from specreg.baselines.estimate import estimate_of, run_on_gpus_s, run_s
from specreg.baselines.store import BaselineStore
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case
from specreg.matrix.models import is_hub_id
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.metrics import check_allowed
from specreg.servers.memory import fit_together
from specreg.servers.provision import check_version
from specreg.suite.options import LAUNCHES_TO_RECORD
from specreg.telemetry.identity import UNKNOWN_ENVIRONMENT
from tests.unit import builders
from tests.unit.builders.llm_args import unfit_options

FOLDER = builders.ROOT / "fixtures/matrix"
TIERS = tier_names(FOLDER)
ON_GPU = tuple(name for name in TIERS if load_tier(FOLDER, name).needs_gpus)


def cases_of(name: str) -> tuple[Case, ...]:
    return load_tier(FOLDER, name).cases


@pytest.mark.parametrize("name", TIERS)
def test_each_case_can_be_measured_by_its_engine(name: str) -> None:
    tier = load_tier(FOLDER, name)
    for case in tier.cases:
        engine = engine_named(case.server.engine)
        check_allowed(case, tier.locations[case.id])
        check_version(case, engine.requirement(on_gpu=tier.needs_gpus > 0).version)
        assert case.request.output_cap_tokens < case.server.max_model_len_tokens


@pytest.mark.parametrize("name", ON_GPU)
def test_each_case_of_a_gpu_says_what_it_needs_and_has_a_control(name: str) -> None:
    for case in cases_of(name):
        assert case.memory_gib is not None, case.id
        # A target that takes most of a GPU leaves no room for a control.
        is_alone = case.server.gpu_memory_frac > 0.5
        assert case.control is not None or not case.speculates or is_alone, case.id


def test_a_case_of_several_tiers_is_the_same_case() -> None:
    """They share a machine's baselines, which are found by the case's id."""
    seen: dict[str, Case] = {}
    for name in ON_GPU:
        for case in cases_of(name):
            assert seen.setdefault(case.id, case) == case, f"{case.id} of {name}"
    assert len(seen) < sum(len(cases_of(name)) for name in ON_GPU)


@pytest.mark.parametrize(
    ("name", "gpus_gib", "skipped"),
    [
        ("gpu_smoke", (79.6,), 0),
        ("gpu", (79.6,), 0),
        ("gpu", (24.0,), 23),
        ("gpu", (44.99,), 2),  # what a card of 48 GB shows
        ("gpu_weekly", (79.6,), 22 + 16),  # of two and of eight GPUs
        ("gpu_weekly", (79.6,) * 2, 22),
        ("gpu_weekly", (79.6,) * 8, 0),
        ("tensorrt_llm", (79.6,), 0),
        ("gpu_node", (79.6,) * 8, 2 * 2),  # two servers of a target of 554 GiB
        ("gpu_node", (139.8,) * 8, 0),
        ("speedup_speed_bench", (70.0,), 3),
        ("speedup_speed_bench", (79.6,), 0),
    ],
)
def test_what_fits_which_machine(name: str, gpus_gib: tuple[float, ...], skipped: int) -> None:
    assert len(load_tier(FOLDER, name).chosen(gpus_gib).unmet(gpus_gib)) == skipped


@pytest.mark.parametrize(
    ("gpus_gib", "models"),
    [
        ((79.6,), "wide-8b"),
        ((44.99,), "wide-8b"),  # what a card of 48 GB shows
        ((39.4,), "wide-1b"),
        ((14.6,), "wide-1b"),
        ((8.0,), "wide-1b"),
        ((), "wide-8b"),
    ],
)
@pytest.mark.parametrize(("name", "loads"), [("gpu_smoke", (1, 16)), ("gpu", (16,))])
def test_a_gpu_runs_the_largest_widened_pair_that_it_holds_for_all_cases(
    name: str, loads: tuple[int, ...], gpus_gib: tuple[float, ...], models: str
) -> None:
    tier = load_tier(FOLDER, name).chosen(gpus_gib)
    wide = [case for case in tier.cases if case.server.widen]
    assert {case.server.models for case in wide} == {models}
    assert tier.cases[: len(wide)] == tuple(wide)
    assert [case.id for case in wide if case.server.method == "eagle3"] == [
        f"{engine}-eagle3-{models}-toy-c{load}" for engine in ("vllm", "sglang") for load in loads
    ]


def test_the_documents_cases_are_there_whole() -> None:
    """The three documents' cases that a night doesn't have, as the documents state them."""
    bench = load_tier(FOLDER, "specdec_bench")
    assert [
        (case.id, case.request.prompts, case.request.output_cap_tokens) for case in bench.cases
    ] == [
        (f"tensorrt_llm-{method}-gpt-oss-120b-nvidia-{dataset}-c1", prompts, 4096)
        for dataset, prompts in (("mt-bench", 80), ("random-1024", 40))
        for method in ("none", "eagle3")
    ]
    assert bench.unmet((141.0,)) == {}
    assert len(bench.unmet((79.6,))) == len(bench.cases)

    large = load_tier(FOLDER, "gpu_large")
    chain = large.named("vllm-draft_model-llama-3.3-70b-8b-k24-gsm8k-c20")
    tree = large.named("sglang-draft_model_tree-llama-3.3-70b-8b-k8-gsm8k-c20")
    for case in (chain, tree):
        assert case.server.drafted_tokens == 24
        assert (case.request.prompts, case.request.output_cap_tokens) == (20, 256)
        assert (case.server.max_sequences, case.server.parallel.tensor) == (96, 4)
        assert case.unmet((141.0,) * 4) == ""
    assert chain.server.parallel.draft_tensor == 1

    triton = load_tier(FOLDER, "triton_gpu")
    assert [case.id for case in triton.cases] == [
        f"triton-{server}-eagle-humaneval-c1"
        for server in (
            *("none-llama-3-8b", "eagle-llama-3-8b-k5"),
            *("none-opt-6.7b", "draft_model-opt-6.7b-k5"),
        )
    ]


@pytest.mark.parametrize("name", ["specdec_bench", "triton_gpu", "gpu_large", "gpu_node"])
def test_a_tier_of_the_documents_states_the_licence_of_each_pair(name: str) -> None:
    tier = load_tier(FOLDER, name)
    assert tier.licences.keys() == {case.server.models for case in tier.cases}


def test_tensorrt_llm_takes_the_options_of_each_server_of_the_tiers() -> None:
    """Its argument classes as they were read stand for its parser, which needs a GPU."""
    recordings = builders.ROOT / "fixtures/recordings/tensorrt_llm"
    flags = json.loads((recordings / "serve.json").read_text())["flags"]
    engine = engine_named("tensorrt_llm")
    servers = {
        case.server
        for name in TIERS
        for case in cases_of(name)
        if case.server.engine == "tensorrt_llm"
    }
    assert {"gpt-oss-120b-nvidia"} < {server.models for server in servers}
    for spec in servers:
        start = builders.start_of(spec, on_gpu=True)
        words = engine.command(Path("/bin/python"), *start)
        assert {word for word in words if word.startswith("--")} <= {*flags}
        assert list(unfit_options(json.loads(engine.files(*start)["options.yaml"]))) == []


def published_servers(engine: str) -> set[ServerSpec]:
    """The servers of all tiers whose target is on the hub."""
    servers = {case.server for name in TIERS for case in cases_of(name)}
    return {spec for spec in servers if spec.engine == engine and is_hub_id(spec.target)}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_pinned_engine_knows_the_architecture_of_each_published_model(engine: str) -> None:
    """Its registry was read from its wheel by `fixtures/recordings/read_architectures.py`."""
    recorded = json.loads((builders.ROOT / "fixtures/recordings/architectures.json").read_text())
    named = tomllib.loads((builders.ROOT / "fixtures/models/architectures.toml").read_text())
    assert recorded[engine]["version"] == engine_named(engine).requirement(on_gpu=True).version
    known = {*recorded[engine]["architectures"]}
    renamed = named["mtp"][engine]

    servers = published_servers(engine)
    needed = {spec.target: named["targets"].get(spec.target, "") for spec in servers}
    for spec in servers:
        if spec.method == "mtp":
            needed[f"MTP layer of {spec.target}"] = renamed.get(needed[spec.target], "")
        if spec.draft is not None and spec.draft in named["drafts"]:
            architecture = named["drafts"][spec.draft]
            needed[spec.draft] = renamed.get(architecture, architecture)
    assert {model: name for model, name in needed.items() if name not in known} == {}
    assert {"zai-org/GLM-4.7-FP8", "MTP layer of zai-org/GLM-4.7-FP8"} <= needed.keys()


def test_a_night_sees_each_method_of_each_engine_within_its_time() -> None:
    """On an H100, by the estimate: 3.5 h a night, 8 h to record, 35 min on eight of them."""
    cases = cases_of("gpu")
    methods: dict[str, set[str]] = {}
    for case in cases:
        methods.setdefault(case.server.engine, set()).add(case.server.method)
    seen = {"none", "ngram", "draft_model", "eagle3", "mtp"}
    assert methods == {"vllm": seen, "sglang": seen}
    for engine in methods:
        loads = {case.load.concurrency for case in cases if case.server.engine == engine}
        assert loads >= {1, 16}

    chosen = load_tier(FOLDER, "gpu").chosen((79.6,)).cases
    folder = builders.ROOT / "baselines"
    store = BaselineStore(folder=folder, environment=UNKNOWN_ENVIRONMENT)
    estimates = {case.id: estimate_of(case, store, "gpu") for case in chosen}
    fit = functools.partial(fit_together, gpus_gib=(79.6,))
    night_h = run_s(chosen, estimates, "gpu", fit) / 3600
    assert night_h <= 3.5
    assert LAUNCHES_TO_RECORD * night_h <= 8
    assert run_on_gpus_s(chosen, estimates, 8) / 60 <= 35


def test_what_a_night_asks_only_16_at_a_time_is_asked_one_at_a_time_elsewhere() -> None:
    nights = {case.id for case in cases_of("gpu")}
    elsewhere = {case.id for name in ("gpu_smoke", "gpu_weekly") for case in cases_of(name)}
    for case_id in nights:
        alone = case_id.replace("-c16", "-c1")
        assert alone in nights | elsewhere, case_id


def test_the_smoke_tier_is_part_of_the_nights_and_fetches_nothing() -> None:
    cases = cases_of("gpu_smoke")
    assert {case.request.dataset for case in cases} == {"toy"}
    assert not any(is_hub_id(case.server.target) for case in cases)
    loaded = {case.id for case in cases if case.load.concurrency > 1}
    assert loaded <= {case.id for case in cases_of("gpu")}
