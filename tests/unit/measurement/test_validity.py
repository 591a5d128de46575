"""What a reason of INVALID spoils, and that none was forgotten."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.core.errors import InvalidMeasurementError
from specreg.core.reasons import Invalidity
from specreg.measurement.metrics import ALL, SPOILS, Family, note_invalidity, render_invalid
from specreg.suite.merged_shards import SHARD_MISSING
from specreg.verdicts.verdict import MACHINE_MOVED
from tests.unit import builders

NAME = re.compile(r"[A-Z]+(?:_[A-Z]+)+|HUNG|THROTTLED")
BEGINS = re.compile(r"([A-Z]+(?:_[A-Z]+)+|THROTTLED): ")
TIMED = frozenset(Family) - {Family.ACCEPTANCE}


SECTION = re.compile(r"(?:This spoils|These spoil) ([a-z, ]+?)( of .+)?\.")
"""The sentence with which a section of the page says what its reasons spoil."""


def documented_reasons() -> Iterator[tuple[str, frozenset[str]]]:
    """Each reason that the page of red runs explains, and the families that its section spoils."""
    page = (builders.ROOT / "docs/how-to/my-run-is-red.md").read_text()
    families: frozenset[str] = frozenset()
    for line in page.splitlines():
        section = SECTION.match(line)
        if section is not None:
            names = re.split(r", | and ", section[1])
            families = frozenset(ALL if names == ["all"] else names)
        for reason in re.findall(r"\*\*`([A-Z_]+)`\*\*", line):
            yield reason, families


DOCUMENTED = dict(documented_reasons())


def reasons_in(path: Path) -> Iterator[str]:
    """The reasons that a module raises, or begins a text with."""
    tree = ast.parse(path.read_text())
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    yield from (match.group(1) for text in texts if (match := BEGINS.match(text)))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(
            isinstance(base, ast.Name) and base.id == InvalidMeasurementError.__name__
            for base in node.bases
        ):
            yield from (text for text in texts if NAME.fullmatch(text) and text in DOCUMENTED)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        if node.func.id in {InvalidMeasurementError.__name__, Invalidity.__name__}:
            reason = node.args[0]
            if isinstance(reason, ast.Constant):
                yield str(reason.value)
            elif not isinstance(reason, ast.Attribute):  # it is chosen elsewhere in the module
                yield from (text for text in texts if NAME.fullmatch(text))


def test_the_page_says_of_each_reason_that_is_raised_what_it_spoils() -> None:
    modules = (builders.ROOT / "specreg").rglob("*.py")
    raised = {reason for path in modules for reason in reasons_in(path)}
    raised |= {MACHINE_MOVED, SHARD_MISSING}  # of a verdict, not of a measurement
    assert len(raised) > 30
    assert set(SPOILS) <= raised
    assert {reason: SPOILS.get(reason, ALL) for reason in raised} == DOCUMENTED


def test_a_reason_of_one_metric_or_check_is_raised_by_no_measurement() -> None:
    """What a measurement raises spoils whole families, see `SPOILS`."""
    page = (builders.ROOT / "docs/how-to/my-run-is-red.md").read_text()
    _, _, rest = page.partition("### One metric or one check")
    section, _, _ = rest.partition("###")
    documented = set(re.findall(r"\*\*`([A-Z_]+)`\*\*", section))
    folders = [builders.ROOT / "specreg" / name for name in ("acceptance", "load", "measurement")]
    modules = [path for folder in folders for path in folder.glob("*.py")]
    raised = {reason for path in modules for reason in reasons_in(path)}
    assert documented
    assert raised
    assert documented & raised == set()


def test_the_first_reason_of_a_family_stays() -> None:
    """Also where what is checked says something of that family alone."""
    invalid: dict[Family, Invalidity] = {}
    with note_invalidity(invalid, frozenset({Family.SPEEDUP})):
        raise InvalidMeasurementError("HTTP_ERROR", "in the control's rounds")
    with note_invalidity(invalid):
        raise InvalidMeasurementError("THROTTLED", "by 92 °C")
    assert invalid == {
        **dict.fromkeys(TIMED, Invalidity("THROTTLED", "by 92 °C")),
        Family.SPEEDUP: Invalidity("HTTP_ERROR", "in the control's rounds"),
    }


def test_a_reason_that_spoils_everything_ends_the_measurement() -> None:
    invalid: dict[Family, Invalidity] = {}
    with pytest.raises(InvalidMeasurementError, match="FOREIGN_TRAFFIC"), note_invalidity(invalid):
        raise InvalidMeasurementError("FOREIGN_TRAFFIC", "somebody else asks too")
    assert invalid == {}


def test_a_reason_stands_behind_the_families_that_it_spoils() -> None:
    invalid = {
        Family.POWER: Invalidity("POWER_INVALID", "b"),
        Family.LATENCY: Invalidity("CLIENT_BEHIND", "a"),
        Family.THROUGHPUT: Invalidity("CLIENT_BEHIND", "a"),
    }
    assert (
        render_invalid(invalid) == "throughput, latency: CLIENT_BEHIND: a; power: POWER_INVALID: b"
    )
    assert render_invalid(dict.fromkeys(Family, Invalidity("HUNG", "c"))) == "HUNG: c"
    assert render_invalid({}) == ""
