"""`python -m specreg.engines.pytorch`: serves a model until a signal comes."""

import argparse
import sys
from collections.abc import Sequence

from specreg.core.errors import SpecregError
from specreg.engines.pytorch.devices import PLACEMENTS, parse_devices, parse_ratio

METHODS = ("none", "ngram", "ngram_adaptive", "draft_model")


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


def missing(error: ImportError) -> str:
    """What to do where a package isn't there."""
    return (
        f"reference engine: needs {error.name!r}, which isn't here; install"
        " specreg[reference], or let the suite make its environment"
    )


def main() -> None:
    """Serve what the command line asks for; without it, exit with what is wrong."""
    options = parse_options(sys.argv[1:])
    try:
        from aiohttp import web  # noqa: PLC0415 - these need the extra

        from specreg.engines.pytorch.models import load_models  # noqa: PLC0415
        from specreg.engines.pytorch.server import App  # noqa: PLC0415

        app = App(load_models(options), options).application()
    except ImportError as error:
        sys.exit(missing(error))
    except SpecregError as error:
        sys.exit(str(error))
    web.run_app(app, host="127.0.0.1", port=options.port, shutdown_timeout=0.5, access_log=None)


if __name__ == "__main__":
    main()
