"""A child process in which nvidia-ml-py finds scripted GPUs; CUDA_VISIBLE_DEVICES hides none."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.doubles.nvml.device import ScriptedGpu, environment, write_script
from tests.unit import builders

_OF_CUDA = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def running(gpu: ScriptedGpu) -> ScriptedGpu:
    """The GPU, its origin an hour ago, so that its counter has run for long."""
    return replace(gpu, started_ns=time.monotonic_ns() - 3_600 * 10**9)


@dataclass(frozen=True, slots=True, kw_only=True)
class Player:
    """Starts Python where the driver is the scripted one.

    Attributes:
        library: the driver; folder: for the script; more: variables.
    """

    library: Path
    folder: Path
    more: Mapping[str, str] = field(default_factory=dict)

    def variables(self, gpus: Sequence[ScriptedGpu]) -> dict[str, str]:
        """The environment of such a process."""
        script = write_script(self.folder / "gpus", gpus)
        plain = {name: said for name, said in os.environ.items() if name not in _OF_CUDA}
        ours = {"PYTHONPATH": str(builders.ROOT)}
        return plain | environment(self.library, script) | ours | dict(self.more)

    def run(
        self, gpus: Sequence[ScriptedGpu], *arguments: str | Path
    ) -> subprocess.CompletedProcess[str]:
        """Runs Python with such arguments to its end."""
        return subprocess.run(
            (sys.executable, *map(str, arguments)),
            env=self.variables(gpus),
            cwd=self.folder,
            capture_output=True,
            check=False,
            text=True,
        )
