"""A table of cases that has the command line of its server, as its author types it."""

import contextlib
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specreg.core.errors import SpecregError
from specreg.engines.methods import Tree
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import Parallel
from specreg.matrix.case import Case, Tier
from specreg.matrix.commands import understand_command
from specreg.matrix.tier import load_tier
from tests.unit import builders

PAIRS = """
[models.known]
target = "some/target"
drafts = { eagle3 = "some/head" }
target_gib = 16.0
drafts_gib = { eagle3 = 1.0 }
"""
LOAD = """
dataset = "toy"
concurrency = [2]
prompts = 8
output_cap_tokens = 16
"""
VLLM = "vllm serve some/target --speculative-config "
EAGLE3 = '{"method": "eagle3", "model": "some/head", "num_speculative_tokens": 5}'
SGLANG = "python3 -m sglang.launch_server --model-path some/target --speculative-algorithm "


def load(folder: Path, command: str, keys: str = "", defaults: str = "") -> Tier:
    (folder / "matrix").mkdir(exist_ok=True)
    (folder / "models").mkdir(exist_ok=True)
    (folder / "models/pairs.toml").write_text(PAIRS)
    text = f"needs_gpus = 1\n{defaults}\n[[cases]]\ncommand = '''\n{command}\n'''\n{keys}\n{LOAD}"
    (folder / "matrix/mine.toml").write_text(text)
    return load_tier(folder / "matrix", "mine")


def speculating(tier: Tier) -> Case:
    (case,) = (case for case in tier.cases if case.speculates)
    return case


def test_flags_that_are_settings_become_settings_and_the_rest_are_arguments(tmp_path: Path) -> None:
    command = f"""
        VLLM_LOGGING_LEVEL=DEBUG vllm serve some/target --dtype=bfloat16 --max_model_len 4096 \\
            --max-num-seqs 32 -tp 2 --gpu-memory-utilization 0.9 --trust-remote-code \\
            --speculative-config '{EAGLE3}' --seed 7 --block-size 32 --no-enable-prefix-caching
    """
    tier = load(tmp_path, command)
    case = speculating(tier)
    server = case.server
    assert case.id == "vllm-eagle3-known-k5-toy-c2"
    assert (server.target, server.draft) == ("some/target", "some/head")
    assert (server.dtype, server.max_model_len_tokens) == ("bfloat16", 4096)
    assert server.max_sequences == 32
    assert server.parallel == Parallel(tensor=2)
    assert server.trust_remote_code
    assert server.engine_args == ("--seed", "7", "--block-size", "32")
    assert server.engine_env == (("VLLM_LOGGING_LEVEL", "DEBUG"),)
    # Case and control stand beside one another, each with half of what the command grants.
    assert server.gpu_memory_frac == pytest.approx(0.45)
    assert case.control == server.without_speculation
    assert case.memory_gib is not None  # of the pair that is known


