"""Faults for the reference engine, as wrappers of what they break; see `sitecustomize.py`.

Each makes it emit another text than the target would; an engine that does so is to be caught.
"""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

Verify = Callable[..., Any]


def one_too_many(verify: Verify) -> Verify:
    """The first draft that is rejected is emitted all the same, and counted."""

    def faulty(draft: Any, logits: Any, temperature: float, random: Any) -> Any:  # noqa: ANN401
        sound = verify(draft, logits, temperature, random)
        if sound.accepted == len(draft.token_ids):
            return sound
        next_id = int(logits[sound.accepted + 1].argmax())
        return dataclasses.replace(sound, accepted=sound.accepted + 1, next_id=next_id)

    return faulty


def no_correction(verify: Verify) -> Verify:
    """In place of the token that corrects a rejected draft, that which would follow the draft."""

    def faulty(draft: Any, logits: Any, temperature: float, random: Any) -> Any:  # noqa: ANN401
        sound = verify(draft, logits, temperature, random)
        if sound.accepted == len(draft.token_ids):
            return sound
        return dataclasses.replace(sound, next_id=int(logits[sound.accepted + 1].argmax()))

    return faulty


def wrong_rollback(forget: Callable[..., None]) -> Callable[..., None]:
    """After a rollback the next token is read as if it stood one place further on."""

    def faulty(reader: Any, counts: Sequence[int]) -> None:  # noqa: ANN401
        forget(reader, counts)
        reader.lengths = [
            length + (count > 0) for length, count in zip(reader.lengths, counts, strict=True)
        ]

    return faulty


def drawn_again(remainder: Callable[..., Any]) -> Callable[..., Any]:
    """After a rejection the next token is drawn from q once more, not from max(0, p - q)."""
    del remainder
    return lambda _p, q: q


def plant(fault: str) -> None:
    """Plants a fault by name; anything else plants nothing."""
    if fault == "wrong_rollback":
        from specreg.engines.pytorch.decoding import Reader  # noqa: PLC0415 - it needs torch

        Reader.forget = wrong_rollback(Reader.forget)  # type: ignore[method-assign]
    if fault in {"one_too_many", "no_correction"}:
        from specreg.engines.pytorch import speculation  # noqa: PLC0415 - beside the engine alone

        wrap = {"one_too_many": one_too_many, "no_correction": no_correction}[fault]
        speculation.verify = wrap(speculation.verify)
    if fault == "drawn_again":
        from specreg.engines.pytorch import speculation  # noqa: PLC0415 - the same

        speculation._remainder = drawn_again(speculation._remainder)  # noqa: SLF001 - what is broken


def plant_chosen() -> None:
    """Plants what `PLANTED_FAULT` says."""
    plant(os.environ.get("PLANTED_FAULT", ""))
