"""The scripted docker on PATH, with one image, and what it was asked to run."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from specreg.servers.containers import ARGUMENTS_VARIABLE, RUNTIME_VARIABLE
from tests.unit.builders.cases import ROOT

IMAGE = "team/engine:1"
DIGEST = "sha256:" + "ab" * 32


@dataclasses.dataclass
class Docker:
    """The scripted docker.

    Attributes:
        state: the folder of its images and containers.
        daemon: its daemon.
    """

    state: Path
    daemon: subprocess.Popen[bytes]

    def registry(self, name: str, **answer: str) -> None:
        (self.state / "registry.json").write_text(json.dumps({name: answer}))

    def images(self, digests: Mapping[str, str], repositories: Sequence[str] = ()) -> None:
        (self.state / "images.json").write_text(json.dumps(digests))
        (self.state / "repositories.json").write_text(json.dumps(repositories))

    @property
    def containers(self) -> list[str]:
        """The containers that run or are left."""
        return [path.parent.name for path in self.state.glob("*/config.json")]

    @property
    def arguments(self) -> list[str]:
        """How the only container was started."""
        (config,) = self.state.glob("*/config.json")
        arguments: list[str] = json.loads(config.read_text())["arguments"]
        return arguments


@contextmanager
def scripted_docker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Docker]:
    """The scripted docker, whose image has this Python and the scripted server."""
    state = folder / "docker-state"
    state.mkdir()
    (state / "images.json").write_text(json.dumps({IMAGE: DIGEST}))
    (state / "repositories.json").write_text("[]")
    (state / "registry.json").write_text("{}")
    programs = folder / "bin"
    programs.mkdir()
    scripted = ROOT / "tests/doubles/docker/program.py"
    client = f'{sys.executable} {scripted} client {state} "$@"'
    for name, command in (("docker", client), ("python3", f'{sys.executable} "$@"')):
        (programs / name).write_text(f"#!/bin/sh\nexec {command}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("SPECREG_CACHE", str(folder / "cache"))
    monkeypatch.delenv(RUNTIME_VARIABLE, raising=False)
    monkeypatch.delenv(ARGUMENTS_VARIABLE, raising=False)
    daemon = subprocess.Popen((sys.executable, scripted, "daemon", state))
    yield Docker(state, daemon)
    daemon.kill()
    daemon.wait()
