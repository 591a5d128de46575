"""Find the release in which a case became worse, by a sequence of gates against the good release.

If a gate can't decide whether a version is worse, the versions next to it are tried instead.
"""

import dataclasses
import functools
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from packaging.version import InvalidVersion, Version

from specreg.compare.document import run_to_end, set_report_aside
from specreg.compare.execute import SideError
from specreg.compare.gate import Gate, open_gate
from specreg.compare.judging import Decision, GateAnswer, why_broken
from specreg.compare.options import TOLERANCE, BisectOptions, ComparisonOptions, GateOptions
from specreg.compare.pairs import Side
from specreg.core.commands import specreg_command
from specreg.core.errors import UnsupportedError
from specreg.engines.registry import engine_named
from specreg.matrix.case import Case, Tier
from specreg.runs.ledger import LEDGER
from specreg.servers.provision import EngineOrigin, parse_origin, released_versions
from specreg.verdicts.verdict import GOOD, WORSE, Outcome, Verdict

_UNCLEAR = frozenset({Outcome.INCONCLUSIVE, Outcome.INVALID})
_MAX_NAMED = 10
"""The most versions that a message names."""

OpenGate = Callable[[GateOptions, Tier], Gate]


class VersionState(StrEnum):
    """How a version compares with the good one."""

    GOOD = "good"
    BAD = "bad"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedVersion:
    """What a gate of a version against the good one found.

    Attributes:
        state: how it compares.
        reason: why it is bad or couldn't be judged; empty if it is good.
        worse_metrics: the metrics in which it is worse.
    """

    state: VersionState
    reason: str = ""
    worse_metrics: frozenset[str] = frozenset()


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
        SideError: the good release can't be measured.
        SpecregError: the options name no range of releases, or the last one isn't worse or can't be
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

    # Compare version after version, until none is left to try.
    compared: dict[str, ComparedVersion] = {}
    while version := next_version(versions, compared):
        worst = compared.get(versions[-1])
        searched = None if worst is None else worst.worse_metrics
        found = _compare(version, Search(options, tier, case, good, searched), open_gate)
        options.show(f"{version}: {found.state}{', ' * bool(found.reason)}{found.reason}")
        compared[version] = found

    return change_of(versions, compared)


def next_version(versions: Sequence[str], compared: Mapping[str, ComparedVersion]) -> str | None:
    """Return the version that halves what is left of a range; None if none is left to try.

    Args:
        versions: the versions in order, of which the first is good. The last one is tried first.
        compared: what comparing versions with the first one has found so far.

    Raises:
        UnsupportedError: the last version isn't bad, or can't be judged.
    """
    good, *_, last = versions
    if last not in compared:
        return last
    if compared[last].state is VersionState.UNKNOWN:
        problem = f"it isn't known whether it is worse than {good}, {compared[last].reason}"
        raise UnsupportedError(f"{last}: {problem}; name another bad version")
    if compared[last].state is VersionState.GOOD:
        message = f"{last}: isn't worse than {good}; name other versions, or a lower {TOLERANCE}"
        raise UnsupportedError(message)

    change = change_of(versions, compared)
    positions = {
        version: position for position, version in enumerate(change) if version not in compared
    }

    # Twice the distance from the middle, so that it is whole. The good version isn't tried.
    distances = {
        version: abs(2 * position - len(change) + 1)
        for version, position in positions.items()
        if position
    }
    return min(distances, key=distances.__getitem__, default=None)


def change_of(versions: Sequence[str], compared: Mapping[str, ComparedVersion]) -> tuple[str, ...]:
    """Return the last good version, those that aren't decided, and the first bad one."""
    states = [compared[version].state if version in compared else None for version in versions]
    first_bad = states.index(VersionState.BAD)
    goods = [index for index, state in enumerate(states[:first_bad]) if state is VersionState.GOOD]
    last_good = max(goods, default=0)
    return tuple(versions[last_good : first_bad + 1])


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
    if outcomes & WORSE:
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


