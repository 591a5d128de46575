"""`python -m specreg.engines.pytorch`: serves a model until a signal comes.

Devices have PyTorch's names: cpu, cuda:0.
"""

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence

from specreg.core.errors import SpecregError, UnsupportedError

METHODS = ("none", "ngram", "ngram_adaptive", "draft_model")
PLACEMENTS = ("auto", "same", "separate", "ratio")
Devices = tuple[str, ...]
Ratio = tuple[int, int]


def parse_devices(text: str) -> Devices:
    """Parse `cuda:0,cuda:1`; raises what argparse prints."""
    devices = tuple(text.split(","))
    are_gpus = re.fullmatch(r"(cuda:\d+,)+cuda:\d+", text)
    if len(devices) > 1 and not (are_gpus and len(devices) == len(set(devices))):
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
    """Divide devices, one at least, among target and draft.

    `same` gives all to both; `separate` the last to the draft; `ratio` divides them as it says,
    whole devices, one at least each; `auto` as the models' `sizes`, and one device to both.

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


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line: what to serve, and how; exits as argparse does where it can't."""
    parser = argparse.ArgumentParser(prog="python -m specreg.engines.pytorch")
    add = parser.add_argument
    add("--model", required=True, help="the target, a folder or hub id")
    add("--served-model-name", default="reference", help="the name to ask for")
    add("--port", type=int, default=8000)
    add("--dtype", default="auto", help="float32, bfloat16, …, or the weights' own")
    add("--context-tokens", type=int, default=1024, help="the most of prompt and answer")
    add("--max-sequences", type=int, default=8, help="the most requests of a batch")
    add("--method", choices=METHODS, default="none", help="what drafts")
    add("--draft-model", help="the draft, a folder or hub id")
    add("--draft-tokens", type=int, default=3, help="tokens drafted per step")
    add(
        "--device",
        type=parse_devices,
        default=(),
        help="cpu, cuda:1, or GPUs for both models: cuda:0,cuda:1; the first GPU, else the CPU",
    )
    add("--placement", choices=PLACEMENTS, default="auto", help="how they share several GPUs")
    add("--gpu-ratio", type=parse_ratio, help="3:1, the target's GPUs to the draft's")
    options = parser.parse_args(arguments)
    if (options.gpu_ratio is not None) != (options.placement == "ratio"):
        parser.error("--placement=ratio needs --gpu-ratio, and no other has one")
    if (options.draft_model is not None) != (options.method == "draft_model"):
        parser.error("--method=draft_model needs --draft-model, and no other method has one")
    return options


@contextlib.contextmanager
def exiting() -> Iterator[None]:
    """Exit with what is wrong, and what to do where a package isn't there."""
    try:
        yield
    except ImportError as error:
        sys.exit(
            f"reference engine: needs {error.name!r}, which isn't here; install"
            " specreg[reference], or let the suite make its environment"
        )
    except SpecregError as error:
        sys.exit(str(error))


def main() -> None:
    """Serve what the command line asks for; without it, exit with what is wrong."""
    options = parse_options(sys.argv[1:])
    with exiting():
        from aiohttp import web  # noqa: PLC0415 - these need the extra

        from specreg.engines.pytorch.models import load_models  # noqa: PLC0415
        from specreg.engines.pytorch.server import App  # noqa: PLC0415

        app = App(load_models(options), options).application()
    web.run_app(app, host="127.0.0.1", port=options.port, shutdown_timeout=0.5, access_log=None)


if __name__ == "__main__":
    main()
