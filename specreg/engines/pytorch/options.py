"""The command line of the reference engine. This module needs no PyTorch.

Devices have PyTorch's names: cpu, cuda:0.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from specreg.core.errors import SpecregError, UnsupportedError

SERVED_METHODS = ("none", "ngram", "ngram_adaptive", "draft_model")
PLACEMENTS = ("auto", "same", "separate", "ratio")
Devices = tuple[str, ...]
Ratio = tuple[int, int]


def parse_devices(text: str) -> Devices:
    """Parse one device or several, as `cuda:0,cuda:1`.

    Raises:
        ArgumentTypeError: several devices aren't different GPUs; argparse prints the message.
    """
    devices = tuple(text.split(","))
    are_gpus = re.fullmatch(r"(cuda:\d+,)+cuda:\d+", text) is not None
    are_different = len(devices) == len(set(devices))
    if len(devices) > 1 and not (are_gpus and are_different):
        message = f"several devices must be different GPUs, such as cuda:0,cuda:1; got '{text}'"
        raise argparse.ArgumentTypeError(message)
    return devices


def parse_ratio(text: str) -> Ratio:
    """Parse a ratio of GPUs, as `3:1`.

    Raises:
        ArgumentTypeError: it isn't one; argparse prints the message.
    """
    if not re.fullmatch(r"[1-9]\d*:[1-9]\d*", text):
        message = f"'{text}' is no ratio of two numbers from 1 on; write 3:1 for instance"
        raise argparse.ArgumentTypeError(message)
    target, _, draft = text.partition(":")
    return int(target), int(draft)


def divide_devices(
    devices: Sequence[str], placement: str, ratio: Ratio | None, sizes: Callable[[], Ratio]
) -> tuple[Devices, Devices]:
    """Divide devices between target and draft, and return those of each.

    Args:
        devices: at least one.
        placement: `same` gives all devices to both models, `separate` the last one to the draft.
            `ratio` and `auto` divide them in whole devices, at least one for each model. `auto`
            gives a single device to both models; `separate` and `ratio` refuse it.
        ratio: the target's share to the draft's, for the placement `ratio`.
        sizes: returns the parameters of target and draft, by which `auto` divides.

    Raises:
        UnsupportedError: a single device can't be divided.
    """
    is_shared = placement == "same" or (placement == "auto" and len(devices) == 1)
    if is_shared:
        return tuple(devices), tuple(devices)
    if len(devices) == 1:
        message = (
            f"placement '{placement}': needs two devices, got '{devices[0]}'; name them with"
            " --device, or set parallel.pipeline in the tier"
        )
        raise UnsupportedError(message)

    most_devices = len(devices) - 1
    if placement == "separate":
        target_devices = most_devices
    else:
        target_share, draft_share = ratio or sizes()
        share_frac = target_share / (target_share + draft_share)
        # Each model gets at least one device, however small it is.
        target_devices = max(round(len(devices) * share_frac), 1)
        target_devices = min(target_devices, most_devices)

    return tuple(devices[:target_devices]), tuple(devices[target_devices:])


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. Exits as argparse does, with the usage, if it is wrong."""
    parser = argparse.ArgumentParser(prog="python -m specreg.engines.pytorch")
    add = parser.add_argument
    add("--model", required=True, help="the target, a folder or hub id")
    add("--served-model-name", default="reference", help="its name in requests")
    add("--port", type=int, default=8000)
    add("--dtype", default="auto", help="float32, bfloat16, …, or the weights' own")
    add("--context-tokens", type=int, default=1024, help="the most tokens of prompt and answer")
    add("--max-sequences", type=int, default=8, help="the most requests of a batch")
    add("--method", choices=SERVED_METHODS, default="none", help="the speculative method")
    add("--draft-model", help="the draft, a folder or hub id")
    add("--draft-tokens", type=int, default=3, help="tokens drafted per step")
    add(
        "--device",
        type=parse_devices,
        default=(),
        help="cpu, cuda:1, or GPUs for both models: cuda:0,cuda:1 (default: the first GPU, or cpu)",
    )
    add("--placement", choices=PLACEMENTS, default="auto", help="how the models share several GPUs")
    add("--gpu-ratio", type=parse_ratio, help="3:1, the target's GPUs : the draft's")
    options = parser.parse_args(arguments)
    if (options.gpu_ratio is not None) != (options.placement == "ratio"):
        parser.error("--placement=ratio needs --gpu-ratio, and no other placement has one")
    if (options.draft_model is not None) != (options.method == "draft_model"):
        parser.error("--method=draft_model needs --draft-model, and no other method has one")
    return options


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """End the process with the message of an error, or with the name of a missing package."""
    try:
        yield
    except ImportError as error:
        sys.exit(
            f"reference engine: needs {error.name!r}, which isn't here; install"
            " specreg[reference], or let the suite make its environment"
        )
    except SpecregError as error:
        sys.exit(str(error))
