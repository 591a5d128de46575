"""Does the suite itself hold on to what it no longer needs? `python -m tests.bench.soak`.

One process runs the whole suite again and again, on scripted servers: it collects, starts and stops
a server, measures case after case, keeps its journal, judges against baselines that it recorded at
first, and writes its report. After each run it looks at itself. Ctrl-C ends it early and well.

Judged is resident memory, and memory of its own (anonymous, swapped out or not). Where only the
former grew, look at the kernel first: it drops pages of libraries that nobody reads, and loads them
again.
"""

import argparse
import contextlib
import gc
import io
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import psutil
import pytest

from tests.doubles.vllm.script import Fault, Script
from tests.faults.running import ROOT, Hurt

MOST_GROWTH_FRAC = 0.05
LEAD_IN_FRAC = 0.1
"""Of the runs; caches fill then."""
_PARTS = 10
"""Held against one another are the means of the first and the last tenth after the lead-in."""
_FEWEST_RUNS = 20
_EVERY_S = 60.0
_JUMP = 200
"""Objects; that many more after one run are worth a line that says of which classes."""
FAULTS = (Fault.CRASH_MID_RUN, Fault.HTTP_500, Fault.TRUNCATED_STREAM, Fault.COUNTERS_RESET)
_JUDGED = {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, 10, 11}
_PER_MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The process after a run.

    Attributes:
        at_s: since the first run began.
        own_mib: memory that is no file's, whether it is resident or swapped out.
        rss_mib: resident memory, with the files that the kernel happens to hold for it.
        objects: that Python's collector knows.
        descriptors: open files and sockets; threads, children: its own.
        files: that lie in its folder for temporary ones.
    """

    at_s: float
    own_mib: float
    rss_mib: float
    objects: int
    descriptors: int
    threads: int
    children: int
    files: int


GROWING = ("own_mib", "rss_mib")
"""May grow by a twentieth; of the others nothing may be left over."""
SHOWN = ("objects",)
"""Isn't judged: caches of bounded size fill with them."""
COUNTED = ("descriptors", "threads", "children", "files")


def sample(started_s: float, temporary: Path) -> Sample:
    """The process as it is now, after everything that can be freed was."""
    gc.collect()
    process = psutil.Process()
    return Sample(
        at_s=time.monotonic() - started_s,
        own_mib=own_bytes(process.pid) / _PER_MIB,
        rss_mib=process.memory_info().rss / _PER_MIB,
        objects=len(gc.get_objects()),
        descriptors=process.num_fds(),
        threads=process.num_threads(),
        children=len(process.children(recursive=True)),
        files=sum(1 for _ in temporary.rglob("*")),
    )


def own_bytes(pid: int) -> int:
    """Memory of a process that no file holds: `RssAnon` and `VmSwap` of proc_pid_status(5)."""
    lines = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    return sum(int(lines[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def run_suite(hurt: Hurt, *arguments: str) -> int:
    """One run of the suite in this process; its status.

    Raises:
        RuntimeError: it broke; the message is all that it said.
    """
    command = hurt.command("-k", "toy", "--assert=plain", *arguments)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = int(pytest.main(list(command[3:])))
    if status not in _JUDGED:
        raise RuntimeError(f"the suite ended with status {status}:\n{said.getvalue()}")
    # What lies on disk is for others; its history, which a run reads, would grow with it.
    shutil.rmtree(hurt.runs, ignore_errors=True)
    shutil.rmtree(hurt.runs.parent / "history", ignore_errors=True)
    return status


def meet_faults(hurt: Hurt) -> None:
    """A run with each fault that a busy machine brings about sooner or later.

    What Python loads and keeps for them once is there then, before anybody looks.
    """
    for fault in FAULTS:
        hurt.script = Script(step_ms=0.5, fault=fault, fault_after_requests=30)
        os.environ.update(hurt.environment())
        run_suite(hurt)
    hurt.script = Script(step_ms=0.5)
    os.environ.update(hurt.environment())


def soak(hurt: Hurt, minutes: float) -> list[Sample]:
    """Runs the suite for so long; what the process was after each run."""
    started_s, samples, told_s = time.monotonic(), list[Sample](), 0.0
    kinds = kinds_of_objects()
    with contextlib.suppress(KeyboardInterrupt):
        while time.monotonic() - started_s < 60 * minutes:
            run_suite(hurt, "--specreg-inconclusive=warn")
            samples.append(sample(started_s, hurt.temporary))
            if samples[-1].at_s >= told_s:
                told_s += _EVERY_S
                show(render(samples[-1]))
            before, kinds = kinds, kinds_of_objects()
            if kinds.total() > before.total() + _JUMP:
                show(f"since the run before: {(kinds - before).most_common(8)}")
    return samples


def kinds_of_objects() -> Counter[str]:
    """How many objects of each class Python's collector knows."""
    return Counter(type(one).__qualname__ for one in gc.get_objects())


def growth_of(samples: Sequence[Sample], name: str) -> tuple[float, float]:
    """The means of the first and the last tenth of what comes after the lead-in."""
    judged = [getattr(one, name) for one in samples[round(LEAD_IN_FRAC * len(samples)) :]]
    size = max(len(judged) // _PARTS, 1)
    return statistics.fmean(judged[:size]), statistics.fmean(judged[-size:])


def conclude(samples: Sequence[Sample]) -> int:
    """Says what grew; the status."""
    if len(samples) < _FEWEST_RUNS:
        show(f"{len(samples)} runs: no telling from fewer than {_FEWEST_RUNS}; soak longer")
        return 10
    grown = False
    for name in (*GROWING, *SHOWN, *COUNTED):
        before, after = growth_of(samples, name)
        change_frac = after / before - 1 if before else after
        bound_frac = MOST_GROWTH_FRAC if name in GROWING else 0.0
        judged = name not in SHOWN
        bad = judged and change_frac > bound_frac
        grown = grown or bad
        bound = f", at most {bound_frac:+.0%}" if judged else ""
        show(f"{name}: {before:.1f} -> {after:.1f}, {change_frac:+.2%}{bound}{' GREW' * bad}")
    show(f"{len(samples)} runs in {samples[-1].at_s / 60:.1f} minutes")
    return int(grown)


def render(one: Sample) -> str:
    """A line."""
    return "  ".join(f"{each.name} {getattr(one, each.name):.1f}" for each in fields(one))


def show(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Soaks, and ends with the status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=120.0)
    minutes: float = parser.parse_args().minutes
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        hurt = Hurt(folder=Path(folder), script=Script(step_ms=0.5))
        os.environ.update(hurt.environment())
        os.chdir(ROOT)
        tempfile.tempdir = str(hurt.temporary)
        # Of acceptance alone: a busy machine's launches don't agree on speed.
        run_suite(hurt, "--update-baselines", "--reason=soak", "--specreg-launches=1")
        if not list(hurt.folder.glob("baselines/*/*.json")):
            raise SystemExit("no baseline was recorded to judge by; run it by hand")
        meet_faults(hurt)
        samples = soak(hurt, minutes)
    raise SystemExit(conclude(samples))


if __name__ == "__main__":
    main()
