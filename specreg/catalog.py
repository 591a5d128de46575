"""Behaviour gets a file: a catalogue holds one constant from every public module of a package."""

import importlib
import pkgutil
from collections.abc import Mapping
from types import MappingProxyType, ModuleType
from typing import Protocol, TypeVar


class Named(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """The name that users write."""
        ...


NamedT = TypeVar("NamedT", bound=Named)


def load_catalog(package: ModuleType, constant: str, kind: type[NamedT]) -> Mapping[str, NamedT]:
    """The constants called `constant` in the public modules of `package`, by their names.

    Raises:
        TypeError: a public module lacks the constant, or it is of another type.
    """
    found: dict[str, NamedT] = {}
    for module in pkgutil.iter_modules(package.__path__):
        if module.name.startswith("_"):
            continue
        value = getattr(
            importlib.import_module(f"{package.__name__}.{module.name}"), constant, None
        )
        if not isinstance(value, kind):
            message = f"{package.__name__}.{module.name} must define {constant}: {kind.__name__}"
            raise TypeError(message)
        found[value.name] = value
    return MappingProxyType(found)
