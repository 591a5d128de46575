"""Code that models bring: a server's spec in, silence out, or the file that names the code.

A configuration's `auto_map` names Python that lies beside the weights or on the hub. An engine that
is told to trust it runs it with all our rights; of a hub id the engine itself refuses it else.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path

from specreg.core.errors import ModelError, UnsupportedError
from specreg.engines.registry import engine_named
from specreg.matrix import ServerSpec
from specreg.matrix.models import is_hub_id

_KEY = "auto_map"
_CONFIGURATIONS = "*config.json"
"""Those of the model, the tokenizer, the processors and the generation."""
_FLAG = re.compile(r"-*trust[-_]remote[-_]code\b")


def check_model_code(root: Path, spec: ServerSpec) -> None:
    """Silent where no model folder of a server brings code, or the case trusts what it brings.

    Args:
        root: the repository's, for relative folders.
        spec: of the server.

    Raises:
        ModelError: a folder brings some, or has a configuration that nobody can read.
        UnsupportedError: as `check_trust`.
    """
    check_trust(spec)
    if spec.trust_remote_code:
        return
    for reference in filter(None, (spec.target, spec.draft)):
        if not is_hub_id(reference):
            _check_folder((root / reference).resolve())


def check_trust(spec: ServerSpec) -> None:
    """Silent where it is the setting that says whether models' code is trusted, and it can be.

    Raises:
        UnsupportedError: an argument says so, or the engine runs no such code.
    """
    told = next(filter(_FLAG.match, spec.engine_args), None)
    if told is not None:
        message = (
            f"engine_args '{told}': that is a setting of its own, which is part of the case; leave"
            " it out and set trust_remote_code = true in the matrix"
        )
        raise UnsupportedError(message)
    if spec.trust_remote_code and not engine_named(spec.engine).runs_model_code:
        message = (
            f"trust_remote_code with engine '{spec.engine}': it runs no code of models; leave it"
            " out, or choose another engine"
        )
        raise UnsupportedError(message)


def _check_folder(folder: Path) -> None:
    for path in sorted(folder.glob(_CONFIGURATIONS)):
        try:
            config = json.loads(path.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            message = f"model folder '{folder}': {path.name} can't be read, {error}; restore it"
            raise ModelError(message) from error
        named = next(_code_in(config), None)
        if named is not None:
            message = (
                f"model folder '{folder}': {path.name} brings code of its own, {_KEY} ="
                f" {json.dumps(named)[:200]}; name another model, or read that code and set"
                " trust_remote_code = true in the matrix"
            )
            raise ModelError(message)


def _code_in(config: object) -> Iterator[object]:
    """What names code, however deep."""
    left = [config]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if one.get(_KEY):
                yield one[_KEY]
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
