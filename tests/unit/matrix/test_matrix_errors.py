"""What is wrong with a matrix file: the message says file, table, key, got and known."""

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


CASE = ", [[cases]] no. 2: "
PAIR = ", [models.tiny]: "


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("promts = 8", "unknown key 'promts'; did you mean 'prompts'? known: "),
        ("parallel = { tensr = 2 }", "Object contains unknown field `tensr` - at `parallel`"),
        ("parallel = { data = 2, nodes = 2 }", "parallel.nodes = 2 with data = 2"),
        ("tree = { branches = 2 }", "Object missing required field `drafted_tokens` - at `tree`"),
        ('client_processes = "4"', "Expected `int`, got `str` - at `client_processes`; docs"),
        ("draft_tokens = [3, 17]", "Expected `int` <= 16 - at `draft_tokens[1]`; docs/matrix.md"),
        ("parallel = { tensor = 0 }", "Expected `int` >= 1 - at `parallel.tensor`; docs"),
        ("tolerances = { speedup_ratio = -1 }", "Expected `float` > 0.0 - at `tolerances[...]`"),
        ('arrivals = "poison"', "Invalid enum value 'poison' - at `arrivals`; docs/matrix.md"),
    ],
)
def test_a_key_of_a_case_is_named_with_its_table(tmp_path: Path, line: str, words: str) -> None:
    assert said(tmp_path, f"{HEAD}{OTHER}{TABLE}{line}\n").startswith(f"{CASE}{words}")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD.replace("target =", "targets =") + TABLE, f"{PAIR}unknown key 'targets'; did you"),
        (HEAD + "target_gib = 0\n" + TABLE, f"{PAIR}Expected `float` > 0.0 - at `target_gib`"),
        (HEAD + "drafts_gib = { eagle = 1 }\n" + TABLE, f"{PAIR}unknown draft 'eagle'; did you"),
        (
            HEAD.replace("eagle3 =", "eagel3 =") + TABLE,
            f"{PAIR}unknown method that takes a draft 'eagel3'; did you mean 'ea",
        ),
        ("need_gpus = 0\n" + HEAD + TABLE, ": unknown key 'need_gpus'; did you mean 'needs_gpus'"),
        (TABLE, ": Object missing required field `needs_gpus`; docs/matrix.md"),
        (HEAD, ": Object missing required field `cases`; docs/matrix.md"),
        (HEAD + "[cases]\n", ": Expected `array`, got `object` - at `cases`; docs/matrix.md"),
        ("models = 3\ncases = []\n", ": Expected `object`, got `int` - at `models`"),
        ("needs_gpus = 0\ncases = [3]\n", ", [[cases]] no. 1: Expected `object`, got `int`"),
        (HEAD + "[[cases]\n", ": can't be read, Expected ']]' at the end of an array declaration"),
    ],
)
def test_any_other_table_is_named_too(tmp_path: Path, text: str, words: str) -> None:
    assert said(tmp_path, text).startswith(words)


def test_a_pair_of_the_shared_file_is_named_with_that_file(tmp_path: Path) -> None:
    shared = tmp_path / "models" / "pairs.toml"
    shared.parent.mkdir()
    shared.write_text('[models.big]\ntarget = "some/target"\ntoken_kb = 3\n')
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "cpu.toml").write_text(HEAD + TABLE)
    with pytest.raises(UnknownNameError) as error:
        load_tier(tmp_path / "matrix", "cpu")
    place = f"matrix file '{shared}', [models.big]"
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
    with pytest.raises(
        MatrixError, match=r"pairs\.toml': Expected `object`, got `int` - at `models`"
    ):
        load_tier(tmp_path / "matrix", "cpu")
