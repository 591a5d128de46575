"""A gate that may start: all that can be checked before anything is measured is checked."""

import time
from collections.abc import Sequence
from pathlib import Path

import filelock

from specreg.compare.answers import AnswerComparison
from specreg.compare.arms import Sides
from specreg.compare.gate import JOURNAL, Gate
from specreg.compare.judging import LAUNCHES_PER_BLOCK, SPEED_LAUNCHES, Rules
from specreg.compare.pairs import ACCEPTANCE, Pair, Side, check_prompts, groups_of, pairs_of
from specreg.compare.pinning import pinned_pairs, recording_of
from specreg.compare.request import Request
from specreg.core.errors import SpecregError, UnknownNameError, UnsupportedError
from specreg.matrix.case import Case
from specreg.matrix.overrides import parse_override
from specreg.matrix.prompts import check_contexts
from specreg.matrix.widening import served_models
from specreg.measurement.journal import Journal
from specreg.servers.sources import Origin, Source, parse_origin, source_of
from specreg.telemetry.identity import current_environment, find_gpus


def open_gate(asked: Request) -> Gate:
    """A gate that may start, or go on.

    Raises:
        SpecregError: something can't be measured as it is asked for; nothing was.
    """
    asked.check()
    folder = _folder_of(asked)
    tier, root = asked.tier, asked.root
    origins = parse_origin(asked.a), parse_origin(asked.b)
    overrides = (
        tuple(map(parse_override, asked.a_overrides)),
        tuple(map(parse_override, asked.b_overrides)),
    )
    chosen = _chosen(asked, origins)
    pairs = pairs_of(tier, chosen, overrides, prompts=asked.prompts, show=asked.show)
    pinned: tuple[Pair, ...] = ()
    if asked.pin_length_tokens is not None:
        length_tokens, recordings = asked.pin_length_tokens, folder / "recordings"
        pinned = pinned_pairs(pairs, length_tokens, root, recordings, asked.show)
        pairs += pinned
    a, b = (
        source_of(one, on_gpu=asked.on_gpu, show=asked.show, waits=asked.waits) for one in origins
    )
    together = not asked.on_gpu if asked.together is None else asked.together
    groups = groups_of(pairs, with_control=asked.with_control, together=together)
    deciding = [one.deciding for group in groups for one in group.subjects if not one.is_control]
    rules = Rules(
        blocks=asked.launches // LAUNCHES_PER_BLOCK,
        figures=max(sum(map(len, deciding)), 1),
        tolerances=asked.tolerance_fracs,
    )
    if asked.launches < SPEED_LAUNCHES and any(one - {ACCEPTANCE} for one in deciding):
        asked.show(
            f"--launches {asked.launches}: a speed is decided by {SPEED_LAUNCHES} launches of each"
            f" side at least, so these will stay undecided; give --launches {SPEED_LAUNCHES} or"
            " more"
        )
    _check(asked, (a, b), pairs)
    installed = [
        ", ".join(dict.fromkeys(source.installed(pair.of(side)) for pair in pairs))
        for source, side in ((a, Side.A), (b, Side.B))
    ]
    lock = only_one(folder, "gate")
    journal = Journal(folder / JOURNAL)
    if journal.path.exists() and not asked.resume:
        message = f"'{journal.path}': holds a gate already; say --resume to go on, or another --out"
        raise SpecregError(message)
    gate = Gate(
        request=asked,
        sides=Sides(
            request=asked,
            folder=folder,
            sources=(a, b),
            installed=(installed[0], installed[1]),
        ),
        groups=groups,
        environment=current_environment(needs_gpus=tier.gpus_used(find_gpus().memory_gib)),
        rules=rules,
        journal=journal,
        answers=AnswerComparison(
            pairs=pairs, root=root, path=folder / "answers.json", show=asked.show
        ),
        lock=lock,
    )
    if journal.path.exists():
        gate.take_over()
        return gate
    # A gate that begins records the answers of its own sides and models.
    for path in filter(None, (recording_of(case) for one in pinned for case in (one.a, one.b))):
        path.unlink(missing_ok=True)
    return gate


def only_one(folder: Path, work: str) -> filelock.BaseFileLock:
    """Lock a folder until the lock is released or our process has ended.

    Args:
        folder: that two would write into; it is made where it isn't there.
        work: what goes on there, for people: gate.

    Raises:
        SpecregError: another process is at work there, or the disk refuses.
    """
    path = folder / f"{work}.lock"
    lock = filelock.FileLock(path, blocking=False, is_singleton=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except filelock.Timeout as error:
        message = (
            f"'{folder}': another {work} is at work there; wait for its end, or name another --out"
        )
        raise SpecregError(message) from error
    except OSError as error:
        message = f"'{path}': {error.strerror}; make room or mend its rights"
        raise SpecregError(message) from error
    return lock


def _folder_of(asked: Request) -> Path:
    """Where a gate goes, or goes on.

    Raises:
        UnsupportedError: it is to go on where nothing lies.
    """
    if asked.resume and (asked.out is None or not asked.out.is_dir()):
        where = f"in '{asked.out}'" if asked.out is not None else "without a folder"
        raise UnsupportedError(f"--resume: nothing to go on with {where}; name its --out")
    gates = asked.root / ".specreg" / "gates"
    return (asked.out or gates / time.strftime("%Y-%m-%dT%H-%M-%S")).resolve()


def _chosen(asked: Request, origins: tuple[Origin, Origin]) -> Sequence[Case]:
    """The cases that are named; without any those of the sides' engine that fit the GPUs.

    Raises:
        UnknownNameError: no such case.
        UnsupportedError: none can be compared.
    """
    tier = asked.tier
    known = {case.id: case for case in tier.cases}
    for case_id in asked.case_ids:
        if case_id not in known:
            raise UnknownNameError("case", case_id, known, f"tier '{tier.name}'")
    if asked.case_ids:
        return [known[case_id] for case_id in dict.fromkeys(asked.case_ids)]
    unmet = tier.unmet(find_gpus().memory_gib)
    engines = {one.engine for one in origins if one.engine}
    for case in tier.cases:
        if engines - {case.server.engine}:
            unmet = {**unmet, case.id: f"'{case.id}' is of engine '{case.server.engine}'"}
    for why in unmet.values():
        asked.show(f"left out: {why}")
    found = [case for case in tier.cases if case.id not in unmet]
    if not found:
        message = (
            f"tier '{tier.name}': none of its {len(unmet)} cases can be compared,"
            f" {list(unmet.values())[-1]}; choose another --tier, or other sides"
        )
        raise UnsupportedError(message)
    return found


def _check(asked: Request, sources: tuple[Source, Source], pairs: Sequence[Pair]) -> None:
    """Check that all could be measured, as far as one can tell before anything is installed."""
    unmet = asked.tier.unmet(find_gpus().memory_gib)
    for pair in pairs:
        if pair.a.id in unmet:
            raise UnsupportedError(f"{unmet[pair.a.id]}; choose other cases with --case")
    sides = [
        (source, [pair.of(side) for pair in pairs])
        for source, side in zip(sources, (Side.A, Side.B), strict=True)
    ]
    for source, cases in sides:
        source.check(tuple(cases))
    for spec in {case.server for _, cases in sides for case in cases}:
        served_models(asked.root, spec)
    check_prompts(asked.root, pairs)
    for _, cases in sides:
        for said in check_contexts(asked.root, cases):
            asked.show(said)
