"""A scripted stand-in for SGLang's command line; with `tests/scripted` and the root on PYTHONPATH."""
