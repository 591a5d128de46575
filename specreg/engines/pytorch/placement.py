"""Where target and draft are put: the machine's devices and a wish in, a device for each out."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from specreg.core.errors import UnsupportedError

_SPLIT = re.compile(r"split=(0?\.\d+)")
_WISHES = "automatic, same, separate, split=SHARE with 0 < SHARE < 1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Which device holds what.

    Attributes:
        target: the devices of the target's layers, in their order: one, or two that share them.
        first_frac: the share of the layers on the first of them, 0..1.
        draft: the device of the draft.
    """

    target: tuple[str, ...]
    first_frac: float
    draft: str


def place(wish: str, devices: Sequence[str]) -> Placement:
    """Where to put target and draft.

    Args:
        wish: "same", both on the first device; "separate", the draft on the second; "split=0.7",
            the first 0.7 of the target's layers on the first device with the draft, the rest on
            the second; "automatic", "separate" where there are two devices, else "same".
        devices: those to use, one at least.

    Raises:
        UnsupportedError: there are too few devices, or there is no such wish.
    """
    if wish == "automatic":
        wish = "separate" if len(devices) > 1 else "same"
    share = _SPLIT.fullmatch(wish)
    if wish not in {"same", "separate"} and not (share and float(share[1]) > 0):
        message = f"placement '{wish}': unknown; known: {_WISHES}"
        raise UnsupportedError(message)
    if wish != "same" and len(devices) < 2:  # noqa: PLR2004 - one for each
        message = (
            f"placement '{wish}': needs two devices, there is {', '.join(devices)}; name two with"
            " --devices, cuda:0,cpu for instance, or choose --placement=same"
        )
        raise UnsupportedError(message)
    if share:
        return Placement(
            target=(devices[0], devices[1]), first_frac=float(share[1]), draft=devices[0]
        )
    draft = devices[0 if wish == "same" else 1]
    return Placement(target=(devices[0],), first_frac=1.0, draft=draft)


def choose_devices(asked: Sequence[str], there: Sequence[str]) -> tuple[str, ...]:
    """The devices to use: those asked for, else the GPUs, else the CPU.

    Args:
        asked: none for the machine's own.
        there: what the machine has; the CPU is the last.

    Raises:
        UnsupportedError: one that is asked for isn't there.
    """
    for device in asked:
        if device not in there:
            message = f"device '{device}': not on this machine; it has {', '.join(there)}"
            raise UnsupportedError(f"{message}; name others with --devices")
    return tuple(asked) or tuple(there[:-1]) or tuple(there)