@pytest.mark.parametrize(
    ("command", "method", "draft", "draft_tokens"),
    [
        (VLLM + f"'{EAGLE3}'", "eagle3", "some/head", 5),
        (f"python -m vllm.entrypoints.openai.api_server --model some/target -sc '{EAGLE3}'",
         "eagle3", "some/head", 5),
        ("vllm serve some/target --spec-method eagle3 --spec-model some/head --spec-tokens 5",
         "eagle3", "some/head", 5),
        ("vllm serve a/b -sc.method mtp -sc.num_speculative_tokens 2", "mtp", None, 2),
        (VLLM + '\'{"method": "deepseek_mtp", "num_speculative_tokens": 1}\'', "mtp", None, 1),
        (VLLM + '\'{"method": "draft_model", "model": "a/b", "num_speculative_tokens": 3}\'',
         "draft_model", "a/b", 3),
        (VLLM + '\'{"method": "draft_model", "model": "a/b", "num_speculative_tokens": 3,'
         ' "parallel_drafting": true}\'', "pard", "a/b", 3),
        (VLLM + '\'{"method": "ngram", "num_speculative_tokens": 4}\'', "ngram", None, 4),
        (SGLANG + "EAGLE3 --speculative-draft-model-path some/head --speculative-num-steps 3"
         " --speculative-eagle-topk 1 --speculative-num-draft-tokens 4", "eagle3", "some/head", 3),
        (SGLANG + "standalone --speculative-draft-model some/head --speculative-num-steps 2",
         "draft_model", "some/head", 2),
        (SGLANG + "NEXTN --speculative-num-steps 1", "mtp", None, 1),
        (SGLANG + "EAGLE --speculative-draft-model-path a/b --speculative-num-steps 3"
         " --enable-multi-layer-eagle", "multi_layer_eagle", "a/b", 3),
        (SGLANG + "NGRAM --speculative-num-draft-tokens 6", "ngram", None, 5),
        (SGLANG + "DSPARK --speculative-draft-model-path a/b --speculative-num-draft-tokens 8",
         "dspark", "a/b", 7),
    ],
)  # fmt: skip
def test_a_speculation_is_understood_as_the_method_that_is_spelt_so(
    tmp_path: Path, command: str, method: str, draft: str | None, draft_tokens: int
) -> None:
    server = speculating(load(tmp_path, command)).server
    assert (server.method, server.draft, server.draft_tokens) == (method, draft, draft_tokens)


@pytest.mark.parametrize(
    "command",
    [
        "/opt/venv/bin/vllm serve some/target -tp 2 --seed 7",
        "vllm serve some/target -tp 2 \\ \n  --seed 7",
        "vllm serve some/target -tp 2 \\\r\n  --seed 7",
        "vllm serve 'some/target' \"-tp\" 2 --no-trust-remote-code --seed 7",
        "../bin/python3 -m vllm.entrypoints.cli.main serve some/target -tp 2 --seed 7",
    ],
)
def test_a_command_may_be_quoted_broken_and_begun_as_a_shell_allows(
    tmp_path: Path, command: str
) -> None:
    (case,) = load(tmp_path, command).cases
    assert case.server.target == "some/target"
    assert case.server.parallel == Parallel(tensor=2)
    assert case.server.engine_args == ("--seed", "7")


def test_an_argument_may_have_what_a_shell_would_read_in_quotes(tmp_path: Path) -> None:
    command = 'vllm serve a/b --hf-overrides \'{"a": "<b> & $c"}\''
    (case,) = load(tmp_path, command).cases
    assert case.server.engine_args == ("--hf-overrides", '{"a": "<b> & $c"}')


def test_branches_are_a_tree(tmp_path: Path) -> None:
    command = (
        f"{SGLANG} EAGLE3 --speculative-draft-model-path some/head --speculative-num-steps 5"
        " --speculative-eagle-topk 8 --speculative-num-draft-tokens 64"
    )
    server = speculating(load(tmp_path, command)).server
    assert server.method == "eagle3_tree"
    assert (server.draft_tokens, server.tree) == (5, Tree(branches=8, drafted_tokens=63))


@pytest.mark.parametrize(
    "command",
    [
        VLLM + f'\'{EAGLE3[:-1]}, "rejection_sample_method": "block"}}\' --seed 7',
        VLLM + '\'{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 7}\'',
        SGLANG + "EAGLE3 --speculative-draft-model-path some/head --speculative-num-steps 3"
        " --speculative-adaptive --attention-backend fa3",
        SGLANG + "EAGLE3 --speculative-draft-model-path some/head --speculative-num-steps 5"
        " --speculative-eagle-topk 8 --speculative-num-draft-tokens 64",
    ],
)
def test_the_server_is_started_with_each_word_of_its_command(tmp_path: Path, command: str) -> None:
    spec = speculating(load(tmp_path, command)).server
    start = builders.start_of(spec, on_gpu=True)
    started = " ".join(engine_named(spec.engine).command(Path("python"), *start))
    started = started.replace("=", " ")
    for word in command.replace("=", " ").replace("'", "").split():
        if word not in {"vllm", "serve", "python3"}:
            assert word.strip("{},") in started, word


