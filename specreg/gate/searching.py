"""Searching: a good and a bad version and a case in, gates between them out."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from specreg.engines import engine_named
from specreg.errors import SpecregError, UnsupportedError
from specreg.gate.answer import Answer, Decision
from specreg.gate.bisecting import Bisected, Step, Tried, bisect_versions, versions_between
from specreg.gate.opening import Request, open_gate
from specreg.gate.releases import released_versions
from specreg.gate.side import Kind, Side, parse_side
from specreg.journal import mend_torn_line

_MORE = 2
"""So many times the launches where there is no telling at first."""
_STEPS = {Answer.UPGRADE: Step.GOOD, Answer.DONT: Step.BAD, Answer.UNDECIDED: Step.UNKNOWN}


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched.

    Attributes:
        good, bad: sides of one engine, each with a version.
        versions: to search among, none for all that were released.
        request: of each gate; its sides and folder are set for each.
        folder: of all gates, and of what the search has found.
    """

    good: Side
    bad: Side
    versions: Sequence[str]
    request: Request
    folder: Path

    def run(self) -> Bisected:
        """Searches on from what was found before.

        Raises:
            SpecregError: there is nothing to find; the message says why.
        """
        versions = versions_between(self.good.place, self.bad.place, self._released())
        self.request.show(f"between {', '.join(versions)}")
        path = self.folder / "bisect.jsonl"
        return bisect_versions(versions, self._compare(path), _earlier(path))

    def _released(self) -> Sequence[str]:
        if self.versions:
            return self.versions
        on_gpu = self.request.tier.needs_gpus > 0
        return released_versions(engine_named(self.good.engine).requirement(on_gpu=on_gpu).package)

    def _compare(self, path: Path) -> Callable[[str], Tried]:
        def compare(version: str) -> Tried:
            found = self._tried(version)
            self.request.show(f"{version}: {found.step}{f', {found.why}' if found.why else ''}")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                mend_torn_line(file)
                file.write(msgspec.json.encode(found) + b"\n")
            return found

        return compare

    def _tried(self, version: str) -> Tried:
        side = f"{self.good.engine}=={version}"
        folder, asked = self.folder / version, self.request.launches
        try:
            for launches in (asked, _MORE * asked):
                request = dataclasses.replace(
                    self.request,
                    a=self.good.text,
                    b=side,
                    out=folder,
                    launches=launches,
                    resume=(folder / "gate.jsonl").exists(),
                )
                opened = open_gate(request)
                opened.gate.record()
                opened.gate.rehearse()
                opened.gate.measure()
                report = opened.report()
                opened.record(report)
                if report.answer is not Answer.UNDECIDED:
                    break
        except SpecregError as error:
            return Tried(version=version, step=Step.UNKNOWN, why=str(error).splitlines()[0])
        return Tried(version=version, step=_STEPS[report.answer], why=_why(report.decision))


def search(good: str, bad: str, versions: Sequence[str], request: Request, folder: Path) -> Search:
    """A search that may start.

    Raises:
        UnsupportedError: the sides aren't two versions of one engine.
    """
    sides = parse_side(good), parse_side(bad)
    for side in sides:
        if side.kind is not Kind.VERSION or not side.place:
            message = f"'{side.text}': is no release; give ENGINE==VERSION"
            raise UnsupportedError(message)
    if sides[0].engine != sides[1].engine:
        message = f"--good {good} --bad {bad}: of two engines; give two versions of one"
        raise UnsupportedError(message)
    return Search(good=sides[0], bad=sides[1], versions=versions, request=request, folder=folder)


def _why(decision: Decision) -> str:
    return "; ".join(decision.reasons or decision.takes)


def _earlier(path: Path) -> tuple[Tried, ...]:
    if not path.exists():
        return ()
    found = []
    for line in path.read_bytes().splitlines():
        try:
            found.append(msgspec.json.decode(line, type=Tried))
        except msgspec.DecodeError:
            continue
    # What nobody could tell may be told the next time.
    return tuple(one for one in found if one.step is not Step.UNKNOWN)


def render_bisected(found: Bisected) -> str:
    """What was found, in lines."""
    lines = [
        f"  {one.version}: {one.step}{f', {one.why}' if one.why else ''}" for one in found.tried
    ]
    if found.between:
        among = ", ".join(found.between)
        said = f"it changed after {found.last_good} and by {found.first_bad}; unknown: {among}"
    else:
        said = f"it changed in {found.first_bad}; {found.last_good} is good"
    return "\n".join((*lines, said))
