"""Bisect: the release in which a case became worse, by a sequence of gates against the good one.

A gate that can't tell halves nothing: its version is left out, and its neighbours are tried.
"""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec
from packaging.version import InvalidVersion, Version

import specreg
from specreg.compare.arms import SideError
from specreg.compare.decision import Answer, Decision, launches_for
from specreg.compare.document import document_of, set_aside, write_document
from specreg.compare.gate import JOURNAL, Gate
from specreg.compare.judging import why_broken
from specreg.compare.opening import only_one, open_gate
from specreg.compare.pairs import Side
from specreg.compare.request import Request
from specreg.core.commands import specreg_command
from specreg.core.errors import (
    EnvironmentSetupError,
    SpecregError,
    UnknownNameError,
    UnsupportedError,
)
from specreg.core.files import replace_file
from specreg.correctness.checks import LOSSLESS
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.matrix.widening import served_models
from specreg.servers.sources import (
    Kind,
    Origin,
    check_released,
    parse_origin,
    released_versions,
    source_of,
)
from specreg.verdicts.judge import GOOD, Outcome

PAGE = "bisect.json"
FAILED_STATUS, INTERRUPTED_STATUS = 10, 130
_WORSE = frozenset({Outcome.REGRESSED, Outcome.WRONG})


class Step(StrEnum):
    """What a version is, compared with the good one."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A version that was compared; `why`: what it lost, or why there is no telling."""

    version: str
    step: Step
    why: str = ""


