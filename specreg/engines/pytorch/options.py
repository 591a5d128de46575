"""The command line of `python -m specreg.engines.pytorch`."""

import argparse
from collections.abc import Sequence


class Options(argparse.Namespace):
    """What to serve, and how; the parser's help says more."""

    model: str
    served_model_name: str
    port: int
    dtype: str
    context_tokens: int
    max_sequences: int
    method: str
    draft_model: str | None
    draft_tokens: int
    device: str


def parse_options(arguments: Sequence[str]) -> Options:
    """Parse a command line.

    Raises:
        SystemExit: argparse's, with status 2, where it can't be understood.
    """
    parser = argparse.ArgumentParser(prog="python -m specreg.engines.pytorch")
    add = parser.add_argument
    add("--model", required=True, help="the target, a folder or hub id")
    add("--served-model-name", default="reference", help="the name to ask for")
    add("--port", type=int, default=8000)
    add("--dtype", default="auto", help="float32, bfloat16, …, or the weights' own")
    add("--context-tokens", type=int, default=1024, help="the most of prompt and answer")
    add("--max-sequences", type=int, default=8, help="the most requests of a batch")
    add("--method", choices=("none", "ngram", "draft_model"), default="none", help="what drafts")
    add("--draft-model", help="the draft, a folder or hub id")
    add("--draft-tokens", type=int, default=3, help="tokens drafted per step")
    add("--device", default="", help="cpu or cuda:1 for instance; the first GPU, else the CPU")
    options = parser.parse_args(arguments, namespace=Options())
    if (options.draft_model is not None) != (options.method == "draft_model"):
        parser.error("--method=draft_model needs --draft-model, and no other method has one")
    return options
