"""The pool: who is started when, and what becomes of an errand whose worker is gone."""

import dataclasses
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from specreg.core.errors import MemoryHeldError
from specreg.many.errand import Asked, Errand, Failure, Measured, Order, Task, Terms
from specreg.many.here import Here, Process
from specreg.many.places import Machine, Need, Place
from specreg.many.pool import Pool
from specreg.measurement.journal import Key
from tests.unit import builders
from tests.unit.many.test_many_places import FOUR

# Speaks as a worker does; what it does hangs on the case's dataset, which is a word for it.
WORKER = """
import json, os, signal, sys, time
from pathlib import Path
order = json.loads(sys.stdin.readline())
errand = order["errand"]
folder = Path(order["terms"]["run_folder"])
def say(**said):
    print(json.dumps(said), flush=True)
def done(asked, **answer):
    task = [asked["key"]["case_id"], errand["launch"], ""]
    say(type="Done", task=task, answer=answer)
with (folder / "begun").open("a") as file:
    file.write(json.dumps([errand["name"], order["gpus"], os.environ["CUDA_VISIBLE_DEVICES"]]))
    file.write("\\n")
print("not a line of ours", file=sys.stderr) if "loud" in errand["name"] else None
for asked in errand["cases"]:
    word, *_ = asked["case"]["dataset"].split()
    if word == "sleep":
        time.sleep(0.3)
    if word == "until":
        while not (folder / "go").exists():
            time.sleep(0.01)
    tried = folder / asked["case"]["dataset"]
    if word == "dies" or (word == "dies-once" and not tried.exists()):
        tried.touch()
        sys.stdout.write('{"type": "Do')
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "holds":
        say(type="Ended", failure={"type": "Failure", "message": "held", "ends_run": True})
        sys.exit()
    if word == "fails":
        say(type="Ended", failure={"type": "Failure", "message": "no server"})
        sys.exit()
    if word == "hangs":
        sys.stdin.read()
        (folder / "told to end").touch()
        sys.exit()
    done(asked, type="Measured", part="", engine_version="1", target="t", draft=None, invalid={})
say(type="Ended", failure=None)
"""


def asked(word: str) -> Asked:
    """A case whose worker does what the word says."""
    case = dataclasses.replace(builders.CASE, dataset=word)
    key = Key(
        case="", case_id=case.id, launch=1, asked="all", environment="", engine="", files_sha256=""
    )
    return Asked(case=case, key=key, metrics=frozenset())


def errand(name: str, *words: str, gpus: int = 1, weight: int = 1) -> Errand:
    """An errand whose cases are words."""
    return Errand(
        name=name,
        launch=1,
        cases=tuple(map(asked, words)),
        need=Need(gpus=gpus, timed=False),
        weight_tokens=weight,
    )


@contextmanager
def pool_in(folder: Path, *, most_workers: int = 99) -> Iterator[Pool]:
    """A pool on four GPUs, closed in the end."""
    one = Pool(
        crew=Here(machine=Machine(gpus=FOUR, cores=64), command=(sys.executable, "-c", WORKER)),
        terms=Terms(
            root=str(folder),
            run_folder=str(folder),
            baselines="",
            environment=builders.ENVIRONMENT,
            launches=1,
            recording=False,
            on_gpu=True,
            version=None,
            python=None,
            waits=True,
            ready_within_s=1.0,
        ),
        most_workers=most_workers,
        show=lambda _: None,
        tell=lambda _: None,
    )
    try:
        yield one
    finally:
        one.close()


def begun(folder: Path) -> list[str]:
    """The errands that were begun, in order."""
    path = folder / "begun"
    lines = path.read_text().splitlines() if path.exists() else []
    return [msgspec.json.decode(line)[0] for line in lines]


def until(folder: Path, count: int) -> None:
    """Returns once so many were begun."""
    deadline = time.monotonic() + 20
    while len(begun(folder)) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def of(word: str) -> Task:
    """The measurement of a word."""
    return Task(asked(word).case.id, 1)


def test_each_gets_gpus_of_its_own(tmp_path: Path) -> None:
    with pool_in(tmp_path) as pool:
        pool.send([errand(f"{n}", f"until {n}") for n in range(4)])
        until(tmp_path, 4)
        (tmp_path / "go").touch()
        pool.wait()
    lines = (tmp_path / "begun").read_text().splitlines()
    gpus = [msgspec.json.decode(line) for line in lines]
    assert sorted(one for _, given, _ in gpus for one in given) == [gpu.id for gpu in FOUR]
    assert all(visible == ",".join(given) for _, given, visible in gpus)


def test_the_widest_comes_first_then_the_longest_and_nobody_overtakes(tmp_path: Path) -> None:
    with pool_in(tmp_path) as pool:
        pool.send([errand("first", "until first", gpus=2)])
        pool.send(
            [
                errand("short", "a", weight=1),
                errand("long", "b", weight=9),
                errand("wide", "c", gpus=4),
            ]
        )
        until(tmp_path, 1)
        time.sleep(0.3)
        assert begun(tmp_path) == ["first"]
        (tmp_path / "go").touch()
        pool.wait()
    assert begun(tmp_path)[:2] == ["first", "wide"]
    assert sorted(begun(tmp_path)[2:]) == ["long", "short"]


