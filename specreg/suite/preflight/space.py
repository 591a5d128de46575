"""What a run takes of the machine besides devices: a port, room on disks, memory."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from specreg.core.errors import ModelError
from specreg.core.files import cache_dir
from specreg.datasets.hub import hub_cache_dir
from specreg.matrix.widening import lacking_bytes
from specreg.report.doctor import Finding, in_the_way, ok
from specreg.servers.environments import installed_environment
from specreg.servers.memory import free_gib
from specreg.servers.start import free_port
from specreg.suite.preflight.inputs import lacking_gib
from specreg.suite.preflight.scene import Scene

_GIB = 2**30
_ENVIRONMENT_GIB = 7.0
"""The most that an engine's environment was seen to take."""
_RUN_GIB = 0.5
"""Of a run's logs, journal and samples; 1.5 MB were seen on a CPU."""


def examine_port(scene: Scene) -> Iterator[Finding]:
    """Whether servers can listen at 127.0.0.1."""
    del scene
    try:
        free_port()
    except OSError as error:
        advice = "let this process open sockets; a sandbox may forbid it"
        yield in_the_way("port", f"127.0.0.1 can't be bound, {error.strerror}", advice)
    else:
        yield ok("port", "127.0.0.1 can be bound")


def examine_disks(scene: Scene) -> Iterator[Finding]:
    """Whether there is room, and the right to write, where a run writes; a line for each disk."""
    disks: dict[int, list[tuple[str, Path, float]]] = {}
    for what, folder, needed_gib in _wanted(scene):
        place = _existing(folder)
        if not os.access(place, os.W_OK):
            advice = "give yourself the right to write there, or name another folder"
            yield in_the_way("disk", f"{what}: '{place}' can't be written to", advice)
            continue
        disks.setdefault(place.stat().st_dev, []).append((what, place, needed_gib))
    for wanted in disks.values():
        free_gib = shutil.disk_usage(wanted[0][1]).free / _GIB
        needed_gib = sum(each_gib for _, _, each_gib in wanted)
        names = ", ".join(what for what, _, _ in wanted)
        says = f"{free_gib:.1f} GiB free for {names}; about {needed_gib:.1f} GiB needed"
        if free_gib < needed_gib:
            advice = "make room, or name other folders: SPECREG_CACHE, HF_HUB_CACHE, --specreg-runs"
            yield in_the_way("disk", says, advice)
        else:
            yield ok("disk", says)


def examine_memory(scene: Scene) -> Iterator[Finding]:
    """Whether the models of the largest case fit, beside those of its control."""
    left_gib = free_gib()
    says = f"{left_gib:.1f} GiB free"
    needed_gib = 0.0 if scene.on_gpu else _weights_gib(scene)
    if left_gib < needed_gib:
        says = f"{says}, and the models of the largest case take {needed_gib:.1f}"
        yield in_the_way("memory", says, "end what takes it, or choose smaller models")
    else:
        yield ok("memory", says)


def _weights_gib(scene: Scene) -> float:
    """The weights of a case's servers, the most that stand beside one another."""
    pairs = [(case.server, case.control) for case in scene.running]
    return max(
        (
            sum(
                one.sizes.target_gib + (one.sizes.draft_gib or 0.0)
                for one in pair
                if one is not None and one.sizes is not None
            )
            for pair in pairs
        ),
        default=0.0,
    )


def _wanted(scene: Scene) -> Iterator[tuple[str, Path, float]]:
    """What is written, where, and about how much, in GiB."""
    if scene.tier is not None:
        new = [one for one in scene.requirements if installed_environment(one) is None]
        yield "engines", cache_dir(), _ENVIRONMENT_GIB * len(new)
        with contextlib.suppress(ModelError):  # as the finding on it says
            if needed_bytes := lacking_bytes(scene.root, scene.servers):
                yield "widened models", cache_dir(), needed_bytes / _GIB
        if cache := hub_cache_dir():
            yield "models", cache, lacking_gib(scene)
    yield "runs", scene.runs, _RUN_GIB


def _existing(folder: Path) -> Path:
    """The folder, or the one above it in which it would be made."""
    return next(path for path in (folder.resolve(), *folder.resolve().parents) if path.exists())
