"""specreg keeps speculative decoding fast: it measures real LLM servers and judges the change."""


def __getattr__(name: str) -> str:
    """Return `__version__`, the version that is installed, or `0+checkout` in a checkout.

    It is looked up only when it is needed. Each server has a supervisor process, which imports
    this package, and the look-up would be a third of what its start takes.
    """
    if name != "__version__":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - see above

    try:
        return version("specreg")
    except PackageNotFoundError:
        return "0+checkout"
