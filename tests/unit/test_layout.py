"""The rules of the house that can be read off the source: direction, units, fixtures, rows."""

import ast
import dataclasses
import importlib
import inspect
import itertools
import types
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import msgspec
import pytest

from specreg.engines.methods import METHODS, Method
from specreg.engines.registry import ENGINES, Engine
from tests.unit import builders

LIBRARY = builders.ROOT / "specreg"
FIXTURES = builders.ROOT / "fixtures"

UNITS = (
    *("_ns", "_ms", "_s", "_tokens", "_bytes", "_w", "_mw", "_mj", "_mhz", "_c", "_frac"),
    *("_requests", "_nats", "_gib", "_kib", "_min", "_uj", "_j", "_j_per_token"),
    "_j_per_accepted_token",
)
PLAIN = {
    # Plurals: they count the noun.
    "tokens": "tokens",
    "steps": "verify steps, S",
    "accepted": "draft tokens that were accepted, A; the field's letter in DEFINITIONS.md",
    "drafted": "draft tokens of a step",
    "proposed": "draft tokens, D; the field's letter in DEFINITIONS.md",
    "position_counts": "steps by position",
    "acceptance_histogram": "steps by accepted drafts; vLLM's own name",
    "prompts": "prompts",
    "num_prompts": "prompts; as other tools call it",
    "matrix_prompts": "prompts",
    "rounds": "rounds",
    "launches": "launches; in a baseline a mapping whose keys say their unit",
    "cores": "processor cores",
    "waiting": "processes and threads that want to run, on average",
    "slowed": "speedups",
    "padding_layers": "layers",
    "length": "rows or columns",
    "reached": "rows or columns",
    "hidden_size": "dimensions; this and the next as config.json has them",
    "intermediate_size": "dimensions",
    "num_attention_heads": "heads",
    "num_key_value_heads": "heads",
    "num_hidden_layers": "layers",
    "max_sequences": "sequences",
    "needs_gpus": "GPUs",
    "most_workers": "processes",
    "gpus": "GPUs",
    "extra_prompts": "prompts",
    "branches": "branches of a tree",
    "tensor": "GPUs",
    "data": "copies of a model",
    "pipeline": "stages",
    "nodes": "machines",
    "inode": "a name",
    "draft_tensor": "GPUs",
    "requests": "requests",
    "turns": "turns of a conversation",
    "client_processes": "processes",
    "histogram": "steps by accepted drafts",
    "spec_correct_drafts_histogram": "the same; SGLang's own name",
    "spec_num_proposed_drafts": "draft tokens, D; SGLang's own name",
    "spec_num_correct_drafts": "accepted draft tokens, A; SGLang's own name",
    "spec_accept_histogram": "steps by accepted drafts; SGLang's older name",
    "spec_proposed_drafts": "draft tokens, D; SGLang's older name",
    "spec_accepted_drafts": "accepted draft tokens, A; SGLang's older name",
    "spec_draft_token_num": "draft tokens, D; SGLang's oldest name",
    "spec_accept_token_num": "accepted draft tokens, A; SGLang's oldest name",
    "chunk_sizes": "chunks by the tokens they carried",
    "counts": "durations by bucket",
    "count": "values",
    "concurrency": "requests in flight; the field's word",
    "outcomes": "verdicts by outcome",
    "changes": "relative, by metric",
    "runs": "runs of the suite",
    "parts": "parts of the prompts",
    "freedom": "degrees of freedom",
    "throttle_mask": "bits",
    "pids": "identifiers of processes",
    "counter_ratio": "times what power says",
    "energy_ratio": "times the case's",
    "tokens_per_kwh": "tokens per kilowatt-hour",
    "p_worse": "a probability",
    "rows": "rows of a file",
    "_verdict_rows": "places among the verdicts",
    "left_out_rows": "rows of a file",
    "left_out": "rows of a file",
    "asked": "prompts",
    "categories": "categories; in a record prompts by category",
    # No quantities.
    "token_ids": "identifiers",
    "next_id": "an identifier",
    "prompt_token_ids": "identifiers; vLLM's own name",
    "output_ids": "identifiers; SGLang's own name",
    "ids": "identifiers of tokens",
    "prompt": "the same, of a prompt",
    "output": "the same, of an answer",
    "answers": "the same, of several",
    "plain": "an identifier of a token",
    "other": "an identifier of a token",
    "top_logprobs": "nats; vLLM's own name",
    "output_token_ids_logprobs": "nats; SGLang's own name",
    "shape": "of a tensor",
    "port": "a TCP port",
    "number": "an ordinal",
    "position": "an ordinal",
    "turn": "an ordinal",
    "launch": "an ordinal",
    "row": "an ordinal",
    "device": "an ordinal, of a device among those that are sampled",
    "exit_status": "a status of a process",
    "status": "of an answer, HTTP's",
    "characters": "characters",
    "round": "an ordinal",
    "place": "an ordinal",
    "of": "processes that share a round",
    "seed": "of random numbers",
    "block": "an ordinal",
    "blocks": "blocks of ABBA",
    "figures": "figures that a gate judges",
    "needed_launches": "launches",
    "needed_prompts": "prompts",
    "minutes": "minutes",
    "schema_version": "an ordinal",
    # Without a unit, or with that of the metric beside them.
    "logprobs": "natural logarithms of probabilities; in a request how many, OpenAI's own name",
    "top": "log-probabilities",
    "temperature": "a parameter of sampling",
    "origin": "in the unit of its metric",
    "value": "in the unit of its metric",
    "expected": "in the unit of its metric",
    "a": "in the unit of its quantity",
    "b": "the same",
    "first": "in the unit of its figure",
    "last": "the same",
    "scale": "times",
    "sign": "1 or -1",
    "ratio": "times the throughput without speculation",
    "low_ratio": "the same",
    "high_ratio": "the same",
    "mean": "in the unit of what it summarizes, as all of Summary",
    **dict.fromkeys(("min", "max", "stdev", "p50", "p75", "p90", "p95", "p99"), "as the mean"),
    "throughput_ratio": "times the control's",
    "tpot_ratio": "times the case's",
    "tpot_ratio_by_category": "the same",
    "judged": "by the metric's name, which says it",
    "tokens_per_step": "tokens per step",
    "tokens_per_chunk": "tokens per chunk",
    "burstiness": "a shape without a unit",
    "total_ns2": "nanoseconds squared",
    "values": "by the metric's name, which says it",
    "tolerances": "relative, by the metric's name",
    # A unit that STYLE.md doesn't list: rounded to name an environment, never reckoned with.
    "gpu_memory_gb": "gigabytes",
}