class Search(NamedTuple):
    """A search for the release that became worse.

    Attributes:
        options: the options of the command.
        tier: the tier of the case.
        case: the case that became worse.
        good: the good release.
        worse_metrics: the metrics in which the last version is worse; None before its own gate.
    """

    options: BisectOptions
    tier: Tier
    case: Case
    good: EngineOrigin
    worse_metrics: frozenset[str] | None


def _compare(version: str, search: Search, open_gate: OpenGate) -> ComparedVersion:
    """Compare a version with the good one by a gate.

    Raises:
        SideError: the good release can't be measured.
    """
    try:
        decision = _gate_against(version, search, open_gate)
    except SideError as error:
        if error.side is not Side.B:
            raise
        return ComparedVersion(state=VersionState.UNKNOWN, reason=error.head)

    state = state_of(decision, search.worse_metrics)

    # Only the metrics in which the last version is worse matter for the others.
    losses = [verdict for verdict in decision.verdicts if verdict.outcome in WORSE]
    return ComparedVersion(
        state=state,
        reason="; ".join(_reasons(state, decision, search)),
        worse_metrics=frozenset(loss.metric for loss in losses),
    )


def _reasons(state: VersionState, decision: Decision, search: Search) -> Sequence[str]:
    """Return why a version is bad, or why it can't be judged; empty if it is good."""
    if state is VersionState.BAD:
        return decision.reasons
    if state is VersionState.GOOD:
        return ()
    return [
        f"{verdict.metric}: {verdict.explanation}"
        for verdict in _searched(decision, search.worse_metrics)
        if verdict.outcome in _UNCLEAR
    ]


def _gate_against(version: str, search: Search, open_gate: OpenGate) -> Decision:
    """Run a gate of the good version against another one, and write its report.

    Raises:
        SideError: the good release can't be measured, or the other one can't start.
    """
    options = search.options

    # A gate with other settings gets its own folder, so that it isn't continued by mistake.
    settings = repr((search.case, options.prompts, options.least_s))
    fingerprint = hashlib.sha256(settings.encode()).hexdigest()[:8]
    folder = options.folder / f"{search.good.version}..{version}-{fingerprint}"
    set_report_aside(folder)
    shared_options = {
        field.name: getattr(options, field.name) for field in dataclasses.fields(ComparisonOptions)
    }
    shared_options["out"] = folder
    gate_options = GateOptions(
        **shared_options,
        a=f"{search.good.engine}=={search.good.version}",
        b=f"{search.good.engine}=={version}",
        case_ids=[search.case.id],
        # A gate that ends undecided would leave its version out of the search.
        minutes=math.inf,
        resume=os.path.lexists(folder / LEDGER),
    )
    gate = open_gate(gate_options, search.tier)
    gate = gate.until(functools.partial(_is_decided, worse_metrics=search.worse_metrics))
    decision = run_to_end(gate, command=specreg_command("bisect", search.case.id))
    broken = why_broken(gate.ledger.launches, Side.A)
    if broken is not None and state_of(decision, search.worse_metrics) is VersionState.UNKNOWN:
        message = (
            f"the good release can't be measured, {broken}; see '{gate.folder / 'logs'}', and"
            " type the same command again, or name another --good"
        )
        raise SideError(Side.A, message)

    return decision


def _is_decided(decision: Decision, worse_metrics: frozenset[str] | None) -> bool:
    """Return whether a gate needs no further launch.

    For all versions but the last, only the metrics in which the last version is worse must be
    decided.
    """
    if worse_metrics is not None and state_of(decision, worse_metrics) is not VersionState.UNKNOWN:
        return True
    searched = _searched(decision, worse_metrics)
    is_unclear = any(verdict.outcome is Outcome.INCONCLUSIVE for verdict in searched)
    return not is_unclear and not decision.wants_answers
