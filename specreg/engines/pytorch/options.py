"""The command line of `python -m specreg.engines.pytorch`, and where target and draft are put."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from specreg.core.errors import UnsupportedError

METHODS = ("none", "ngram", "draft_model")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What to serve, and how.

    Attributes:
        model: the target, a folder or hub id; `draft_model`: the draft, for that method alone.
        served_model_name: the name to ask for.
        host, port: where to listen.
        dtype: the weights' number format, or "auto" for their own.
        context_tokens: the most tokens of prompt and answer together.
        max_sequences: the most requests of a batch.
        method: who drafts, one of `METHODS`; `draft_tokens`: how many tokens per step.
        longest_tokens, shortest_tokens: how many of the last tokens to look for.
        devices: those to use, none for the machine's own; `placement`: see `placement.place`.
    """

    model: str
    served_model_name: str
    host: str
    port: int
    dtype: str
    context_tokens: int
    max_sequences: int
    method: str
    draft_model: str | None
    draft_tokens: int
    longest_tokens: int
    shortest_tokens: int
    devices: tuple[str, ...]
    placement: str


def parse_options(arguments: Sequence[str]) -> Options:
    """The options of a command line.

    Raises:
        SystemExit: argparse's, of one that it doesn't understand.
        UnsupportedError: two of them contradict one another.
    """
    found = vars(_parser().parse_args(arguments))
    devices = tuple(device for device in found.pop("devices").split(",") if device)
    options = Options(devices=devices, **found)
    if (options.draft_model is not None) != (options.method == "draft_model"):
        message = (
            f"--method={options.method} with --draft-model={options.draft_model}: the method"
            " 'draft_model' needs a draft, others none; give both or neither"
        )
        raise UnsupportedError(message)
    if options.shortest_tokens > options.longest_tokens:
        message = (
            f"--shortest-tokens={options.shortest_tokens} with"
            f" --longest-tokens={options.longest_tokens}: nothing can be found; raise the latter"
        )
        raise UnsupportedError(message)
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specreg.engines.pytorch", description=__doc__)
    add = parser.add_argument
    add("--model", required=True, help="the target, a folder or hub id")
    add("--served-model-name", default="reference", help="the name to ask for")
    add("--host", default="127.0.0.1")
    add("--port", type=_positive, default=8000)
    add("--dtype", default="auto", help="float32, bfloat16, …, or the weights' own")
    add("--context-tokens", type=_positive, default=1024, help="tokens of prompt and answer")
    add("--max-sequences", type=_positive, default=8, help="the most requests of a batch")
    add("--method", choices=METHODS, default="none", help="who drafts")
    add("--draft-model", help="the draft, a folder or hub id")
    add("--draft-tokens", type=_positive, default=3, help="tokens drafted per step")
    add(
        "--longest-tokens",
        type=_positive,
        default=4,
        help="the most of the last tokens to look for",
    )
    add("--shortest-tokens", type=_positive, default=2, help="the fewest")
    add("--devices", default="", help="cuda:0,cpu for instance; all GPUs, else the CPU")
    add("--placement", default="automatic", help="automatic, same, separate or split=SHARE")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        message = f"{number} is below 1"
        raise argparse.ArgumentTypeError(message)
    return number


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
