"""Read a file that starts a server in a container: of Compose, or of Kubernetes."""

import functools
import importlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from specreg.core.commands import install_command
from specreg.core.errors import MatrixError
from specreg.core.files import MIB, UNREADABLE, cause_of, read_regular
from specreg.matrix.compose import read_service
from specreg.matrix.containers import Container
from specreg.matrix.kubernetes import read_container

_MOST_BYTES = MIB // 4
"""Such a file has a few KiB. PyYAML takes some seconds for as much as this."""
_YAML_1_2 = (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:0|[1-9][0-9]*)\.[0-9]*(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
    ("merge", r"<<", "<"),
)
"""The plain words that aren't text. PyYAML reads YAML 1.1, to which `no` is false and `1:30` is 90,
but Compose reads them as text. Each line has the type, the words, and their first characters."""


class ServerFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that starts a server, and which of its containers that is.

    Attributes:
        file: the path, relative to the folder of the tier.
        service: the service of a Compose file.
        container: the container of a Pod, or of what makes Pods, such as a Deployment.
    """

    file: str
    service: str = ""
    container: str = ""

    def __str__(self) -> str:
        if self.service:
            return f"'{self.file}', service '{self.service}'"
        return f"'{self.file}', container '{self.container}'"


def server_file_of(table: object) -> ServerFile:
    """Return what a table of TOML says of a file that starts a server.

    Raises:
        MatrixError: it isn't such a table, or names neither a service nor a container, or both.
    """
    try:
        server_file = msgspec.convert(table, ServerFile)
    except msgspec.ValidationError as error:
        raise MatrixError(
            f"command: {error}, needed a command line, or a file with its service or container;"
            ' write "vllm serve MODEL" or { file = "compose.yaml", service = "NAME" }'
        ) from error

    if bool(server_file.service) == bool(server_file.container):
        raise MatrixError(
            f"command: file '{server_file.file}': name its service (Compose) or its container"
            " (Kubernetes)"
        )

    return server_file


def read_server_file(server_file: ServerFile, folder: Path) -> Container:
    """Read the container of a file of Compose or Kubernetes.

    Args:
        server_file: the file and its container.
        folder: the folder of the tier.

    Raises:
        MatrixError: the file can't be read, has no such container, or something in it isn't known.
    """
    path = folder / server_file.file
    documents = _load_documents(path)
    if server_file.service:
        return read_service(documents, server_file.service, path.parent)
    return read_container(documents, server_file.container, path.parent)


def _load_documents(path: Path) -> Sequence[Any]:
    """Return the documents of a file of YAML or JSON.

    Raises:
        MatrixError: it can't be read.
    """
    unreadable: tuple[type[Exception], ...] = (OSError, *UNREADABLE, ValueError)
    try:
        content = read_regular(path, _MOST_BYTES).decode()
        if content.lstrip().startswith("{"):
            return [msgspec.json.decode(content)]
        # The decoder of msgspec takes PyYAML's parser in C, which crashes on a deep nesting.
        yaml: Any = importlib.import_module("yaml")
        unreadable = (*unreadable, yaml.YAMLError)
        return list(yaml.load_all(content, Loader=_loader(yaml)))
    except ImportError as error:
        raise MatrixError(
            f"reading YAML needs PyYAML; {install_command('yaml')}, or name a file of"
            " JSON, as `docker compose config --format json` and `kubectl get -o json` write it"
        ) from error
    except unreadable as error:
        raise MatrixError(
            f"can't be read, {cause_of(error)}; correct it, or name another file"
        ) from error


@functools.cache
def _loader(yaml: Any) -> Any:  # noqa: ANN401 - PyYAML may be missing
    """Return PyYAML's safe loader, which takes plain words as YAML 1.2 does."""
    loader: Any = type("Loader", (yaml.SafeLoader,), {"yaml_implicit_resolvers": {}})
    for kind, words, first in _YAML_1_2:
        pattern = re.compile(rf"(?:{words})\Z")
        loader.add_implicit_resolver(f"tag:yaml.org,2002:{kind}", pattern, list(first))
    return loader
