"""Write the pages of docs/reference that the code knows: `nox -s write_reference`.

The pages are committed, and tests/unit/test_docs.py fails where one of them isn't current. Nobody
edits them by hand: what they say stands beside the code that it is about.
"""

import ast
import dataclasses
import enum
import inspect
import re
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import typer

from specreg.baselines.schema import (
    Baseline,
    Detectable,
    Noise,
    Provenance,
    RecordedDevice,
    StoredAcceptance,
    StoredPrompt,
)
from specreg.cli import app
from specreg.core import catalogue
from specreg.core.catalogue import Entry
from specreg.core.errors import UnsupportedError
from specreg.core.families import ALL, Family
from specreg.correctness.checks import LOSSLESS, ORACLE, SAMPLING
from specreg.datasets.table import SETS, PromptSet, dataset_named
from specreg.engines.engine import Engine
from specreg.engines.methods import METHODS, Method, Tree
from specreg.engines.registry import ENGINES, methods_by_engine
from specreg.engines.server_spec import Parallel
from specreg.matrix.case import CaseSettings
from specreg.matrix.tables import CASE_PARTS, NO_KEYS, CasesTable, ModelsTable, TierFile
from specreg.matrix.tier import load_tier, tier_names
from specreg.measurement.metrics import GATE_METRICS, METRICS, Metric
from specreg.report.tables import axis_of
from specreg.suite.options import Options, flag_of
from specreg.telemetry.identity import Environment
from specreg.verdicts.status import exit_status
from specreg.verdicts.verdict import SKIPPED, Outcome, Verdict

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs/reference"
MATRIX = ROOT / "fixtures/matrix"
NONSENSE = 10**9
"""The least of the numbers that nobody would write in a file."""
_HEAD = "<!-- Made from the code by `nox -s write_reference`. Edit the code, not this page. -->"
_NOTHING = "–"
_NO_DEFAULT = object()


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell or _NOTHING for cell in line)} |" for line in lines)


def code(text: object) -> str:
    """Return a text as code of Markdown, in which a bar doesn't end a table's cell."""
    return f"`{text}`".replace("|", "\\|")


def sentence(text: str) -> str:
    """Return a description as one sentence in one line."""
    line = " ".join(text.split()).replace("|", "\\|")
    return f"{line[:1].upper()}{line[1:]}".removesuffix(".") + "."


def percent(share_frac: float | None) -> str:
    """Return a share as `5 %`; empty without one."""
    return "" if share_frac is None else f"{100 * share_frac:.3g} %"


def descriptions_of(kind: type[object]) -> dict[str, str]:
    """Return by field what the `Attributes:` of a class and of its bases say."""
    descriptions: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        _, _, section = text.partition("Attributes:\n")
        section, *_ = re.split(r"\n(?=\S)", section)
        for entry in re.split(r"\n(?=\S)", textwrap.dedent(section).strip()):
            name, colon, description = entry.partition(": ")
            if colon:
                descriptions[name] = description
    return descriptions


