"""Ray's crew without Ray: what comes back is written; what is lost or can't be is named."""

import inspect
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from specreg.core.errors import SpecregError
from specreg.many.errand import Ended, Said, Shown
from specreg.many.on_node import PIECE_BYTES, Begun, Carried, Left, Piece
from specreg.many.on_ray import Remote
from specreg.many.ray_survey import connect
from tests.unit.many.test_many_nodes import node


class LostError(Exception):
    """What Ray raises when somebody is gone."""


@dataclass(kw_only=True, eq=False)
class FakeRay:
    """As much of Ray as a worker needs; it is its own actor, too."""

    coming: Iterator[Callable[[], bytes]] = field(default_factory=lambda: iter(()))
    answers: bool = True
    killed: list[object] = field(default_factory=list)
    late: bool = False
    exceptions: object = field(default_factory=lambda: SimpleNamespace(RayError=LostError))

    @property
    def next(self) -> SimpleNamespace:
        """See `Runner`."""
        return SimpleNamespace(remote=lambda: next(self.coming, bytes))

    def wait(
        self, things: Sequence[object], timeout: float
    ) -> tuple[Sequence[object], Sequence[object]]:
        """Nothing, where it is late."""
        assert timeout == 30.0
        return ([], things) if self.late else (things, [])

    def get(self, thing: Callable[[], bytes], timeout: float | None = None) -> bytes:
        """What comes next."""
        del timeout
        return thing()

    def remote(self, function: object) -> "FakeRay":
        """See `ray.remote`; of a class it would make actors."""
        assert inspect.isfunction(function)
        return self

    def options(self, **_: object) -> SimpleNamespace:
        """What asks whether a node still lives."""
        return SimpleNamespace(remote=lambda: self._alive)

    def kill(self, actor: object) -> None:
        """See `ray.kill`."""
        self.killed.append(actor)

    def is_initialized(self) -> bool:
        """Always."""
        return True

    def _alive(self) -> bytes:
        if not self.answers:
            raise LostError
        return b""


def sent(carried: Carried) -> Callable[[], bytes]:
    """What comes back, as Ray has it."""
    return lambda: msgspec.msgpack.encode(carried)


def lost() -> bytes:
    """What Ray raises of an actor that is gone."""
    raise LostError("The actor died.\nIts owner too.")


def remote(folder: Path, ray: FakeRay) -> tuple[Remote, list[Said]]:
    """A worker, and all that it said."""
    worker = Remote(ray=ray, node=node("a"), actor=ray, folder=folder)
    return worker, list(worker)


@pytest.fixture(autouse=True)
def _strategies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own module, for whoever hasn't got it."""
    strategies = SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None)
    monkeypatch.setitem(sys.modules, "ray.util.scheduling_strategies", strategies)


def test_files_are_written_and_words_passed_on(tmp_path: Path) -> None:
    stream: list[Carried] = [
        *(Begun(), Piece(path="parts/a.jsonl", content=b"one")),
        *(Piece(path="parts/a.jsonl", content=b" two"), Ended(), Left(how="ended with status 0")),
    ]
    worker, said = remote(tmp_path, FakeRay(coming=map(sent, stream)))
    assert said == [Ended()]
    assert (tmp_path / "parts/a.jsonl").read_bytes() == b"one two"
    assert worker.how == "ended with status 0"


def test_what_was_torn_when_a_node_was_lost_spoils_no_line_of_the_next(tmp_path: Path) -> None:
    torn = [sent(Piece(path="parts/a.jsonl", content=b'{"whole": 1}\n{"to')), lost]
    remote(tmp_path, FakeRay(coming=iter(torn)))
    whole = [Piece(path="parts/a.jsonl", content=part) for part in (b'{"beg', b'un": 2}\n')]
    remote(tmp_path, FakeRay(coming=map(sent, whole)))
    assert (tmp_path / "parts/a.jsonl").read_bytes() == b'{"whole": 1}\n{"to\n{"begun": 2}\n'


