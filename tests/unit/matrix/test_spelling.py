"""How pairs, tiers and cases are called: by names that mean the same everywhere."""

import textwrap
from pathlib import Path

import pytest

from specreg.core.errors import MatrixError, SpecregError, UnknownNameError
from specreg.matrix.tier import load_tier, tier_names
from tests.unit.builders.started_servers import at_most_cpu

TIER = """
    needs_gpus = 0
    [models."{pair}"]
    target = "fixtures/models/tiny/target"
    [models.{other}]
    target = "fixtures/models/tiny/target"
    [[cases]]
    engine = "vllm"
    methods = ["none"]
    models = "{pair}"
    dataset = "toy"
    {load}
    output_cap_tokens = 8
    prompts = 2
    max_sequences = 100000
"""


def write_tier(
    folder: Path,
    pair: str = "tiny",
    other_key: str = "other",
    load: str = "concurrency = [1]",
    extra: str = "",
) -> Path:
    """Write the tier `one` of a case of a pair."""
    (folder / "matrix").mkdir()
    text = textwrap.dedent(TIER).format(pair=pair, other=other_key, load=load)
    (folder / "matrix/one.toml").write_text(text + textwrap.dedent(extra))
    return folder / "matrix"


ODD = (
    *("a/../b", "../../x", "/etc", ".", "..", "", "a b", "[0-9]*", "a*", "x" * 65, "x" * 300),
    *("a\\u0000b", "a\\nb", "$(touch x)", "`x`", "a;b", "a'b", "\\u0430", "\\uff41"),
)


@pytest.mark.parametrize("pair", ODD)
def test_a_pair_is_called_by_a_name(tmp_path: Path, pair: str) -> None:
    with at_most_cpu(5.0), pytest.raises(SpecregError, match="give it another name"):
        load_tier(write_tier(tmp_path, pair), "one")


def test_a_pair_that_no_case_has_is_called_by_a_name_too(tmp_path: Path) -> None:
    with pytest.raises(SpecregError, match="give it another name"):
        load_tier(write_tier(tmp_path, other_key='"a/b"'), "one")


def test_a_pair_is_not_called_as_a_second_launch_is(tmp_path: Path) -> None:
    with pytest.raises(MatrixError, match="like the name of a second launch"):
        load_tier(write_tier(tmp_path, "tiny-launch2"), "one")


def test_servers_of_two_pairs_are_not_called_alike(tmp_path: Path) -> None:
    """`tiny-k2` with the usual number of drafts, and `tiny` with two."""
    drafts = """
        drafts = {{ eagle3 = "fixtures/models/tiny/eagle3" }}
        [models."tiny-k2"]
        target = "fixtures/models/tiny/target"
        drafts = {{ eagle3 = "fixtures/models/tiny/eagle3" }}
        [models.tiny]
        target = "fixtures/models/tiny/target"
        drafts = {{ eagle3 = "fixtures/models/tiny/eagle3" }}
        {}
        {}
    """
    case = """
        [[cases]]
        engine = "vllm"
        methods = ["eagle3"]
        models = "{}"
        draft_tokens = {}
        dataset = "toy"
        concurrency = [{}]
        output_cap_tokens = 8
        prompts = 4
    """
    text = drafts.format(case.format("tiny-k2", 3, 1), case.format("tiny", 2, 4))
    (tmp_path / "matrix").mkdir()
    head = 'needs_gpus = 0\n[models.x]\ntarget = "fixtures/models/tiny/target"\n'
    lines = [line.strip() for line in text.splitlines()]
    (tmp_path / "matrix/one.toml").write_text(head + "\n".join(lines))
    with pytest.raises(MatrixError, match="two servers have the id 'vllm-eagle3-tiny-k2'"):
        load_tier(tmp_path / "matrix", "one")


def test_an_id_that_is_no_name_is_refused_when_the_matrix_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(SpecregError, match="case 'vllm-none-tiny-toy-poisson1e"):
        load_tier(write_tier(tmp_path, load="requests_per_s = [1e9]"), "one")


@pytest.mark.parametrize(
    "target",
    ["", "x" * 300, f"./{'x' * 300}", "./" + "x/" * 600, "a\\nb", "::error::x", "\\u001b[31m"],
    ids=lambda target: target[:20],
)
def test_a_model_is_called_as_a_file_can_be(tmp_path: Path, target: str) -> None:
    folder = write_tier(tmp_path)
    path = folder / "one.toml"
    path.write_text(path.read_text().replace("fixtures/models/tiny/target", target, 1))
    with pytest.raises(MatrixError, match=r"(?s)model '.*': can be neither a hub id nor a folder"):
        load_tier(folder, "one")


@pytest.mark.parametrize(
    "load", ["requests_per_s = [1e-300]", "concurrency = [1]\nclient_processes = 1000000"]
)
def test_a_load_that_would_never_end_or_start_is_refused(tmp_path: Path, load: str) -> None:
    with at_most_cpu(5.0), pytest.raises(MatrixError, match="Expected `"):
        load_tier(write_tier(tmp_path, load=load), "one")


def test_a_tier_of_more_cases_than_anybody_measures_is_refused(tmp_path: Path) -> None:
    load = f"requests_per_s = {[float(rate) for rate in range(1, 20_002)]}"
    with at_most_cpu(30.0), pytest.raises(SpecregError, match="more than 10000 cases"):
        load_tier(write_tier(tmp_path, load=load), "one")


@pytest.mark.parametrize("name", ["../one", "one\0", "/one", "", "..", "*", "o" * 300])
def test_a_tier_is_one_of_those_in_the_folder(tmp_path: Path, name: str) -> None:
    folder = write_tier(tmp_path)
    (tmp_path / "one.toml").write_text("needs_gpus = 0\ncases = []\n")
    with pytest.raises(UnknownNameError, match="known: one"):
        load_tier(folder, name)


def test_a_file_whose_name_is_none_is_no_tier(tmp_path: Path) -> None:
    folder = write_tier(tmp_path)
    (folder / "a b.toml").touch()
    assert tier_names(folder) == ("one",)
