"""The servers of a run: shared where they are the same, started at once, and none unasked."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from specreg.core.errors import ServerDiedError, ServerStartError
from specreg.engines.server_spec import ServerSpec, Sizes
from specreg.servers.gpu_lease import GpuClaim
from specreg.servers.handle import ServerHandle, Servers
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher
from specreg.servers.memory import fit_together, free_gib, gpu_memory
from specreg.servers.provision import Provision
from specreg.servers.server import Server
from tests.doubles.vllm.script import Fault, Script
from tests.unit import builders
from tests.unit.builders import runs
from tests.unit.builders.started_servers import PROVISION, left_of

LAUNCH = Launch(spec=builders.SPEC, number=1)
SIZES = Sizes(target_gib=0.1, draft_gib=0.1, token_kib=16.0)
DRAFTING = dataclasses.replace(builders.SPEC, sizes=SIZES)
PLAIN = dataclasses.replace(builders.PLAIN_SPEC, sizes=dataclasses.replace(SIZES, draft_gib=0.0))


def servers(folder: Path, provision: Provision = PROVISION) -> Servers:
    """Those of a run on the scripted engine."""
    launcher = ServerLauncher(provision=provision, root=builders.ROOT, ready_within_s=30.0)
    return Servers(launcher=launcher, logs=folder / "logs")


@contextlib.contextmanager
def handles(run: Servers, *launches: Launch) -> Iterator[list[ServerHandle]]:
    """The servers of some launches, which are stopped at the end."""
    try:
        yield [run.handle(launch) for launch in launches]
    finally:
        run.stop()


def test_a_launch_has_one_server_whoever_asks_for_it(tmp_path: Path) -> None:
    run = servers(tmp_path)

    assert run.handle(LAUNCH) is run.handle(LAUNCH)
    assert run.handle(LAUNCH) is not run.handle(dataclasses.replace(LAUNCH, number=2))


def test_a_server_that_is_not_asked_for_does_not_start(tmp_path: Path) -> None:
    with handles(servers(tmp_path), LAUNCH) as (handle,):
        assert handle.launch == LAUNCH
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_failed_to_start_is_not_tried_again() -> None:
    errors = iter([ServerDiedError("first"), ServerDiedError("second")])

    def start(_: ServerSpec) -> AbstractContextManager[Server]:
        raise next(errors)

    handle = runs.handle(LAUNCH, start)

    for _ in range(2):
        with pytest.raises(ServerDiedError, match="first"):
            _ = handle.server


def launch(folder: Path, spec: ServerSpec, script: Script) -> Launch:
    server_folder = folder / spec.method
    server_folder.mkdir()
    return Launch(spec=builders.scripted(spec, script, server_folder), number=1)


def test_a_pair_starts_at_once(tmp_path: Path) -> None:
    """No server is ready when the last of them is started."""
    was_ready = list[bool]()
    started = list[ServerHandle]()
    provision = dataclasses.replace(
        PROVISION, show=lambda _: was_ready.append(any(handle.is_ready for handle in started))
    )
    run = servers(tmp_path, provision)
    slow = Script(ready_after_s=1.0)
    plain, drafting = (launch(tmp_path, spec, slow) for spec in (PLAIN, DRAFTING))
    with handles(run, plain, drafting) as (control, server):
        started += [control, server]
        run.start_all([control, server])
        assert control.is_ready
        assert server.is_ready
    assert was_ready == [False, False]
    assert not left_of(tmp_path)


@pytest.mark.parametrize("fails", [False, True])
def test_a_dispensable_server_says_that_it_failed_only_when_it_is_needed(
    tmp_path: Path, *, fails: bool
) -> None:
    shown = list[str]()
    slow = Script(ready_after_s=1.0)
    provision = dataclasses.replace(PROVISION, show=shown.append)
    run = servers(tmp_path, provision)
    script = Script(fault=Fault.EXIT_AT_START) if fails else slow
    plain = launch(tmp_path, PLAIN, slow)
    drafting = launch(tmp_path, DRAFTING, script)
    with handles(run, plain, drafting) as (first, second):
        run.start_all([first], [second])
        assert shown == [f"starting {spec.spec.id}" for spec in (drafting, plain)], (
            "installed first"
        )
        assert (first.is_ready, second.is_ready) == (True, not fails)
        with pytest.raises(ServerStartError) if fails else contextlib.nullcontext():
            assert second.server.spec == drafting.spec
    assert not left_of(tmp_path)


@dataclasses.dataclass
class CountedClaim(GpuClaim):
    """A claim that counts how often GPUs were taken."""

    times_taken: int = 0

    def take(self, gpus: int, tell: Callable[[str], None]) -> None:
        del gpus, tell
        self.times_taken += 1


def test_what_starts_beside_one_that_fails_goes_on_until_all_are_stopped(tmp_path: Path) -> None:
    claim = CountedClaim()
    run = dataclasses.replace(servers(tmp_path), claim=claim)
    plain = launch(tmp_path, PLAIN, Script(ready_after_s=1.0))
    broken = launch(tmp_path, DRAFTING, Script(fault=Fault.EXIT_AT_START))
    with handles(run, plain, broken) as (control, server):
        for _ in range(2):
            with pytest.raises(ServerStartError, match="ended with status"):
                run.start_all([control, server])
        assert claim.times_taken == 1, "what is up keeps its GPUs"
        assert control.server.spec == plain.spec
    assert not left_of(tmp_path)


def test_on_a_gpu_each_of_a_pair_is_told_its_cache_and_both_fit() -> None:
    plain, drafting = (gpu_memory(spec, (80.0,)) for spec in (PLAIN, DRAFTING))
    assert plain is not None
    assert drafting is not None
    assert plain.cache_tokens == drafting.cache_tokens == 8 * (1024 + 128)
    assert plain.cache_bytes == 8 * (1024 + 128) * 16 * 1024
    assert drafting.cache_bytes == 2 * plain.cache_bytes
    assert plain.share_frac * 80 == pytest.approx(2.2, abs=0.1)
    assert fit_together([PLAIN, DRAFTING], (80.0,))


@pytest.mark.parametrize(
    ("change", "gpu_gib"),
    [
        ({}, 4.0),
        ({"engine_args": ("--gpu-memory-utilization=0.3",)}, 80.0),
        ({"engine": "triton"}, 80.0),
        ({"sizes": None}, 80.0),
        ({"sizes": Sizes(target_gib=0.1, draft_gib=None, token_kib=16.0)}, 80.0),
    ],
    ids=["no-room", "the-case-says-it", "no-flag", "unknown-weights", "unknown-draft"],
)
def test_two_that_would_count_one_anothers_memory_start_one_after_the_other(
    change: Mapping[str, Any], gpu_gib: float
) -> None:
    spec = dataclasses.replace(PLAIN, **change)
    assert gpu_memory(spec, (gpu_gib,)) is None
    assert not fit_together([PLAIN, spec], (gpu_gib,))


def test_a_gpu_whose_memory_is_not_known_is_left_to_the_engine() -> None:
    assert gpu_memory(PLAIN, (None,)) is None
    assert not fit_together([PLAIN, PLAIN], (None,))
    two = dataclasses.replace(PLAIN, parallel=msgspec.structs.replace(PLAIN.parallel, tensor=2))
    assert gpu_memory(two, (80.0, None)) is None
    assert gpu_memory(PLAIN, (80.0, None)) is not None


def test_a_cache_is_cut_to_the_share_of_its_server() -> None:
    sizes = Sizes(target_gib=16.0, draft_gib=0.0, token_kib=1024.0)
    spec = dataclasses.replace(builders.PLAIN_SPEC, sizes=sizes, max_sequences=64)
    memory = gpu_memory(spec, (80.0,))
    assert memory is not None
    assert memory.share_frac == pytest.approx(0.4, abs=0.001)
    assert memory.cache_bytes == pytest.approx((0.4 * 80 - 16 - 2) * 2**30, rel=0.001)
    for each_frac, fit in ((0.4975, False), (0.48, True)):  # the driver has its own of a GPU
        share = dataclasses.replace(spec, gpu_memory_frac=each_frac)
        assert fit_together([share] * 2, (80.0,)) == fit


@pytest.mark.parametrize(
    "files",
    [
        {"memory.max": 8, "memory.current": 5, "memory.stat": "anon 7\ninactive_file {1}"},
        {
            "memory/memory.limit_in_bytes": 8,
            "memory/memory.usage_in_bytes": 5,
            "memory/memory.stat": "inactive_file 7\ntotal_inactive_file {1}",
        },
    ],
    ids=["v2", "v1"],
)
def test_in_a_container_no_more_is_free_than_its_limit_leaves(
    tmp_path: Path, files: Mapping[str, int | str]
) -> None:
    for name, says in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        # In millionths of a GiB, less than any machine has free.
        path.write_text(
            says.replace("{1}", str(2**30 // 10**6))
            if isinstance(says, str)
            else str(says * 2**30 // 10**6)
        )
    assert free_gib(tmp_path) == pytest.approx(4e-6, rel=0.01)
    assert fit_together([PLAIN], ())
    assert not fit_together([PLAIN], (), tmp_path)


def test_without_a_gpu_two_start_at_once_where_their_weights_are_known_and_fit() -> None:
    huge = Sizes(target_gib=1e6, draft_gib=0.0, token_kib=1.0)
    for sizes, fits in ((SIZES, True), (None, False), (huge, False)):
        spec = dataclasses.replace(builders.PLAIN_SPEC, sizes=sizes)
        assert fit_together([spec, spec], ()) == fits
