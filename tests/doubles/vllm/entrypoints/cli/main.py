"""`vllm serve MODEL --headless`: a part of a server that answers nobody."""

import sys

from ...start import serve_headless  # noqa: TID252 - the package has two names, see its docstring

if __name__ == "__main__":
    command, model, *flags = sys.argv[1:]
    if command != "serve" or model.startswith("-") or "--headless" not in flags:
        message = f"needed serve MODEL --headless, got {sys.argv[1:]}"
        raise SystemExit(message)
    serve_headless(flags)
