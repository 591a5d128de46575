"""A tier: its cases and their controls, or what is wrong with its file."""

import dataclasses
import uuid
from pathlib import Path

import pytest

from specreg.core.errors import SpecregError, UnknownNameError
from specreg.engines.methods import Tree
from specreg.engines.server_spec import Parallel
from specreg.matrix.case import Arrivals, Case, Limits, Load, Tier
from specreg.matrix.tier import load_tier
from tests.unit import builders

MODELS = """
needs_gpus = 0

[models.tiny]
target = "fixtures/target"
padding_layers = 2
drafts = { eagle3 = "fixtures/eagle3", draft_model = "fixtures/draft" }

[models.bare]
target = "some/target"
"""
CASES = """
[[cases]]
engine = "vllm"
methods = ["none", "eagle3"]
models = "tiny"
dataset = "toy"
concurrency = [1, 4]
prompts = 32
output_cap_tokens = 64
"""


def with_key(key: str, value: str) -> str:
    """The table of cases with a key set to a value, whether it was there or not."""
    lines = [line for line in CASES.splitlines() if not line.startswith(f"{key} =")]
    return "\n".join([*lines, f"{key} = {value}\n"])


def load(folder: Path, text: str) -> Tier:
    (folder / "cpu.toml").write_text(text)
    return load_tier(folder, "cpu")


def case_of(tier: Tier, case_id: str) -> Case:
    return next(case for case in tier.cases if case.id == case_id)


def test_a_temperature_is_part_of_the_id_and_leaves_the_servers_as_they_are(tmp_path: Path) -> None:
    text = MODELS + 2 * CASES + "temperature = 0.6\ntop_k = 20\n"
    tier = load(tmp_path, text)
    assert [case.id for case in tier.cases[4:]] == [
        *("vllm-none-tiny-toy-t0.6-c1", "vllm-none-tiny-toy-t0.6-c4"),
        *("vllm-eagle3-tiny-toy-t0.6-c1", "vllm-eagle3-tiny-toy-t0.6-c4"),
    ]
    assert [case.server for case in tier.cases[4:]] == [case.server for case in tier.cases[:4]]


def test_a_table_makes_a_case_of_each_method_and_load_beside_none_of_its_models(
    tmp_path: Path,
) -> None:
    tier = load(tmp_path, MODELS + CASES)
    assert (tier.name, tier.needs_gpus) == ("cpu", 0)
    assert [case.id for case in tier.cases] == [
        *("vllm-none-tiny-toy-c1", "vllm-none-tiny-toy-c4"),
        *("vllm-eagle3-tiny-toy-c1", "vllm-eagle3-tiny-toy-c4"),
    ]
    assert [case.speculates for case in tier.cases] == [False, False, True, True]
    plain = tier.cases[0].server
    assert [case.control for case in tier.cases] == [None, None, plain, plain]


def test_a_case_has_what_its_tables_say(tmp_path: Path) -> None:
    further = 'engine_args = ["--seed", "7"]\nengine_env = { B = "2", A = "1" }\ndraft_tokens = 5\n'
    tolerances = "tolerances = { tpot_p50_ms = 0.2 }\n"
    tier = load(tmp_path, MODELS + CASES + further + tolerances)
    case = case_of(tier, "vllm-eagle3-tiny-k5-toy-c4")
    assert (case.server.target, case.server.draft) == ("fixtures/target", "fixtures/eagle3")
    assert (case.server.padding_layers, case.server.draft_tokens) == (2, 5)
    assert case.server.engine_args == ("--seed", "7")
    assert case.server.engine_env == (("A", "1"), ("B", "2"))
    assert (case.load.concurrency, case.request.prompts, case.request.output_cap_tokens) == (
        4,
        32,
        64,
    )
    assert case.judging.tolerances == (("tpot_p50_ms", 0.2),)


@pytest.mark.parametrize(
    "line", ['dtype = "bfloat16"', "max_sequences = 16", 'engine_env = { A = "1" }']
)
def test_a_server_that_differs_in_more_is_no_control(tmp_path: Path, line: str) -> None:
    plain = CASES.replace(', "eagle3"', "")
    speculating = CASES.replace('"none", ', "") + f"{line}\n"
    tier = load(tmp_path, MODELS + plain + speculating)
    assert [case.control for case in tier.cases] == [None] * 4


