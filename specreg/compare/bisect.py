"""Find the release in which a case became worse, by a sequence of gates against the good release.

If a gate can't decide whether a version is worse, the versions next to it are tried instead.
"""

import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from packaging.version import InvalidVersion, Version

from specreg.compare.answers import wants_answers
from specreg.compare.document import record_gate, set_report_aside
from specreg.compare.execute import SideError
from specreg.compare.gate import Gate, open_gate
from specreg.compare.judging import Decision, GateAnswer, why_broken
from specreg.compare.options import TOLERANCE, BisectOptions, ComparisonOptions, GateOptions
from specreg.compare.pairs import Pair, Side
from specreg.core.commands import specreg_command
from specreg.core.errors import UnsupportedError
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, Tier
from specreg.runs.ledger import LEDGER, Ledger
from specreg.servers.provision import parse_origin, released_versions
from specreg.verdicts.verdict import GOOD, Outcome, Verdict

_WORSE = frozenset({Outcome.REGRESSED, Outcome.WRONG})
_UNCLEAR = frozenset({Outcome.INCONCLUSIVE, Outcome.INVALID})
_CUT_SHORT_STATUS = 10
"""The exit status in the report of a gate that was interrupted."""
_MAX_NAMED = 10
"""The most versions that a message names."""

OpenGate = Callable[[GateOptions, Tier], Gate]