def test_no_more_work_than_may(tmp_path: Path) -> None:
    with pool_in(tmp_path, most_workers=1) as pool:
        pool.send([errand("long", "until long", weight=9), errand("short", "a")])
        until(tmp_path, 1)
        time.sleep(0.3)
        assert begun(tmp_path) == ["long"]
        (tmp_path / "go").touch()
        pool.wait()
    assert begun(tmp_path) == ["long", "short"]


def test_what_a_killed_worker_had_finished_stays_and_the_rest_is_done_once_more(
    tmp_path: Path,
) -> None:
    with pool_in(tmp_path) as pool:
        pool.send([errand("server", "a", "dies-once", "b")])
        answers = [pool.answer(one) for one in map(of, ("a", "dies-once", "b"))]
        pool.wait()
    assert all(isinstance(answer, Measured) for answer in answers)
    assert begun(tmp_path) == ["server", "server"]
    assert pool.retried == ["server: begun again, its worker was killed by signal 9"]


def test_what_kills_its_worker_twice_is_given_up_and_the_rest_is_done(tmp_path: Path) -> None:
    with pool_in(tmp_path) as pool:
        pool.send([errand("server", "dies", "a")])
        answer = pool.answer(of("dies"))
        assert isinstance(pool.answer(of("a")), Measured)
        pool.wait()
    assert isinstance(answer, Failure)
    assert str(answer.error()) == (
        "worker for 'server': was killed by signal 9, twice; look into"
        f" {tmp_path}/workers/server.log"
    )
    assert begun(tmp_path) == ["server"] * 3


def test_a_server_that_does_not_start_is_the_failure_of_its_cases(tmp_path: Path) -> None:
    with pool_in(tmp_path) as pool:
        pool.send([errand("server", "a", "fails", "b"), errand("other", "c")])
        assert isinstance(pool.answer(of("a")), Measured)
        assert pool.answer(of("fails")) == pool.answer(of("b")) == Failure(message="no server")
        assert isinstance(pool.answer(of("c")), Measured)
        pool.wait()


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class Unwell(Here):
    """A crew that fails as nobody foresaw, of errands of one name."""

    def start(self, order: Order, place: Place, log_path: Path) -> Process:
        if order.errand.name == "unwell":
            raise RuntimeError("can't start new thread")
        return Here.start(self, order, place, log_path)


def test_a_crew_that_fails_as_nobody_foresaw_fails_its_errand_alone(tmp_path: Path) -> None:
    with pool_in(tmp_path, most_workers=1) as pool:
        pool.crew = Unwell(machine=pool.crew.machine, command=pool.crew.command)  # type: ignore[attr-defined]
        pool.send([errand("first", "a", weight=9), errand("unwell", "b"), errand("last", "c")])
        found = pool.answer(of("b"))
        assert isinstance(found, Failure)
        assert found.message.startswith(
            "worker for 'unwell': can't be started, RuntimeError: can't start new thread"
        )
        assert isinstance(pool.answer(of("c")), Measured)
        pool.wait()


def test_an_engine_does_not_look_for_its_modules_among_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    shown = tmp_path / "shown"
    show = f"open({str(shown)!r}, 'w').write(repr((os.environ['PYTHONPATH'], sys.argv[1:])))"
    command = (sys.executable, "-c", f"import os, sys; {show}")
    with pool_in(tmp_path) as pool:
        pool.crew.command = command  # type: ignore[attr-defined]
        pool.send([errand("server", "a")])
        pool.wait()
    assert shown.read_text() == repr(("/mine", sys.path))


def test_memory_that_is_not_back_ends_the_run(tmp_path: Path) -> None:
    with pool_in(tmp_path, most_workers=1) as pool:
        pool.send([errand("server", "holds", weight=9), errand("other", "a")])
        with pytest.raises(MemoryHeldError, match="held"):
            pool.answer(of("a"))
        with pytest.raises(MemoryHeldError, match="held"):
            pool.wait()
    assert begun(tmp_path) == ["server"]


def test_closing_tells_workers_to_end_and_begins_none(tmp_path: Path) -> None:
    with pool_in(tmp_path, most_workers=1) as pool:
        pool.send([errand("server", "hangs", weight=9), errand("other", "a")])
        until(tmp_path, 1)
        pool.close()
        assert (tmp_path / "told to end").exists()
    assert begun(tmp_path) == ["server"]
    assert [one for one in threading.enumerate() if "_follow" in one.name] == []


def test_what_a_worker_says_of_itself_is_kept(tmp_path: Path) -> None:
    with pool_in(tmp_path) as pool:
        pool.send([errand("loud", "a"), errand("quiet", "b")])
        pool.wait()
    assert [path.name for path in (tmp_path / "workers").iterdir()] == ["loud.log"]


def test_idle_time_is_that_of_the_gpus_that_nobody_had(tmp_path: Path) -> None:
    with pool_in(tmp_path) as pool:
        assert pool.idle_frac is None
        pool.send([errand("server", "sleep")])
        pool.wait()
    assert pool.wall_s > 0.3
    assert pool.idle_frac == pytest.approx(0.75, abs=0.01)
