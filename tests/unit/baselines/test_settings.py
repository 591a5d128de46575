"""The schema of a case: each of its fields is compared, or is said not to be, and arrives."""

import dataclasses
import enum
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.baselines.comparison import differing_settings
from specreg.baselines.store import settings_of
from specreg.engines.methods import Tree
from specreg.engines.server_spec import Parallel, Sizes
from specreg.matrix.case import Case, CaseSettings, Judging, Limits, Load
from specreg.matrix.tables import CASE_PARTS, case_keys
from specreg.matrix.tier import load_tier
from tests.unit import builders

NOT_COMPARED = {
    "models": "a pair's name; its target is compared by its files",
    "draft": "one compares drafts",
    "target_revision": "what was fetched is recorded with each launch, and named if it differs",
    "draft_revision": "so is this",
    "padding_layers": "the padded target's files are compared",
    "widen": "the widened target's files are compared",
    "variant": "it is part of the case's id, and so of its baseline's name",
    "sizes": "what a pair says of its memory changes no measurement",
    "gpu_memory_frac": "which share of a GPU is enough differs by GPU",
    "model_runner": "one that is named is part of the case's id, and so of the baseline's name",
    "image": "an image is upgraded like the engine's version, and named if its digest differs",
    "server": "its fields are compared one by one",
    "control": "its own baseline is compared",
    "load": "its fields are compared one by one",
    "request": "so are its fields",
    "judging": "its fields say how a case is measured and judged",
    "dataset": "a set's name; its prompts are compared",
    "matrix_prompts": "it is what `prompts` is compared by",
    "request_timeout_s": "a request that takes so long failed, and failures are reported",
    "client_processes": "a client that can't keep up shows by its lags",
    "speed": "it says what is judged",
    "power_s": "power is a mean, whatever the time",
    "least_s": "so is a speed",
    "rounding_nats": "it says what is judged",
    "tolerances": "they say what is judged",
    "shown": "they say what is judged",
}
"""By field of a case or its server, why a baseline isn't compared by it."""
OTHERS = {
    "parallel": Parallel(tensor=2),
    "tree": Tree(branches=2, drafted_tokens=6),
    "model_runner": "v1",
    "image": "team/engine:1",
    "limits": Limits(tpot_ms=20.0),
    "sizes": Sizes(target_gib=1.0, draft_gib=0.0, token_kib=0.0),
    "widen": "1b",
    "thinking": False,
    "top_p": 0.9,
    "top_k": 20,
    "control": builders.PLAIN_SPEC,
    "server": dataclasses.replace(builders.SPEC, dtype="other"),
    "load": Load(concurrency=3),
    "request": dataclasses.replace(builders.CASE.request, temperature=0.5),
    "judging": Judging(limits=Limits(tpot_ms=20.0)),
    "tolerances": (("tpot_p50_ms", 0.2),),
    "shown": ("tpot_p50_ms",),
    "matrix_prompts": 9,
    "prompts": 5,
}
"""Other values of the fields whose types don't say one."""
KINDS: tuple[type[Any], ...] = (Case, *CASE_PARTS.values())
PART_NAMES = {kind: name for name, kind in CASE_PARTS.items()}
FIELDS = [(kind, field.name) for kind in KINDS for field in dataclasses.fields(kind)]
COMPARED = {field.name for field in dataclasses.fields(CaseSettings)}
BY_PARTS = {"server", "load", "request", "judging", "target", "prompts", "matrix_prompts"}
"""Compared by something that is made of them."""


def other(name: str, value: object) -> object:
    if name in OTHERS:
        return OTHERS[name]
    match value:
        case bool():
            return not value
        case enum.Enum():
            return next(member for member in type(value) if member is not value)
        case int() | float():
            return value + 1
        case str():
            return f"{value}-other"
        case tuple():
            return (*value, ("a", "b"))
    return 7


def changed(kind: type, name: str) -> Case:
    """The usual case with another value in a field of it, or of one of its parts."""
    case = builders.CASE
    if kind is Case:
        changed_case: Case = dataclasses.replace(case, **{name: OTHERS[name]})  # type: ignore[arg-type]
        return changed_case
    part = getattr(case, PART_NAMES[kind])
    value = ("--other",) if name == "engine_args" else other(name, getattr(part, name))
    return dataclasses.replace(
        case, **{PART_NAMES[kind]: dataclasses.replace(part, **{name: value})}
    )


