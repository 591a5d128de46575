"""What an interrupted run had measured and checked, for a run that continues it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specreg.datasets.prompts import prompts_sha256
from specreg.matrix.case import Case
from specreg.matrix.models import model_sha256, resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.journal import Key, load_checks, load_journal
from specreg.measurement.measure import Measurement
from specreg.servers.installer import packages_sha256
from specreg.suite.context import RunContext
from specreg.suite.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What the journals of an interrupted run hold.

    Attributes:
        measurements: complete ones, by what has to be equal for them to be taken over.
        checks: verdicts of correctness checks, by the same key and the name of the check.
    """

    measurements: Mapping[Key, Measurement] = field(default_factory=dict)
    checks: Mapping[tuple[Key, str], Mapping[str, Any]] = field(default_factory=dict)


def load_resumed(journals: Iterable[Path]) -> Resumed:
    """Load what some journals hold; a later journal takes precedence, a missing one is empty.

    Raises:
        SpecregError: a journal can't be read.
    """
    measurements: dict[Key, Measurement] = {}
    checks: dict[tuple[Key, str], Mapping[str, Any]] = {}
    for path in journals:
        if path.exists():
            measurements |= load_journal(path)
            checks |= load_checks(path)
    return Resumed(measurements=measurements, checks=checks)


def journal_key(case: Case, launch: int, selection: Selection, context: RunContext) -> Key:
    """Return what has to be equal for an earlier measurement of a case to be taken over.

    Args:
        case: what is measured.
        launch: the number of its server's launch, from 1.
        selection: decides whether speeds are measured, which takes other prompts and a control.
        context: the run.
    """
    spec = case.server
    # What is measured depends on the purpose: speeds take other prompts and a control.
    if selection.is_recording:
        purpose = "record"
    elif selection.needs_speed(case):
        purpose = "all"
    else:
        purpose = "acceptance"
    requirement = context.provision.requirement(spec)
    models = [resolve_model(context.root, name) for name in (spec.target, spec.draft) if name]
    prompts = load_case_prompts(context.root, case)
    return Key(
        case=case.key,
        case_id=case.id,
        launch=launch,
        asked=purpose,
        environment=context.environment.name,
        engine=f"{context.provision.python or ''} {requirement.pin}".strip(),
        files_sha256=" ".join((prompts_sha256(prompts), *map(model_sha256, models))),
        packages_sha256=packages_sha256(context.provision.packages(spec)),
    )
