"""Which devices target and draft are on, by PyTorch's names: cpu, cuda:0. Without PyTorch."""

import argparse
import re
from collections.abc import Callable, Sequence

from specreg.core.errors import UnsupportedError

PLACEMENTS = ("auto", "same", "separate", "ratio")
Devices = tuple[str, ...]
Ratio = tuple[int, int]


def parse_devices(text: str) -> Devices:
    """Parse `cuda:0,cuda:1`; raises what argparse prints."""
    devices = tuple(text.split(","))
    if len(devices) > 1 and not (
        len(devices) == len(set(devices)) and all(re.fullmatch(r"cuda:\d+", one) for one in devices)
    ):
        message = f"several devices are GPUs of their own, each once: cuda:0,cuda:1; got '{text}'"
        raise argparse.ArgumentTypeError(message)
    return devices


def parse_ratio(text: str) -> Ratio:
    """Parse `3:1`; raises what argparse prints."""
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", text):
        message = f"'{text}' is no ratio of two numbers from 1 on; write 3:1 for instance"
        raise argparse.ArgumentTypeError(message)
    target, _, draft = text.partition(":")
    return int(target), int(draft)


def place(
    devices: Sequence[str], placement: str, ratio: Ratio | None, sizes: Callable[[], Ratio]
) -> tuple[Devices, Devices]:
    """Divide devices among target and draft.

    Args:
        devices: one at least.
        placement: of `PLACEMENTS`. `same` gives all to both; `separate` the last to the draft;
            `ratio` divides them as it says, whole devices, one at least each; `auto` as the models'
            sizes, and one device to both.
        ratio: target to draft.
        sizes: the models', in the same unit.

    Raises:
        UnsupportedError: one device is to be divided.
    """
    if placement == "same" or (placement == "auto" and len(devices) == 1):
        return tuple(devices), tuple(devices)
    if len(devices) == 1:
        message = (
            f"placement '{placement}': needs two devices, got '{devices[0]}'; name them with"
            " --device, or say parallel.pipeline in the matrix"
        )
        raise UnsupportedError(message)
    target, draft = (len(devices) - 1, 1) if placement == "separate" else ratio or sizes()
    count = round(len(devices) * target / (target + draft))
    count = min(max(count, 1), len(devices) - 1)
    return tuple(devices[:count]), tuple(devices[count:])
