"""What is wrong with a matrix file: the message says file, line, table, key, got and known."""

from pathlib import Path

import pytest

from specreg.core.errors import MatrixError, SpecregError, UnknownNameError
from specreg.matrix.tier import load_tier

HEAD = """needs_gpus = 0

[models.tiny]
target = "fixtures/target"
drafts = { eagle3 = "fixtures/eagle3" }
"""
TABLE = """
[[cases]]
engine = "vllm"
methods = ["none", "eagle3"]
models = "tiny"
dataset = "toy"
concurrency = [2]
prompts = 8
output_cap_tokens = 64
"""
OTHER = TABLE.replace("[2]", "[1]")


def said(folder: Path, text: str) -> str:
    """What loading the tier of a text says, from the file's name on."""
    path = folder / "matrix" / "cpu.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    with pytest.raises(SpecregError) as error:
        load_tier(path.parent, "cpu")
    assert str(error.value).startswith(f"matrix file '{path}'")
    return str(error.value).removeprefix(f"matrix file '{path}'")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        pytest.param(
            "promts = 8",
            "line 24, [[cases]] no. 2: unknown key 'promts'; did you mean 'prompts'? known: ",
            id="key",
        ),
        pytest.param(
            "parallel = { tensr = 2 }",
            "line 24, [[cases]] no. 2: unknown key of parallel 'tensr'; did you mean 'tensor'?"
            " known: data, draft_tensor, expert, nodes, pipeline, ray, tensor",
            id="key-of-parallel",
        ),
        pytest.param(
            "parallel = { data = 2, nodes = 2 }",
            "line 24, [[cases]] no. 2: parallel.data = 2 with nodes = 2: a server that spans nodes",
            id="copies-over-nodes",
        ),
        pytest.param(
            "parallel = { tensor = 3, pipeline = 3, nodes = 2 }",
            "line 24, [[cases]] no. 2: parallel.tensor = 3 and pipeline = 3 with nodes = 2: 9 GPU"
            "(s) aren't as many on each; change one of them",
            id="gpus-that-nodes-do-not-divide",
        ),
        pytest.param(
            "[cases.tree]\nbranch = 2",
            "line 24, [[cases]] no. 2: unknown key of tree 'branch'; did you mean 'branches'?"
            " known: branches, drafted_tokens",
            id="key-of-a-table-below",
        ),
        pytest.param(
            "tree = { branches = 2 }",
            "line 24, [[cases]] no. 2: key 'drafted_tokens' of tree is missing; docs/matrix.md",
            id="missing-key",
        ),
        pytest.param(
            'rounds = "4"',
            'line 24, [[cases]] no. 2: rounds = "4", needed `int`; docs/matrix.md',
            id="type",
        ),
        pytest.param(
            "draft_tokens = [3, 17]",
            "line 24, [[cases]] no. 2: draft_tokens[1] = 17, needed `int` <= 16; docs/matrix.md",
            id="one-of-a-list",
        ),
        pytest.param(
            "parallel = { tensor = 0 }",
            "line 24, [[cases]] no. 2: parallel.tensor = 0, needed `int` >= 1; docs/matrix.md",
            id="range-below",
        ),
        pytest.param(
            "[cases.tolerances]\ntpot_p50_ms = 0.1\nspeedup_ratio = -1",
            "line 24, [[cases]] no. 2: tolerances.speedup_ratio = -1, needed `float` > 0.0; docs",
            id="one-of-a-mapping",
        ),
        pytest.param(
            "engine_env = { OMP_NUM_THREADS = 1 }",
            "line 24, [[cases]] no. 2: engine_env.OMP_NUM_THREADS = 1, needed `str`; docs",
            id="type-in-a-mapping",
        ),
        pytest.param(
            'arrivals = "poison"',
            "line 24, [[cases]] no. 2: unknown arrivals 'poison'; did you mean 'poisson'? known:"
            " closed, constant, gamma, poisson",
            id="word",
        ),
        pytest.param(
            'form = "chats"',
            "line 24, [[cases]] no. 2: unknown form 'chats'; did you mean 'chat'?",
            id="another-word",
        ),
    ],
)
def test_a_key_of_a_case_is_named_with_its_line(tmp_path: Path, line: str, words: str) -> None:
    assert said(tmp_path, f"{HEAD}{OTHER}{TABLE}{line}\n").startswith(f", {words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            HEAD + TABLE.replace("prompts = 8\n", ""),
            ", line 7, [[cases]] no. 1: key 'prompts' is missing; docs/matrix.md",
            id="missing-of-a-case",
        ),
        pytest.param(
            HEAD.replace("target =", "targets =") + TABLE,
            ", line 4, [models.tiny]: unknown key 'targets'; did you mean 'target'? known: drafts,",
            id="key-of-a-pair",
        ),
        pytest.param(
            HEAD + "target_gib = 0\n" + TABLE,
            ", line 6, [models.tiny]: target_gib = 0, needed `float` > 0.0; docs/matrix.md",
            id="range-of-a-pair",
        ),
        pytest.param(
            HEAD + "drafts_gib = { eagle = 1 }\n" + TABLE,
            ", line 6, [models.tiny]: unknown draft 'eagle'; did you mean 'eagle3'? known: eagle3",
            id="size-of-no-draft",
        ),
        pytest.param(
            HEAD.replace("eagle3 =", "eagel3 =") + TABLE,
            ", line 5, [models.tiny]: unknown method that takes a draft 'eagel3'; did you mean 'ea",
            id="draft-of-no-method",
        ),
        pytest.param(
            "need_gpus = 0\n" + HEAD + TABLE,
            ": unknown key 'need_gpus'; did you mean 'needs_gpus'? known: cases, models, needs_gpu",
            id="key-of-the-file",
        ),
        pytest.param(
            TABLE, ": key 'needs_gpus' is missing; docs/matrix.md", id="missing-of-the-file"
        ),
        pytest.param(HEAD, ": key 'cases' is missing; docs/matrix.md", id="no-cases"),
        pytest.param(
            HEAD + "[cases]\n", ": cases = {}, needed `array`; docs/matrix.md", id="cases-no-list"
        ),
        pytest.param(
            "models = 3\n" + TABLE.replace("[[cases]]", "needs_gpus = 0\n[[cases]]"),
            ": models = 3, needed `object`; docs/matrix.md",
            id="models-no-table",
        ),
        pytest.param(
            "needs_gpus = 0\ncases = [3]\n",
            ", [[cases]] no. 1: 3, needed `object`; docs/matrix.md",
            id="a-case-that-is-no-table",
        ),
        pytest.param(
            HEAD + "[[cases]\n",
            ": no TOML, Expected ']]' at the end of an array declaration (at line 6, column 8)",
            id="no-toml",
        ),
    ],
)
def test_any_other_table_is_named_too(tmp_path: Path, text: str, words: str) -> None:
    assert said(tmp_path, text).startswith(words)


