"""Asking the models themselves: texts in, what a drafting model would have got right out.

They are read by `specreg.reference.foreseeing`, in the reference engine's environment.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec

from specreg.engines import engine_named
from specreg.environments import engine_environment
from specreg.errors import ModelError
from specreg.questions import Foreseen, Question

_HERE = str(Path(__file__).parents[1])
"""The folder that holds specreg, which isn't installed in that environment."""

Foresee = Callable[[Question], Foreseen]


def foresee(question: Question, *, on_gpu: bool, show: Callable[[str], None]) -> Foreseen:
    """What the models say.

    Args:
        question: of which models and texts.
        on_gpu: whether to make the environment for a GPU.
        show: is told what goes on.

    Raises:
        EnvironmentSetupError: the environment could not be made.
        ModelError: they could not be read, or aren't of the architecture that the method needs.
    """
    environment = engine_environment(
        engine_named("reference").requirement(on_gpu=on_gpu), show=show
    )
    offline = {"HF_HUB_OFFLINE": "1"} if all(map(_is_folder, _models(question))) else {}
    done = subprocess.run(  # noqa: S603 - our own arguments, no shell
        (environment.python, "-m", "specreg.reference.foreseeing"),
        input=msgspec.json.encode(question),
        capture_output=True,
        check=False,
        env={**os.environ, **offline, "PYTHONPATH": _HERE},
    )
    if done.returncode:
        silent = f"ended with status {done.returncode} and no word; is there memory for the models?"
        said = done.stderr.decode(errors="replace").strip().splitlines() or [silent]
        message = f"oracle of method '{question.method}': {said[-1]}"
        raise ModelError(message)
    return msgspec.json.decode(done.stdout, type=Foreseen)


def _models(question: Question) -> tuple[str, ...]:
    return (question.target, question.draft)


def _is_folder(model: str) -> bool:
    return Path(model).is_dir()
