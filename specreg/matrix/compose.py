"""Read a service of Compose that starts a server."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from specreg.core.errors import MatrixError
from specreg.matrix.containers import Container, Mount, Reading, convert_part, image_of, listed

_VALUE = re.compile(r"\$\$|\$\{\w+:?-([^{}$]*)\}|\$(?:\{[^{}]*\}|\w+)?")
"""What Compose replaces. The first group is the default of a variable."""
_READ_KEYS = {"image", "entrypoint", "command", "environment"}

_Scalar = str | int | float | bool
_Words = str | list[_Scalar] | None


class _Volume(msgspec.Struct):
    """A volume of a service in its long form."""

    target: str
    source: str | None = None
    type: str | None = None


class _Service(msgspec.Struct):
    """What is read of a service."""

    image: str = ""
    entrypoint: _Words = None
    command: _Words = None
    environment: dict[str, _Scalar | None] | list[str] = {}
    volumes: list[str | _Volume] = []
    working_dir: str = ""


def read_service(documents: Sequence[Any], name: str, place: Path) -> Container:
    """Read a service.

    Args:
        documents: the documents of the file.
        name: the name of the service.
        place: the folder of the file.

    Raises:
        MatrixError: it isn't there, or something in it isn't known.
    """
    table = _find_service(documents, name)
    service: _Service = convert_part(table, _Service)
    reading = Reading(place, folder=_written(service.working_dir))
    reading.left_out += [key for key in table if key not in _READ_KEYS]
    for variable, value in _variables_of(service):
        reading.set_variable(variable, value)
    for volume in service.volumes:
        _mount(reading, volume)
    entrypoint = None if service.entrypoint is None else _words_in(service.entrypoint)
    image = image_of(_written(service.image))
    return reading.container(image, entrypoint, _words_in(service.command))


def _find_service(documents: Sequence[Any], name: str) -> dict[str, Any]:
    """Return the table of a service.

    Raises:
        MatrixError: it isn't there, or a part of it is in another file.
    """
    services: dict[str, Any] = {}
    for document in documents:
        if isinstance(document, dict) and isinstance(document.get("services"), dict):
            services |= document["services"]
    table = services.get(name)
    if not isinstance(table, dict):
        raise MatrixError(f"isn't in the file, which has {listed(services)}; name one")
    for key in ("extends", "env_file"):
        if table.get(key) is not None:
            raise MatrixError(
                f"{key} isn't followed; name what `docker compose config --format json > FILE`"
                " writes"
            )

    return table


def _variables_of(service: _Service) -> Iterator[tuple[str, str | None]]:
    """Yield the variables of a service, None for a value that isn't there."""
    variables: dict[str, str | None] = {}
    if isinstance(service.environment, list):
        for text in service.environment:
            name, equals, value = text.partition("=")
            variables[name] = value if equals else None
    else:
        for name, scalar in service.environment.items():
            variables[name] = None if scalar is None else _text_of(scalar)

    for name, written in variables.items():
        if written is None:
            yield name, None
            continue
        value, unknown = _replaced(written)
        yield name, None if unknown else value


def _mount(reading: Reading, volume: str | _Volume) -> None:
    """Add what a service mounts."""
    if not isinstance(volume, str):
        source, unknown = _replaced(volume.source or "")
        if volume.type not in {None, "bind"}:
            is_no_folder = f"a volume of the type {volume.type}, '{source}'"
            reading.add(volume.target, Mount(is_no_folder=is_no_folder))
        else:
            reading.mount(source, volume.target, unknown=unknown)
        return

    text, unknown = _replaced(volume)
    source, colon, rest = text.rpartition(":") if unknown else text.partition(":")
    if unknown and colon and not rest.startswith("/"):
        # The last part is the mode: `${FOLDER}:/models:ro`.
        source, _, rest = source.rpartition(":")
    target = rest.partition(":")[0] if colon else text
    reading.mount(source if colon else "", target, unknown=unknown)


def _words_in(words: _Words) -> Sequence[str]:
    """Return the words of an entrypoint or a command.

    Raises:
        MatrixError: they can't be told apart, or have a variable without a value.
    """
    if not isinstance(words, str):
        return [_written(_text_of(word)) for word in words or []]
    try:
        return shlex.split(_written(words))
    except ValueError as error:
        raise MatrixError(f"{error} in its command; correct it") from error


def _text_of(value: _Scalar) -> str:
    """Return a scalar of YAML as Compose passes it on."""
    return value if isinstance(value, str) else json.dumps(value)


def _written(text: str) -> str:
    """Return a text as Compose reads it.

    Raises:
        MatrixError: it has a variable without a value.
    """
    value, unknown = _replaced(text)
    if unknown:
        raise MatrixError(
            f"command: '{unknown}' is replaced elsewhere, and its value isn't written here; write"
            " the value, or name what `docker compose config --format json > FILE` writes"
        )
    return value


def _replaced(text: str) -> tuple[str, str]:
    """Return a text as Compose reads it, and the last variable that has no value in it.

    `${PORT:-8000}` is 8000, and a dollar that begins no variable is written twice.
    """
    unknown = ""

    def replace(match: re.Match[str]) -> str:
        nonlocal unknown
        if match[0] == "$$":
            return "$"
        if match[1] is None:
            unknown = match[0]
            return match[0]
        return match[1]

    return _VALUE.sub(replace, text), unknown
