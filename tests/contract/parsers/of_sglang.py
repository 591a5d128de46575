"""SGLang's own parser, run by SGLang's interpreter: JSON command lines in, what is wrong out.

In: a list of argument lists on stdin. Out: for each, null or why it is refused, as JSON.
"""

import argparse
import json
import sys
import typing

from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


def _problem(arguments: list[str]) -> str | None:
    parser = _Parser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    try:
        SpeculativeAlgorithm.from_string(parser.parse_args(arguments).speculative_algorithm)
    except (ValueError, TypeError, SystemExit) as error:
        return str(error)
    return None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> typing.NoReturn:
        raise ValueError(message)


sys.stdout.write(json.dumps([_problem(arguments) for arguments in json.load(sys.stdin)]))
