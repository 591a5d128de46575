"""Bisect: the release in which a case became worse, by a sequence of gates against the good one.

A gate that can't tell halves nothing: its version is left out, and its neighbours are tried.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from packaging.version import InvalidVersion, Version

from specreg.compare.document import record_gate, set_aside
from specreg.compare.gate import JOURNAL, Gate, SideError, open_gate
from specreg.compare.judging import Decision, GateAnswer, why_broken
from specreg.compare.options import TOLERANCE, BisectOptions, ComparisonOptions, GateOptions
from specreg.compare.pairs import Side
from specreg.core.commands import specreg_command
from specreg.core.errors import UnsupportedError
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, Tier
from specreg.servers.provision import parse_origin, released_versions
from specreg.verdicts.verdict import GOOD, Outcome, Verdict

_WORSE = frozenset({Outcome.REGRESSED, Outcome.WRONG})
_UNCLEAR = frozenset({Outcome.INCONCLUSIVE, Outcome.INVALID})
_CUT_SHORT_STATUS = 10
_MOST_NAMED = 10


class Step(StrEnum):
    """What a version is, compared with the good one."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


def find_change(options: BisectOptions, tier: Tier, case: Case) -> tuple[str, ...]:
    """Find the last good release of a case, the undecided ones, and the first bad one.

    Raises:
        SideError: the good release can't be measured.
        SpecregError: there is nothing to find.
    """
    good, bad = parse_origin(options.good), parse_origin(options.bad)
    for one in (good, bad):
        if not one.version:
            raise UnsupportedError(f"'{one.text}': is no release; give ENGINE==VERSION")
    if good.engine != bad.engine:
        message = f"--good {good.text} --bad {bad.text}: of two engines; give two versions of one"
        raise UnsupportedError(message)
    named = [one.strip() for one in options.versions.split(",") if one.strip()]
    released: Sequence[str] = (good.version, *named, bad.version)
    if not named:
        requirement = engine_named(good.engine).requirement(on_gpu=tier.needs_gpus > 0)
        released = released_versions(requirement.package)
    versions = versions_between(good.version, bad.version, released)
    options.show(f"between {', '.join(versions)}")
    search = _Search(options, tier, case, good.engine, versions[0])
    return bisect_versions(versions, search.compare)


def bisect_versions(
    versions: Sequence[str], compare: Callable[[str], tuple[Step, str]]
) -> tuple[str, ...]:
    """Bisect versions, the first of them good and the last bad; see `find_change`."""
    good, last = versions[0], versions[-1]
    step, why = compare(last)
    if step is Step.UNKNOWN:
        raise UnsupportedError(f"{last}: no telling whether it is worse than {good}, {why}")
    if step is Step.GOOD:
        would = f"there is nothing to find, or {TOLERANCE} says what would be"
        raise UnsupportedError(f"{last}: isn't worse than {good}; {would}")
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
    """The released versions from the good to the bad one, in order; pre-releases are left out."""
    try:
        known = {Version(one): one for one in released}
        first, last = Version(good), Version(bad)
    except InvalidVersion as error:
        raise UnsupportedError(f"{error}; give versions as 0.31.0") from error
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


def step_of(decision: Decision, lost: frozenset[str] | None) -> Step:
    """Tell whether a version is good or bad by only the metrics that the last one lost.

    The last one, of which `lost` is None, is bad whatever it lost.
    """
    if lost is None and decision.answer is GateAnswer.UPGRADE:
        return Step.GOOD
    outcomes = {one.outcome for one in decision.verdicts if lost is None or one.metric in lost}
    if outcomes & _WORSE:
        return Step.BAD
    return Step.GOOD if lost and outcomes and outcomes <= GOOD else Step.UNKNOWN


@dataclass(slots=True)
class _Search:
    """Gates of a case; `lost`: the metrics that are searched for, None before the first gate."""

    options: BisectOptions
    tier: Tier
    case: Case
    engine: str
    good: str
    lost: frozenset[str] | None = None

    def compare(self, version: str) -> tuple[Step, str]:
        """Compare a version with the good one, and say why, or what it would take to tell."""
        try:
            decision = self._gate_against(version)
        except SideError as error:
            if error.side is not Side.B:
                raise
            step, why = Step.UNKNOWN, error.head
        else:
            step = step_of(decision, self.lost)
            unclear = [one for one in self._wanted(decision) if one.outcome in _UNCLEAR]
            whys = decision.reasons if step is Step.BAD else ()
            if step is Step.UNKNOWN:
                whys = tuple(f"{one.metric}: {one.explanation}" for one in unclear)
            why = "; ".join(whys)
            if step is Step.BAD and self.lost is None:  # what the last version lost is searched for
                self.lost = frozenset(o.metric for o in decision.verdicts if o.outcome in _WORSE)
        self.options.show(f"{version}: {step}{f', {why}' if why else ''}")
        return step, why

    def _gate_against(self, version: str) -> Decision:
        """Run a gate of the good version against another."""
        options = self.options
        made_of = repr((self.case, options.prompts, options.least_s))
        fingerprint = hashlib.sha256(made_of.encode()).hexdigest()[:8]
        folder = options.folder / f"{self.good}..{version}-{fingerprint}"
        set_aside(folder)
        names = (one.name for one in dataclasses.fields(ComparisonOptions))
        shared = {name: getattr(options, name) for name in names}
        asked = GateOptions(
            **{**shared, "out": folder},
            a=f"{self.engine}=={self.good}",
            b=f"{self.engine}=={version}",
            case_ids=[self.case.id],
            minutes=math.inf,
            resume=(folder / JOURNAL).exists(),
        )
        gate = open_gate(asked, self.tier)
        try:
            decision = gate.measure(functools.partial(self._is_told, gate))
        finally:
            status = None if gate.finished else _CUT_SHORT_STATUS
            record_gate(gate, command=specreg_command("bisect", self.case.id), status=status)
            gate.journal.close()
        broken = why_broken(gate.launches, Side.A)
        if broken is not None and step_of(decision, self.lost) is Step.UNKNOWN:
            message = (
                f"the good release can't be measured, {broken}; see '{gate.folder / 'logs'}', and"
                " type the same again, or another --good"
            )
            raise SideError(Side.A, message)
        return decision

    def _is_told(self, gate: Gate, decision: Decision) -> bool:
        """Whether no launch would tell more: of the last version all that it lost is wanted."""
        if self.lost is not None and step_of(decision, self.lost) is not Step.UNKNOWN:
            return True
        unclear = any(one.outcome is Outcome.INCONCLUSIVE for one in self._wanted(decision))
        return not unclear and not gate.answers.wants(gate.pairs)

    def _wanted(self, decision: Decision) -> list[Verdict]:
        """The verdicts on what is searched for."""
        return [one for one in decision.verdicts if self.lost is None or one.metric in self.lost]