def test_a_command_without_speculation_is_a_target_alone(tmp_path: Path) -> None:
    (case,) = load(tmp_path, "vllm serve Some/Other-Model_7B").cases
    assert case.id == "vllm-none-other-model_7b-toy-c2"
    assert case.server.target == "Some/Other-Model_7B"


def test_a_table_adds_to_its_command_and_replaces_the_defaults(tmp_path: Path) -> None:
    command = f"{VLLM}'{EAGLE3}' --max-num-seqs 4 --seed 7 -tp 2"
    keys = (
        'engine_args = ["--block-size", "32"]\nparallel = { draft_tensor = 1 }\n'
        'engine_env = { A = "1" }\nmethods = ["eagle3"]\nmodels = "mine"\n'
        "speculation = { disable_padded_drafter_batch = true }\nmax_sequences = 4\n"
    )
    server = speculating(load(tmp_path, command, keys, "[defaults]\nmax_sequences = 64")).server
    assert server.id == "vllm-eagle3-mine-k5"
    assert server.engine_args == ("--seed", "7", "--block-size", "32")
    assert server.parallel == Parallel(tensor=2, draft_tensor=1)
    assert server.max_sequences == 4
    assert server.engine_env == (("A", "1"),)
    assert server.speculation == (("disable_padded_drafter_batch", True),)