def members_of(kind: type[enum.Enum]) -> dict[str, str]:
    """Return by member of an enumeration the docstring below it."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(definition, ast.ClassDef)  # noqa: S101 - a class's source is one
    members = {}
    for statement, below in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(statement, ast.Assign) and isinstance(below, ast.Expr):
            members[ast.unparse(statement.targets[0])] = str(ast.literal_eval(below.value))
    return members


_ANYTHING = (object, Any)


def type_of(hint: Any) -> str:  # noqa: ANN401 - it describes any type
    """Return a type in a few words: `integer ≥ 1`, `list of text`."""
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is typing.Annotated:
        limits = next(
            (argument for argument in arguments[1:] if isinstance(argument, msgspec.Meta)), None
        )
        signs = (("≥", "ge"), (">", "gt"), ("≤", "le"), ("<", "lt"))
        values = [(sign, getattr(limits, name)) for sign, name in signs]
        # A bound that is only there against nonsense tells a reader nothing.
        known_limits = [
            (sign, value) for sign, value in values if value is not None and value < NONSENSE
        ]
        bounds = [f"{sign} {value}" for sign, value in known_limits]
        return " ".join([type_of(arguments[0]), " and ".join(bounds)]).strip()
    if origin in {typing.Union, types.UnionType}:
        kinds = [type_of(argument) for argument in arguments if argument is not types.NoneType]
        return " or ".join(dict.fromkeys(kinds))
    if origin is typing.Literal:
        return " or ".join(f'"{argument}"' for argument in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"[{', '.join(map(type_of, arguments))}]"
    if origin in {list, tuple}:
        return "list" if arguments[0] in _ANYTHING else f"list of {type_of(arguments[0])}"
    if origin is dict:
        return "table" if arguments[1] in _ANYTHING else f"table of {type_of(arguments[1])}"
    if hint in _ANYTHING:
        return "any value"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "list" if hint.__struct_config__.array_like else "table"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " or ".join(f'"{member.value}"' for member in hint)
    names: dict[Any, str] = {str: "text", int: "integer", float: "number", bool: "true or false"}
    return names.get(hint, "table")


def default_of(value: object) -> str:
    """Return a default as it is written in TOML; empty where a key must be given or is nothing."""
    if value is _NO_DEFAULT:
        return "required"
    if value is None or value in ((), {}, []):
        return ""
    if isinstance(value, bool):
        return code(str(value).lower())
    if isinstance(value, str):
        return code(f'"{value}"')
    return code(value) if isinstance(value, int | float) else ""


def fields_of(kind: type[Any]) -> Mapping[str, object]:
    """Return by field its default, `_NO_DEFAULT` where there is none."""
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        return {
            field.name: _NO_DEFAULT
            if field.default is missing and field.default_factory is missing
            else (None if field.default is missing else field.default)
            for field in dataclasses.fields(kind)
        }
    nothing = msgspec.NODEFAULT
    return {
        field.name: _NO_DEFAULT
        if field.default is nothing and field.default_factory is nothing
        else (None if field.default is nothing else field.default)
        for field in msgspec.structs.fields(kind)
    }


def keys_table(*kinds: type[Any], with_defaults: bool = True, hidden: Collection[str] = ()) -> str:
    """Return a table of the keys that classes stand for. A later class replaces equal keys.

    Raises:
        KeyError: a key has no description in the `Attributes:` of its class.
    """
    hints: dict[str, Any] = {}
    defaults: dict[str, object] = {}
    descriptions: dict[str, str] = {}
    for kind in kinds:
        hints |= typing.get_type_hints(kind, include_extras=True)
        defaults |= fields_of(kind)
        descriptions |= descriptions_of(kind)
    rows = []
    for name, default in sorted(defaults.items()):
        if name in hidden:
            continue
        cells = [code(name), type_of(hints[name])]
        if with_defaults:
            cells.append(default_of(default))
        rows.append([*cells, sentence(descriptions[name])])
    head = ["key", "type", *(["default"] if with_defaults else []), "meaning"]
    return table(head, rows)


_OPTIONS = """
# Options and commands

`pytest` takes these options wherever the repository's `conftest.py` loads specreg. With nox they
follow two dashes: `nox -s cpu_perf -- --update-baselines`. Write a path with an equals sign
(`--specreg-baselines=/some/where`), because pytest takes a folder that stands alone for a place to
look for tests.

## Options of pytest

{options}

## Commands of specreg

Each command has `--help`. `specreg --version` prints the version.

{commands}
"""


def options_page() -> str:
    """Return the page of pytest's options and of specreg's commands."""
    rows = []
    for option in dataclasses.fields(Options):
        default = "" if option.default in (None, False) else code(option.default)
        meaning = sentence(option.metadata["argparse"]["help"])
        rows.append([code(flag_of(option)), default, meaning])
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    commands = []
    for name in group.commands:
        _, command, _ = group.resolve_command(context, [name])
        commands += [f"### specreg {name}", _help_of(command)]
        if command.params:
            head = ["argument or option", "default", "meaning"]
            commands.append(table(head, map(_parameter_row, command.params)))
    options = table(["option", "default", "meaning"], rows)
    return _OPTIONS.format(options=options, commands="\n\n".join(commands))


def _help_of(command: Any) -> str:  # noqa: ANN401 - of a class of Typer's own
    """Return what `--help` says of a command. A list of examples needs an empty line above it."""
    text = inspect.cleandoc(command.help)
    return text.replace("\b\nExamples:\n", "Examples:\n\n")


def _parameter_row(parameter: Any) -> list[str]:  # noqa: ANN401 - of a class of Typer's own
    names = [parameter.name.upper()]
    if parameter.param_type_name == "option":
        names = [*parameter.opts, *parameter.secondary_opts]
    default = parameter.default
    shown = "" if default in (None, False, "", []) else code(default)
    meaning = sentence(parameter.help or "")
    if parameter.multiple:
        meaning += " May be repeated."
    return [", ".join(map(code, names)), shown, meaning]


_METRICS = """
# Metrics

