"""A scripted stand-in for SGLang's command line; `tests/scripted` and the root on PYTHONPATH."""
