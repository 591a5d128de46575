"""vLLM's own parser, run by vLLM's interpreter: JSON command lines in, what is wrong out.

In: a list of argument lists on stdin. Out: for each, null or why it is refused, as JSON.
"""

import dataclasses
import json
import sys
import typing

from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Parses each."""
    lines = json.load(sys.stdin)
    sys.stdout.write(json.dumps([_problem(arguments) for arguments in lines]))


def _problem(arguments: list[str]) -> str | None:
    parser = make_arg_parser(FlexibleArgumentParser(exit_on_error=False))
    parser.error = _refuse
    try:
        config = vars(parser.parse_args(arguments)).get("speculative_config") or {}
    except (ValueError, TypeError, SystemExit) as error:
        return str(error)
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


main()