A tolerance is the relative loss that still passes. A case has the tolerance of `tolerances` in its
[tier file](tier-files.md), or else the one of this table. Metrics without a tolerance on another
machine aren't compared there, and those without one in a gate aren't compared in a gate.
[Measuring](../explanation/measuring.md) explains the symbols.

{metrics}

These have no baseline, because they must hold by themselves
([lossless](../explanation/lossless.md)):

{correctness}
"""
_POSITION = re.compile(r"acceptance_pos(\d+)_frac")
_CORRECTNESS = {
    LOSSLESS: "the share of greedy answers that are equal with and without speculation",
    SAMPLING: "how likely it is that draws with and without speculation differ as much by chance",
    ORACLE: "the engine's acceptance length; expected is the one that its text and models give",
}


def metrics_page() -> str:
    """Return the page of the metrics and their tolerances."""
    positions = [name for name in METRICS if _POSITION.fullmatch(name)]
    rows = []
    for name, metric in {**METRICS, **GATE_METRICS}.items():
        if name in positions[1:]:
            continue
        row = _metric_row(metric)
        if name in positions:
            row[0] = f"{code(positions[0])} to {code(positions[-1])}"
            row[-1] = "The share of the steps that accepted so many drafts or more."
        rows.append(row)
    head = ["metric", "unit", "better", "tolerance", "on another machine", "in a gate", "meaning"]
    correctness = [[code(name), sentence(text)] for name, text in _CORRECTNESS.items()]
    return _METRICS.format(
        metrics=table(head, rows), correctness=table(["metric", "meaning"], correctness)
    )


def _metric_row(metric: Metric) -> list[str]:
    _, _, unit = axis_of(metric.name).partition(", ")
    better = "more" if metric.sign > 0 else "less"
    return [
        code(metric.name),
        unit,
        "neither" if metric.two_sided else better,
        percent(metric.tolerance_frac if metric.name in METRICS else None),
        percent(metric.portable_tolerance_frac),
        percent(metric.gate_tolerance_frac),
        sentence(metric.meaning),
    ]


_ENGINES = """
# Engines and methods

*Measured* means that specreg saw the method draft, with an acceptance that equals the oracle's or a
second count. *Started* means that it was seen running. *Spelt* means that the command line was only
written from the engine's source or documentation. `specreg engines` prints this table.
[Engines](../explanation/engines.md) explains how each of them is run and read.

{seen}

## Engines

{engines}

Pinned acceptance is the list of methods whose acceptance length the engine can fix.

## Methods

{methods}
"""


def engines_page() -> str:
    """Return the page of engines and methods."""
    head = ["engine", "without a GPU", "on a GPU", "oldest version", "pinned acceptance"]
    engines = table(head, map(_engine_row, ENGINES.values()))
    rows = [_method_row(name, method) for name, method in METHODS.items()]
    methods = table(["method", "needs a draft", "drafts in every step", "drafts branch"], rows)
    seen_head, *seen_rows = methods_by_engine()
    seen = table(seen_head, [(code(name), *cells) for name, *cells in seen_rows])
    return _ENGINES.format(seen=seen, engines=engines, methods=methods)


def _engine_row(engine: Engine) -> list[str]:
    pinned = sorted({*engine.pinned_on_cpu, *engine.pinned_on_gpu})
    return [
        code(engine.name),
        _installed(engine, on_gpu=False),
        _installed(engine, on_gpu=True),
        engine.oldest,
        ", ".join(map(code, pinned)),
    ]


def _installed(engine: Engine, *, on_gpu: bool) -> str:
    if engine.program:
        return f"{code(engine.program)} on PATH"
    try:
        return code(engine.requirement(on_gpu=on_gpu).pin)
    except UnsupportedError:
        return ""


def _method_row(name: str, method: Method) -> list[str]:
    answers = (method.needs_draft, method.drafts_every_step and name != "none", method.drafts_trees)
    return [code(name), *("yes" if answer else "" for answer in answers)]


_OUTCOMES = """
# Outcomes and exit codes

Every metric of every case gets one of these outcomes. [Judging](../explanation/judging.md) explains
the rule, and [My run is red](../how-to/my-run-is-red.md) says what to do about each outcome.

## Outcomes

{outcomes}

`--specreg-inconclusive=warn` lets the test of an INCONCLUSIVE metric pass with a warning, and
`warn-speed` does so for speed and power only.

## Exit codes of a run

The first row that applies counts.

{statuses}

