"""On a node: an errand carried out there; words and files come back, as if it had been here."""

import os
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

import specreg
from specreg.many import on_node
from specreg.many.errand import Done, Ended, Errand, Failure, Order, Shown, Terms
from specreg.many.luggage import pack
from specreg.many.on_node import (
    PIECE_BYTES,
    Carried,
    Left,
    Piece,
    Runner,
    sources_sha256,
    survey,
)
from specreg.many.places import Need
from tests.unit import builders
from tests.unit.many.test_many_pool import errand

# Does as a worker does, with what the case's dataset says.
WORKER = """
import json, os, signal, sys
from pathlib import Path
order = json.loads(sys.stdin.readline())
terms = order["terms"]
folder = Path(terms["run_folder"])
def say(**said):
    print(json.dumps(said), flush=True)
def write(path, text):
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text)
for asked in order["errand"]["cases"]:
    word, *more = asked["case"]["dataset"].split()
    case_id = asked["key"]["case_id"]
    part = f"{case_id}.{order['attempt']}.jsonl"
    write(f"parts/{part}", f"{terms['root']}/fixtures\\n" * int(*more or (1,)))
    if word == "dies":
        print("last words", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "waits":
        say(type="Shown", text="waits")
        sys.stdin.read()
        sys.exit()
    if word == "tells":
        say(type="Shown", text=json.dumps([order["checks_files"], terms["baselines"]]))
    write("parts/next.jsonl", "not yet whole")
    done = {"type": "Measured", "part": part, "engine_version": "1", "target": terms["root"] + "/t",
            "draft": None, "invalid": {}}
    say(type="Done", task=[case_id, 1, ""], answer=done)
write("logs/server.log", f"see {folder}/logs/server.log\\n")
say(type="Ended", failure={"type": "Failure", "message": f"look into {folder}/logs"})
"""
RUN_FOLDER, BASELINES = "/run/of/ours", "/baselines/of/ours"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def order_of(one: Errand) -> bytes:
    """An order, as it is sent."""
    terms = Terms(
        root=str(builders.ROOT),
        run_folder=RUN_FOLDER,
        baselines=BASELINES,
        environment=builders.ENVIRONMENT,
        launches=1,
        recording=False,
        on_gpu=False,
        version=None,
        python=None,
        waits=True,
        ready_within_s=1.0,
    )
    return msgspec.json.encode(Order(terms=terms, errand=one))


def runner(*words: str, gpus: int = 0) -> Runner:
    """Who runs an errand of these words, with the worker above."""
    one = msgspec.structs.replace(errand("server", *words), need=Need(gpus=gpus, timed=False))
    luggage = pack(builders.ROOT, Path("/nowhere"), ())
    return Runner(order_of(one), luggage, (sys.executable, "-c", WORKER))


def run(one: Runner) -> Iterator[Carried]:
    """What comes back."""
    while carried := one.next():
        yield msgspec.msgpack.decode(carried, type=Carried)


def kinds(carried: Sequence[Carried]) -> list[str]:
    """What each is; of a file its path."""
    return [one.path if isinstance(one, Piece) else type(one).__name__ for one in carried]


def test_a_measurement_comes_before_its_word_and_other_files_at_the_end(home: Path) -> None:
    came = list(run(runner("a", "b")))
    parts = [path for path in kinds(came) if path.startswith("parts/")]
    assert kinds(came) == [
        *("Begun", parts[0], "Done", parts[1], "Done", "Ended"),
        *("logs/server.log", "parts/next.jsonl", "Left"),
    ]
    assert came[-1] == Left(how="ended with status 0")
    assert list(home.iterdir()) == []


