"""vLLM's own `vllm bench serve`, in builds whose distribution isn't called vllm."""

import importlib.metadata
import sys

_version = importlib.metadata.version


def _version_of(distribution_name: str) -> str:
    return "0" if distribution_name == "vllm" else _version(distribution_name)


importlib.metadata.version = _version_of

from vllm.entrypoints.cli.main import main  # noqa: E402 - it asks for the version at once

if __name__ == "__main__":
    sys.argv[0] = "vllm"
    main()
