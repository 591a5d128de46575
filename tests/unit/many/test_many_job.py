"""Jobs: what a node says that isn't the run's, and how each side sees that the other is gone."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import specreg
from specreg.core.errors import UnsupportedError
from specreg.many.desk import Began, Desk, Gone, Pulse, Sent
from specreg.many.errand import Ended, Errand, Order, Said, Shown, Terms
from specreg.many.here import given_place
from specreg.many.job import check_kind, look, run, watch
from specreg.many.on_slurm import Queued
from specreg.many.places import Need
from specreg.many.slurm_cluster import parse_survey
from specreg.many.slurm_queue import Queue, last_words, python_command
from specreg.many.slurm_settings import Settings, parameters, parse_settings
from specreg.telemetry.identity import Environment, current_environment
from tests.unit import builders


def order(environment: Environment, *, gpus: int = 0) -> Order:
    """An order for a server that takes so many GPUs, of a run in an environment."""
    return Order(
        terms=Terms(
            root="",
            run_folder="",
            baselines="",
            environment=environment,
            launches=1,
            recording=False,
            on_gpu=bool(gpus),
            version=None,
            python=None,
            waits=True,
            ready_within_s=1.0,
        ),
        errand=Errand(name="server", launch=1, cases=(), need=Need(gpus=gpus), weight_tokens=1),
    )


def given(folder: Path, one: Order) -> Desk:
    """The desk of a job that is to carry out an order."""
    (folder / "job").mkdir()
    (folder / "alive").touch()
    desk = Desk(folder / "job")
    desk.give(one, folder / "log")
    return desk


@dataclass
class Idle:
    """A worker that only waits until it is told to end."""

    how: str = ""
    ends: threading.Event = field(default_factory=threading.Event)

    def __iter__(self) -> Iterator[Said]:
        yield from ()

    def hang_up(self) -> None:
        self.ends.set()

    def kill(self) -> None:
        self.ends.set()


@dataclass
class Job:
    """A job that is over when a test says so."""

    over: bool = False
    state: str = "RUNNING"
    job_id: str = "7"
    cancelled: bool = False
    paths: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(stdout=Path("/none"), stderr=Path("/none"))
    )

    def done(self) -> bool:
        return self.over

    def result(self) -> None:
        raise RuntimeError

    def cancel(self, *, check: bool) -> None:
        assert not check
        self.cancelled = True


def test_another_specreg_is_named_before_it_measures(tmp_path: Path) -> None:
    desk = given(tmp_path, order(current_environment(needs_gpus=0)))
    path = desk.folder / "order.json"
    sent = msgspec.json.decode(path.read_bytes(), type=Sent)
    # What another version means by an order, nobody here may understand.
    other = msgspec.structs.replace(sent, version="9.9", order=msgspec.Raw(b"[]"))
    path.write_bytes(msgspec.json.encode(other))
    run(str(desk.folder))
    began, ended = desk.heard()
    assert isinstance(began, Began)
    assert isinstance(ended, Ended)
    assert ended.failure is not None
    assert ended.failure.message.startswith("the run has specreg 9.9 (")
    assert "install one and the same on each node" in ended.failure.message


def test_a_node_of_another_specreg_is_named() -> None:
    said = msgspec.json.decode(look(""))
    assert parse_survey(msgspec.json.encode(said)).version == specreg.__version__
    other = msgspec.json.encode({**said, "sources_sha256": "ab", "site": "what it means by it"})
    with pytest.raises(
        UnsupportedError, match=r"^--specreg-slurm: a node has specreg \S+ \(ab\), '"
    ):
        parse_survey(other)


def test_another_kind_of_machine_is_named(tmp_path: Path) -> None:
    desk = given(tmp_path, order(builders.OTHER_ENVIRONMENT))
    run(str(desk.folder))
    _, ended = desk.heard()
    assert isinstance(ended, Ended)
    assert ended.failure is not None
    here = current_environment(needs_gpus=0)
    assert f"it is '{here.name}', the run's figures are of" in ended.failure.message
    assert builders.OTHER_ENVIRONMENT.name in ended.failure.message


def test_too_few_gpus_are_named() -> None:
    with pytest.raises(UnsupportedError, match=r"'server' needs 64 GPU\(s\), and is given \d+"):
        given_place(order(builders.ENVIRONMENT, gpus=64))


def test_the_same_machine_is_taken() -> None:
    one = order(current_environment(needs_gpus=0))
    assert given_place(one) == one
    check_kind(one)


def test_a_job_that_is_to_end_before_it_began_starts_nothing(tmp_path: Path) -> None:
    desk = given(tmp_path, order(builders.OTHER_ENVIRONMENT))
    desk.end()
    run(str(desk.folder))
    assert [type(line) for line in desk.heard()] == [Began]


def test_a_line_is_heard_once_and_whole(tmp_path: Path) -> None:
    desk = given(tmp_path, order(builders.ENVIRONMENT))
    desk.say(Gone(how="was"))
    with desk.said_path.open("ab") as file:
        file.write(b'{"type":"Gone"')
        file.flush()
        assert list(desk.heard()) == [Gone(how="was")]
        assert list(desk.heard()) == []
        file.write(b',"how":"is"}\n')
    assert list(desk.heard()) == [Gone(how="is")]


def test_the_disk_may_be_away_for_a_moment(tmp_path: Path) -> None:
    desk = given(tmp_path, order(builders.ENVIRONMENT))
    desk.say(Gone(how="was"))
    away = tmp_path / "away"
    desk.folder.rename(away)
    assert list(desk.heard()) == []
    away.rename(desk.folder)
    assert list(desk.heard()) == [Gone(how="was")]


def test_a_pulse_is_lost_when_nobody_touches_its_file(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    path.touch()
    pulse = Pulse(path, patience_s=0.2)
    for seconds in range(4):
        os.utime(path, (seconds, seconds))  # a clock of another node may say what it likes
        assert not pulse.is_lost
        time.sleep(0.1)
    time.sleep(0.3)
    assert pulse.is_lost


def test_a_worker_is_ended_when_its_run_is_gone(tmp_path: Path) -> None:
    desk, worker = given(tmp_path, order(builders.ENVIRONMENT)), Idle()
    os.utime(desk.said_path, (1, 1))
    watch(desk, worker, [], patience_s=0.1)
    assert worker.ends.is_set()
    assert desk.said_path.stat().st_mtime > 1


@pytest.mark.parametrize("how", ["told", "away", "queue"])
def test_a_worker_is_ended_when_that_is_wanted(tmp_path: Path, how: str) -> None:
    desk, worker, why = given(tmp_path, order(builders.ENVIRONMENT)), Idle(), list[str]()
    watching = threading.Thread(target=watch, args=(desk, worker, why))
    watching.start()
    assert not worker.ends.wait(0.3)
    if how == "told":
        desk.end()
    elif how == "away":
        desk.folder.rename(tmp_path / "away")
    else:
        why.append("was cancelled")
    assert worker.ends.wait(5)
    watching.join()


def test_a_job_that_falls_silent_is_lost(tmp_path: Path) -> None:
    desk, job = given(tmp_path, order(builders.ENVIRONMENT)), Job()
    desk.say(Began(node="n1"))
    queued = Queued(
        name="server",
        desk=desk,
        log_path=tmp_path / "log",
        submit=lambda: job,
        is_over=lambda one: one.done(),
        patience_s=0.2,
    )
    said = [one.text for one in queued if isinstance(one, Shown)]
    assert said == ["server: job 7 is in the queue", "server: job 7 runs on node 'n1'"]
    assert queued.how == "gave no sign of life for 0.2 s, in job 7 on node 'n1'"
    assert job.cancelled
    assert not desk.folder.exists()


def test_a_job_that_never_began_asks_for_a_shared_disk(tmp_path: Path) -> None:
    desk = given(tmp_path, order(builders.ENVIRONMENT))
    words = tmp_path / "7_0_log.err"
    words.write_text("srun: error: no such folder\n")
    job = Job(over=True, state="FAILED", paths=SimpleNamespace(stdout=tmp_path, stderr=words))
    queued = Queued(
        name="server",
        desk=desk,
        log_path=tmp_path / "log",
        submit=lambda: job,
        is_over=lambda one: one.done(),
        patience_s=9,
    )
    assert [one for one in queued if not isinstance(one, Shown)] == []
    assert queued.how == f"is gone: job 7 is FAILED and never began; is '{tmp_path}' on every node?"
    assert (tmp_path / "log").read_text() == "srun: error: no such folder\n"


def test_a_list_of_nodes_is_one_setting() -> None:
    settings = parse_settings("exclude=a1,a2,qos=high")
    assert settings == Settings(further={"exclude": "a1,a2", "qos": "high"})


def test_a_server_without_a_gpu_has_its_node_for_itself() -> None:
    asked = parameters(Settings(gpu_type="h100"), Need(gpus=0), "server")
    assert asked["slurm_exclusive"] is True
    assert asked.keys().isdisjoint({"gpus_per_node", "cpus_per_task", "mem_gb"})
    assert asked["slurm_additional_parameters"] == {"no_requeue": True}


def test_of_what_submitit_says_the_end_of_what_it_quotes_is_told() -> None:
    rule = "-" * 22
    trace = "Traceback (most recent call last):\n  File\nModuleNotFoundError: No module named 'x'"
    words = f"Job (task=0) failed with trace:\n{rule}\n{trace}\n\n{rule}\nlook at:\n  - /a/b"
    assert last_words(RuntimeError(words)) == "ModuleNotFoundError: No module named 'x'"
    assert last_words(RuntimeError("sbatch: error: a\nsbatch: error: b\n")) == "sbatch: error: b"
    assert last_words(RuntimeError()) == "RuntimeError"


def test_a_job_finds_our_modules_and_says_nothing_of_them_to_its_engines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = "print((os.environ['PYTHONPATH'], sys.path, sys.argv[1:], __name__))"
    (tmp_path / "shows.py").write_text(f"import os, sys\n{shown}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "/mine")
    asked = parameters(Settings(), Need(gpus=1), "server")
    setup = asked.get("slurm_setup", [])
    assert isinstance(setup, list)
    lines = [*setup, f"{python_command()} -u -m shows /a/folder"]
    done = subprocess.run(
        ("/bin/bash", "-c", "\n".join(lines)), check=True, capture_output=True, text=True
    )
    assert done.stdout == f"{('/mine', sys.path, ['/a/folder'], '__main__')}\n"


def test_one_asks_slurm_at_a_time_for_all() -> None:
    asking, most = set[int](), 0

    class Slow(Job):
        def done(self) -> bool:
            nonlocal most
            asking.add(threading.get_ident())
            most = max(most, len(asking))
            time.sleep(0.05)
            asking.discard(threading.get_ident())
            return self.over

    queue = Queue(settings=Settings(), submitit=None)
    said = list[bool]()

    def ask(job: Job) -> None:
        deadline = time.monotonic() + 20
        while not queue.is_over(job):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        said.append(True)

    jobs = [Slow(over=True) for _ in range(8)]
    threads = [threading.Thread(target=ask, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [True] * 8
    assert most == 1