ENGINE_FILES = tuple((LIBRARY / "engines" / f"{name}.py") for name in ENGINES)
MODULES = tuple(sorted(LIBRARY.rglob("*.py")))
IN_ENGINE = LIBRARY / "engines/pytorch"
"""Runs in an engine's environment, in a process of its own, as any engine does."""


def dotted(path: Path) -> str:
    """A module's name within specreg; empty for specreg itself."""
    parts = path.relative_to(LIBRARY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> Iterator[str]:
    """The names of the modules that a module imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            submodules = [f"specreg.{alias.name}" for alias in node.names]
            yield from submodules if node.module == "specreg" else [node.module or ""]


def is_number(annotation: object) -> bool:
    """Whether a field holds numbers: alone, or absent, in a row or as the values of a mapping."""
    if annotation in {int, float}:
        return True
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in {dict, Mapping}:
        return is_number(inner[1])
    if origin in {typing.Union, types.UnionType}:
        return all(is_number(one) for one in inner if one is not type(None))
    if origin is tuple and str in inner:  # pairs of a name and a number
        return any(is_number(one) for one in inner)
    return origin in {tuple, list} and any(is_number(one) for one in inner)


def needs_torch(path: Path) -> bool:
    """Whether a module can be imported in an engine's environment alone."""
    names = set(imported(path))
    modules = {path: f"specreg.{dotted(path)}" for path in IN_ENGINE.glob("*.py")}
    return bool(names & {"torch", "transformers"}) or any(
        needs_torch(other) for other, name in modules.items() if name in names
    )


def numbers() -> Iterator[tuple[str, str]]:
    """The fields that hold numbers, each with its class."""
    for path in MODULES:
        if needs_torch(path):
            continue  # it isn't here
        module = importlib.import_module(".".join(filter(None, ("specreg", dotted(path)))))
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if kind.__module__ != module.__name__:
                continue
            if dataclasses.is_dataclass(kind) or issubclass(kind, msgspec.Struct):
                hints = typing.get_type_hints(kind, localns={"httpx": httpx})
                yield from (
                    (f"{module.__name__}.{name}", field)
                    for field, annotation in hints.items()
                    if is_number(annotation)
                )


def test_a_number_says_its_unit() -> None:
    silent = [
        f"{kind}.{field}"
        for kind, field in numbers()
        if not field.endswith(UNITS) and field not in PLAIN
    ]
    assert silent == []


def test_the_exceptions_to_units_are_all_in_use() -> None:
    used = {field for _, field in numbers()}
    assert set(PLAIN) - used == set()


@pytest.mark.parametrize(
    ("annotation", "number"),
    [
        (int, True),
        (float | None, True),
        (tuple[int, ...], True),
        (Mapping[str, float], True),
        (tuple[dict[str, float], ...], True),
        (tuple[tuple[str, float], ...], True),
        (bool, False),
        (str | int | float, False),
        (Mapping[int, str], False),
    ],
    ids=str,
)
def test_a_number_is_known_when_it_is_seen(annotation: object, number: bool) -> None:  # noqa: FBT001 - a column
    assert is_number(annotation) == number


def fixture_functions() -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The functions in the fixtures' modules that are decorated as such."""
    for path in sorted(FIXTURES.glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
                "fixture" in ast.unparse(decorator) for decorator in node.decorator_list
            ):
                yield node


@pytest.mark.parametrize("function", tuple(fixture_functions()), ids=lambda function: function.name)
def test_a_fixture_acquires_yields_and_releases(
    function: ast.FunctionDef | ast.AsyncFunctionDef,
) -> None:
    inside = [node for statement in function.body for node in ast.walk(statement)]
    statements = [node for node in inside if isinstance(node, ast.stmt)]
    loops = ast.For | ast.AsyncFor | ast.While | ast.comprehension
    assert len(statements) - bool(ast.get_docstring(function)) <= 8
    assert not [node for node in inside if isinstance(node, loops)]
    assert sum(isinstance(node, ast.Yield) for node in inside) <= 2


def test_modules_of_fixtures_hold_nothing_but_fixtures() -> None:
    allowed = ast.Import | ast.ImportFrom | ast.Expr
    known = {function.name for function in fixture_functions()}
    for path in sorted(FIXTURES.glob("*.py")):
        rest = [node for node in ast.parse(path.read_text()).body if not isinstance(node, allowed)]
        assert [getattr(node, "name", ast.unparse(node)) for node in rest] == [
            name for node in rest if (name := getattr(node, "name", "")) in known
        ]
    assert known


@pytest.mark.parametrize(
    ("method", "engine"),
    [
        pytest.param(method, engine, id=f"{method.name}-{engine.name}")
        for method in METHODS.values()
        for engine in ENGINES.values()
        if engine.spelling in method.spelling
    ],
)
def test_each_method_renders_for_each_engine_that_has_it(method: Method, engine: Engine) -> None:
    options = dataclasses.replace(
        builders.LAUNCH_OPTIONS,
        engine_args=(),
        speculation=method.settings(engine.spelling, "/models/draft", 776),
    )
    files = engine.files(options)
    words = " ".join((*engine.command(Path("python"), options), *files.values()))
    assert ("/models/draft" in words) == method.needs_draft
    # As drafted, or with the token that they continue.
    assert ("776" in words or "777" in words) == (method.name != "none")
    assert "{" + "draft" not in words
    assert "{" + "verified" not in words


def test_no_engine_names_a_method() -> None:
    """Which engine supports what is data of the methods' rows."""
    names = set(METHODS) - {"none"}
    for path, name in itertools.product(ENGINE_FILES, names):
        assert f'"{name}"' not in path.read_text(), path


WRITING = {"write_text", "write_bytes"}
WRITERS = {
    "many.desk": "an order, with the secrets that its server needs; gone when its job is",
    "core.files": "the place for it",
    "servers.environments": "what uv reads, in a folder that isn't there before its mark",
    "matrix.models": "into a folder that gets its name once all is there",
    "matrix.widening": "the same",
    "core.processes": "a log begins empty",
    "servers.start": "what an engine reads, in a folder that goes with it",
}


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_files_are_written_in_one_place(path: Path) -> None:
    calls = [
        node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
    ]
    writes = {call.attr for call in calls if isinstance(call, ast.Attribute)} & WRITING
    assert not writes or dotted(path) in WRITERS, "see specreg.core.files"
