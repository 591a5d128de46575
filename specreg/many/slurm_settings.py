"""What is asked of Slurm: `KEY=VALUE,…` in, what submitit is to ask for out."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from specreg.core.errors import SpecregError, UnknownNameError
from specreg.many.places import Need, cores_for

SLURM_OPTION = "--specreg-slurm"
LOCAL = "local"
"""The cluster that is this machine."""
CLUSTERS = ("slurm", LOCAL)
_TIME_MIN = 240
_FURTHER = (
    *("account", "comment", "constraint", "exclude", "licenses", "nodelist", "partition", "qos"),
    *("reservation", "wckey"),
)
"""Options of sbatch that a job gets as they are given."""
_NUMBERS = {"cpus_per_task": "a number", "mem_gb": "whole GB", "time": "whole minutes"}
_KNOWN = ("cluster", "gpu_type", *_NUMBERS, *_FURTHER)
_NEXT = re.compile(",(?=[a-z_]+=)")
"""Between two settings; a list of nodes has commas too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is asked of Slurm for each job.

    Attributes:
        cluster: `slurm`, or `local` for processes of this machine.
        time_min: how long it may take.
        cores: how many it has; None for as many as its server and clients need.
        memory_gib: how much; None for what the partition gives.
        gpu_type: as the cluster calls it; empty for any.
        further: options of sbatch by their long names.
    """

    cluster: str = "slurm"
    time_min: int = _TIME_MIN
    cores: int | None = None
    memory_gib: int | None = None
    gpu_type: str = ""
    further: Mapping[str, str] = field(default_factory=dict)


def parse_settings(text: str) -> Settings:
    """The settings of `KEY=VALUE,…`.

    Raises:
        UnknownNameError: a key that means nothing.
        SpecregError: no key, no value, or one that can't be.
    """
    given: dict[str, str] = {}
    for part in _NEXT.split(text):
        name, _, value = part.partition("=")
        if not value:
            message = (
                f"{SLURM_OPTION} '{part}': needs KEY=VALUE; say partition=NAME for instance, or"
                f" cluster={LOCAL} to try it without a cluster"
            )
            raise SpecregError(message)
        if name not in _KNOWN:
            raise UnknownNameError("setting", name, _KNOWN, SLURM_OPTION)
        given[name] = value
    numbers = {name: _number(name, given[name]) for name in _NUMBERS if name in given}
    cluster = given.get("cluster", CLUSTERS[0])
    if cluster not in CLUSTERS:
        raise UnknownNameError("cluster", cluster, CLUSTERS, SLURM_OPTION)
    return Settings(
        cluster=cluster,
        time_min=numbers.get("time", _TIME_MIN),
        cores=numbers.get("cpus_per_task"),
        memory_gib=numbers.get("mem_gb"),
        gpu_type=given.get("gpu_type", ""),
        further={name: given[name] for name in _FURTHER if name in given},
    )


def _number(name: str, given: str) -> int:
    if given.isdecimal() and int(given) > 0:
        return int(given)
    message = f"{SLURM_OPTION} {name}={given}: needs {_NUMBERS[name]}, 1 or more; say another"
    raise SpecregError(message)


def parameters(settings: Settings, need: Need, name: str) -> dict[str, object]:
    """What submitit is to ask for, by its own names; what isn't there is Slurm's to say.

    Args:
        settings: of the user.
        need: of the errand.
        name: of it.
    """
    # Who is sent back to the queue would begin in the midst of what the run gave to another.
    further: dict[str, object] = {"no_requeue": True, **settings.further}
    if settings.gpu_type and need.gpus:
        further["gpus_per_node"] = f"{settings.gpu_type}:{need.gpus}"
    asked = {
        "name": f"specreg-{name}",
        "nodes": 1,
        "tasks_per_node": 1,
        "timeout_min": settings.time_min,
        "mem_gb": settings.memory_gib,
        "cpus_per_task": settings.cores or (cores_for(need) if need.gpus else None),
        "gpus_per_node": need.gpus or None,
        # A server without a GPU computes on all processors of its node.
        "slurm_exclusive": None if need.gpus else True,
        "slurm_additional_parameters": further,
        # From 22.05 on srun no longer takes over how many cores the job has: it would bind to one.
        "slurm_srun_args": ["--cpu-bind=none"],
    }
    return {name: value for name, value in asked.items() if value is not None}
