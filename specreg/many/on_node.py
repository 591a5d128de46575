"""On a node of a cluster: what it says of itself; and a worker, whose words and files go back.

Whatever goes back is a `Carried` in MessagePack, with paths as they are where the run is, and goes
when it is asked for. A file goes in pieces, so that nobody on the way has all of it; a
measurement's before the word that it is done, all others when the worker has ended.
"""

import contextlib
import functools
import hashlib
import os
import platform
import shutil
import tempfile
import threading
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import msgspec

import specreg
from specreg.core.errors import UnsupportedError
from specreg.many.errand import (
    Done,
    Ended,
    Failure,
    Order,
    Said,
    Shown,
    Task,
    failure_of,
    part_path,
)
from specreg.many.here import COMMAND, Process, given_place, start_process
from specreg.many.luggage import unpack
from specreg.telemetry.identity import Host, find_gpus, this_host

PIECE_BYTES = 64 * 2**10
"""The most of a piece; what is larger than 100 KB, Ray leaves on the node, and loses with it."""
_HOME = "specreg-errand-"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker has its place."""


class Piece(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Part of a file, to be added to it; its path is from the run's folder."""

    path: str
    content: bytes


class Left(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The worker has ended, and how; nothing comes after it."""

    how: str


Carried = Begun | Shown | Done | Ended | Piece | Left


class Survey(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself.

    Attributes:
        version: of specreg; sources_sha256: of its files, as a checkout has no version.
        boot_id: the same for all nodes on one machine, as containers are.
        site: the machine, as far as the node may use it.
        cores: that it may use.
    """

    version: str
    sources_sha256: str
    boot_id: str
    site: Host
    cores: int


def survey() -> Survey:
    """This node, whatever GPUs the process was shown before."""
    find_gpus.cache_clear()
    return Survey(
        version=specreg.__version__,
        sources_sha256=sources_sha256(),
        boot_id=_BOOT_ID.read_text().strip(),
        site=this_host(),
        cores=len(os.sched_getaffinity(0)),
    )


@functools.cache
def sources_sha256() -> str:
    """A checksum of the files of specreg that runs here, as they were when first asked for."""
    folder, digest = Path(specreg.__file__).parent, hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def check_same(who: str, version: str, sha256: str) -> None:
    """Silent where another process has the specreg that this one has.

    Args:
        who: it is.
        version: of its specreg.
        sha256: of the files of that.

    Raises:
        UnsupportedError: it has another.
    """
    ours = sources_sha256()
    if (version, sha256) == (specreg.__version__, ours):
        return
    message = (
        f"{who} has specreg {version} ({sha256[:8]}), '{platform.node()}' has"
        f" {specreg.__version__} ({ours[:8]}); install one and the same on each node, with the same"
        " Python"
    )
    raise UnsupportedError(message)


class Runner:
    """Does one errand on this node; one thread asks what comes of it, another may hang up."""

    def __init__(self, order: bytes, luggage: bytes, command: Sequence[str] = COMMAND) -> None:
        """Begins nothing yet.

        Args:
            order: to be carried out, JSON.
            luggage: what the worker reads, packed.
            command: what starts it.
        """
        self._command = tuple(command)
        self._process: Process | None = None
        self._may_start = threading.Lock()
        self._is_over = False
        self._coming = self._run(msgspec.json.decode(order, type=Order), luggage)

    def next(self) -> bytes:
        """What comes next, a `Carried`; waits for it. Empty where nothing does any more."""
        carried = next(self._coming, None)
        return b"" if carried is None else msgspec.msgpack.encode(carried)

    def hang_up(self) -> None:
        """Has the worker end its servers, and itself."""
        with self._may_start:
            self._is_over = True
        if self._process is not None:
            self._process.hang_up()

    def _run(self, order: Order, luggage: bytes) -> Iterator[Carried]:
        yield Begun()
        _remove_stale()
        home = Path(tempfile.mkdtemp(prefix=f"{_HOME}{os.getpid()}-")).resolve()
        try:
            how = yield from self._work(order, luggage, home)
        except OSError as error:
            message = f"'{error.filename}': {error.strerror}; make room there, or mend its rights"
            yield Ended(failure=Failure(message=message))
            how = str(error)
        finally:
            shutil.rmtree(home, ignore_errors=True)
        yield Left(how=how)

    def _work(self, order: Order, luggage: bytes, home: Path) -> Generator[Carried, None, str]:
        """What comes back; returns how the worker ended."""
        unpacked, terms, run_folder = unpack(luggage, home), order.terms, home / "run"
        back = _Back(
            run_folder,
            (
                (str(run_folder), terms.run_folder),
                (str(unpacked.root), str(Path(terms.root).resolve())),
                (str(unpacked.baselines), terms.baselines),
            ),
        )
        try:
            here = given_place(order)
        except UnsupportedError as error:
            yield Ended(failure=failure_of(error))
            return "had no place"
        there = msgspec.structs.replace(
            here,
            checks_files=True,
            terms=msgspec.structs.replace(
                terms,
                root=str(unpacked.root),
                baselines=str(unpacked.baselines),
                run_folder=str(run_folder),
            ),
        )
        forget_threads(os.getppid())
        variables = {"CUDA_VISIBLE_DEVICES": ",".join(here.gpus)} if here.gpus else {}
        log_path = run_folder / "workers" / f"{order.errand.name}.log"
        with self._may_start:
            if self._is_over:
                return "was told to end before it began"
            self._process = start_process(
                there, log_path, command=self._command, variables=variables
            )
        for said in self._process:
            if isinstance(said, Done):
                yield from back.pieces(_part_of(order, said.task, run_folder))
            yield back.said(said)
        for path in sorted(run_folder.rglob("*")):
            yield from back.pieces(path)
        return self._process.how


class _Back:
    """Takes words and files back to the run's machine, with the paths that things have there."""

    def __init__(self, run_folder: Path, paths: Sequence[tuple[str, str]]) -> None:
        """`paths`: as they begin here, and there; `run_folder`: where files are, here."""
        self._run_folder = run_folder
        self._paths = [(here.encode(), there.encode()) for here, there in paths]

    def said(self, said: Said) -> Said:
        """A worker's words."""
        line = self._moved(msgspec.json.encode(said))
        moved: Said = msgspec.json.decode(line, type=Said)
        return moved

    def pieces(self, path: Path | None) -> Iterator[Piece]:
        """A file, which is gone then; nothing of one that isn't there."""
        if path is None or not path.is_file():
            return
        name, waiting = str(path.relative_to(self._run_folder)), bytearray()
        with path.open("rb") as file:
            while line := file.readline(PIECE_BYTES):
                waiting += self._moved(line)
                while len(waiting) >= PIECE_BYTES:
                    yield Piece(path=name, content=bytes(waiting[:PIECE_BYTES]))
                    del waiting[:PIECE_BYTES]
        if waiting:
            yield Piece(path=name, content=bytes(waiting))
        path.unlink()

    def _moved(self, text: bytes) -> bytes:
        for here, there in self._paths:
            text = text.replace(here, there)
        return text


def _part_of(order: Order, task: Task, run_folder: Path) -> Path | None:
    """The journal of what was measured, None of a proof."""
    if task.proof:
        return None
    (key,) = (one.key for one in order.errand.cases if one.case.id == task.case_id)
    return part_path(run_folder, key, order.attempt)


def forget_threads(starter: int) -> None:
    """Has engines compute on as many threads as they would alone.

    Ray sets OMP_NUM_THREADS to the cores that it gave, unless whoever started the node had.

    Args:
        starter: the id of the process that started this one.
    """
    try:
        given = Path(f"/proc/{starter}/environ").read_bytes().split(b"\0")
    except OSError:
        return
    if not any(variable.startswith(b"OMP_NUM_THREADS=") for variable in given):
        os.environ.pop("OMP_NUM_THREADS", None)


def _remove_stale() -> None:
    """What errands left here whose process was killed."""
    for path in Path(tempfile.gettempdir()).glob(f"{_HOME}*"):
        pid = path.name.removeprefix(_HOME).partition("-")[0]
        if not Path(f"/proc/{pid}").exists():
            with contextlib.suppress(OSError):
                shutil.rmtree(path, ignore_errors=True)
