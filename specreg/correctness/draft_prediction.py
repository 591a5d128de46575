"""Asking the models themselves: texts in, what a drafting model would have got right out.

They are read by `specreg.engines.pytorch.foreseeing`, in the reference engine's environment.
"""

import os
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from specreg.core.errors import ModelError
from specreg.core.processes import child_process
from specreg.engines.pytorch.questions import REFUSED, Foreseen, Question
from specreg.engines.registry import engine_named
from specreg.servers.environments import engine_environment

_HERE = str(Path(__file__).parents[2])
"""The folder that holds specreg, which isn't installed in that environment."""

_MOST_LINES = 15

Foresee = Callable[[Question], Foreseen]


def foresee(question: Question, *, on_gpu: bool, show: Callable[[str], None]) -> Foreseen:
    """What the models say.

    Args:
        question: of which models and texts.
        on_gpu: whether to make the environment for a GPU.
        show: is told what goes on.

    Raises:
        EnvironmentSetupError: the environment could not be made.
        ModelError: they could not be read, aren't of the architecture that the method needs, or
            don't fit together; or whatever else kept them from being read.
    """
    environment = engine_environment(
        engine_named("reference").requirement(on_gpu=on_gpu), show=show
    )
    # As the engine has it: without a name it takes the machine's first GPU, or its CPU.
    device = () if on_gpu else ("cpu",)
    offline = {"HF_HUB_OFFLINE": "1"} if all(map(_is_folder, _models(question))) else {}
    subject = f"oracle of method '{question.method}'"
    with tempfile.TemporaryDirectory(prefix="specreg-", ignore_cleanup_errors=True) as temporary:
        try:
            with child_process(
                (environment.python, "-m", "specreg.engines.pytorch.foreseeing", *device),
                log_path=Path(temporary) / "log",
                environment={**os.environ, **offline, "PYTHONPATH": _HERE},
                temporary=[Path(temporary)],
            ) as child:
                child.send(question)
                answer = child.receive(Foreseen)
                status = child.process.popen.wait()
                said = child.last_lines().splitlines()
        except OSError as error:
            message = f"{subject}: can't be run, {error.strerror}: '{error.filename}'"
            raise ModelError(
                f"{message}; delete the reference engine's folder in the cache"
            ) from error
    if answer is None:
        raise ModelError(f"{subject}: {explain_end(status, said)}")
    return answer


def explain_end(status: int, said: Sequence[str]) -> str:
    """Why the process that reads the models ended, and what to do.

    Args:
        status: not 0; below, the signal that ended it.
        said: the lines that it wrote for people.
    """
    tail = "\n".join(said[-_MOST_LINES:]) or "(nothing)"
    if status == REFUSED:
        return said[-1] if said else tail
    if status == -signal.SIGKILL:
        return (
            "its process was killed (SIGKILL), as a machine does that runs out of memory; free"
            f" some, or give the case smaller models\nits last words:\n{tail}"
        )
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    return f"its process ended {how}; its last words say why:\n{tail}"


def _models(question: Question) -> tuple[str, ...]:
    return (question.target, question.draft)


def _is_folder(model: str) -> bool:
    return Path(model).is_dir()
