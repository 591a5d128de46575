"""A scripted stand-in for vLLM: its command line and its protocol, with a known truth.

With `tests/doubles` on PYTHONPATH, `python -m vllm.entrypoints.openai.api_server` starts it, and so
does `python -m vllm.entrypoints.cli.main serve`. Tests import the truth as
`tests.doubles.vllm.script`, so all imports in here are relative.
"""

__version__ = "99.0+scripted"
