"""Bisect: the release in which a case became worse, by a sequence of gates against the good one.

A gate that can't tell halves nothing: its version is left out, and its neighbours are tried.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.version import InvalidVersion, Version

from specreg.compare.configure import JOURNAL, open_gate
from specreg.compare.document import record_gate, set_aside
from specreg.compare.gate import Gate, GateOptions, SideError
from specreg.compare.judging import Answer, Decision, launches_for, why_broken
from specreg.compare.pairs import Side
from specreg.core.commands import specreg_command
from specreg.core.errors import UnsupportedError
from specreg.correctness.checks import LOSSLESS
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case
from specreg.servers.sources import Origin, parse_origin, released_versions
from specreg.verdicts.judge import GOOD, Outcome

_WORSE = frozenset({Outcome.REGRESSED, Outcome.WRONG})
_CUT_SHORT_STATUS = 10
_MOST_NAMED = 10


class Step(StrEnum):
    """What a version is, compared with the good one."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


def find_change(
    options: GateOptions, case: Case, named: Sequence[str], folder: Path
) -> tuple[str, ...]:
    """The last good release of a case, those of which there is no telling, and the first bad one.

    Args:
        options: of each gate; `a` is the good release, `b` the bad one.
        case: that became worse.
        named: the releases to search among, none for all that there are.
        folder: of all gates; those that lie there go on.

    Raises:
        SideError: the good release can't be measured.
        SpecregError: there is nothing to find.
    """
    good, bad = _release(options.a), _release(options.b)
    if good.engine != bad.engine:
        message = f"--good {good.text} --bad {bad.text}: of two engines; give two versions of one"
        raise UnsupportedError(message)
    released: Sequence[str] = (good.version, *named, bad.version)
    if not named:
        requirement = engine_named(good.engine).requirement(on_gpu=options.on_gpu)
        released = released_versions(requirement.package)
    versions = versions_between(good.version, bad.version, released)
    options.show(f"between {', '.join(versions)}")
    search = _Search(options, case, folder)
    return bisect_versions(versions, functools.partial(search.compare, versions[0]))


def _release(text: str) -> Origin:
    origin = parse_origin(text)
    if not origin.version:
        raise UnsupportedError(f"'{text}': is no release; give ENGINE==VERSION")
    return origin


def bisect_versions(
    versions: Sequence[str], compare: Callable[[str], tuple[Step, str]]
) -> tuple[str, ...]:
    """The step of some versions in which the first one became the last one, see `find_change`.

    The last is compared first: where it isn't bad there is nothing to find.

    Raises:
        UnsupportedError: the last version is not worse than the first, or there is no telling.
    """
    good, last = versions[0], versions[-1]
    step, why = compare(last)
    if step is Step.UNKNOWN:
        raise UnsupportedError(f"{last}: no telling whether it is worse than {good}, {why}")
    if step is Step.GOOD:
        message = (
            f"{last}: isn't worse than {good}; there is nothing to find, or --tolerance says what"
            " would be"
        )
        raise UnsupportedError(message)
    low, high, unknown = 0, len(versions) - 1, set[int]()
    while left := [place for place in range(low + 1, high) if place not in unknown]:
        middle = min(left, key=lambda place: abs(2 * place - low - high))
        step, _ = compare(versions[middle])
        if step is Step.UNKNOWN:
            unknown.add(middle)
        elif step is Step.BAD:
            high = middle
        else:
            low = middle
    return tuple(versions[low : high + 1])


def versions_between(good: str, bad: str, released: Sequence[str]) -> tuple[str, ...]:
    """The released versions from the good to the bad one, in order; pre-releases are left out.

    Raises:
        UnsupportedError: the good one isn't the older, one of both was never released, or
            something isn't a version.
    """
    known = {_version(one): one for one in released}
    first, last = _version(good), _version(bad)
    for version in (first, last):
        if version not in known:
            last_ones = ", ".join(map(str, sorted(known)[-_MOST_NAMED:]))
            message = f"version '{version}': was never released; the last ones are {last_ones}"
            raise UnsupportedError(message)
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
    """What a version is by the metrics that the last one lost; what else it lost doesn't count."""
    if not lost:
        return Step.GOOD if decision.answer is Answer.UPGRADE else Step.UNKNOWN
    outcomes = {one.outcome for one in decision.verdicts if one.metric in lost}
    if outcomes & _WORSE:
        return Step.BAD
    return Step.GOOD if outcomes and outcomes <= GOOD else Step.UNKNOWN