class VersionState(StrEnum):
    """How a version compares with the good one."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


def find_change(
    options: BisectOptions, tier: Tier, case: Case, open_gate: OpenGate = open_gate
) -> tuple[str, ...]:
    """Find the last good release of a case, the undecided ones, and the first bad one.

    Args:
        options: the options of the command.
        tier: the tier of the case.
        case: the case that became worse.
        open_gate: opens each gate of the search.

    Raises:
        SideError: The good release can't be measured.
        SpecregError: The options name no range of releases, or the last one isn't worse or can't be
            judged.
    """
    # Check both ends of the range.
    good = parse_origin(options.good)
    bad = parse_origin(options.bad)
    for origin in (good, bad):
        if not origin.version:
            raise UnsupportedError(f"'{origin.text}': is no release; give ENGINE==VERSION")
    if good.engine != bad.engine:
        message = f"--good {good.text} --bad {bad.text}: of two engines; give two versions of one"
        raise UnsupportedError(message)

    # Search among the named versions, or else among all releases between both ends.
    named = [version.strip() for version in options.versions.split(",") if version.strip()]
    released: Sequence[str] = (good.version, *named, bad.version)
    if not named:
        requirement = engine_named(good.engine).requirement(on_gpu=tier.needs_gpus > 0)
        released = released_versions(requirement.package)
    versions = versions_between(good.version, bad.version, released)
    options.show(f"between {', '.join(versions)}")
    search = _Search(options, tier, case, good.engine, versions[0], open_gate)
    return bisect_versions(versions, search.compare)


def bisect_versions(
    versions: Sequence[str], compare: Callable[[str], tuple[VersionState, str]]
) -> tuple[str, ...]:
    """Bisect a range of versions, of which the first is good and the last bad.

    Args:
        versions: the versions in order.
        compare: compares a version with the good one, and returns its state and the reason.

    Returns:
        The last good version, the undecided ones, and the first bad one.

    Raises:
        UnsupportedError: the last version isn't bad, or can't be judged.
    """
    # Check that the last version is bad.
    good = versions[0]
    last = versions[-1]
    state, reason = compare(last)
    if state is VersionState.UNKNOWN:
        problem = f"it isn't known whether it is worse than {good}, {reason}"
        raise UnsupportedError(f"{last}: {problem}; name another bad version")
    if state is VersionState.GOOD:
        message = f"{last}: isn't worse than {good}; name other versions, or a lower {TOLERANCE}"
        raise UnsupportedError(message)

    # Halve the range until no version between its ends is left to try.
    last_good = 0
    first_bad = len(versions) - 1
    unknown: set[int] = set()

    def distance_from_middle(index: int) -> int:
        # Twice the distance, so that it is whole.
        return abs(2 * index - last_good - first_bad)

    while True:
        candidates = [index for index in range(last_good + 1, first_bad) if index not in unknown]
        if not candidates:
            return tuple(versions[last_good : first_bad + 1])
        middle = min(candidates, key=distance_from_middle)
        state, _ = compare(versions[middle])
        if state is VersionState.UNKNOWN:
            unknown.add(middle)
        elif state is VersionState.BAD:
            first_bad = middle
        else:
            last_good = middle


def versions_between(good: str, bad: str, released: Sequence[str]) -> tuple[str, ...]:
    """Return the released versions from the good to the bad one, in order.

    Pre-releases between these two are left out.

    Raises:
        UnsupportedError: a version can't be read or was never released, or the good one isn't older
            than the bad one.
    """
    try:
        texts = {Version(text): text for text in released}
        first = Version(good)
        last = Version(bad)
    except InvalidVersion as error:
        raise UnsupportedError(f"{error}; give versions as 0.31.0") from error
    for version in (first, last):
        if version not in texts:
            newest_versions = sorted(texts)[-_MAX_NAMED:]
            newest = ", ".join(map(str, newest_versions))
            message = f"version '{version}': was never released; the last ones are {newest}"
            raise UnsupportedError(message)
    if not first < last:
        message = f"--good {good} --bad {bad}: the good one must be the older; swap them"
        raise UnsupportedError(message)
    between = [version for version in sorted(texts) if first < version < last]
    releases = [version for version in between if not version.is_prerelease]
    return tuple(texts[version] for version in (first, *releases, last))


def state_of(decision: Decision, worse_metrics: frozenset[str] | None) -> VersionState:
    """Return the state of a version according to its gate.

    Args:
        decision: the decision of its gate.
        worse_metrics: the metrics in which the last version is worse, which alone count; None for
            the last version itself, which is bad if any metric is worse.
    """
    if worse_metrics is None and decision.answer is GateAnswer.UPGRADE:
        return VersionState.GOOD
    outcomes = {verdict.outcome for verdict in _searched(decision, worse_metrics)}
    if outcomes & _WORSE:
        return VersionState.BAD
    if worse_metrics and outcomes and outcomes <= GOOD:
        return VersionState.GOOD
    return VersionState.UNKNOWN


def _searched(decision: Decision, worse_metrics: frozenset[str] | None) -> list[Verdict]:
    """Return the verdicts on the worse metrics, or all verdicts if `worse_metrics` is None."""
    return [
        verdict
        for verdict in decision.verdicts
        if worse_metrics is None or verdict.metric in worse_metrics
    ]


@dataclass(slots=True)
class _Search:
    """A search for the release that became worse, by gates against the good release.

    Attributes:
        options: the options of the command.
        tier: the tier of the case.
        case: the case that became worse.
        engine: the engine of all releases.
        good: the version of the good release.
        open_gate: opens each gate of the search.
        worse_metrics: the metrics in which the last version is worse; None before the first gate.
    """

    options: BisectOptions
    tier: Tier
    case: Case
    engine: str
    good: str
    open_gate: OpenGate
    worse_metrics: frozenset[str] | None = None

    def compare(self, version: str) -> tuple[VersionState, str]:
        """Compare a version with the good one.

        Returns:
            The state, and why the version is bad or couldn't be judged.

        Raises:
            SideError: the good release can't be measured.
        """
        try:
            decision = self._gate_against(version)
        except SideError as error:
            if error.side is not Side.B:
                raise
            state = VersionState.UNKNOWN
            reason = error.head
        else:
            state = state_of(decision, self.worse_metrics)
            reason = "; ".join(self._reasons(state, decision))
            if state is VersionState.BAD and self.worse_metrics is None:
                # The first gate judges the last version. Only the metrics in which it is worse
                # matter.
                losses = [verdict for verdict in decision.verdicts if verdict.outcome in _WORSE]
                self.worse_metrics = frozenset(loss.metric for loss in losses)
        line = f"{version}: {state}"
        if reason:
            line = f"{line}, {reason}"
        self.options.show(line)
        return state, reason

    def _reasons(self, state: VersionState, decision: Decision) -> Sequence[str]:
        """Return why a version is bad, or why it can't be judged; empty if it is good."""
        if state is VersionState.BAD:
            return decision.reasons
        if state is VersionState.GOOD:
            return ()
        searched = _searched(decision, self.worse_metrics)
        unclear = [verdict for verdict in searched if verdict.outcome in _UNCLEAR]
        return [f"{verdict.metric}: {verdict.explanation}" for verdict in unclear]

    def _gate_against(self, version: str) -> Decision:
        """Run a gate of the good version against another one, and write its report.

        Raises:
            SideError: the good release can't be measured, or the other one can't start.
        """
        options = self.options
        # A gate with other settings gets its own folder, so that it isn't continued by mistake.
        settings = repr((self.case, options.prompts, options.least_s))
        fingerprint = hashlib.sha256(settings.encode()).hexdigest()[:8]
        folder = options.folder / f"{self.good}..{version}-{fingerprint}"
        set_report_aside(folder)
        shared_options = {
            field.name: getattr(options, field.name)
            for field in dataclasses.fields(ComparisonOptions)
        }
        shared_options["out"] = folder
        gate_options = GateOptions(
            **shared_options,
            a=f"{self.engine}=={self.good}",
            b=f"{self.engine}=={version}",
            case_ids=[self.case.id],
            # A gate that ends undecided would leave its version out of the search.
            minutes=math.inf,
            resume=os.path.lexists(folder / LEDGER),
        )
        gate = self.open_gate(gate_options, self.tier)
        gate = gate.until(functools.partial(self._is_decided, gate.pairs))
        try:
            decision = gate.measure()
        finally:
            # A gate that was interrupted leaves a report of what it measured too.
            status = None
            if not gate.is_finished:
                status = _CUT_SHORT_STATUS
            command = specreg_command("bisect", self.case.id)
            record_gate(gate, command=command, status=status)
            gate.ledger.close()
        broken = why_broken(gate.ledger.launches, Side.A)
        if broken is not None and state_of(decision, self.worse_metrics) is VersionState.UNKNOWN:
            message = (
                f"the good release can't be measured, {broken}; see '{gate.folder / 'logs'}', and"
                " type the same command again, or name another --good"
            )
            raise SideError(Side.A, message)
        return decision

    def _is_decided(self, pairs: Sequence[Pair], decision: Decision, ledger: Ledger) -> bool:
        """Return whether a gate needs no further launch.

        For all versions but the last, only the metrics in which the last version is worse must be
        decided.
        """
        if (
            self.worse_metrics is not None
            and state_of(decision, self.worse_metrics) is not VersionState.UNKNOWN
        ):
            return True
        searched = _searched(decision, self.worse_metrics)
        is_unclear = any(verdict.outcome is Outcome.INCONCLUSIVE for verdict in searched)
        return not is_unclear and not any(wants_answers(pair, ledger) for pair in pairs)
