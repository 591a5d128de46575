"""What a server is started with, as a table of cases writes it and a command line takes it.

A setting that is added here is a key of `[[cases]]`, part of what a baseline is compared by, and at
hand in `LaunchOptions`; an engine's file spells it.
"""

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from specreg.engines._parallel import ALONE, Parallel
from specreg.engines.methods import Tree

Positive = Annotated[int, msgspec.Meta(ge=1)]


# No slots, here and in what is derived: a class of two bases with slots can't be made.
@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The settings of a server that must be equal for two measurements to be compared.

    Attributes:
        dtype: the engine's name of the number format.
        max_model_len_tokens: prompt and output together.
        max_sequences: requests that the server takes on at once.
        parallel: how the models are spread over GPUs.
        engine_args, engine_env: further arguments and environment variables, as pairs.
        trust_remote_code: whether the engine runs code that the models bring.
        tree: how the drafts branch, None for one continuation.
    """

    dtype: str = "auto"
    max_model_len_tokens: Positive = 1024
    max_sequences: Positive = 8
    parallel: Parallel = ALONE
    engine_args: tuple[str, ...] = ()
    engine_env: tuple[tuple[str, str], ...] = ()
    trust_remote_code: bool = False
    tree: Tree | None = None


@dataclass(frozen=True, kw_only=True)
class LaunchSettings(ServerSettings):
    """All settings of a server.

    Attributes:
        gpu_memory_frac: share of a GPU's memory that the server may take at most, 0..1. Case and
            control run beside one another, so at most half. It isn't compared: which share is
            enough differs by GPU.
    """

    gpu_memory_frac: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.4


def taken(kind: type[Any], source: object) -> dict[str, Any]:
    """The fields of a dataclass `kind`, each with the value that `source` has under its name."""
    return {field.name: getattr(source, field.name) for field in dataclasses.fields(kind)}
