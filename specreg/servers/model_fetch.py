"""Fetch a server's models from the hub before the server starts.

If a model is missing, an engine fetches it while it starts. The duration of a start would then
depend on the network, and nobody would see how much is missing. So a program of our own,
`specreg.datasets.hub_fetch`, fetches the models first with huggingface_hub.
"""

import contextlib
import os
import select
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from specreg.core.errors import UnfetchedModelError
from specreg.core.files import UNREADABLE
from specreg.core.interrupts import check_signalled
from specreg.core.probes import SAFE_PATH
from specreg.core.processes import SupervisedProcess, child_process
from specreg.datasets.hub import DISK_REMEDY, hub_cache_dir, why_gated
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.models import fetches_elsewhere, is_hub_id
from specreg.servers.interpreters import why_no_module

_PROGRAM = "specreg.datasets.hub_fetch"
_IMPORT_ROOT = str(Path(__file__).parents[2])
"""The folder that holds the package specreg, which the engine's environment lacks."""
_SHOW_EVERY_S = 1.0
_UNITS = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))

HubModel = tuple[str, str]
"""A model's hub id and its revision; an empty revision is the main branch."""

_COMPLETE: set[tuple[Path, HubModel]] = set()
"""The models that this process has seen to be complete, each with the folder of its cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchOutput:
    """Where a fetch reports its progress.

    Attributes:
        log_path: the file that gets what huggingface_hub prints.
        show: shows a line of progress: huggingface_hub's progress bar from time to time, or that
            the engine fetches its models itself.
        tell: prints a line that says what is fetched, and how much of it is missing.
    """

    log_path: Path
    show: Callable[[str], None]
    tell: Callable[[str], None]


class DownloadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a fetch will download.

    Attributes:
        folder: the hub's cache.
        total_bytes: the size of all models.
        missing_bytes: the size of the files that the cache lacks.
        is_complete: True if the cache lacks no file.
    """

    folder: str
    total_bytes: int
    missing_bytes: int
    is_complete: bool


class FetchFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a model can't be fetched.

    Attributes:
        model: the model's hub id.
        code: the kind of the problem.
        words: the first line of huggingface_hub's message.
        has_token: True if huggingface_hub had a token for the hub.
    """

    model: str
    code: Literal["gated", "not_found", "unreachable", "disk", "other"]
    words: str
    has_token: bool


class FetchMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the program that fetches models.

    Its first message has its plan. Its second one comes once all models are there, and is empty.
    Either message may be replaced by one with a failure.

    Attributes:
        plan: what the program will download; None in the second message and in a failure.
        failure: why a model can't be fetched; None if nothing has failed.
    """

    plan: DownloadPlan | None = None
    failure: FetchFailure | None = None


def forget() -> None:
    """Forget which models were complete, so that the next fetch looks at them again."""
    _COMPLETE.clear()


def hub_interpreters(python: str) -> tuple[str, ...]:
    """Return the interpreters that may have huggingface_hub, the preferred one first.

    vLLM and SGLang bring huggingface_hub, but our own environment has it only with the extra
    `datasets`. If the engine has no environment, our own one is the only candidate.

    Args:
        python: the interpreter of the engine; empty if it has none.
    """
    return (python, sys.executable) if python else (sys.executable,)


def hub_models(spec: ServerSpec) -> tuple[HubModel, ...]:
    """Return the models of a server that come from the hub, its target first."""
    references = ((spec.target, spec.target_revision), (spec.draft, spec.draft_revision))
    models = [
        (model, revision or "")
        for model, revision in references
        if model is not None and is_hub_id(model)
    ]
    return tuple(dict.fromkeys(models))


