"""The command line of `python -m specreg.engines.pytorch`."""

import argparse
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
