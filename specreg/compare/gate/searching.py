"""Searching: a good and a bad version and a case in, gates between them out."""

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import specreg
from specreg.compare.gate.answer import Decision
from specreg.compare.gate.beside import SideError
from specreg.compare.gate.between import (
    FAILED_STATUS,
    INTERRUPTED_STATUS,
    check_good,
    decision_between,
    lost_of,
    step_of,
    why_of,
)
from specreg.compare.gate.bisecting import Bisected, Step, Tried, bisect_versions, versions_between
from specreg.compare.gate.journal import only_one
from specreg.compare.gate.launched import Arm
from specreg.compare.gate.opening import open_gate, set_aside
from specreg.compare.gate.releases import released_versions
from specreg.compare.gate.request import Request
from specreg.compare.gate.side import Kind, Side, parse_side
from specreg.compare.gate.source import source_of
from specreg.core.errors import (
    EnvironmentSetupError,
    SpecregError,
    UnknownNameError,
    UnsupportedError,
)
from specreg.core.files import replace_file
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case

PAGE = "bisect.json"


class Searched(msgspec.Struct, kw_only=True):
    """`bisect.json`.

    Attributes:
        case_id: what became worse; good, bad: between which releases, as they were typed.
        exit_status: the command's: 0, 10 where it isn't to be found or only between which releases,
            130 where a signal ended it.
        reason: why it wasn't found, empty where it was.
        tried: in order, as far as it came; found: in the end, null where nothing was.
    """

    schema_version: int = 1
    specreg_version: str = specreg.__version__
    case_id: str
    good: str
    bad: str
    exit_status: int = FAILED_STATUS
    reason: str = "cut short"
    tried: list[Tried] = []
    found: Bisected | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched.

    Attributes:
        case: that became worse.
        good, bad: sides of one engine, each with a version.
        versions: to search among, none for all that were released.
        request: of each gate; its sides and folder are set for each.
        folder: of all gates.
    """

    case: Case
    good: Side
    bad: Side
    versions: Sequence[str]
    request: Request
    folder: Path

    def run(self) -> Searched:
        """Searches on from the gates that lie in the folder; `bisect.json` says what came of it.

        Raises:
            SpecregError: there is nothing to find, or the good release can't be measured, or
                another search is at work there; the message says why.
        """
        lock = only_one(self.gates / PAGE, "search")
        try:
            return self._recorded()
        finally:
            lock.release()

    def _recorded(self) -> Searched:
        """The same, while nobody else is at work there."""
        searched = Searched(case_id=self.case.id, good=self.good.text, bad=self.bad.text)
        try:
            searched.found = self._run(searched.tried)
            unknown = ", ".join(searched.found.between)
            searched.exit_status = FAILED_STATUS if unknown else 0
            searched.reason = f"nobody can tell of {unknown}" if unknown else ""
        except KeyboardInterrupt:
            searched.exit_status = INTERRUPTED_STATUS
            raise
        except SpecregError as error:
            searched.reason = str(error)
            raise
        finally:
            self._record(searched)
        return searched

    def _run(self, tried: list[Tried]) -> Bisected:
        """The same; what was tried is told as it comes."""
        versions = versions_between(self.good.place, self.bad.place, self._released())
        self.request.show(f"between {', '.join(versions)}")
        lost: frozenset[str] | None = None

        def compare(version: str) -> Tried:
            nonlocal lost
            decision = self._decision(versions[0], version, lost)
            if isinstance(decision, str):
                found = Tried(version=version, step=Step.UNKNOWN, why=decision)
            else:
                # The last version comes first: what it lost is what is searched for.
                lost = lost_of(decision) if lost is None else lost
                step = step_of(decision, lost)
                found = Tried(version=version, step=step, why=why_of(decision, step, lost))
            self.request.show(f"{version}: {found.step}{f', {found.why}' if found.why else ''}")
            tried.append(found)
            return found

        return bisect_versions(versions, compare)

    def _record(self, searched: Searched) -> None:
        path = self.gates / PAGE
        try:
            replace_file(path, msgspec.json.format(msgspec.json.encode(searched), indent=1) + b"\n")
        except OSError as error:
            self.request.show(f"'{path}': can't be written, {error.strerror}")

    @property
    def gates(self) -> Path:
        """The folder of the case's gates, and of what came of them."""
        return self.folder / self.case.id

    def _released(self) -> Sequence[str]:
        if self.versions:
            return (self.good.place, *self.versions, self.bad.place)
        on_gpu = self.request.tier.needs_gpus > 0
        return released_versions(engine_named(self.good.engine).requirement(on_gpu=on_gpu).package)

    def _decision(self, good: str, version: str, lost: frozenset[str] | None) -> Decision | str:
        """What a gate of the good release against another says, or why that can't be measured."""
        engine = self.good.engine
        folder = self.gates / f"{good}..{version}-{self._fingerprint}"
        request = dataclasses.replace(
            self.request,
            a=f"{engine}=={good}",
            b=f"{engine}=={version}",
            out=folder,
            resume=(folder / "gate.jsonl").exists(),
        )
        set_aside(folder)
        try:
            source = source_of(
                parse_side(request.b), on_gpu=request.tier.needs_gpus > 0, show=request.show
            )
            source.check((self.case,))
            source.check_released(self.case.server)
        except UnsupportedError as error:
            return _first_line(error)
        opened = open_gate(request)
        try:
            source.environment(self.case)
        except (UnsupportedError, EnvironmentSetupError) as error:
            return _first_line(error)
        try:
            opened.gate.record()
            opened.gate.rehearse()
        except SideError as error:
            if error.arm is not Arm.B:
                raise
            return _first_line(error)
        decision = decision_between(opened, lost)
        searched = lost_of(decision) if lost is None else lost
        if step_of(decision, searched) is Step.UNKNOWN:
            check_good(opened.gate, self.case.id, searched)
        return decision

    @property
    def _fingerprint(self) -> str:
        """Of what is measured; how many launches there may be, and how they are judged, is not."""
        made_of = repr((self.case, self.request.prompts, self.request.least_s))
        return hashlib.sha256(made_of.encode()).hexdigest()[:8]