def test_paths_are_those_of_the_runs_machine(home: Path) -> None:
    came = list(run(runner("tells")))
    (told,) = [one.text for one in came if isinstance(one, Shown)]
    checks, baselines = msgspec.json.decode(told)
    assert (checks, baselines) == (True, BASELINES)
    (done,) = [one for one in came if isinstance(one, Done)]
    assert getattr(done.answer, "target", "") == f"{builders.ROOT}/t"
    assert [one.content for one in came if isinstance(one, Piece)][:2] == [
        f"{builders.ROOT}/fixtures\n".encode(),
        f"see {RUN_FOLDER}/logs/server.log\n".encode(),
    ]
    (ended,) = [one for one in came if isinstance(one, Ended)]
    assert ended.failure == Failure(message=f"look into {RUN_FOLDER}/logs")
    assert str(home) not in repr(came)


def test_a_worker_that_is_killed_leaves_what_it_had_and_said(home: Path) -> None:
    came = list(run(runner("dies")))
    assert came[-1] == Left(how="was killed by signal 9")
    assert "Ended" not in kinds(came)
    pieces = {one.path: one.content for one in came if isinstance(one, Piece)}
    assert pieces.pop("workers/server.log") == b"last words\n"
    assert list(pieces.values()) == [f"{builders.ROOT}/fixtures\n".encode()]
    assert list(home.iterdir()) == []


def test_hanging_up_ends_the_worker(home: Path) -> None:
    one = runner("waits")
    came = []
    for carried in run(one):
        came.append(carried)
        if isinstance(carried, Shown):
            threading.Thread(target=one.hang_up).start()
    assert came[-1] == Left(how="ended with status 0")
    assert list(home.iterdir()) == []


def test_who_was_hung_up_on_begins_nothing(home: Path) -> None:
    one = runner("a")
    one.hang_up()
    assert kinds(list(run(one))) == ["Begun", "Left"]
    assert list(home.iterdir()) == []


@pytest.mark.usefixtures("home")
def test_gpus_that_are_not_there_are_named() -> None:
    came = list(run(runner("a", gpus=3)))
    (ended,) = [one for one in came if isinstance(one, Ended)]
    assert ended.failure is not None
    assert "'server' needs 3 GPU(s), and is given 0" in ended.failure.message


def test_what_a_killed_errand_left_is_removed_by_the_next(home: Path) -> None:
    stale = home / f"specreg-errand-{2**22 + 1}-x"
    stale.mkdir()
    (home / "somebody else's").mkdir()
    list(run(runner("a")))
    assert [path.name for path in home.iterdir()] == ["somebody else's"]


@pytest.mark.usefixtures("home")
def test_pieces_are_bounded_and_nobody_holds_a_whole_file() -> None:
    lines = 64 * PIECE_BYTES // len(f"{builders.ROOT}/fixtures\n")
    list(run(runner("warm 1")))
    most = {}
    for count in (lines // 8, lines):
        tracemalloc.start()
        content = 0
        for carried in run(runner(f"big {count}")):
            if isinstance(carried, Piece):
                assert len(carried.content) <= PIECE_BYTES
                content += len(carried.content)
        _, most[count] = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert content > count * len(str(builders.ROOT))
    assert most[lines] < 1.5 * most[lines // 8]


def test_a_node_says_what_it_is() -> None:
    said = msgspec.msgpack.decode(msgspec.msgpack.encode(survey()), type=on_node.Survey)
    assert said.version == specreg.__version__
    assert said.sources_sha256 == sources_sha256()
    assert said.site.cpu.kind == "cpu"
    assert len(said.boot_id) == 36
    assert said.cores > 0


@pytest.mark.parametrize("given", [{}, {"OMP_NUM_THREADS": "7"}], ids=["ours", "the user's"])
def test_threads_are_as_many_as_without_ray(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    pipe = subprocess.PIPE
    with subprocess.Popen(("/bin/cat",), env=given, stdin=pipe, stdout=pipe) as starter:
        assert starter.stdin is not None
        assert starter.stdout is not None
        starter.stdin.write(b"\n")
        starter.stdin.flush()
        starter.stdout.read(1)  # the system shows variables a moment after a program begins
        on_node.forget_threads(starter.pid)
        starter.communicate()
    assert os.environ.get("OMP_NUM_THREADS") == ("3" if given else None)
