"""specreg keeps speculative decoding fast: it measures real LLM servers and judges the change."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("specreg")
except PackageNotFoundError:  # run from a checkout, as `nox -s cpu_perf` does
    __version__ = "0+checkout"