def search(good: str, bad: str, versions: Sequence[str], request: Request, folder: Path) -> Search:
    """A search that may start.

    Raises:
        UnsupportedError: the sides aren't two versions of one engine.
        UnknownNameError: the tier has no such case.
    """
    sides = parse_side(good), parse_side(bad)
    for side in sides:
        if side.kind is not Kind.VERSION or not side.place:
            message = f"'{side.text}': is no release; give ENGINE==VERSION"
            raise UnsupportedError(message)
    if sides[0].engine != sides[1].engine:
        message = f"--good {good} --bad {bad}: of two engines; give two versions of one"
        raise UnsupportedError(message)
    known = {case.id: case for case in request.tier.cases}
    [case_id] = request.case_ids
    if case_id not in known:
        raise UnknownNameError("case", case_id, known, f"tier '{request.tier.name}'")
    return Search(
        case=known[case_id],
        good=sides[0],
        bad=sides[1],
        versions=versions,
        request=request,
        folder=folder,
    )


def _first_line(error: SpecregError) -> str:
    return str(error).splitlines()[0]


def render_searched(searched: Searched) -> str:
    """What was tried and found, in lines."""
    lines = [
        f"  {one.version}: {one.step}{f', {one.why}' if one.why else ''}" for one in searched.tried
    ]
    found = searched.found
    if found is None:
        said = searched.reason
    elif found.between:
        among = ", ".join(found.between)
        said = f"it changed after {found.last_good} and by {found.first_bad}; unknown: {among}"
    else:
        said = f"it changed in {found.first_bad}; {found.last_good} is good"
    return "\n".join((*lines, said))