def _free_bytes(folder: str) -> int:
    """Return the room on the disk of a folder that need not exist yet."""
    path = Path(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(existing).free


def fetch_models(
    spec: ServerSpec,
    interpreters: Sequence[str],
    output: FetchOutput,
    free_bytes: Callable[[str], int] = _free_bytes,
) -> None:
    """Fetch the models of a server that aren't in the hub's cache.

    The engine is left to fetch them itself if its arguments or variables set how it gets its
    weights (see `fetches_elsewhere`), or if no interpreter has huggingface_hub.

    Args:
        interpreters: the interpreters that may have huggingface_hub, the preferred one first.
        output: where progress is reported.
        free_bytes: returns the room on the disk of a folder, in bytes.

    Raises:
        UnfetchedModelError: the hub refuses a model or can't be reached, the disk is too small, or
            the program that fetches the models fails.
    """
    variables = {**os.environ, **dict(spec.engine_env)}
    if fetches_elsewhere(spec, variables):
        return
    cache = hub_cache_dir(variables)
    models = [model for model in hub_models(spec) if (cache, model) not in _COMPLETE]
    if not models:
        return
    interpreter = _interpreter_with_hub(interpreters, variables)
    if not interpreter:
        output.show(
            f"engine '{spec.engine}' fetches its models itself, because huggingface_hub isn't"
            " installed"
        )
        return

    output.log_path.parent.mkdir(parents=True, exist_ok=True)

    # The program is part of specreg, so the interpreter has to find specreg.
    folders = (variables.get("PYTHONPATH", ""), _IMPORT_ROOT)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    variables.setdefault(SAFE_PATH, "1")

    # With this setting huggingface_hub draws its progress bars even without a terminal.
    variables["TQDM_POSITION"] = "-1"
    command = (interpreter, "-m", _PROGRAM)

    # The program sends its plan first, and fetches only when it is told to.
    with child_process(command, log_path=output.log_path, environment=variables) as process:
        process.send(models)
        plan = _message_from(process, output).plan
        if plan is None:
            raise _broken(process)
        if not plan.is_complete:
            _check_room(plan, models, free_bytes)
            output.tell(_described(plan, models))
            process.send("fetch")
            _message_from(process, output)

    _COMPLETE.update((cache, model) for model in models)


def _interpreter_with_hub(interpreters: Sequence[str], variables: Mapping[str, str]) -> str:
    """Return the first interpreter that has huggingface_hub; empty if none has it."""
    for interpreter in interpreters:
        if not why_no_module(interpreter, "huggingface_hub", variables=variables):
            return interpreter
    return ""


def _message_from(process: SupervisedProcess, output: FetchOutput) -> FetchMessage:
    """Wait for the next message of the program, and show its progress meanwhile.

    Raises:
        UnfetchedModelError: a model can't be fetched, or the program ended without a message.
    """
    while True:
        while not _has_message(process):
            check_signalled()
            progress = _last_progress(process)
            if progress:
                output.show(progress)
        # A line that isn't a message is skipped. A module that the interpreter imports at its start
        # may have printed it.
        with contextlib.suppress(*UNREADABLE):
            message = process.receive(FetchMessage)
            break

    if message is None:
        raise _broken(process)
    if message.failure is not None:
        raise _error_of(message.failure)
    return message


def _has_message(process: SupervisedProcess) -> bool:
    """Wait a moment, and return whether a message has come or the process has ended."""
    pipes = [pipe for pipe in (process.popen.stdout,) if pipe is not None]
    readable, _, _ = select.select(pipes, [], [], _SHOW_EVERY_S)
    return bool(readable)


def _last_progress(process: SupervisedProcess) -> str:
    """Return the last progress bar that huggingface_hub has drawn; empty before the first one."""
    lines = process.last_lines().splitlines()
    bars = [line.strip() for line in lines if "%|" in line]
    return bars[-1] if bars else ""


def _broken(process: SupervisedProcess) -> UnfetchedModelError:
    """Return the error of a program that ended without a message."""
    lines = process.last_lines().splitlines() or ["it printed nothing"]
    return UnfetchedModelError(
        f"the program that fetches models: ended early, {lines[-1]}; look at"
        f" '{process.log_path}', and run again"
    )


def _named(models: Sequence[HubModel]) -> str:
    return " and ".join(model for model, _ in models)


def _described(plan: DownloadPlan, models: Sequence[HubModel]) -> str:
    """Return what is fetched and how much of it is missing."""
    missing = _size(plan.missing_bytes)
    total = _size(plan.total_bytes)
    names = _named(models)
    return f"fetching weights: {missing} are missing of the {total} of {names}, in '{plan.folder}'"


def _size(count_bytes: int) -> str:
    """Return a size such as `1.2 GB`, in powers of 1,000 like the sizes on the hub's pages."""
    for unit_bytes, unit in _UNITS:
        if count_bytes >= unit_bytes:
            return f"{count_bytes / unit_bytes:.1f} {unit}"
    return f"{count_bytes} bytes"


def _check_room(
    plan: DownloadPlan, models: Sequence[HubModel], free_bytes: Callable[[str], int]
) -> None:
    """Check that the disk has room for the missing files.

    Raises:
        UnfetchedModelError: it has too little.
    """
    room_bytes = free_bytes(plan.folder)
    if room_bytes >= plan.missing_bytes:
        return
    raise UnfetchedModelError(
        f"hub model {_named(models)}: {_size(plan.missing_bytes)} are missing,"
        f" and the disk of '{plan.folder}' has {_size(room_bytes)} free; make room there, or name"
        " another folder with HF_HUB_CACHE"
    )


def _error_of(failure: FetchFailure) -> UnfetchedModelError:
    """Return the error of a model that can't be fetched, with what to do about it."""
    subject = f"hub model '{failure.model}'"
    if failure.code == "gated":
        return UnfetchedModelError(f"{subject}: {why_gated(has_token=failure.has_token)}")
    remedies = {
        "not_found": "check its name and revision, or set HF_TOKEN if it is private",
        "unreachable": "run again where the hub can be reached, or name a local folder",
        "disk": DISK_REMEDY,
        "other": "run again, or name a local folder",
    }
    return UnfetchedModelError(f"{subject}: {failure.words.rstrip('.')}; {remedies[failure.code]}")
