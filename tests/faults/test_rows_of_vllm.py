"""The same faults on real vLLM, without a GPU; each test is named by its row.

`nox -s faults` runs them; `-m "not vllm"` leaves them out. One run has three of its servers hurt.
"""

import dataclasses
import json
import signal
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path

import httpx
import pytest

from specreg.core.errors import ServerStartError
from specreg.engines.server_spec import ServerSpec
from specreg.servers.handle import ServerHandle
from specreg.servers.launch import Launch
from specreg.servers.launcher import ServerLauncher, free_port
from specreg.servers.provision import Provision
from specreg.servers.server import StartedServer
from tests.faults.running import (
    CASES,
    MARK,
    PLANTED,
    ROOT,
    Hurt,
    end_of_leader,
    is_api,
    is_free,
    lives,
    marked,
    ports_of,
    wait_until,
)
from tests.unit import builders
from tests.unit.builders.started_servers import running

pytestmark = pytest.mark.vllm

SPEC = dataclasses.replace(
    builders.SPEC,
    method="ngram",
    target="fixtures/models/tiny/target",
    draft=None,
    engine_env=(("OMP_NUM_THREADS", "1"),),
)
SLOW = {"PLANTED_FAULT": "sleep", "PLANTED_SLEEP_S": "0.02", "PYTHONPATH": str(PLANTED)}
"""Each step takes 20 ms more, so that there is time to hurt it."""


def start(
    folder: Path, spec: ServerSpec = SPEC, choose_port: Callable[[], int] = free_port
) -> AbstractContextManager[StartedServer]:
    engine_env = (*spec.engine_env, (MARK, str(folder)))
    launcher = ServerLauncher(
        provision=Provision(on_gpu=False, show=print),
        root=ROOT,
        ready_within_s=180.0,
        choose_port=choose_port,
    )
    launch = Launch(spec=dataclasses.replace(spec, engine_env=engine_env), number=1)
    log_path = folder / "logs" / "server.log"
    return running(ServerHandle(launch=launch, launcher=launcher, log_path=log_path))


CODE = {
    "model_type": "own",
    "architectures": ["OwnForCausalLM"],
    "auto_map": {"AutoConfig": "configuration_own.OwnConfig"},
}


def hub(folder: Path) -> Mapping[str, str]:
    """What has an engine look for models in a cache alone, in which one is that brings code.

    Its weights are there, if empty: without any, specreg says so before a server starts.
    """
    commit = "0" * 40
    model = folder / "hub/models--nobody--brings-code"
    for path, text in (
        ("refs/main", commit),
        (f"snapshots/{commit}/config.json", json.dumps(CODE)),
        (f"snapshots/{commit}/model.safetensors", ""),
    ):
        (model / path).parent.mkdir(parents=True, exist_ok=True)
        (model / path).write_text(text)
    return {"HF_HUB_CACHE": str(folder / "hub"), "HF_HUB_OFFLINE": "1"}


@pytest.mark.parametrize(
    ("changes", "status", "failure"),
    [
        ({"engine_args": ("--no-such-flag",)}, 2, "unknown or refused argument"),
        ({"target": "nobody/brings-code"}, 1, "a model brings code of its own"),
        ({"engine_args": ("--help",)}, 0, "unknown cause"),
    ],
    ids=["bad-flag", "code", "status-0"],
)
@pytest.mark.usefixtures("empty_afterwards")
def test_row_01_a_server_that_exits_at_start(
    tmp_path: Path, changes: Mapping[str, object], status: int, failure: str
) -> None:
    spec = dataclasses.replace(SPEC, **changes)  # type: ignore[arg-type]
    spec = dataclasses.replace(spec, engine_env=(*spec.engine_env, *hub(tmp_path).items()))
    with ThreadPoolExecutor() as pool:
        ended = pool.submit(end_of_leader, lambda: list(filter(is_api, marked(tmp_path))))
        with pytest.raises(ServerStartError) as error, start(tmp_path, spec):
            pytest.fail("it never started")
        assert time.monotonic() - ended.result() < 2
    assert error.value.failure == f"ended with status {status}: {failure}"
    assert marked(tmp_path) == []


@dataclasses.dataclass(kw_only=True)
class HurtRun:
    """What came of a run of which three servers were hurt.

    Attributes:
        finished: by case how many requests had ended before it was hurt.
        hung_s: from when a server was stopped until all of it was gone.
        orphan_s: from when a server was killed until its worker was gone.
        listening: the addresses that the first server listened on, of all its processes.
    """

    run: Hurt
    output: str = ""
    finished: dict[str, int] = dataclasses.field(default_factory=dict)
    listening: list[str] = dataclasses.field(default_factory=list)
    hung_s: float = 0.0
    orphan_s: float = 0.0
    remaining: list[str] = dataclasses.field(default_factory=list)


