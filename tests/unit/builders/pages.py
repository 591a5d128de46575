"""Pages of runs, read back as HTML."""

import dataclasses
from html.parser import HTMLParser

import msgspec

from specreg.report.document import Report
from tests.unit.builders import reports

VOID = {"meta", "br", "img", "input", "link", "hr"}


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
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
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


def many(number: int) -> Report:
    """A run of many cases, of which the last one fails."""
    names = [f"case-{n}" for n in range(number)]
    verdicts = [dataclasses.replace(reports.HELD, case_id=name) for name in names]
    lost = dataclasses.replace(reports.LOST, case_id=names[-1])
    cases = [msgspec.structs.replace(reports.CASE_REPORT, case_id=name) for name in names]
    return msgspec.structs.replace(reports.with_verdicts(*verdicts, lost), cases=tuple(cases))
