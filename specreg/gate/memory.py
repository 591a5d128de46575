"""Memory: a running server in, the bytes that its processes hold out."""

from collections.abc import Collection

import pynvml

from specreg.processes import process_ids, resident_bytes
from specreg.server import StartedServer


def held_bytes(server: StartedServer, *, on_gpu: bool) -> int | None:
    """Of GPU memory where the engine runs on one, else of the machine's; None where nobody says."""
    if not on_gpu:
        return resident_bytes(server.process) or None
    return _held_gpu_bytes(process_ids(server.process))


def _held_gpu_bytes(ids: Collection[int]) -> int | None:
    """Of all GPUs; where the driver knows our processes by other ids, what all on them hold."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        running = [
            one for handle in handles for one in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
        ]
        ours = [one.usedGpuMemory for one in running if one.pid in ids]
        if ours and all(ours):
            return int(sum(ours))
        return sum(int(pynvml.nvmlDeviceGetMemoryInfo(one).used) for one in handles) or None
    except pynvml.NVMLError:
        return None