@pytest.fixture(scope="session")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> HurtRun:
    """A run in which something happens to each case's server, and Ctrl-C at last."""
    run = Hurt(folder=tmp_path_factory.mktemp("hurt"), script=None, variables=SLOW)
    hurt = HurtRun(run=run)
    with run.start() as pytest_run:
        wait_until(run.is_measuring(CASES[0]))
        hurt.finished[CASES[0]] = run.finished(CASES[0])
        api = run.server()
        worker = run.worker()
        assert api != worker
        hurt.listening = run.listening()
        worker.send_signal(signal.SIGSTOP)
        hurt.hung_s = wait_until(lambda: not lives(api) and not lives(worker))

        wait_until(run.is_measuring(CASES[1]))
        hurt.finished[CASES[1]] = run.finished(CASES[1])
        run.worker().kill()
        wait_until(lambda: run.attempts(CASES[1]) == 2)

        wait_until(run.is_measuring(CASES[2]))
        hurt.finished[CASES[2]] = run.finished(CASES[2])
        api = run.server()
        worker = run.worker()
        api.kill()
        hurt.orphan_s = wait_until(lambda: not lives(worker))

        wait_until(lambda: run.attempts(CASES[2]) == 2)
        wait_until(run.is_measuring(CASES[2]))
        pytest_run.send_signal(signal.SIGINT)
        hurt.output, _ = pytest_run.communicate(timeout=60)
        hurt.remaining = run.left()
    return hurt


def test_row_03_a_server_that_hangs_in_the_run(hurt: HurtRun) -> None:
    assert hurt.hung_s >= 60, "a minute of silence"
    assert hurt.hung_s < 60 + 10  # and row 5's time to be gone
    reasons = {verdict.case_id: verdict.explanation for verdict in hurt.run.verdict().verdicts}
    assert reasons[CASES[0]].startswith("HUNG: no token came for 60 s"), hurt.output
    assert hurt.run.attempts(CASES[0]) == 1


def test_row_04_a_worker_that_crashes_in_the_run(hurt: HurtRun) -> None:
    assert (
        f"{CASES[1]}: measured again, SERVER_DIED: server 'vllm-ngram-tiny': ended with"
        in hurt.output
    )
    assert hurt.run.attempts(CASES[1]) == 2
    assert len(hurt.run.replays()[CASES[1]].traces) == 20, "the second attempt alone, and all of it"


def test_row_05_a_worker_that_survives_its_server(hurt: HurtRun) -> None:
    assert hurt.orphan_s < 10
    assert f"{CASES[2]}: to be measured again, " in hurt.output
    assert len(hurt.run.logs()) == 4


def test_row_07_ctrl_c_once(hurt: HurtRun) -> None:
    assert "type the same command with --specreg-resume" in hurt.output
    assert {verdict.case_id for verdict in hurt.run.verdict().verdicts} == set(CASES[:2])
    assert hurt.remaining == []
    for case, finished in hurt.finished.items():
        assert hurt.run.finished(case, attempt=0) >= finished, "what had ended is on disk"


def test_row_06_pytest_is_killed(tmp_path: Path) -> None:
    run = Hurt(folder=tmp_path, script=None, variables=SLOW)
    with run.start() as pytest_run:
        wait_until(run.is_measuring())
        (port,) = ports_of(run.server())
        finished = run.finished(CASES[0])
        pytest_run.kill()
        took_s = wait_until(lambda: run.left() == [] and is_free(port))
    assert took_s < 5
    assert run.finished(CASES[0]) >= finished >= 3


def test_row_07_ctrl_c_twice(tmp_path: Path) -> None:
    """Of a server that has stopped, for which one alone would wait for 5 s."""
    run = Hurt(folder=tmp_path, script=None, variables=SLOW)
    with run.start() as pytest_run:
        wait_until(run.is_measuring())
        for process in (run.server(), run.worker()):
            process.send_signal(signal.SIGSTOP)
        pytest_run.send_signal(signal.SIGINT)
        time.sleep(0.3)
        pytest_run.send_signal(signal.SIGINT)
        took_s = wait_until(lambda: run.left() == [])
    assert took_s < 5


def test_row_18_nothing_listens_elsewhere(hurt: HurtRun) -> None:
    assert set(hurt.listening) == {"127.0.0.1"}


@pytest.mark.usefixtures("empty_afterwards")
def test_row_09_the_port_is_taken_meanwhile(tmp_path: Path) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        ports = iter([stranger.getsockname()[1], 0])
        with start(tmp_path, choose_port=lambda: next(ports) or free_port()) as server:
            (card,) = httpx.get(f"{server.address.url}/v1/models").json()["data"]
            assert card["id"] == server.model != SPEC.id
            assert server.model.startswith(SPEC.id)
        assert (tmp_path / "logs" / "server~2.log").exists()
    assert marked(tmp_path) == []


def test_row_12_speculation_that_is_silently_off(tmp_path: Path) -> None:
    planted = {"PLANTED_FAULT": "no_drafts", "PYTHONPATH": str(PLANTED)}
    run = Hurt(folder=tmp_path, script=None, variables=planted)
    done = run.run()
    assert done.returncode == 10, done.stdout
    reasons = {verdict.explanation.partition(":")[0] for verdict in run.verdict().verdicts}
    assert reasons == {"SPEC_DISABLED"}
    assert run.left() == []