def test_a_run_may_replay_another_number_of_prompts(tmp_path: Path) -> None:
    for case in load(tmp_path, MODELS + CASES).cases:
        fewer = case.replaying(5)
        assert (fewer.request.prompts, fewer.request.matrix_prompts, fewer.id) == (5, 32, case.id)
        assert fewer.replaying(32) == case.replaying(32) == case


def test_each_table_has_the_defaults_that_it_does_not_set_itself(tmp_path: Path) -> None:
    defaults = '[defaults]\ndtype = "float32"\nprompts = 9\n[defaults.tolerances]\npower_w = 0.2\n'
    smaller = CASES.replace("prompts = 32\n", "").replace('"eagle3"', '"draft_model"')
    tier = load(tmp_path, MODELS + defaults + CASES.replace('"none", ', "") + smaller)
    prompts = {case.server.method: case.request.prompts for case in tier.cases}
    assert prompts == {"eagle3": 32, "none": 9, "draft_model": 9}
    assert {case.server.dtype for case in tier.cases} == {"float32"}
    assert {case.judging.tolerances for case in tier.cases} == {(("power_w", 0.2),)}


@pytest.mark.parametrize(
    ("load", "prompts", "rounds"),
    [
        (Load(concurrency=1), 20, 20),
        (Load(concurrency=4), 40, 2),  # four for each place
        (Load(concurrency=16), 40, 1),
        (Load(concurrency=1, duration_s=30.0), 20, 4),
        (Load(arrivals=Arrivals.POISSON, requests_per_s=2.0), 3, 3),
    ],
)
def test_turns_are_as_short_as_their_load_allows(load: Load, prompts: int, rounds: int) -> None:
    assert (
        builders.with_request(dataclasses.replace(builders.CASE, load=load), prompts=prompts).rounds
        == rounds
    )


def test_a_rate_is_a_load_and_limits_are_of_the_case(tmp_path: Path) -> None:
    rates = CASES.replace("concurrency = [1, 4]", 'requests_per_s = [2.5, 10]\narrivals = "gamma"')
    tier = load(tmp_path, f"{MODELS}{rates}ttft_limit_ms = 200\ntpot_limit_ms = 50\n")
    case = case_of(tier, "vllm-eagle3-tiny-toy-gamma2.5")
    assert case.load == Load(arrivals=Arrivals.GAMMA, requests_per_s=2.5)
    assert case.judging.limits == Limits(ttft_ms=200.0, tpot_ms=50.0)
    assert "vllm-none-tiny-toy-gamma10" in {case.id for case in tier.cases}


@pytest.mark.parametrize(
    ("gpus", "shown", "power_s"),
    [(1, "", 30), (0, "", 0), (1, "power_s = 12\n", 12), (0, "power_s = 12\n", 12)],
)
def test_power_has_half_a_minute_of_load_on_a_gpu_by_default(
    tmp_path: Path, gpus: int, shown: str, power_s: float
) -> None:
    models = MODELS.replace("needs_gpus = 0", f"needs_gpus = {gpus}")
    assert {case.judging.power_s for case in load(tmp_path, models + CASES + shown).cases} == {
        power_s
    }


def test_of_several_pairs_a_machine_runs_the_first_that_fits_with_all_its_cases(
    tmp_path: Path,
) -> None:
    sized = "\n".join(
        f'[models.{name}]\ntarget = "fixtures/{name}"\ntarget_gib = {size}\ntoken_kib = 1024'
        for name, size in (("large", 20), ("small", 2))
    )
    cases = with_key("models", '["large", "small"]').replace('"none", "eagle3"', '"none"')
    tier = load(tmp_path, f"{MODELS.replace('= 0', '= 1')}\n{sized}\n{cases}")
    ids = {
        name: [f"vllm-none-{name}-toy-c{load}" for load in (1, 4)] for name in ("large", "small")
    }

    def chosen(*gpus_gib: float) -> list[str]:
        return [case.id for case in tier.chosen(gpus_gib).cases]

    # (20 + 2 + the caches of 1 and 4 requests) / 0.4
    assert [case.memory_gib for case in tier.cases] == [57.5, 65, 12.5, 20]
    assert chosen(65.0) == chosen() == ids["large"]
    assert chosen(64.9) == chosen(20.0) == chosen(8.0) == ids["small"]


