"""Read a container of Kubernetes that runs a server."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from specreg.core.errors import MatrixError
from specreg.core.redaction import says_secret
from specreg.matrix.containers import Container, Mount, Reading, convert_part, image_of, listed

_VALUE = re.compile(r"\$\$|\$\(([^()]*)\)")
"""What Kubernetes replaces: `$(NAME)`, and two dollars by one."""
_READ_KEYS = {"name", "image", "command", "args", "env", "envFrom", "containers", "initContainers"}


class _Variable(msgspec.Struct):
    name: str
    value: str | None = None


class _VolumeMount(msgspec.Struct, rename="camel"):
    name: str
    mount_path: str
    sub_path: str | None = None
    sub_path_expr: str | None = None


class _HostPath(msgspec.Struct):
    path: str


class _Volume(msgspec.Struct, rename="camel"):
    name: str
    host_path: _HostPath | None = None


class _Container(msgspec.Struct, rename="camel"):
    """What is read of a container."""

    name: str
    image: str = ""
    command: list[str] = []
    args: list[str] = []
    env: list[_Variable] = []
    volume_mounts: list[_VolumeMount] = []
    working_dir: str = ""


def read_container(documents: Sequence[Any], name: str, place: Path) -> Container:
    """Read a container of a Pod, or of what makes Pods, such as a Deployment.

    Args:
        documents: the documents of the file.
        name: the name of the container.
        place: the folder of the file.

    Raises:
        MatrixError: it isn't there, or something in it isn't known.
    """
    pod, table = _find_container(documents, name)
    container: _Container = convert_part(table, _Container)
    volumes: list[_Volume] = convert_part(pod.get("volumes") or [], list[_Volume])
    reading = Reading(place, folder=container.working_dir)
    reading.left_out += [key for key in (*table, *pod) if key not in _READ_KEYS]
    if table.get("envFrom"):
        reading.notes.append(
            "envFrom is left out: the values of its variables aren't written here; write those that"
            " the server needs as engine_env"
        )

    values: dict[str, str] = {}
    secrets: set[str] = set()
    for variable in container.env:
        value, unknown = _replaced(variable.value or "", values)
        is_known = variable.value is not None and not unknown
        names = _names_in(variable.value or "")
        holds_secret = not secrets.isdisjoint(names) or any(map(says_secret, names))
        if holds_secret or says_secret(variable.name):
            secrets.add(variable.name)
        if is_known:
            values[variable.name] = value
        reading.set_variable(variable.name, value if is_known else None, holds_secret=holds_secret)

    for mount in container.volume_mounts:
        reading.add(mount.mount_path, _mount_of(mount, volumes))

    # An empty command is none, as in Kubernetes.
    command = _words_in(container.command, values) or None
    return reading.container(image_of(container.image), command, _words_in(container.args, values))


def _mount_of(mount: _VolumeMount, volumes: Sequence[_Volume]) -> Mount:
    """Return what is mounted in a container."""
    host_paths = {volume.name: volume.host_path.path for volume in volumes if volume.host_path}
    if mount.sub_path_expr:
        return Mount(is_no_folder=f"the volume '{mount.name}' by subPathExpr, which isn't read")
    if mount.name not in host_paths:
        return Mount(is_no_folder=f"the volume '{mount.name}'")
    return Mount(folder=str(Path(host_paths[mount.name]) / (mount.sub_path or "")))


def _find_container(documents: Sequence[Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the only container of this name, after the part of a Pod that it is in.

    Raises:
        MatrixError: there is none, or more than one.
    """
    visited: set[int] = set()
    names: list[str] = []
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []
    for document in documents:
        for pod in _pods_in(document, visited):
            tables = [table for table in pod["containers"] if isinstance(table, dict)]
            names += [str(table.get("name")) for table in tables]
            found += [(pod, table) for table in tables if table.get("name") == name]

    if len(found) != 1:
        problem = f"is there {len(found)} times" if found else "isn't in the file"
        raise MatrixError(f"{problem}, which has {listed(names)}; name one")
    return found[0]


def _pods_in(value: object, visited: set[int]) -> Iterator[dict[str, Any]]:
    """Yield each part of a document that has containers, such as a Deployment's template.

    Args:
        value: the document, or a part of it.
        visited: the parts so far: an alias of YAML stands for the same part again.
    """
    if not isinstance(value, dict | list) or id(value) in visited:
        return
    visited.add(id(value))
    if isinstance(value, dict) and isinstance(value.get("containers"), list):
        yield value
        return
    for part in value.values() if isinstance(value, dict) else value:
        yield from _pods_in(part, visited)


def _words_in(texts: Sequence[str], values: Mapping[str, str]) -> Sequence[str]:
    """Return the words of a command with the values of its variables.

    The variable of a flag that holds a secret stays as it is, because the flag is left out.

    Raises:
        MatrixError: another variable has no value in the file.
    """
    words: list[str] = []
    for text in texts:
        word, unknown = _replaced(text, values)
        flag = text if "=" in text or not words else words[-1]
        if unknown and not says_secret(flag.partition("=")[0]):
            raise MatrixError(
                f"'{unknown}' has no value in the file; write it there, or name another container"
            )
        words.append(word)

    return words


def _names_in(text: str) -> Sequence[str]:
    """Return the names of the variables in a text."""
    return [match[1] for match in _VALUE.finditer(text) if match[1] is not None]


def _replaced(text: str, values: Mapping[str, str]) -> tuple[str, str]:
    """Return a text with the values of its variables, and the last variable without one."""
    unknown = ""

    def replace(match: re.Match[str]) -> str:
        nonlocal unknown
        if match[1] is None:
            return "$"
        if match[1] not in values:
            unknown = match[0]
        return values.get(match[1], match[0])

    return _VALUE.sub(replace, text), unknown
