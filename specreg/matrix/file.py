"""Decode a matrix file: its tables, each with where it stands."""

import dataclasses
import json
import re
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from specreg.core.errors import MatrixError, UnknownNameError
from specreg.matrix.schema import CasesTable, ModelsTable, PairsFile, TierFile

_TableT = TypeVar("_TableT")

_ADVICE = "docs/matrix.md shows the tables and keys"
_OF_NO_EFFECT = ("warm_up_stable_frac",)
"""Keys of an earlier specreg; a file that has them is read without."""
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_CASES = re.compile(r"\s*\[\[\s*cases\s*\]\]")
_SUBTABLE = r"\s*\[\s*{table}\s*\.\s*{key}\s*\]"
_KEY = r"\s*{key}\s*[=.]"
_WHERE = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table of a file.

    Attributes:
        path: the file's.
        table: what it is called, `[[cases]] no. 2`; empty for the whole file.
        lines: the file's.
        row: the table's first line, counted from 0; None where it isn't found.
    """

    path: Path
    table: str
    lines: tuple[str, ...]
    row: int | None

    def at(self, key: str = "") -> str:
        """The file, the line, and the table; the line is the key's, if that is found."""
        row = self._row(key)
        line = "" if row is None else f", line {row + 1}"
        table = f", {self.table}" if self.table else ""
        return f"matrix file '{self.path}'{line}{table}"

    def _row(self, key: str) -> int | None:
        if self.row is None or not key:
            return self.row
        first = re.escape(re.split(r"[.\[]", key)[0])
        inside = re.compile(_KEY.format(key=first))
        below = re.compile(_SUBTABLE.format(table=r"[\w.\-]+", key=first))
        for row in range(self.row, len(self.lines)):
            line = self.lines[row]
            if row > self.row and _CASES.match(line):
                break
            if inside.match(line) or below.match(line):
                return row
        return self.row


def whole_file(path: Path, text: str) -> Place:
    """The file itself, whose keys stand at its top."""
    return Place(path=path, table="", lines=tuple(text.splitlines()), row=None)


def case_table(path: Path, text: str, number: int) -> Place:
    """The `[[cases]]` of a number, from 1."""
    lines = tuple(text.splitlines())
    rows = [row for row, line in enumerate(lines) if _CASES.match(line)]
    row = rows[number - 1] if number <= len(rows) else None
    return Place(path=path, table=f"[[cases]] no. {number}", lines=lines, row=row)


def models_table(path: Path, text: str, name: str) -> Place:
    """`[models.NAME]`."""
    lines = tuple(text.splitlines())
    heading = re.compile(rf"""\s*\[\s*models\s*\.\s*["']?{re.escape(name)}["']?\s*\]""")
    row = next((row for row, line in enumerate(lines) if heading.match(line)), None)
    return Place(path=path, table=f"[models.{name}]", lines=lines, row=row)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTables:
    """What a matrix file says.

    Attributes:
        needs_gpus: see `TierFile`.
        models: its pairs by name.
        cases: its tables of cases, each with its place.
        remarks: what of it is of no effect, a sentence each.
    """

    needs_gpus: int
    models: Mapping[str, tuple[ModelsTable, Place]]
    cases: tuple[tuple[CasesTable, Place], ...]
    remarks: tuple[str, ...]


def load_tier_file(path: Path) -> TierTables:
    """The tables of a tier's file.

    Raises:
        UnknownNameError: a key that no table has; the message lists those there are.
        MatrixError: it doesn't decode.
    """
    text, raw = _load_toml(path)
    cases, models = raw.get("cases"), raw.get("models")
    listed = cases if isinstance(cases, list) else []
    every = [raw, *(table for table in listed if isinstance(table, dict))]
    remarks = tuple(
        f"matrix file '{path}': {name} is of no effect any more; remove it"
        for name in _OF_NO_EFFECT
        if [one.pop(name) for one in every if name in one]
    )
    # Table by table, so that an error can say of which. What is no table is left to the whole.
    if isinstance(cases, list):
        raw = raw | {"cases": []}
    if isinstance(models, dict):
        raw = raw | {"models": {}}
    head = _convert(raw, TierFile, whole_file(path, text))
    tables = enumerate(listed, start=1)
    places = [(table, case_table(path, text, number)) for number, table in tables]
    return TierTables(
        remarks=remarks,
        needs_gpus=head.needs_gpus,
        models=_models_of(models, path, text),
        cases=tuple((_convert(table, CasesTable, place), place) for table, place in places),
    )


