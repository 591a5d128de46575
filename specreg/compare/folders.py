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
from specreg.runs.ledger import LEDGER, LOCK, Key, Ledger, check_has_no_old_ledger

Kind = Literal["gate", "soak"]
SOAK_PURPOSE = "soak"
"""How the purpose of each key of a soak begins."""


def folder_of(kind: Kind, options: GateOptions | SoakOptions) -> Path:
    """Return the folder of a gate or a soak.

    Raises:
        UnsupportedError: it is resumed, and there is none in the folder, or only the record of an
            earlier version of specreg.
    """
    folder = options.folder_in(f"{kind}s")
    check_has_no_old_ledger(folder, remedy="name another --out")
    if options.resume:
        problem = f"there is no {kind} in '{options.out}'"
        if options.out is None:
            problem = f"needs the folder of a {kind}"
        # One that was cut off before its first line has a lock alone.
        if not any(os.path.lexists(folder / name) for name in (LEDGER, LOCK)):
            raise UnsupportedError(f"--resume: {problem}; name the folder with --out")

    return folder


def open_ledger(kind: Kind, folder: Path, *, resume: bool) -> Ledger:
    """Return the ledger of a gate or a soak, which no other process uses.

    Raises:
        SpecregError: another process has locked the folder, or it can't be written.
        UnsupportedError: the folder has a ledger already and isn't resumed, or it is resumed and
            has something else than folders and regular files.
    """
    ledger = Ledger(folder / LEDGER)
    if resume:
        _check_resumed_folder(kind, folder)
    ledger.hold()

    # `exists` is False for a link that leads nowhere, but the ledger would be written behind it.
    if os.path.lexists(ledger.path) and not resume:
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
    all_keys = (*recorded.begun_s, *recorded.keys)
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
            message = (
                f"'{ledger.path}': is of another {kind}; name the same engines, cases and options"
                f" as that {kind} had, or another --out"
            )
            raise UnsupportedError(message)


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