A run also ends with 1 if a test failed for another reason than a verdict, or if a baseline couldn't
be written. 2, 4 and 5 are pytest's own: the run was interrupted; an option, a file or the machine
doesn't fit; no test was selected. A `specreg` command that refuses its input ends with 10. nox
turns every code but 0 into 1. The original is `exit_status` in `verdict.json`.

[Options and commands](options.md) has the exit codes of `specreg gate`, `bisect` and `soak`.

## Reasons

The reason of a verdict says what is the matter and what to do. Here `…` stands for what differs
from case to case. Codes in capitals stand before the reason. `report.json` has the others too.

{reasons}
"""
_FACT = re.compile(r"\{.*?\}")
_REASONS: Mapping[str, Mapping[str, Entry]] = {
    "INVALID": catalogue.INVALID,
    "REGRESSED and WRONG": catalogue.REGRESSED,
    "INCONCLUSIVE": catalogue.UNDECIDED,
    "NO_BASELINE": catalogue.NO_BASELINE,
    "NOT_COMPARABLE": catalogue.NOT_COMPARABLE,
    "IMPROVED": catalogue.IMPROVED,
    "Not measured or not judged": catalogue.UNMEASURED,
}


def outcomes_page() -> str:
    """Return the page of outcomes, exit codes and reasons of INVALID."""
    meanings = members_of(Outcome)
    outcomes = [[code(outcome), _test_of(outcome), meanings[outcome.name]] for outcome in Outcome]
    names_of: dict[int, list[str]] = {}
    for outcome in Outcome:
        names_of.setdefault(exit_status([_verdict_of(outcome)]), []).append(outcome)
    del names_of[0]
    statuses = [
        [str(status), f"a metric is {' or '.join(names)}"]
        for status, names in sorted(names_of.items())
    ]
    statuses.append(["0", "every test passed or was skipped"])
    reasons = []
    for title, entries in _REASONS.items():
        rows = [_reason_row(name, entry) for name, entry in entries.items()]
        head = ["code", "the reason says", "what it means, and what to do"]
        if title == "INVALID":
            head.append("spoils")
            rows = [
                [*row, _spoiled_by(entry)]
                for row, entry in zip(rows, entries.values(), strict=True)
            ]
        reasons.append(f"### {title}\n\n{table(head, rows)}")
    return _OUTCOMES.format(
        outcomes=table(["outcome", "its test", "meaning"], outcomes),
        statuses=table(["exit code", "when"], statuses),
        reasons="\n\n".join(reasons),
    )


def _reason_row(name: str, entry: Entry) -> list[str]:
    says = _FACT.sub("…", entry.sentence)
    remedy = _FACT.sub("…", entry.remedy)
    parts = [sentence(part) for part in (entry.meaning, remedy) if part.strip("…")]
    return [code(name), "" if says == "…" else says.replace("\n", " "), " ".join(parts)]


def _spoiled_by(entry: Entry) -> str:
    """Return which families a reason spoils. One of a check spoils that check only."""
    if entry.spoils == ALL:
        return "all"
    return ", ".join(family for family in Family if family in entry.spoils) or "itself"


def _verdict_of(outcome: Outcome) -> Verdict:
    return Verdict(case_id="", metric="", outcome=outcome)


def _test_of(outcome: Outcome) -> str:
    if outcome in SKIPPED:
        return "is skipped"
    if outcome is Outcome.INCONCLUSIVE:
        # By default it fails only if no number of nights would decide.
        return "passes or fails"
    return "fails" if _verdict_of(outcome).fails else "passes"


_TIERS = """
# Tiers

The files of `fixtures/matrix/`. `--specreg-tier=NAME` runs one of them.
[Choose what runs](../how-to/choose-what-runs.md) shows how to write another. Of the tiers for
GPUs, only a case of `gpu_smoke` has run on a real one.

{tiers}
"""


def _purpose_of(tier_file: Path) -> str:
    """Return what a tier is for: the lines of its file's comment up to the end of a sentence."""
    purpose: list[str] = []
    for line in tier_file.read_text().splitlines():
        purpose.append(line.removeprefix("# "))
        if line.endswith((".", "?")):
            break
    return " ".join(purpose)


def tiers_page() -> str:
    """Return the page of the tiers."""
    rows = []
    for name in tier_names(MATRIX):
        tier = load_tier(MATRIX, name)
        engines = sorted({case.server.engine for case in tier.cases})
        datasets = sorted({case.request.dataset for case in tier.cases})
        prepared = [dataset for dataset in datasets if dataset_named(dataset).licence]
        rows.append(
            [
                code(name),
                _purpose_of(MATRIX / f"{name}.toml"),
                ", ".join(engines),
                str(tier.needs_gpus or ""),
                str(len(tier.cases)),
                ", ".join(map(code, prepared)),
            ]
        )
    head = ["tier", "runs", "engines", "GPUs", "cases", "prompts to prepare"]
    return _TIERS.format(tiers=table(head, rows))


