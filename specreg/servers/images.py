"""Have container images: find them, pull them, and look at what they have."""

import contextlib
import functools
import os
import shlex
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from specreg.core.errors import EnvironmentSetupError
from specreg.core.files import cache_folder, cause_and_path_of
from specreg.core.processes import start_process, stop_process
from specreg.core.readable import readable_line
from specreg.servers.container_problems import Problem, problem_in
from specreg.servers.containers import Image, Inside, Invocation, Runtime, new_container_name
from specreg.servers.interpreters import LIST_PACKAGES, Contents, read_contents

_LOOK_S = 300.0
"""How long a look into an image may take. Its first start unpacks layers with some runtimes."""
_SHOW_EVERY_S = 10.0
_ERROR_LINES = 5


def find_image(runtime: Runtime, name: str) -> Image | None:
    """Return an image; None if it isn't on this machine.

    An image that was found once stays the image of its name for this process, so that all servers
    of a run are started from the same one even if somebody pulls a newer one meanwhile.

    Raises:
        UnsupportedError: the runtime can't be run.
    """
    with contextlib.suppress(LookupError):
        return _image_here(runtime, name)
    return None


@functools.cache
def _image_here(runtime: Runtime, name: str) -> Image:
    """Return an image that is on this machine.

    Raises:
        LookupError: it isn't.
    """
    image = runtime.find(name)
    if image is None:
        raise LookupError(name)
    return image


def have_image(runtime: Runtime, name: str, show: Callable[[str], None]) -> Image:
    """Return an image, which is pulled if it isn't on this machine.

    Args:
        name: the image.
        show: prints a line about progress.

    Raises:
        EnvironmentSetupError: it can't be pulled.
    """
    _remove_left_over(runtime)
    image = find_image(runtime, name)
    if image is None:
        runtime.pull(name, functools.partial(_pull, name, show))
        image = find_image(runtime, name)
    if image is None:
        message = f"image '{name}': was pulled, and isn't there; see what {runtime} reports"
        raise EnvironmentSetupError(message)
    return image


@functools.cache
def _remove_left_over(runtime: Runtime) -> None:
    """Remove once what killed runs have left."""
    runtime.remove_left_over()


def _pull(name: str, show: Callable[[str], None], command: Sequence[str]) -> None:
    """Pull an image, and show the last line of the runtime's output now and then.

    Raises:
        EnvironmentSetupError: it can't be pulled.
    """
    show(f"pulling {name} (once)")
    status, output = _run(
        Invocation(command=tuple(command), variables=os.environ),
        show=lambda line: show(f"pulling {name}: {line}"),
    )
    if status == 0:
        return
    problem = problem_in(output)
    if problem is None:
        problem = Problem("", "can't be pulled", f"see what '{shlex.join(command)}' prints")
    raise EnvironmentSetupError(
        f"image '{name}': {problem.says}; {problem.advice}\n{_last_lines(output)}"
    )


@functools.cache
def contents_of(runtime: Runtime, image: Image) -> Contents:
    """Return what an image has, by running its Python.

    Raises:
        EnvironmentSetupError: its Python can't be run.
    """
    python = ("python3", "-c", LIST_PACKAGES)
    looking = runtime.wrap(image, python, Inside(variables={}), new_container_name())
    status, output = _run(looking, within_s=_LOOK_S)
    contents = read_contents(output)
    if contents is not None:
        return contents
    says = readable_line(_last_lines(output))
    if status is None:
        says = f"it doesn't end within {_LOOK_S:.0f} s"
    typed = runtime.wrap(image, python[:1], Inside(variables={}))
    raise EnvironmentSetupError(
        f"image '{image.name}': its python3 can't be run, {says}; use an image of the engine, or"
        f" see what this prints: {shlex.join(typed.command)} --version"
    )


def home_of(image: Image) -> Path:
    """Return the home folder of an image's containers, in which compiled code stays."""
    return cache_folder("images") / image.digest.removeprefix("sha256:")[:16]


def _run(
    invocation: Invocation,
    *,
    within_s: float | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> tuple[int | None, str]:
    """Run a program that ends by itself, and that also ends if specreg is killed.

    Args:
        invocation: what starts it.
        within_s: how long it may take; None for as long as it takes.
        show: gets the last line of its output now and then.

    Returns:
        Its exit status, None if it took too long; and its output.

    Raises:
        EnvironmentSetupError: it can't be run.
    """
    log_path = cache_folder("images") / f"{new_container_name()}.log"
    try:
        process = start_process(
            invocation.command,
            environment=invocation.variables,
            log_path=log_path,
            cwd=Path.cwd(),
            outside=invocation.outside,
        )
    except OSError as error:
        program = invocation.command[0]
        problem = f"can't be run, {cause_and_path_of(error)}"
        raise EnvironmentSetupError(
            f"container runtime '{program}': {problem}; install it anew, or make room in the cache"
        ) from error

    try:
        status = None
        waited_s = 0.0
        while status is None and (within_s is None or waited_s < within_s):
            try:
                status = process.popen.wait(_SHOW_EVERY_S)
            except subprocess.TimeoutExpired:
                waited_s += _SHOW_EVERY_S
                show(readable_line(process.last_lines().strip().rpartition("\n")[2]))
    finally:
        stop_process(process)
        output = log_path.read_text(encoding="utf-8", errors="replace")
        log_path.unlink(missing_ok=True)

    return status, output


def _last_lines(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-_ERROR_LINES:])