def test_an_actor_that_is_lost_says_so_and_its_node_goes_on(tmp_path: Path) -> None:
    worker, said = remote(tmp_path, FakeRay(coming=iter([sent(Begun()), lost])))
    assert said == []
    assert worker.how == "was lost on node a, LostError: The actor died."
    assert not worker.node.lost


def test_a_node_that_no_longer_answers_is_lost(tmp_path: Path) -> None:
    worker, _ = remote(tmp_path, FakeRay(coming=iter([lost]), answers=False))
    assert worker.how == "was lost with its node a"
    assert worker.node.lost


def test_one_that_ends_without_a_word_is_said(tmp_path: Path) -> None:
    worker, _ = remote(tmp_path, FakeRay(coming=iter([sent(Begun())])))
    assert worker.how == "ended without a word"
    assert worker.node.lost is False


def test_who_waits_for_others_says_so_once(tmp_path: Path) -> None:
    stream: list[Carried] = [Begun(), Left(how="well")]
    _, said = remote(tmp_path, FakeRay(coming=map(sent, stream), late=True))
    assert said == [Shown(text="others have what it needs on node a; waiting for them", stays=True)]


def test_a_disk_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "parts").write_text("in the way")
    worker, _ = remote(tmp_path, FakeRay(coming=map(sent, [Piece(path="parts/a", content=b"x")])))
    assert worker.how.startswith(f"left '{tmp_path}/parts")
    assert "which can't be written" in worker.how


def test_hanging_up_on_who_has_not_begun_ends_it_at_once(tmp_path: Path) -> None:
    ray = FakeRay()
    worker = Remote(ray=ray, node=node("a"), actor=ray, folder=tmp_path)
    worker.hang_up()
    assert ray.killed == [ray]


def test_memory_does_not_depend_on_how_much_comes_back(tmp_path: Path) -> None:
    def stream(count: int) -> Iterator[Callable[[], bytes]]:
        for _ in range(count):
            yield sent(Piece(path="parts/a.jsonl", content=bytes(PIECE_BYTES - 1) + b"\n"))

    most = {}
    for count in (8, 160):
        tracemalloc.start()
        remote(tmp_path, FakeRay(coming=stream(count)))
        _, most[count] = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (tmp_path / "parts/a.jsonl").stat().st_size == 168 * PIECE_BYTES
    assert most[160] < 1.2 * most[8]


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("127.0.0.1:1", "--specreg-ray '127.0.0.1:1': nothing answers within 10 s ("),
        ("127.0.0.1:99999", "--specreg-ray '127.0.0.1:99999': nothing answers within 10 s ("),
        ("head", "--specreg-ray 'head': needs HOST:PORT of the cluster's head, or auto; run on"),
        (
            "ray://head:10001",
            "needs HOST:PORT of the cluster's head, or auto; run on one of its nodes",
        ),
    ],
    ids=["nobody", "no port", "no address", "client"],
)
def test_an_address_that_leads_nowhere_is_named(
    monkeypatch: pytest.MonkeyPatch, address: str, said: str
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    with pytest.raises(SpecregError) as caught:
        connect(address)
    assert said in str(caught.value)


def test_ray_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SpecregError, match=r"Ray can.t be imported, .*uv pip install -e .*ray"):
        connect("auto")


MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.50.0
    Python: 3.12.3
This process on node 10.0.0.2 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""
"""As Ray 2.60 says it; tests/cluster asks it."""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (
            MISMATCH,
            (
                "the cluster runs Ray 2.50.0 on Python 3.12.3, this machine Ray 2.60.0 on Python"
                " 3.11.7; install Ray 2.50.0 here, on Python 3.12.3"
            ),
        ),
        (
            "no head\nmore",
            (
                "no cluster answers, RuntimeError: no head; start one with `ray start --head`, and"
                " run on one of its nodes"
            ),
        ),
    ],
    ids=["versions", "none"],
)
def test_why_ray_takes_no_driver_is_said(
    monkeypatch: pytest.MonkeyPatch, raised: str, said: str
) -> None:
    def init(**_: object) -> None:
        raise RuntimeError(raised)

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init))
    with pytest.raises(SpecregError) as caught:
        connect("auto")
    assert str(caught.value) == f"--specreg-ray 'auto': {said}"
