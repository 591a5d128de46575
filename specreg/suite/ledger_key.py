"""Name a measurement of a run, with all that must be equal for a later run to take it over."""

from specreg.matrix.case import Case
from specreg.matrix.prompts import files_sha256
from specreg.runs.ledger import Key
from specreg.servers.installer import packages_sha256
from specreg.suite.context import RunContext
from specreg.suite.selection import Selection


def ledger_key(case: Case, number: int, selection: Selection, context: RunContext) -> Key:
    """Return the settings that must be equal for an earlier measurement to be taken over.

    Args:
        number: the number of its server's launch, from 1.
        selection: decides whether the case is recorded, and whether its speed is measured.

    Raises:
        SpecregError: the models or the prompts of the case can't be read, or the engine can't run
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
    return Key(
        case=case.key,
        case_id=case.id,
        launch=number,
        purpose=purpose,
        environment=context.environment.name,
        engine=f"{context.provision.python or ''} {requirement.pin}".strip(),
        files_sha256=files_sha256(context.root, case),
        packages_sha256=packages_sha256(context.provision.packages(spec)),
    )