class Bisected(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found.

    Attributes:
        last_good, first_bad: the neighbours between which it changed, as far as could be told.
        between: versions between both of which there is no telling.
    """

    last_good: str
    first_bad: str
    between: tuple[str, ...]


class SearchReport(msgspec.Struct, kw_only=True):
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


def bisect_versions(versions: Sequence[str], compare: Callable[[str], Tried]) -> Bisected:
    """The step of some versions in which the first one became the last one.

    The last is compared first: where it isn't bad there is nothing to find.

    Args:
        versions: from the good to the bad one, in order, two at least.
        compare: a version with the good one, after as many launches as that may take.

    Raises:
        UnsupportedError: the last version is not worse than the first, or there is no telling.
    """
    good, last = versions[0], compare(versions[-1])
    if last.step is Step.UNKNOWN:
        message = f"{last.version}: no telling whether it is worse than {good}, {last.why}"
        raise UnsupportedError(message)
    if last.step is Step.GOOD:
        message = (
            f"{last.version}: isn't worse than {good}; there is nothing to find, or --tolerance"
            " says what would be"
        )
        raise UnsupportedError(message)
    low, high, unknown = 0, len(versions) - 1, set[int]()
    while left := [place for place in range(low + 1, high) if place not in unknown]:
        middle = min(left, key=lambda place: abs(2 * place - low - high))
        step = compare(versions[middle]).step
        if step is Step.UNKNOWN:
            unknown.add(middle)
        elif step is Step.BAD:
            high = middle
        else:
            low = middle
    return Bisected(
        last_good=versions[low], first_bad=versions[high], between=tuple(versions[low + 1 : high])
    )


def versions_between(good: str, bad: str, released: Sequence[str]) -> tuple[str, ...]:
    """The released versions from the good to the bad one, in order; pre-releases are left out.

    Raises:
        UnsupportedError: the good one isn't the older, one of both was never released, or
            something isn't a version.
    """
    known = {_version(one): one for one in released}
    first, last = _version(good), _version(bad)
    for version in (first, last):
        check_released(version, known)
    if not first < last:
        message = f"--good {good} --bad {bad}: the good one must be the older; swap them"
        raise UnsupportedError(message)
    between = sorted(one for one in known if first < one < last and not one.is_prerelease)
    return tuple(known[one] for one in (first, *between, last))


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion as error:
        raise UnsupportedError(f"'{text}': is no version; give one as 0.31.0") from error


def lost_of(decision: Decision) -> frozenset[str]:
    """What a version lost, as names of metrics."""
    return frozenset(one.metric for one in decision.verdicts if one.outcome in _WORSE)


def step_of(decision: Decision, lost: frozenset[str]) -> Step:
    """What a version is by the metrics that the last one lost; what else it lost doesn't count.

    Args:
        decision: of a gate of the good version against it.
        lost: names of metrics.
    """
    if not lost:
        return Step.GOOD if decision.answer is Answer.UPGRADE else Step.UNKNOWN
    outcomes = {one.outcome for one in decision.verdicts if one.metric in lost}
    if outcomes & _WORSE:
        return Step.BAD
    return Step.GOOD if outcomes and outcomes <= GOOD else Step.UNKNOWN


def why_of(decision: Decision, step: Step, lost: frozenset[str]) -> str:
    """Why a version is what it is: what it lost; or what it would take to tell, as a search has it.

    Args:
        decision: see `step_of`.
        step: what came of it.
        lost: see `step_of`.
    """
    if step is not Step.UNKNOWN:
        return "; ".join(decision.reasons) if step is Step.BAD else ""
    unclear = [
        one
        for one in decision.verdicts
        if one.outcome in {Outcome.INCONCLUSIVE, Outcome.INVALID}
        and (one.metric in lost or not lost)
    ]
    most = max((launches_for(one) or 0 for one in unclear), default=0)
    whys = [f"{one.metric}: {one.reason or 'there is no telling'}" for one in unclear]
    return "; ".join([*whys, *([f"type the same with --launches {most}"] if most else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched.

    Attributes:
        case: that became worse.
        good, bad: releases of one engine.
        versions: to search among, none for all that were released.
        request: of each gate; its sides and folder are set for each.
        folder: of all gates.
    """

    case: Case
    good: Origin
    bad: Origin
    versions: Sequence[str]
    request: Request
    folder: Path

    def run(self) -> SearchReport:
        """Search on from the gates that lie in the folder; `bisect.json` says what came of it.

        Raises:
            SpecregError: there is nothing to find, or the good release can't be measured, or
                another search is at work there; the message says why.
        """
        lock = only_one(self.gates, "bisect")
        report = SearchReport(case_id=self.case.id, good=self.good.text, bad=self.bad.text)
        try:
            report.found = self._run(report.tried)
            unknown = ", ".join(report.found.between)
            report.exit_status = FAILED_STATUS if unknown else 0
            report.reason = f"there is no telling of {unknown}" if unknown else ""
        except KeyboardInterrupt:
            report.exit_status = INTERRUPTED_STATUS
            raise
        except SpecregError as error:
            report.reason = str(error)
            raise
        finally:
            self._record(report)
            lock.release()
        return report

    def _run(self, tried: list[Tried]) -> Bisected:
        """The search; what was tried is told as it comes."""
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

    def _record(self, report: SearchReport) -> None:
        path = self.gates / PAGE
        try:
            replace_file(path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
        except OSError as error:
            self.request.show(f"'{path}': can't be written, {error.strerror}")

    @property
    def gates(self) -> Path:
        """The folder of the case's gates, and of what came of them."""
        return self.folder / self.case.id

    def _released(self) -> Sequence[str]:
        if self.versions:
            return (self.good.place, *self.versions, self.bad.place)
        requirement = engine_named(self.good.engine).requirement(on_gpu=self.request.on_gpu)
        return released_versions(requirement.package)

    def _decision(self, good: str, version: str, lost: frozenset[str] | None) -> Decision | str:
        """What a gate of the good release against another says, or why that can't be measured."""
        made_of = repr((self.case, self.request.prompts, self.request.least_s))
        fingerprint = hashlib.sha256(made_of.encode()).hexdigest()[:8]
        folder = self.gates / f"{good}..{version}-{fingerprint}"
        engine = self.good.engine
        request = dataclasses.replace(
            self.request,
            a=f"{engine}=={good}",
            b=f"{engine}=={version}",
            out=folder,
            resume=(folder / JOURNAL).exists(),
        )
        set_aside(folder)
        try:
            source = source_of(parse_origin(request.b), on_gpu=request.on_gpu, show=request.show)
            source.check((self.case,))
            served_models(request.root, self.case.server)
            source.environment(self.case)
        except (UnsupportedError, EnvironmentSetupError) as error:
            return str(error).splitlines()[0]
        gate = open_gate(request)
        try:
            decision = self._measured(gate, lost)
        except SideError as error:
            if error.side is not Side.B:
                raise
            return str(error).splitlines()[0]
        finally:
            gate.lock.release()
        sought = lost_of(decision) if lost is None else lost
        if step_of(decision, sought) is Step.UNKNOWN:
            self._check_good(gate, sought)
        return decision

    def _measured(self, gate: Gate, lost: frozenset[str] | None) -> Decision:
        """What a gate says of some metrics, None for all; it leaves its report."""
        status: int | None = FAILED_STATUS
        try:
            decision = gate.measure(
                lambda so_far: lost is not None and step_of(so_far, lost) is not Step.UNKNOWN,
                sought=lost,
                whole=lost is None,  # all that the bad release lost is searched for
            )
            status = None
        except KeyboardInterrupt:
            status = INTERRUPTED_STATUS
            raise
        finally:
            report = document_of(
                gate, command=specreg_command("bisect", self.case.id), status=status
            )
            write_document(gate.folder, report, self.request.show)
        return decision

    def _check_good(self, gate: Gate, sought: frozenset[str]) -> None:
        """Check that the good release could be measured: another bad one would change nothing.

        Raises:
            SideError: it failed; the message says why.
        """
        why = why_broken(gate.launches, Side.A)
        failed = gate.answers.failed.get(self.case.id, "")
        if LOSSLESS in sought and failed.startswith("side A"):
            why = failed
        if why:
            message = (
                f"the good release can't be measured, {why}; see '{gate.folder / 'logs'}', and"
                " type the same again, or another --good"
            )
            raise SideError(Side.A, message)


def open_search(
    good: str, bad: str, versions: Sequence[str], request: Request, folder: Path
) -> Search:
    """A search that may start.

    Raises:
        UnsupportedError: the sides aren't two versions of one engine.
        UnknownNameError: the tier has no such case.
    """
    request.check()
    origins = parse_origin(good), parse_origin(bad)
    for one in origins:
        if one.kind is not Kind.VERSION or not one.place:
            raise UnsupportedError(f"'{one.text}': is no release; give ENGINE==VERSION")
    if origins[0].engine != origins[1].engine:
        message = f"--good {good} --bad {bad}: of two engines; give two versions of one"
        raise UnsupportedError(message)
    known = {case.id: case for case in request.tier.cases}
    [case_id] = request.case_ids
    if case_id not in known:
        raise UnknownNameError("case", case_id, known, f"tier '{request.tier.name}'")
    return Search(
        case=known[case_id],
        good=origins[0],
        bad=origins[1],
        versions=versions,
        request=request,
        folder=folder,
    )


def render_search(report: SearchReport) -> str:
    """What was tried and found, in lines."""
    lines = [
        f"  {one.version}: {one.step}{f', {one.why}' if one.why else ''}" for one in report.tried
    ]
    found = report.found
    if found is None:
        said = report.reason
    elif found.between:
        among = ", ".join(found.between)
        said = f"it changed after {found.last_good} and by {found.first_bad}; unknown: {among}"
    else:
        said = f"it changed in {found.first_bad}; {found.last_good} is good"
    return "\n".join((*lines, said))
