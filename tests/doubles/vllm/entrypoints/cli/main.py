"""Starts the scripted server with `vllm serve`, the command line of the real one's GPU builds."""

import sys

from ...start import main  # noqa: TID252 - the package has two names, see its docstring

if __name__ == "__main__":
    command, model, *flags = sys.argv[1:]
    if command != "serve" or model.startswith("-"):
        sys.exit(f"vllm: got {sys.argv[1:3]}, needed serve and a model")
    sys.argv[1:] = ["--model", model, *flags]
    main()