_DATASETS = """
# Datasets

The prompts that a case can name. [Prepare prompts](../how-to/prepare-prompts.md) shows how to get
them. `random-N` has prompts of N random token ids, for any N of up to six digits.

{datasets}
"""


def datasets_page() -> str:
    """Return the page of the datasets, those of one source and licence in a row."""
    sets_of: dict[tuple[str, str], list[PromptSet]] = {}
    for prompt_set in SETS.values():
        key = (_source_of(prompt_set), " ".join(prompt_set.licence.split()))
        sets_of.setdefault(key, []).append(prompt_set)
    rows = []
    for (source, licence), sets in sets_of.items():
        names = ", ".join(_name_with_rows(prompt_set) for prompt_set in sets)
        rows.append([names, source, licence])
    head = ["dataset (rows)", "source", "licence and use"]
    return _DATASETS.format(datasets=table(head, rows))


def _source_of(prompt_set: PromptSet) -> str:
    """Return where a set comes from: a page, or specreg itself."""
    if prompt_set.repo or prompt_set.page:
        return prompt_set.url
    return "part of specreg" if prompt_set.tokens is None else "drawn at random by specreg"


def _name_with_rows(prompt_set: PromptSet) -> str:
    """Return the name of a set, and how many rows it has if that is known."""
    name = code(prompt_set.name)
    return f"{name} ({prompt_set.rows:,})" if prompt_set.rows else name


_TIER_FILES = """
# Tier files

A tier is a file `fixtures/matrix/NAME.toml`. [Choose what runs](../how-to/choose-what-runs.md)
shows how to write one. An error names the file, the table and the key, what was found there, and
what is needed.

## The file

{file}

## `[[cases]]`

Each table makes one case for each combination of method, number of draft tokens and load. It needs
either `concurrency` or `requests_per_s`.

{cases}

## `parallel`

{parallel}

## `tree`

{tree}

## `[models.NAME]`

Model pairs that several tiers share are in `fixtures/models/pairs.toml`.

{models}
"""


def tier_files_page() -> str:
    """Return the page of the keys of a tier file."""
    return _TIER_FILES.format(
        file=keys_table(TierFile),
        cases=keys_table(*CASE_PARTS.values(), CasesTable, hidden=NO_KEYS),
        parallel=keys_table(Parallel),
        tree=keys_table(Tree),
        models=keys_table(ModelsTable),
    )


_BASELINE_FILE = """
# Baseline files

`baselines/MACHINE/CASE.json` holds what was recorded of a case on one kind of machine.
`--update-baselines` writes it; nobody edits it by hand. `baselines/schema.json` is its JSON Schema.

## The file

{file}

{tables}

## `prompts` of `acceptance`

Each prompt is a list, on a line of its own:

{prompt}
"""


def baseline_file_page() -> str:
    """Return the page of the form of a baseline file."""
    parts: list[tuple[str, type[Any]]] = [
        ("`case`", CaseSettings),
        ("`environment`", Environment),
        ("`provenance`", Provenance),
        ("`acceptance`", StoredAcceptance),
        ("`noise`, for each metric", Noise),
        ("`detects`, for each metric", Detectable),
        ("`devices`", RecordedDevice),
    ]
    tables = [f"## {title}\n\n{keys_table(kind, with_defaults=False)}" for title, kind in parts]
    return _BASELINE_FILE.format(
        file=keys_table(Baseline, with_defaults=False),
        tables="\n\n".join(tables),
        prompt=inspect.cleandoc(StoredPrompt.__doc__ or ""),
    )


PAGES: Mapping[str, Callable[[], str]] = {
    "options.md": options_page,
    "metrics.md": metrics_page,
    "engines.md": engines_page,
    "outcomes.md": outcomes_page,
    "tiers.md": tiers_page,
    "tier-files.md": tier_files_page,
    "datasets.md": datasets_page,
    "baseline-file.md": baseline_file_page,
}
"""By file of docs/reference, what makes its text."""


def render(name: str) -> str:
    """Return the text of a page as it is committed."""
    return f"{_HEAD}\n\n{PAGES[name]().strip()}\n"


def main() -> None:
    """Write all pages."""
    for name in PAGES:
        (FOLDER / name).write_text(render(name), encoding="utf-8")


if __name__ == "__main__":
    main()
