"""The engines, one module each: how to install and to start one. None is ever imported.

A public module here defines `ENGINE`; the catalogue finds it.
"""

import sys
from collections.abc import Mapping

from specreg.catalog import load_catalog
from specreg.engines._engine import Engine
from specreg.engines._parallel import ALONE, Parallel
from specreg.errors import UnknownNameError

__all__ = ["ALONE", "ENGINES", "Engine", "Parallel", "engine_named"]

ENGINES: Mapping[str, Engine] = load_catalog(sys.modules[__name__], "ENGINE", Engine)  # type: ignore[type-abstract]


def engine_named(name: str, where: str = "") -> Engine:
    """The engine called `name`.

    Raises:
        UnknownNameError: there is none; the message lists what there is.
    """
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES, where)
    return ENGINES[name]