def test_a_sweep_makes_a_case_of_each_number_of_drafts_and_one_of_none(tmp_path: Path) -> None:
    tier = load(tmp_path, MODELS + with_key("draft_tokens", "[1, 3, 5, 3]"))
    assert [case.id for case in tier.cases if case.load.concurrency == 1] == [
        *("vllm-none-tiny-toy-c1", "vllm-eagle3-tiny-k1-toy-c1"),
        *("vllm-eagle3-tiny-toy-c1", "vllm-eagle3-tiny-k5-toy-c1"),
    ]
    plain = case_of(tier, "vllm-none-tiny-toy-c1").server
    assert {case.control for case in tier.cases if case.speculates} == {plain}
    assert len({case.server.id for case in tier.cases}) == 4


def test_a_model_is_spread_and_the_draft_of_those_that_have_one(tmp_path: Path) -> None:
    models = MODELS.replace("needs_gpus = 0", "needs_gpus = 2")
    methods = with_key("methods", '["none", "ngram", "eagle3"]')
    spread = f"{methods}parallel = {{ tensor = 2, draft_tensor = 1 }}\n"
    tier = load(tmp_path, models + spread)
    parallels = {case.server.method: case.server.parallel for case in tier.cases}
    everywhere = Parallel(tensor=2, draft_tensor=1)
    assert parallels == {
        "none": everywhere.without_draft,
        "ngram": everywhere.without_draft,
        "eagle3": everywhere,
    }
    assert all(case.control for case in tier.cases if case.speculates)


TREES = MODELS.replace('eagle3 = "', 'eagle3_tree = "') + CASES.replace("vllm", "sglang").replace(
    '"eagle3"', '"eagle3_tree"'
)
TREE = "tree = { branches = 2, drafted_tokens = 6 }\n"


@pytest.mark.parametrize(
    "key", ["prompts = 8", "prompts = 7\nduration_s = 5", "prompts = 7\nspeed = false"]
)
def test_a_round_may_have_as_many_in_flight_as_the_case_says(tmp_path: Path, key: str) -> None:
    assert load(tmp_path, MODELS + CASES.replace("prompts = 32", key).replace("4]", "8]")).cases


def test_an_unknown_tier_is_answered_with_the_files_there_are(tmp_path: Path) -> None:
    (tmp_path / "gpu.toml").touch()
    with pytest.raises(UnknownNameError, match="unknown tier 'gpus'; did you mean 'gpu'"):
        load_tier(tmp_path, "gpus")


def test_a_tree_is_of_the_case_and_not_of_its_control(tmp_path: Path) -> None:
    case = case_of(load(tmp_path, TREES + TREE), "sglang-eagle3_tree-tiny-toy-c1")
    assert case.server.tree == Tree(branches=2, drafted_tokens=6)
    assert (case.server.draft_tokens, case.server.drafted_tokens) == (3, 6)
    assert case.control is not None
    assert (case.control.tree, case.control.drafted_tokens) == (None, 0)


def test_a_pinned_acceptance_is_of_the_case_and_not_of_its_control(tmp_path: Path) -> None:
    for engine, needs_gpus in (("vllm", 1), ("sglang", 0), ("tensorrt_llm", 1)):
        models = MODELS.replace("needs_gpus = 0", f"needs_gpus = {needs_gpus}")
        text = models + with_key("engine", f'"{engine}"') + f"{PINNED}2.5"
        case = case_of(load(tmp_path, text), f"{engine}-eagle3-tiny-al2.5-toy-c4")
        assert case.server.pinned_length_tokens == 2.5
        assert case.control is not None
        assert case.control.pinned_length_tokens is None


