"""The folder of a gate or a soak: which one it is, and whether its ledger may be continued."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import Literal

import msgspec

from specreg.compare.options import GateOptions, SoakOptions
from specreg.core.errors import UnsupportedError
from specreg.core.files import cause_of
from specreg.core.received import received_files
from specreg.runs.ledger import LEDGER, Key, Ledger, check_has_no_old_ledger

Kind = Literal["gate", "soak"]
SOAK_PURPOSE = "soak"
"""How the purpose of each key of a soak begins."""


def folder_of(kind: Kind, options: GateOptions | SoakOptions) -> Path:
    """Return the folder of a gate or a soak.

    Raises:
        UnsupportedError: it is resumed, and there is no folder.
    """
    if options.resume and (options.out is None or not options.out.is_dir()):
        problem = f"needs the folder of a {kind}"
        if options.out is not None:
            problem = f"there is no {kind} in '{options.out}'"
        raise UnsupportedError(f"--resume: {problem}; name the folder with --out")
    return options.folder_in(f"{kind}s")


def open_ledger(kind: Kind, folder: Path, *, resume: bool) -> Ledger:
    """Return the ledger of a gate or a soak, which no other process uses.

    Raises:
        SpecregError: another process has locked the folder, or it can't be written.
        UnsupportedError: the folder has a ledger already and isn't resumed, or it has the record of
            an earlier version of specreg.
    """
    ledger = Ledger(folder / LEDGER)
    check_has_no_old_ledger(folder, remedy="name another --out")

    # `exists` is False for a link that leads nowhere, but the ledger would be written behind it.
    has_ledger = os.path.lexists(ledger.path)
    if has_ledger and resume:
        _check_resumed_folder(kind, folder)
    ledger.hold()
    if has_ledger and not resume:
        raise UnsupportedError(
            f"'{ledger.path}': holds a {kind} already; add --resume to continue it, or name another"
            " --out"
        )

    return ledger


def check_owner(kind: Kind, ledger: Ledger, keys: Collection[Key], most_launches: int) -> None:
    """Check that a ledger was written by a gate or a soak of these keys.

    Args:
        kind: what continues the ledger.
        ledger: the ledger, which was read.
        keys: the keys of all arms, whose launches have the number 0.
        most_launches: the most launches of an arm.

    Raises:
        UnsupportedError: it was written by another one, or by something else.
    """
    recorded = ledger.recorded
    all_keys = (*recorded.begun, *recorded.keys)
    arms = {key.arm for key in all_keys} | {line.arm for line in recorded.failed}
    owner: str = kind
    if recorded.segments or any(key.purpose.startswith(SOAK_PURPOSE) for key in all_keys):
        owner = "soak"
    elif arms:
        owner = "run" if "case" in arms else "gate"
    if owner != kind:
        message = f"'{ledger.path}': is of a {owner}, needed that of a {kind}; name another --out"
        raise UnsupportedError(message)

    for key in all_keys:
        is_ours = msgspec.structs.replace(key, launch=0) in keys
        if not is_ours or not 1 <= key.launch <= most_launches:
            raise of_another(kind, ledger)


def of_another(kind: Kind, ledger: Ledger) -> UnsupportedError:
    """Return the error that a ledger was written by another gate or soak."""
    message = f"'{ledger.path}': is of another {kind}"
    remedy = f"name the same engines, cases and options as that {kind} had, or another --out"
    return UnsupportedError(f"{message}; {remedy}")


def _check_resumed_folder(kind: Kind, folder: Path) -> None:
    """Check that the folder of a resumed gate or soak holds only folders and regular files.

    It may come from another machine. Logs would be written behind a link, and a FIFO would be
    waited for forever.

    Raises:
        UnsupportedError: it holds something else, or too much.
    """
    try:
        received_files(folder)
    except OSError as error:
        message = f"--resume: the {kind} in '{folder}': {cause_of(error)}"
        raise UnsupportedError(f"{message}; remove that, or name another --out") from error