def load_pairs_file(path: Path) -> Mapping[str, tuple[ModelsTable, Place]]:
    """The pairs of a file that holds nothing else; none where there is no such file.

    Raises:
        UnknownNameError, MatrixError: see `load_tier_file`.
    """
    if not path.exists():
        return {}
    text, raw = _load_toml(path)
    models = raw.get("models")
    _convert(
        raw | {"models": {}} if isinstance(models, dict) else raw, PairsFile, whole_file(path, text)
    )
    return _models_of(models, path, text)


def _models_of(raw: object, path: Path, text: str) -> Mapping[str, tuple[ModelsTable, Place]]:
    tables = raw if isinstance(raw, dict) else {}
    places = {name: models_table(path, text, name) for name in tables}
    return {
        name: (_convert(table, ModelsTable, places[name]), places[name])
        for name, table in tables.items()
    }


def _load_toml(path: Path) -> tuple[str, dict[str, object]]:
    try:
        text = path.read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOML's own errors, and Python's of a number
        raise MatrixError(f"matrix file '{path}': no TOML, {error}; {_ADVICE}") from error
    except OSError as error:
        raise MatrixError(f"matrix file '{path}': {error.strerror}; mend its rights") from error


def _convert(raw: object, kind: type[_TableT], place: Place) -> _TableT:
    known = _fields_of(kind)
    for name in raw if isinstance(raw, dict) else ():  # msgspec refuses none of a dataclass
        if name not in known:
            raise UnknownNameError("key", name, known, place.at(name))
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        _explain(str(error), raw, kind, place)


def _explain(error: str, raw: object, kind: object, place: Place) -> NoReturn:
    """Say what msgspec says in the words of the file: which key, what was got, what is known.

    Raises:
        UnknownNameError, MatrixError: always one of them.
    """
    found = _WHERE.match(error)
    what, path = (found.group(1), found.group(2) or "") if found else (error, "")
    hint = _fields_of(kind).get(re.split(r"[.\[]", path)[0])
    got, key = _follow(raw, path, hint)
    types_of = _members(hint)
    if unknown := _UNKNOWN.fullmatch(what):
        known = [name for one in types_of for name in _fields_of(one)]
        raise UnknownNameError(f"key of {key}", unknown.group(1), known, place.at(key))
    if missing := _MISSING.fullmatch(what):
        of = f" of {key}" if key else ""
        raise MatrixError(f"{place.at(key)}: key '{missing.group(1)}'{of} is missing; {_ADVICE}")
    words = [word for one in types_of if issubclass(one, StrEnum) for word in one]
    if isinstance(got, str) and words:
        raise UnknownNameError(key, got, words, place.at(key))
    needed = what.removeprefix("Expected ").split(", got ")[0]
    value = json.dumps(got, default=str)
    shown = f"{key} = {value}" if key else value
    raise MatrixError(f"{place.at(key)}: {shown}, needed {needed}; {_ADVICE}")


def _follow(raw: object, path: str, hint: object) -> tuple[object, str]:
    """What stands at a path such as `concurrency[1]`: value, and the path in full.

    msgspec writes `[...]` for any key of a mapping: it is the first whose value doesn't fit.

    Args:
        raw: the table.
        path: as msgspec writes it.
        hint: the type of the table's key with which the path begins.
    """
    key = ""
    for step in re.findall(r"[^.\[\]]+|\[\.\.\.\]|\[\d+\]", path):
        if step == "[...]" and isinstance(raw, dict):
            inner = typing.get_args(hint)[-1]
            name = next((one for one, value in raw.items() if not _fits(value, inner)), step)
            raw, key = raw.get(name), f"{key}.{name}"
        elif step.startswith("["):
            raw, key = raw[int(step[1:-1])] if isinstance(raw, list) else raw, f"{key}{step}"
        else:
            raw = raw.get(step) if isinstance(raw, dict) else raw
            key = f"{key}.{step}".removeprefix(".")
    return raw, key


def _fits(value: object, hint: object) -> bool:
    try:
        msgspec.convert(value, type=hint)
    except msgspec.ValidationError:
        return False
    return True


def _members(hint: object) -> tuple[type, ...]:
    """The types that a key may have, without their bounds."""
    if typing.get_origin(hint) is typing.Annotated:
        return _members(typing.get_args(hint)[0])
    if typing.get_origin(hint) in {typing.Union, types.UnionType}:
        return tuple(one for member in typing.get_args(hint) for one in _members(member))
    return (hint,) if isinstance(hint, type) else ()


def _fields_of(kind: object) -> Mapping[str, object]:
    """The keys of a table, with their types."""
    is_table = dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__")
    return typing.get_type_hints(kind, include_extras=True) if is_table else {}
