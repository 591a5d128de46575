"""vLLM's own parser, run by vLLM's interpreter: JSON command lines in, what is wrong out.

In: a list on stdin, of argument lists, and of objects as in a model.json of Triton, whose backend
makes `AsyncEngineArgs(**object)` of it. Out: for each, null or why it is refused, as JSON.
"""

import dataclasses
import json
import sys
import typing

from vllm import platforms
from vllm.platforms.cpu import CpuPlatform

# A build for GPUs finds no device here, and without one it makes no parser.
if platforms.current_platform.is_unspecified():
    platforms.current_platform = CpuPlatform()

from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser  # from 0.33 on
except ImportError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser


def _problem_by_name(arguments: dict[str, typing.Any]) -> str | None:
    unknown = set(arguments) - {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    if unknown:
        return f"AsyncEngineArgs has no {', '.join(sorted(unknown))}"
    return _problem_of_speculation(arguments.get("speculative_config") or {})


def _problem(arguments: list[str]) -> str | None:
    parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False))
    parser.error = _refuse
    try:
        config = vars(parser.parse_args(arguments)).get("speculative_config") or {}
    except (ValueError, TypeError, SystemExit) as error:
        return str(error)
    return _problem_of_speculation(config)


def _problem_of_speculation(config: dict[str, typing.Any]) -> str | None:
    unknown = set(config) - {field.name for field in dataclasses.fields(SpeculativeConfig)}
    if unknown:
        return f"SpeculativeConfig has no {', '.join(sorted(unknown))}"
    method = config.get("method")
    return None if method is None or method in _names(SpeculativeMethod) else f"no method {method}"


def _refuse(message: str) -> typing.NoReturn:
    raise ValueError(message)


def _names(of: object) -> set[object]:
    """The names of a Literal of Literals."""
    return {name for part in typing.get_args(of) for name in (_names(part) or {part})}


problems_found = [
    _problem_by_name(command) if isinstance(command, dict) else _problem(command)
    for command in json.load(sys.stdin)
]
sys.stdout.write(json.dumps(problems_found))
