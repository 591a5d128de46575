"""Memory: a running server in, the bytes that its processes hold out."""

import os

import pynvml

from specreg.core.errors import SensorError
from specreg.core.processes import resident_bytes
from specreg.servers.server import StartedServer
from specreg.telemetry.devices import devices_of


def held_bytes(server: StartedServer, *, on_gpu: bool) -> int | None:
    """Of GPU memory where the engine runs on one, else of the machine's; None where nobody says."""
    if on_gpu:
        return _held_gpu_bytes(server)
    return resident_bytes(server.process) or None


def _held_gpu_bytes(server: StartedServer) -> int | None:
    """Of all GPUs that the server runs on.

    Where the driver knows processes by other ids than ours, as in a container, only a process that
    is alone on its GPU is known to be the server's.
    """
    variables = {**os.environ, **dict(server.spec.engine_env)}
    ours = server.pids()
    held = []
    try:
        pynvml.nvmlInit()
        for device in devices_of(server.spec.parallel.gpus, variables):
            handle = pynvml.nvmlDeviceGetHandleByIndex(device.number)
            running = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
            mine = [one for one in running if one.pid in ours]
            if not mine and len(running) == 1:
                mine = running
            held += [one.usedGpuMemory for one in mine] or [None]
    except (SensorError, pynvml.NVMLError):
        return None
    return int(sum(held)) if all(held) else None