def said(folder: Path, text: str) -> str:
    """What loading the tier of a text says, from the file's name on."""
    with pytest.raises(SpecregError) as error:
        load(folder, text)
    assert str(error.value).startswith(f"tier file '{folder / 'cpu.toml'}'")
    return str(error.value).removeprefix(f"tier file '{folder / 'cpu.toml'}'")


PINNED = 'acceptance = "pinned"\npinned_length_tokens = '
UNPINNED = 'acceptance = "pinned" of method'
RATE = "concurrency = []\nrequests_per_s = [2.5]"
CASE = ", [[cases]] no. 1: "
PAIR = ", [models.tiny]: "


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ('engine = "vlm"', "unknown engine 'vlm'; did you mean 'vllm'?"),
        ('methods = ["eagel3"]', "unknown method 'eagel3'; did you mean 'eagle3'?"),
        ('history_reply = "strip"', "unknown history_reply 'strip'; did you mean 'stripped'?"),
        ('dataset = "tay"', "unknown dataset 'tay'; did you mean 'toy'?"),
        ('models = ["tiny", "tony"]', "unknown model pair 'tony'; did you mean 'tiny'?"),
        ('models = "bare"', "unknown draft in [models.bare] for method 'eagle3'; known: none"),
        ("promts = 8", "unknown key 'promts'; did you mean 'prompts'? known: "),
        ("parallel = { tensr = 2 }", "Object contains unknown field `tensr` - at `parallel`"),
        ("parallel = { data = 2, nodes = 2 }", "parallel.nodes = 2 with data = 2"),
        ('client_processes = "4"', "Expected `int`, got `str` - at `client_processes`; correct"),
        ("draft_tokens = [3, 129]", "Expected `int` <= 128 - at `draft_tokens[1]`; correct it"),
        ("parallel = { tensor = 0 }", "Expected `int` >= 1 - at `parallel.tensor`; correct"),
        ("tolerances = { speedup_ratio = -1 }", "Expected `float` > 0.0 - at `tolerances[...]`"),
        ('arrivals = "poison"', "Invalid enum value 'poison' - at `arrivals`; correct it"),
        ("prompts = 3", "prompts = 3 with concurrency = 4; needed one for each request in flight"),
        ("max_sequences = 3", "concurrency = 4 with max_sequences = 3: the server must"),
        ("concurrency = []", "concurrency = [], requests_per_s = []; give either"),
        ("requests_per_s = [2.5]", "concurrency = [1, 4], requests_per_s = [2.5]; give either"),
        (
            'arrivals = "poisson"',
            'concurrency = [1, 4], requests_per_s = [], arrivals = "poisson";',
        ),
        (
            f'{RATE}\narrivals = "closed"',
            'concurrency = [], requests_per_s = [2.5], arrivals = "closed"; give',
        ),
        (
            f"{RATE}\nburstiness = 0.5",
            'burstiness works only with gamma arrivals; set arrivals = "gamma"',
        ),
        ('acceptance = "pinned"', 'acceptance = "pinned" without pinned_length_tokens; give'),
        ("pinned_length_tokens = 2.5", 'acceptance = "real", pinned_length_tokens = 2.5; give'),
        (f"{PINNED}2.5", f"{UNPINNED} 'eagle3': engine 'vllm' can't pin it without a GPU;"),
        (f'methods = ["scheduled"]\n{PINNED}4.5', f"{UNPINNED} 'scheduled': pinned_length"),
        ('methods = ["scheduled"]', f"{UNPINNED} 'scheduled': no pinned_length_tokens with"),
        (f'methods = ["scheduled"]\n{PINNED}2.5', f"{UNPINNED} 'scheduled': it works only"),
        (TREE, "method 'eagle3' with tree = { branches = 2, drafted_tokens = 6 }; needed tree = {"),
    ],
)
def test_what_is_wrong_with_a_case_is_said_with_its_table(
    tmp_path: Path, lines: str, words: str
) -> None:
    keys = tuple(line.partition("=")[0] + "=" for line in lines.splitlines())
    lines_kept = [line for line in CASES.splitlines() if not line.startswith(keys)]
    text = MODELS + "\n".join((*lines_kept, lines))
    assert said(tmp_path, text).startswith(CASE + words)


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ("", "method 'eagle3_tree' with no tree; needed tree = { branches = 2, drafted_tokens = 6"),
        ("tree = { branches = 2 }", "Object missing required field `drafted_tokens` - at `tree`"),
        ("tree = { branches = 1, drafted_tokens = 3 }", "Expected `int` >= 2 - at `tree.branches`"),
        (TREE.replace("6", "2"), "tree.drafted_tokens = 2 with draft_tokens = 3 and tree.branches"),
        (TREE.replace("6", "11"), "tree.drafted_tokens = 11 with draft_tokens = 3 and tree.branch"),
    ],
)
def test_a_tree_that_cannot_be_is_named(tmp_path: Path, tree: str, words: str) -> None:
    assert said(tmp_path, TREES + tree).startswith(CASE + words)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("target =", "targets =", f"{PAIR}unknown key 'targets'; did you"),
        ("padding_layers = 2", "target_gib = 0", f"{PAIR}Expected `float` > 0.0 - at `target_gib`"),
        ("padding_layers = 2", "drafts_gib = { eagle = 1 }", f"{PAIR}unknown draft 'eagle'; did"),
        ("eagle3 =", "eagel3 =", f"{PAIR}unknown method that takes a draft 'eagel3'; did you mean"),
        ("padding_layers = 2", 'padding_layers = 2\nwiden = "30m"', f"{PAIR}padding_layers with"),
        ("needs_gpus", "need_gpus", ": unknown key 'need_gpus'; did you mean 'needs_gpus'"),
        ("needs_gpus = 0", "", ": Object missing required field `needs_gpus`; correct it"),
        (CASES, "", ": Object missing required field `cases`; correct it"),
        (CASES, "[cases]", ": Expected `array`, got `object` - at `cases`; correct it"),
        (MODELS + CASES, "models = 3\ncases = []", ": Expected `object`, got `int` - at `models`"),
        (MODELS + CASES, "needs_gpus = 0\ncases = [3]", f"{CASE}Expected `object`, got `int`"),
        (CASES, "[[cases]", ": can't be read, Expected ']]' at the end of an array declaration"),
        (
            CASES,
            CASES + CASES,
            ", [[cases]] no. 2: two cases have the id 'vllm-none-tiny-toy-c1', ",
        ),
        (CASES, "[defaults]\npromts = 9" + CASES, f"{CASE}unknown key 'promts'; did you mean"),
        (CASES, f"{CASES}speculation = {{ x = nan }}", ": $.cases[0].speculation.x is nan, needed"),
        (
            CASES,
            f"{CASES}[cases.chat_template_args]\nx = [-inf]",
            ": $.cases[0].chat_template_args",
        ),
        ("[models.tiny]", '[models."a\\u001b\\n::b"]', ", [models.a\ufffd : :b]: model pair 'a"),
    ],
)
def test_any_other_table_is_named_too(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert said(tmp_path, (MODELS + CASES).replace(old, new, 1)).startswith(words)


def test_cases_that_pytest_takes_for_the_same_are_refused(tmp_path: Path) -> None:
    capital = '[models.Tiny]\ntarget = "a/b"\ndrafts = { eagle3 = "a/c" }\n'
    text = MODELS + capital + CASES + CASES.replace('"tiny"', '"Tiny"')
    words = said(tmp_path, text)
    assert "'vllm-none-Tiny-toy-c1' differs from 'vllm-none-tiny-toy-c1' only in capital" in words


@pytest.mark.parametrize("names", [("tiny", "tiny-toy-c1"), ("tiny", "x-vllm-none-tiny-toy-c1")])
def test_a_case_that_cannot_be_selected_alone_is_refused(
    tmp_path: Path, names: tuple[str, str]
) -> None:
    """`-k ID-` would run both, and pytest-xdist would send both to one worker."""
    short, long = names
    pair = f'[models.{long}]\ntarget = "a/b"\ndrafts = {{ eagle3 = "a/c" }}\n'
    tables = [CASES.replace('"tiny"', f'"{name}"') for name in names]
    for text in (tables, tables[::-1]):
        words = said(tmp_path, MODELS + pair + "".join(text))
        assert f"'vllm-none-{long}-toy-c1' has the id of case 'vllm-none-{short}-toy-c1'" in words


@pytest.mark.parametrize(
    "line",
    [
        "command = 'vllm serve some/model --api-key {}'",
        "command = 'HF_TOKEN={} docker run'",
        'engine_args = ["--api-key", "{0}"]\nengine = "unknown {0}"',
        'engine_env = {{ HF_TOKEN = "{0}" }}\ndataset = "unknown {0}"',
        'chat_template_args = {{ a = [{{ api_key = "{0}" }}] }}\nvariant = "no {0}"',
    ],
)
def test_no_error_of_a_tier_quotes_a_secret_of_it(tmp_path: Path, line: str) -> None:
    planted = f"planted-{uuid.uuid4().hex}"
    with pytest.raises(SpecregError) as refused:
        load(tmp_path, MODELS + "[[cases]]\n" + line.format(planted) + "\n")
    assert planted not in str(refused.value)


@pytest.mark.parametrize(
    ("pairs", "words"),
    [
        ("[models.big]\ntoken_kb = 3", ", [models.big]: unknown key 'token_kb'; did you mean 't"),
        ("needs_gpus = 0\n[models]", ": unknown key 'needs_gpus'; known: models"),
        ("models = 3", ": Expected `object`, got `int` - at `models`"),
    ],
)
def test_what_is_wrong_with_the_shared_pairs_is_said_with_their_file(
    tmp_path: Path, pairs: str, words: str
) -> None:
    shared = tmp_path / "models" / "pairs.toml"
    for folder in (shared.parent, tmp_path / "matrix"):
        folder.mkdir()
    shared.write_text(pairs)
    with pytest.raises(SpecregError) as error:
        load(tmp_path / "matrix", MODELS + CASES)
    assert str(error.value).startswith(f"tier file '{shared}'{words}")


def test_further_keys_of_a_speculation_are_part_of_the_server_that_speculates(
    tmp_path: Path,
) -> None:
    further = (
        'speculation = { rejection_sample_method = "block", schedule = [[1, 4, 3], [5, 8, 0]] }\n'
        'variant = "block"\n'
    )
    tier = load(tmp_path, MODELS + CASES + further)
    case = case_of(tier, "vllm-eagle3-tiny-block-toy-c4")
    assert case.server.speculation == (
        ("rejection_sample_method", "block"),
        ("schedule", ((1, 4, 3), (5, 8, 0))),
    )
    assert case.control == case_of(tier, "vllm-none-tiny-toy-c4").server
    assert case.control is not None
    assert case.control.speculation == ()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("top_p = 0.9", "top_p = 0.9 with temperature = 0"),
        ("top_k = 20", "top_k = 20 with temperature = 0"),
        ("top_p = 0.0\ntemperature = 1.0", "Expected `float` > 0.0"),
        (
            'thinking = true\nform = "completions"',
            'thinking = true with form = "completions", which has no',
        ),
        (
            "thinking = true\nchat_template_args = { enable_thinking = false }",
            "thinking with chat_template_args.enable_thinking, which sets the same",
        ),
        ("speculation = { a = { b = 1 } }", "speculation"),
        ('variant = "no/name"', "variant 'no/name': is no name"),
        ('variant = "launch2"', "variant 'launch2': it ends like the name"),
    ],
)
def test_settings_that_exclude_each_other_or_say_nothing_are_refused(
    tmp_path: Path, lines: str, words: str
) -> None:
    with pytest.raises(SpecregError) as refused:
        load(tmp_path, MODELS + CASES + lines + "\n")
    assert words in str(refused.value)


@pytest.mark.parametrize("thinking", [True, False])
def test_a_thought_is_switched_by_all_names_that_templates_have_for_it(
    tmp_path: Path, *, thinking: bool
) -> None:
    lines = f'thinking = {str(thinking).lower()}\nchat_template_args = {{ tone = "dry" }}\n'
    case = load(tmp_path, MODELS + CASES + lines).cases[0]
    assert dict(case.request.template_args) == {
        "tone": "dry",
        "enable_thinking": thinking,
        "thinking": thinking,
    }
    assert case.request.chat_template_args == (("tone", "dry"),)
