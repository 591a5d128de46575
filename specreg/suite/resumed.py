"""Load the measurements and verdicts of an interrupted run, for the run that resumes it."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specreg.datasets.prompts import prompts_sha256
from specreg.matrix.case import Case
from specreg.matrix.models import model_sha256, resolve_model
from specreg.matrix.prompts import load_case_prompts
from specreg.measurement.ledger import Key, load_checks, load_ledger
from specreg.measurement.measure import Measurement
from specreg.servers.installer import packages_sha256
from specreg.suite.context import RunContext
from specreg.suite.selection import Selection


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The contents of an interrupted run's ledgers.

    Attributes:
        measurements: The complete measurements. The key holds all settings that must be equal for
            a measurement to be taken over.
        checks: The verdicts of correctness checks, by the same key and the name of the check.
    """

    measurements: Mapping[Key, Measurement] = field(default_factory=dict)
    checks: Mapping[tuple[Key, str], Mapping[str, Any]] = field(default_factory=dict)


def load_resumed(ledgers: Iterable[Path]) -> Resumed:
    """Load the contents of ledgers.

    Args:
        ledgers: Their paths. A later ledger takes precedence, and a missing one counts as empty.

    Raises:
        SpecregError: A ledger can't be read.
    """
    measurements: dict[Key, Measurement] = {}
    checks: dict[tuple[Key, str], Mapping[str, Any]] = {}
    for path in ledgers:
        if path.exists():
            measurements |= load_ledger(path)
            checks |= load_checks(path)
    return Resumed(measurements=measurements, checks=checks)


def ledger_key(case: Case, number: int, selection: Selection, context: RunContext) -> Key:
    """Return the settings that must be equal for an earlier measurement to be taken over.

    Args:
        case: The case.
        number: The number of its server's launch, from 1.
        selection: Decides whether the case is recorded, and whether its speed is measured.
        context: The run.

    Raises:
        SpecregError: The models or the prompts of the case can't be read, or the engine can't run
            it.
    """
    spec = case.server
    # The purpose is part of the key. A measurement of acceptance alone may stop early, but a speed
    # needs all prompts and a control. A recording may add the prompts of an extension.
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
        launch=number,
        asked=purpose,
        environment=context.environment.name,
        engine=f"{context.provision.python or ''} {requirement.pin}".strip(),
        files_sha256=" ".join((prompts_sha256(prompts), *map(model_sha256, models))),
        packages_sha256=packages_sha256(context.provision.packages(spec)),
    )
