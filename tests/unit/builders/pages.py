"""Pages of runs, read back as HTML."""

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec

from specreg.report.document import RunReport
from specreg.report.files import load_run_report
from specreg.verdicts.history import load_history
from tests.unit.builders import ROOT, reports
from tests.unit.builders.histories import FIGURES, LATER, write_nights

VOID = {"meta", "br", "img", "input", "link", "hr"}
EXAMPLE = ROOT / "docs/examples/cpu_perf/report.json"
CELLS = {"td", "th"}


class Page(HTMLParser):
    """A page's elements, text and ids; what is opened must be closed, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in {*CELLS, "tr"}:
            self.close_rows(up_to=tag)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def close_rows(self, up_to: str) -> None:
        """Close the cell, and the row before a new one: their closing tags are optional."""
        if self.open[-1] in CELLS:
            self.open.pop()
        if up_to not in CELLS and self.open[-1] == "tr":
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if tag in {"thead", "tbody"}:
            self.close_rows(up_to=tag)
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def ids(self) -> list[str]:
        return [tag["id"] or "" for _, tag in self.tags if "id" in tag]


def points_of(path: str) -> list[tuple[int, int]]:
    """The places that the path of a curve leads through."""
    start, _, steps = path.removeprefix("M").partition("l")
    x, y = map(int, start.split())
    points = [(x, y)]
    numbers = list(map(int, re.findall(r"-?\d+", steps)))
    for right, down in zip(numbers[::2], numbers[1::2], strict=True):
        x += right
        y += down
        points.append((x, y))
    return points


def many(number: int) -> RunReport:
    """A run of many cases, of which the last one fails."""
    names = [f"case-{n}" for n in range(number)]
    verdicts = [dataclasses.replace(reports.HELD, case_id=name) for name in names]
    lost = dataclasses.replace(reports.LOST, case_id=names[-1])
    cases = [msgspec.structs.replace(reports.CASE_REPORT, case_id=name) for name in names]
    return msgspec.structs.replace(reports.with_verdicts(*verdicts, lost), cases=tuple(cases))


def many_nights(path: Path, cases: int, nights: int) -> RunReport:
    """A run of many cases on a machine with a history, each with all that the example has.

    Args:
        path: where the history is written.
        cases: how many.
        nights: how many nights each of them has.
    """
    write_nights(path, cases=cases, nights=nights, bad_from=20)
    example = load_run_report(EXAMPLE)
    held = next(verdict for verdict in example.run.verdicts if verdict.metric == "speedup_ratio")
    rows = []
    verdicts = []
    for number, (case_id, records) in enumerate(load_history(path, LATER).by_case.items()):
        case = example.cases[number % len(example.cases)]
        own_verdicts = [
            verdict for verdict in example.run.verdicts if verdict.case_id == case.case_id
        ]
        judged = {verdict.metric for verdict in own_verdicts}
        own_verdicts += [
            dataclasses.replace(held, metric=metric) for metric in FIGURES if metric not in judged
        ]
        verdicts += [dataclasses.replace(verdict, case_id=case_id) for verdict in own_verdicts]
        rows.append(msgspec.structs.replace(case, case_id=case_id, history=tuple(records)))
    run = msgspec.structs.replace(example.run, verdicts=tuple(verdicts))
    return msgspec.structs.replace(example, run=run, cases=tuple(rows))