def test_a_case_whose_table_is_written_otherwise_is_named_without_a_line(tmp_path: Path) -> None:
    inline = 'cases = [{ engine = "vllm", promts = 3 }]\n'
    assert said(tmp_path, inline + HEAD).startswith(", [[cases]] no. 1: unknown key 'promts'")


def test_the_line_is_never_that_of_another_table(tmp_path: Path) -> None:
    """The second table has the key that the first one lacks."""
    drawn = HEAD.replace("eagle3 =", "eagle3_tree =") + TABLE.replace('"eagle3"', '"eagle3_tree"')
    text = drawn.replace("vllm", "sglang") + OTHER + "tree = { branches = 2, drafted_tokens = 6 }\n"
    words = ", line 7, [[cases]] no. 1: method 'eagle3_tree' with no tree"
    assert said(tmp_path, text).startswith(words)


def test_a_pair_of_the_shared_file_is_named_with_that_file(tmp_path: Path) -> None:
    shared = tmp_path / "models" / "pairs.toml"
    shared.parent.mkdir()
    shared.write_text('[models.big]\ntarget = "some/target"\ntoken_kb = 3\n')
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "cpu.toml").write_text(HEAD + TABLE)
    with pytest.raises(UnknownNameError) as error:
        load_tier(tmp_path / "matrix", "cpu")
    place = f"matrix file '{shared}', line 3, [models.big]"
    assert str(error.value).startswith(f"{place}: unknown key 'token_kb'; did you mean 'token_kib'")


def test_the_shared_file_holds_pairs_alone(tmp_path: Path) -> None:
    shared = tmp_path / "models" / "pairs.toml"
    shared.parent.mkdir()
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "cpu.toml").write_text(HEAD + TABLE)
    shared.write_text("needs_gpus = 0\n[models]\n")
    with pytest.raises(UnknownNameError, match=r"pairs\.toml': unknown key 'needs_gpus'; known: m"):
        load_tier(tmp_path / "matrix", "cpu")
    shared.write_text("models = 3\n")
    with pytest.raises(MatrixError, match=r"pairs\.toml': models = 3, needed `object`"):
        load_tier(tmp_path / "matrix", "cpu")
