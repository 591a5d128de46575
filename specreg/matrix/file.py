"""Decode a matrix file: its tables, each with where it stands."""

import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from specreg.core.errors import MatrixError, UnknownNameError
from specreg.matrix.schema import CasesTable, ModelsTable, PairsFile, TierFile

_TableT = TypeVar("_TableT")

_ADVICE = "docs/matrix.md shows the tables and keys"

Pairs = Mapping[str, tuple[ModelsTable, str]]
"""Model pairs by name, each with where its table stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierTables:
    """What a matrix file says; each table with where it stands, in words.

    Attributes:
        needs_gpus: see `TierFile`.
        pairs: of its own.
        cases: in the order of the file.
    """

    needs_gpus: int
    pairs: Pairs
    cases: tuple[tuple[CasesTable, str], ...]


def load_tier_file(path: Path) -> TierTables:
    """The tables of a tier's file.

    Raises:
        UnknownNameError: a key that no table has; the message lists those there are.
        MatrixError: it doesn't decode.
    """
    raw, file = _load_toml(path), f"matrix file '{path}'"
    cases = []
    # Table by table, so that an error can say of which. What is no table is left to the whole.
    if isinstance(raw.get("cases"), list):
        for number, table in enumerate(raw["cases"], 1):
            place = f"{file}, [[cases]] no. {number}"
            cases.append((_convert(table, CasesTable, place), place))
        raw["cases"] = []
    pairs = _take_pairs(raw, file)
    head = _convert(raw, TierFile, file)
    return TierTables(needs_gpus=head.needs_gpus, pairs=pairs, cases=tuple(cases))


def load_pairs_file(path: Path) -> Pairs:
    """The pairs of a file that holds nothing else; none where there is no such file.

    Raises:
        UnknownNameError, MatrixError: see `load_tier_file`.
    """
    if not path.exists():
        return {}
    raw, file = _load_toml(path), f"matrix file '{path}'"
    pairs = _take_pairs(raw, file)
    _convert(raw, PairsFile, file)
    return pairs


def _take_pairs(raw: dict[str, Any], file: str) -> Pairs:
    """The tables of pairs, which are taken out of the file's."""
    if not isinstance(raw.get("models"), dict):
        return {}
    named = {name: (table, f"{file}, [models.{name}]") for name, table in raw["models"].items()}
    raw["models"] = {}
    return {name: (_convert(table, ModelsTable, at), at) for name, (table, at) in named.items()}


def _load_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # TOML's own errors, and Python's of a number
        raise MatrixError(f"matrix file '{path}': no TOML, {error}; {_ADVICE}") from error
    except OSError as error:
        raise MatrixError(f"matrix file '{path}': {error.strerror}; mend its rights") from error


def _convert(raw: object, kind: type[_TableT], place: str) -> _TableT:
    known = typing.get_type_hints(kind)
    for name in raw if isinstance(raw, dict) else ():  # msgspec refuses none of a dataclass
        if name not in known:
            raise UnknownNameError("key", name, known, place)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        said = str(error).replace("`$.", "`")
        raise MatrixError(f"{place}: {said}; {_ADVICE}") from error