def why_of(decision: Decision, step: Step, lost: frozenset[str]) -> str:
    """What a bad version lost; of an unknown one what it would take to tell."""
    if step is not Step.UNKNOWN:
        return "; ".join(decision.reasons) if step is Step.BAD else ""
    unclear = [
        one
        for one in decision.verdicts
        if one.outcome in {Outcome.INCONCLUSIVE, Outcome.INVALID}
        and (one.metric in lost or not lost)
    ]
    most = max(map(launches_for, unclear), default=0)
    whys = [f"{one.metric}: {one.reason or 'there is no telling'}" for one in unclear]
    return "; ".join([*whys, *([f"type the same with --launches {most}"] if most else [])])


@dataclass(slots=True)
class _Search:
    """Gates of a case; `lost`: the metrics that are searched for, None for all."""

    options: GateOptions
    case: Case
    folder: Path
    lost: frozenset[str] | None = None

    def compare(self, good: str, version: str) -> tuple[Step, str]:
        """What a version is, and why."""
        try:
            decision = self._decide(good, version)
        except SideError as error:
            if error.side is not Side.B:
                raise
            step, why = Step.UNKNOWN, str(error).splitlines()[0]
        else:
            # The last version comes first: what it lost is what is searched for.
            self.lost = lost_of(decision) if self.lost is None else self.lost
            step = step_of(decision, self.lost)
            why = why_of(decision, step, self.lost)
        self.options.show(f"{version}: {step}{f', {why}' if why else ''}")
        return step, why

    def _decide(self, good: str, version: str) -> Decision:
        """What a gate of the good version against another says."""
        made_of = repr((self.case, self.options.prompts, self.options.least_s))
        fingerprint = hashlib.sha256(made_of.encode()).hexdigest()[:8]
        folder = self.folder / f"{good}..{version}-{fingerprint}"
        engine = parse_origin(self.options.a).engine
        set_aside(folder)
        gate = open_gate(
            dataclasses.replace(
                self.options,
                a=f"{engine}=={good}",
                b=f"{engine}=={version}",
                out=folder,
                resume=(folder / JOURNAL).exists(),
            )
        )
        status: int | None = _CUT_SHORT_STATUS
        try:
            decision = gate.measure(functools.partial(self._is_told, gate))
            status = None
        finally:
            record_gate(gate, command=specreg_command("bisect", self.case.id), status=status)
            gate.lock.release()
        lost = lost_of(decision) if self.lost is None else self.lost
        if step_of(decision, lost) is Step.UNKNOWN:
            self._check_good(gate, lost)
        return decision

    def _is_told(self, gate: Gate, decision: Decision) -> bool:
        """Whether no launch would tell more: of the last version all that it lost is wanted."""
        lost = self.lost
        if lost is not None and step_of(decision, lost) is not Step.UNKNOWN:
            return True
        ours = [one for one in decision.verdicts if lost is None or one.metric in lost]
        unclear = any(one.outcome is Outcome.INCONCLUSIVE for one in ours)
        return not unclear and not gate.answers.wants(gate.pairs)

    def _check_good(self, gate: Gate, lost: frozenset[str]) -> None:
        """Check that the good release could be measured: another bad one would change nothing."""
        failed = gate.answers.failed.get(self.case.id, "") if LOSSLESS in lost else ""
        why = failed if failed.startswith("side A") else why_broken(gate.launches, Side.A)
        if why:
            message = (
                f"the good release can't be measured, {why}; see '{gate.folder / 'logs'}', and"
                " type the same again, or another --good"
            )
            raise SideError(Side.A, message)
