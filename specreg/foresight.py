"""Asking the models themselves: texts in, what a drafting model would have got right out.

They are read by `specreg.reference.foreseeing`, in the reference engine's environment.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from specreg.engines import engine_named
from specreg.environments import engine_environment
from specreg.errors import ModelError
from specreg.questions import REFUSED, Foreseen, Question

_HERE = str(Path(__file__).parents[1])
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
    offline = {"HF_HUB_OFFLINE": "1"} if all(map(_is_folder, _models(question))) else {}
    # As the engine has it: without a name it takes the machine's first GPU, or its CPU.
    device = () if on_gpu else ("cpu",)
    done = subprocess.run(  # noqa: S603 - our own arguments, no shell
        (environment.python, "-m", "specreg.reference.foreseeing", *device),
        input=msgspec.json.encode(question),
        capture_output=True,
        check=False,
        env={**os.environ, **offline, "PYTHONPATH": _HERE},
    )
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        message = f"oracle of method '{question.method}': {explain_end(done.returncode, said)}"
        raise ModelError(message)
    return msgspec.json.decode(done.stdout, type=Foreseen)


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
