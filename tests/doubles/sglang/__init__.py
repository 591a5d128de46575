"""A scripted stand-in for SGLang's command line; `tests/doubles` and the root on PYTHONPATH."""