@pytest.mark.parametrize(
    ("kind", "name"), FIELDS, ids=lambda field: getattr(field, "__name__", field)
)
def test_each_field_of_a_case_is_compared_or_says_why_not(kind: type, name: str) -> None:
    usual = settings_of(builders.CASE, "some/target", builders.PROMPTS)
    case = changed(kind, name)
    differing = differing_settings(usual, settings_of(case, case.server.target, builders.PROMPTS))
    assert (name in COMPARED) != (name in NOT_COMPARED)
    assert bool(differing) == (name in COMPARED or name in BY_PARTS)
    if name in COMPARED:
        assert f"{name}: " in differing


@pytest.mark.parametrize(
    ("kind", "name"), FIELDS, ids=lambda field: getattr(field, "__name__", field)
)
def test_each_field_is_part_of_the_key_of_a_measurement(kind: type, name: str) -> None:
    assert changed(kind, name).key != builders.CASE.key
    assert msgspec.json.decode(builders.CASE.key, type=Case).server == builders.CASE.server


SHARED = case_keys().keys() & {name for _, name in FIELDS} - {"engine", "models"}
WRITTEN = {
    "parallel": "{ tensor = 2 }",
    "tree": "{ branches = 2, drafted_tokens = 6 }",
    "pinned_length_tokens": '2.5\nacceptance = "pinned"',
    "engine_args": '["--other"]',
    "history_reply": '"stripped"',
    "model_runner": '"v1"',
    "image": '"team/engine:1"',
    "form": '"completions"',
    "prompts": "9",
    "burstiness": "2.0",
    "top_p": "0.9\ntemperature = 0.5",
    "top_k": "20\ntemperature = 0.5",
    "thinking": "false",
    "variant": '"tuned"',
    "gpu_memory_frac": "0.3",
    "dataset": '"random-64"',
    **dict.fromkeys(("engine_env", "chat_template_args", "speculation"), '{ A = "b" }'),
    "tolerances": "{ tpot_p50_ms = 0.2 }",
    "shown": '["tpot_p50_ms"]',
}
"""As a file has them, where the type doesn't say it."""


DEFAULTS = {
    field.name: field.default
    for kind in CASE_PARTS.values()
    for field in dataclasses.fields(kind)
    if field.default is not dataclasses.MISSING
}


@pytest.mark.parametrize(
    "name", sorted(SHARED - {"draft_tokens", "concurrency", "requests_per_s", "arrivals"})
)
def test_each_key_of_a_table_arrives_in_the_case(name: str, tmp_path: Path) -> None:
    # SGLang has trees, and pins acceptance without a GPU. vLLM has model runners, and any key of
    # speculation.
    table = {
        "engine": '"vllm"' if name in {"model_runner", "speculation"} else '"sglang"',
        "methods": '["eagle3_tree"]' if name == "tree" else '["eagle3"]',
        "models": '"pair"',
        "dataset": '"toy"',
        "prompts": "8",
        "output_cap_tokens": "8",
        "requests_per_s": "[2.0]",
        "arrivals": '"gamma"',
    }
    default = DEFAULTS.get(name)
    written = WRITTEN.get(name) or str(other(name, default)).lower()
    table[name] = f'"{written}"' if isinstance(default, str) and name not in WRITTEN else written
    folder = tmp_path / "matrix"
    folder.mkdir()
    (folder / "here.toml").write_text(
        'needs_gpus = 0\n[models.pair]\ntarget = "a/b"\n'
        'drafts = { eagle3 = "a/c", eagle3_tree = "a/c" }\n[[cases]]\n'
        + "\n".join(f"{key} = {value}" for key, value in table.items())
    )
    (case,) = load_tier(folder, "here").cases
    (part,) = (part for part, kind in CASE_PARTS.items() if name in typing.get_type_hints(kind))
    assert getattr(getattr(case, part), name) != default


def test_each_part_of_a_case_has_keys_of_its_own() -> None:
    names = [field.name for kind in CASE_PARTS.values() for field in dataclasses.fields(kind)]
    assert len(names) == len(set(names))
