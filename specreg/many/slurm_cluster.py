"""A Slurm cluster: its settings in, what its nodes are and a crew of their jobs out.

What a node is, a job of its own looks at before anything else: the machine that a run begins on may
have no GPU at all.
"""

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from specreg.core.errors import UnsupportedError
from specreg.core.files import cache_dir
from specreg.many.job import look
from specreg.many.on_node import Survey, check_same
from specreg.many.on_slurm import JOBS_FOLDER, Slurm
from specreg.many.places import Need
from specreg.many.slurm_queue import Queue, last_words, open_queue
from specreg.many.slurm_settings import LOCAL, SLURM_OPTION, parse_settings
from specreg.matrix.case import Case
from specreg.suite.run import Suite
from specreg.telemetry.identity import Host

_POLL_S = 0.5
_SURVEY_MIN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCluster:
    """A cluster whose queue takes jobs; see `Cluster`.

    Attributes:
        queue: that.
        site: a node of it; None where jobs run on this machine.
    """

    queue: Queue
    site: Host | None

    def crew(self, suite: Suite, cases: Sequence[Case]) -> Slurm:
        """See `Cluster`; what jobs read and write lies on a disk that they share with us."""
        del cases
        return Slurm(queue=self.queue, folder=suite.run_folder.absolute() / JOBS_FOLDER)


def join(text: str, widest: Callable[[], int], tell: Callable[[str], None]) -> SlurmCluster:
    """The cluster that settings speak of, once a job of it has looked at its node.

    Args:
        text: the settings, as given.
        widest: says how many GPUs the widest case takes, 0 for none.
        tell: is told whom we wait for.

    Raises:
        SpecregError: the settings mean nothing, or there is no such cluster.
    """
    queue = open_queue(parse_settings(text))
    if queue.settings.cluster == LOCAL:
        return SlurmCluster(queue=queue, site=None)
    gpus = widest()
    # Who asks for little time is let in between others.
    settings = dataclasses.replace(queue.settings, time_min=_SURVEY_MIN)
    short = Queue(settings=settings, submitit=queue.submitit)
    site = _survey(short, Need(gpus=min(gpus, 1)), tell).site
    if gpus and not site.gpus:
        message = (
            f"{SLURM_OPTION}: the job that looked at a node had no GPU there ({site.why_none}); ask"
            " sinfo which partition has them, and name it: partition=…"
        )
        raise UnsupportedError(message)
    # One is enough to know the kind; whether a node has as many as a case takes, Slurm knows.
    return SlurmCluster(queue=queue, site=msgspec.structs.replace(site, gpus=site.gpus[:1] * gpus))


def _survey(queue: Queue, need: Need, tell: Callable[[str], None]) -> Survey:
    """What a node says of itself; waits for it."""
    shared = cache_dir() / "slurm"
    shared.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=shared))
    try:
        job = queue.submit("survey", need, look, folder)
        tell(f"{SLURM_OPTION}: job {job.job_id} is in the queue, to look at a node")
        try:
            while not job.done():
                time.sleep(_POLL_S)
            said: bytes = job.result()
        except RuntimeError as error:
            message = (
                f"{SLURM_OPTION}: job {job.job_id}, which was to look at a node, is {job.state}:"
                f" {last_words(error)}; are '{shared}' and this Python on every node?"
            )
            raise UnsupportedError(message) from error
        except BaseException:
            job.cancel(check=False)
            raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return parse_survey(said)


def parse_survey(said: bytes) -> Survey:
    """What a node said of itself.

    Raises:
        UnsupportedError: another specreg said it.
    """
    told = msgspec.json.decode(said)
    check_same(f"{SLURM_OPTION}: a node", told["version"], told["sources_sha256"])
    return msgspec.json.decode(said, type=Survey)
