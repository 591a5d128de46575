"""What the sensor of NVIDIA's GPUs says of one that is gone, and of one that is closed to us."""

from pathlib import Path

import pytest

from tests.doubles.nvml.device import ScriptedGpu
from tests.unit.playing import Player, running

FINDING = """
import os
from specreg.core.errors import SensorError
from specreg.telemetry.nvml import SENSOR
try:
    print(SENSOR.find(os.environ)[0].why_not)
except SensorError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("gpu", "says"),
    [
        (ScriptedGpu(lost_at_s=1.0), "NVML: GPU is lost; look at the kernel's log (dmesg) for Xid"),
        (
            ScriptedGpu(permission=False),
            "NVML: its power can't be read, Insufficient Permissions; run as a user who may",
        ),
        (
            ScriptedGpu(mig=True),
            "NVML: MIG is on, and slices of a GPU tell no power of their own; measure on one without MIG",  # noqa: E501 - as it is shown
        ),
    ],
    ids=["lost", "closed", "sliced"],
)
def test_what_is_wrong_with_a_gpu_ends_with_what_to_do(
    library: Path, tmp_path: Path, gpu: ScriptedGpu, says: str
) -> None:
    done = Player(library=library, folder=tmp_path).run([running(gpu)], "-c", FINDING)
    assert done.stdout.strip() == says
