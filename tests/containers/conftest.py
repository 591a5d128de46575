"""The runtimes, one after the other."""

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from specreg.engines.registry import engine_named
from specreg.servers.containers import ARGUMENTS_VARIABLE, RUNTIME_VARIABLE
from specreg.servers.provision import engine_environment
from tests.containers.runtimes import RealRuntime, arguments_with, runtime_named, runtimes_here


@pytest.fixture(scope="session", params=runtimes_here())
def bare_runtime(request: pytest.FixtureRequest) -> Iterator[RealRuntime]:
    """A runtime that has two images, which have no Python yet."""
    # The path of a daemon's socket has to be short.
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        runtime_named(request.param, Path(folder)) as runtime,
    ):
        yield runtime


@pytest.fixture
def runtime(
    bare_runtime: RealRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> RealRuntime:
    """A runtime whose containers have this Python."""
    environment = Path(sys.prefix)
    # docker refuses a second mount of the folder that specreg mounts itself.
    folders = (environment, Path(sys.base_prefix), tmp_path.parent)
    monkeypatch.setenv(RUNTIME_VARIABLE, shlex.join(bare_runtime.program))
    monkeypatch.setenv(ARGUMENTS_VARIABLE, arguments_with(*folders, path=str(environment / "bin")))
    return bare_runtime


@pytest.fixture
def runtime_with_vllm(bare_runtime: RealRuntime, monkeypatch: pytest.MonkeyPatch) -> RealRuntime:
    """The first runtime; its containers have vLLM's environment of `nox -s cpu_perf`."""
    if bare_runtime.name != runtimes_here()[0]:
        pytest.skip("one runtime is enough for the real engine")
    python = engine_environment(engine_named("vllm").requirement(on_gpu=False), show=print)
    environment = Path(python).parents[1]
    folders = (environment, Path(os.path.realpath(python)).parents[1])
    monkeypatch.setenv(RUNTIME_VARIABLE, shlex.join(bare_runtime.program))
    monkeypatch.setenv(ARGUMENTS_VARIABLE, arguments_with(*folders, path=str(environment / "bin")))
    return bare_runtime
