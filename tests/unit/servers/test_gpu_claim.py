"""Claims of GPUs by several processes of a run."""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.doubles.nvml.device import ScriptedGpu
from tests.unit.playing import Player, running

CLAIM = """
import os, sys, time
from specreg.core.errors import SensorError
from specreg.servers.gpu_lease import GpuClaim
claim = GpuClaim()
try:
    claim.take(int(sys.argv[1]), lambda text: print("told", text, flush=True))
except SensorError as error:
    sys.exit(str(error))
print("has", os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
sys.stdin.readline()
claim.give_back()
print("gave", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
"""
IDS = tuple(f"GPU-{number}c217ed0-0000-4000-8000-000000000000" for number in range(2))


def player_of(library: Path, tmp_path: Path) -> Player:
    return Player(library=library, folder=tmp_path, more={"SPECREG_CACHE": str(tmp_path / "cache")})


@pytest.fixture
def start(library: Path, tmp_path: Path) -> Iterator[Callable[[int], subprocess.Popen[str]]]:
    """Starts a process that claims so many of two GPUs, and gives them back when told a line."""
    player = player_of(library, tmp_path)
    variables = player.variables([running(ScriptedGpu(uuid=one)) for one in IDS])
    with contextlib.ExitStack() as stack:

        def begin(gpus: int) -> subprocess.Popen[str]:
            process = stack.enter_context(
                subprocess.Popen(
                    (sys.executable, "-c", CLAIM, str(gpus)),
                    env=variables,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield begin


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def give_back(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate("\n")
    return output.strip()


def test_each_sees_a_gpu_of_its_own_and_a_wide_claim_is_not_overtaken(
    start: Callable[[int], subprocess.Popen[str]],
) -> None:
    first, second = start(1), start(1)
    assert {said(first), said(second)} == {f"has {one}" for one in IDS}
    wide = start(2)
    assert said(wide) == "told waiting for 2 of 2 GPUs"
    late = start(1)
    assert give_back(first) == "gave None"
    assert give_back(second) == "gave None"
    assert said(wide) == f"has {','.join(IDS)}", "before the one that came later"
    give_back(wide)
    assert said(late).startswith("has GPU-")
    give_back(late)


def test_more_gpus_than_there_are_are_refused(
    start: Callable[[int], subprocess.Popen[str]],
) -> None:
    process = start(3)
    error, _ = process.communicate()
    assert error.strip() == "3 GPUs: there are 2"
