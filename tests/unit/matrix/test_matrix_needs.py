"""What a case needs of a machine's GPUs, worked out by hand."""

import dataclasses
from pathlib import Path

import pytest

from specreg.core.errors import MatrixError
from specreg.engines.server_spec import Parallel, Sizes
from specreg.matrix.case import BESIDE_GIB, Tier
from tests.unit import builders
from tests.unit.builders.tiers import TIER, load


def needs(tier: Tier) -> dict[str, tuple[int, float | None]]:
    """By method how many GPUs a case needs, and how much memory of each."""
    return {
        case.server.method: (case.server.parallel.gpus_by_node, case.memory_gib)
        for case in tier.cases
    }


def test_weights_cache_and_reserve_go_into_a_servers_share(tmp_path: Path) -> None:
    """Four of 2048 tokens take 1 GiB of cache."""
    needed = needs(load(tmp_path))
    assert needed["none"] == needed["ngram"] == (1, (16 + 1 + BESIDE_GIB) / 0.25)
    assert needed["eagle3"] == (1, (16 + 2 + 1 + BESIDE_GIB) / 0.25)


def test_target_and_cache_are_split_and_copies_share_what_is_in_flight(tmp_path: Path) -> None:
    """Layers that are cut are split too, and a node needs its own GPUs alone."""
    spread = "parallel = { tensor = 2, data = 2, draft_tensor = 1 }\n"
    needed = needs(load(tmp_path, TIER + spread))
    assert needed["none"] == (4, ((16 + 0.5) / 2 + BESIDE_GIB) / 0.25)
    assert needed["eagle3"] == (4, ((16 + 0.5) / 2 + 2 + BESIDE_GIB) / 0.25)

    spread = "parallel = { tensor = 2, pipeline = 2, nodes = 2 }\n"
    needed = needs(load(tmp_path, TIER + spread))
    assert needed["none"] == (2, ((16 + 1) / 4 + BESIDE_GIB) / 0.25)
    assert needed["eagle3"] == (2, ((16 + 1) / 4 + 2 / 2 + BESIDE_GIB) / 0.25)


@pytest.mark.parametrize(
    ("gpus_gib", "unmet"),
    [
        ((80.0, 80.0), ""),
        ((79.5, 79.5, 10.0), ""),
        ((), "2 GPU(s) of 80 GiB needed, this machine has none"),
        ((141.2,), "2 GPU(s) of 80 GiB needed, this machine has 141 GiB"),
        ((80.0, 23.9), "2 GPU(s) of 80 GiB needed, this machine has 80 GiB, 23 GiB"),
    ],
)
def test_what_is_missing_is_said_beside_what_is_there(
    gpus_gib: tuple[float, ...], unmet: str
) -> None:
    """Half of the weights, what is beside them, and nothing in the cache."""
    sizes = Sizes(target_gib=2 * (79.5 * 0.4 - BESIDE_GIB), draft_gib=0.0, token_kib=0.0)
    assert builders.on_server(sizes=sizes, parallel=Parallel(tensor=2)).unmet(gpus_gib) == unmet


def test_a_tier_names_cases_that_do_not_fit_and_uses_the_widest_that_does(tmp_path: Path) -> None:
    wide = TIER.replace("[4]", "[8]") + "parallel = { tensor = 2 }\n"
    tier = load(tmp_path, TIER + wide.split("needs_gpus = 1")[1])
    assert set(tier.unmet((80.0,))) == {
        "vllm-eagle3-eight-toy-c4",
        *(case.id for case in tier.cases if case.load.concurrency == 8),
    }
    assert tier.unmet((80.0,))["vllm-eagle3-eight-toy-c4"] == (
        "1 GPU(s) of 84 GiB needed, this machine has 80 GiB"
    )
    assert tier.unmet((84.0, 84.0)) == {}
    used = {gpus: tier.gpus_used((84.0,) * gpus) for gpus in range(4)}
    assert used == {0: 1, 1: 1, 2: 2, 3: 2}
    assert dataclasses.replace(tier, needs_gpus=0).gpus_used((84.0,)) == 0


def test_case_and_control_do_not_take_more_than_there_is(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match=r"gpu_memory_frac = 0\.6, needed at most 0\.5: case and"):
        load(tmp_path, TIER.replace("0.25", "0.6"))
    alone = TIER.replace("0.25", "0.6").replace('"none", ', "")
    assert load(tmp_path, alone).cases[0].server.gpu_memory_frac == 0.6


def test_a_pair_of_its_own_stands_in_the_place_of_a_shared_one(tmp_path: Path) -> None:
    own_pair = TIER.replace("[[cases]]", '[models.eight]\ntarget = "own"\n[[cases]]').replace(
        ', "eagle3", "draft_model"', ""
    )
    case = load(tmp_path, own_pair).cases[0]
    assert (case.server.target, case.memory_gib) == ("own", None)
    assert load(tmp_path).cases[0].server.target == "some/target"