@pytest.mark.parametrize(
    ("command", "keys", "words"),
    [
        ("vllm serve a/b --port 9000", "", "--port 9000: specreg starts the server"),
        ("vllm serve a/b --enable-prefix-caching", "", "a repeated prompt must cost what it cost"),
        ("vllm serve a/b --disable-log-stats", "", "counts no acceptance"),
        ("vllm serve a/b --generation-config auto", "", "specreg gives each server its own"),
        ("vllm serve a/b --config=mine.yaml", "", "doesn't see what the file sets"),
        ("vllm serve a/b --api-key secret", "", "client sends no key"),
        ("trtllm-serve a/b --extra_llm_api_options o.yaml", "", "specreg writes this file itself"),
        ("vllm serve --seed 7", "", "command: names no model"),
        ("vllm serve a/b c/d", "", "'c/d' belongs to no flag"),
        ("vllm serve 'a/b", "", "No closing quotation"),
        ("vllm bench serve --model a/b", "", "'vllm bench serve …' starts no server; needed"),
        ("", "", "starts no server"),
        ("vllm serve a/b -tp 2 --tensor-parallel-size 2", "", "sets again what -tp sets"),
        ("vllm serve a/b -tp two", "", "-tp two: Expected `int`"),
        ("vllm serve a/b --max-num-seqs 0", "", "--max-num-seqs 0: Expected `int` >= 1"),
        (VLLM + "eagle3", "", "is no object of JSON"),
        (VLLM + '\'{"method": "eagle4", "num_speculative_tokens": 3}\'', "", "no method has the"),
        (VLLM + '\'{"model": "a/b", "num_speculative_tokens": 3}\'', "", "no method has the"),
        (VLLM + '\'{"method": "mtp"}\'', "", "how many tokens it drafts; give num_specul"),
        (VLLM + '\'{"method": "mtp", "num_speculative_tokens": "x"}\'', "", "an integer from 1 on"),
        (VLLM + f"'{EAGLE3[:-1]}, \"draft_tensor_parallel_size\": 1}}'", "",
         "which a case sets by parallel.draft_tensor"),
        (SGLANG + "DFLASH --speculative-draft-model-path a/b", "", "give speculative-num-draft"),
        ("python -m sglang.launch_server --model a/b --tp 4 --ep 2", "",
         "over all GPUs of parallel.tensor or over none; give 4 or 1"),
        ("vllm serve a/b --max-num-seqs 4", "max_sequences = 16", "the command says 4; leave"),
        ("vllm serve a/b", 'engine = "sglang"', 'engine = "sglang", the command says "vllm"'),
        ("A=1 vllm serve a/b", 'engine_env = { A = "2" }', 'engine_env.A = "2", the command says'),
        ("vllm serve a/b", 'models = "known"', "has other models than the command"),
        ("vllm serve a/b", 'models = ["known"]', 'models = ["known"] with a command'),
        (VLLM + f"'{EAGLE3}'", 'methods = ["none", "ngram"]',
         """methods = ["none", "ngram"], the command speculates with 'eagle3'"""),
        ("vllm serve a/b", "no_such_key = 1", "no_such_key"),
        (VLLM, "", "is no object of JSON"),
        (VLLM + "'" + "[" * 5000 + "'", "", "is no object of JSON"),
        ("vllm serve a/b --spec-tokens " + "[" * 5000, "", "no method has the"),
        (SGLANG + "EAGLE3 --speculative-draft-model-path a/b --speculative-eagle-topk 4"
         " --speculative-num-steps 3", "", "is missing, needed an integer from 1 on"),
        # What contradicts itself.
        ("vllm serve a/b --trust-remote-code --no-trust-remote-code", "",
         "sets again what --trust-remote-code sets"),
        ("vllm serve a/b --no-enable-expert-parallel -ep", "", "sets again what --no-enable-exp"),
        (VLLM + f"'{EAGLE3}' --spec-tokens 3", "",
         "--spec-tokens sets num_speculative_tokens of the speculation again"),
        (VLLM + f"'{EAGLE3}' -sc.method mtp", "", "-sc.method sets method of the spec"),
        (SGLANG + "NGRAM --speculative-num-draft-tokens 4 --speculative-num-draft-tokens 6", "",
         "sets speculative-num-draft-tokens of the speculation again"),
        (SGLANG + "EAGLE3 --speculative-draft-model-path a/b --speculative-num-steps 3"
         " --speculative-num-draft-tokens 9", "", "of 3 tokens and verifies 9, needed 4; mend one"),
        ("vllm serve a/b --seed 7", 'engine_args = ["--seed", "8"]',
         "engine_args has --seed, which the command has too"),
        ("vllm serve a/b --seed=7", 'engine_args = ["--seed=8"]', "engine_args has --seed, which"),
        (VLLM + f"'{EAGLE3}'", "draft_tokens = 3", "draft_tokens = 3, the command says 5; leave"),
        # What only a shell understands.
        ("vllm serve a/b --seed 7 > log.txt", "", "'>' is for a shell, and none reads it here"),
        ("vllm serve a/b --seed 7 2>&1", "", "'2>&1' is for a shell"),
        ("vllm serve a/b --seed 7 &", "", "'&' is for a shell"),
        ("vllm serve a/b | tee log", "", "'|' is for a shell"),
        ("vllm serve a/b --seed 7 # mine", "", "'#' is for a shell"),
        ("vllm serve $MODEL", "", "'$MODEL' is for a shell"),
        ("vllm serve models/${MODEL}", "", "'models/${MODEL}' is for a shell"),
        ("HF_HOME=$HOME vllm serve a/b", "", "'HF_HOME=$HOME' is for a shell"),
        ("vllm serve ~/models/a", "", "'~/models/a' is for a shell"),
        ("vllm serve \u201ca/b\u201d", "", "\u201c is no quotation mark of a shell"),
        (VLLM + "\u2018{}\u2019", "", "\u2018 is no quotation mark of a shell"),
        # What is no key of the speculation, or makes another method of it.
        ("vllm serve a/b", "speculation = { disable_padded_drafter_batch = true }",
         'with methods = ["none"]; name a method that speculates'),
        (VLLM + f"'{EAGLE3}'", "speculation = { num-speculative-tokens = 3 }",
         "speculation.num_speculative_tokens: in the tier this is set by draft_tokens"),
        (VLLM + f"'{EAGLE3}'", "speculation = { parallel_drafting = true }",
         "makes method 'eagle3' the method 'p_eagle'; name that instead"),
        (SGLANG + "NGRAM --speculative-num-draft-tokens 4", "speculation = { nonsense = 3 }",
         "speculation.nonsense: isn't a flag of SGLang's speculation"),
        (SGLANG + "EAGLE --speculative-draft-model-path a/b --speculative-num-steps 3",
         "speculation = { enable_multi_layer_eagle = true }",
         "makes method 'eagle' the method 'multi_layer_eagle'"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_or_contradicts_is_refused_with_the_reason(
    tmp_path: Path, command: str, keys: str, words: str
) -> None:
    with pytest.raises(SpecregError) as refused:
        load(tmp_path, command, keys)
    assert words in str(refused.value)
    assert "[[cases]] no. 1: " in str(refused.value)


def test_experts_of_a_single_gpu_are_advised_to_be_spread_over_none(tmp_path: Path) -> None:
    with pytest.raises(SpecregError, match=r"over none; give 1$"):
        load(tmp_path, "python -m sglang.launch_server --model a/b --ep 2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"[defaults]\ncommand = 'vllm serve a/b'\n[[cases]]\n{LOAD}", "[defaults] has a command"),
        (f"[[cases]]\ncommand = ['vllm', 'serve']\n{LOAD}", "got `array`, needed a command line"),
    ],
)
def test_a_command_that_is_no_text_or_for_all_tables_is_refused(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "matrix/mine.toml"
    path.parent.mkdir()
    keys = 'engine = "vllm"\nmethods = ["none"]\nmodels = "one"\n'
    path.write_text(f"needs_gpus = 0\n[models.one]\ntarget = 'a/b'\n{text}{keys}")
    with pytest.raises(SpecregError) as refused:
        load_tier(path.parent, "mine")
    assert words in str(refused.value)


def test_what_was_understood_is_kept_for_the_matrix(tmp_path: Path) -> None:
    command = (
        f"vllm serve some/target --served-model-name x --gpu-memory-utilization 0.8 -tp 2 --seed 7"
        f" --speculative-config '{EAGLE3}'"
    )
    (lines,) = load(tmp_path, command).commands.values()
    assert lines == (
        'models = "known" # target = "some/target", drafts.eagle3 = "some/head"',
        'engine = "vllm"',
        "draft_tokens = 5",
        'methods = ["none", "eagle3"]',
        "gpu_memory_frac = 0.4",
        "parallel = { tensor = 2 }",
        'engine_args = ["--seed", "7"]',
        "# --served-model-name is left out: specreg gives each server a name of its own",
        "# --gpu-memory-utilization 0.8 is for case and control together: each has half",
    )


WORDS = (
    *("vllm", "serve", "trtllm-serve", "a/b", "-tp", "2", "--port", "8000", "--tp", "--ep", "nan"),
    *("--max-num-seqs", "-sc.method", "--spec-tokens", "1e400", "=", "--", "-", "A=1", "--x=", "."),
    *("--speculative-config", "null", "[]", '{"a": {}}', '{"method": [1]}', '{"method": true}'),
    *("--speculative-algorithm", "EAGLE", "--speculative-eagle-topk", "-1", "--model", "--dtype"),
)


STARTS = ("vllm serve", "python -m sglang.launch_server --model-path a/b", "trtllm-serve a/b")


@given(start=st.sampled_from(STARTS), words=st.lists(st.sampled_from(WORDS), max_size=8))
def test_no_command_line_ends_in_a_traceback(start: str, words: list[str]) -> None:
    """Words in any order are understood, or refused in words."""
    text = " ".join((start, *map(shlex.quote, words)))
    with contextlib.suppress(SpecregError):
        assert understand_command(text, {}).target
