"""Faults for a reference engine that starts with this folder on its PYTHONPATH.

`PLANTED_FAULT` names one. Each wraps what it breaks, so that the engine emits another text than
the target would; an engine that does so is to be caught.
"""

import dataclasses
import os
import sys
from collections.abc import Sequence
from typing import Any


def plant(fault: str) -> None:
    """Plant a fault by name; anything else plants nothing."""
    from specreg.engines.pytorch import speculation  # noqa: PLC0415 - beside the engine alone

    verify = speculation.verify

    def faulty_verify(draft: Any, logits: Any, sampling: Any, random: Any) -> Any:  # noqa: ANN401
        sound = verify(draft, logits, sampling, random)
        if sound.accepted == len(draft.token_ids):
            return sound
        # In place of the token that corrects a rejected draft, that which would follow the draft;
        # or that after the draft, which is emitted all the same, and counted.
        next_id = int(logits[sound.accepted + 1].argmax())
        extra = fault == "one_too_many"
        return dataclasses.replace(sound, accepted=sound.accepted + extra, next_id=next_id)

    if fault in {"one_too_many", "no_correction"}:
        speculation.verify = faulty_verify
    if fault == "drawn_again":  # from q once more, not from max(0, p - q)
        speculation._remainder = lambda _p, q: q  # type: ignore[assignment] # noqa: SLF001
    if fault == "wrong_rollback":
        from specreg.engines.pytorch.reader import Reader  # noqa: PLC0415 - it needs torch

        forget = Reader.forget

        def faulty_forget(reader: Any, counts: Sequence[int]) -> None:  # noqa: ANN401
            """The next token is read as if it stood one place further on."""
            forget(reader, counts)
            reader.lengths = [
                length + (count > 0) for length, count in zip(reader.lengths, counts, strict=True)
            ]

        Reader.forget = faulty_forget  # type: ignore[assignment, method-assign]


if "specreg.engines.pytorch" in sys.orig_argv:
    plant(os.environ.get("PLANTED_FAULT", ""))
