"""Type the commands of the README and of the guides, word for word, in a fresh clone.

Without an option this script types the set-up and asks whether each command is understood (`--co`,
`--help`, `--list`). Then it types the commands of a user's own repository, with the wheel alone.

With `--real` it runs the README's five lines, and a case in the user's own repository, which takes
an hour. The gate would take hours for all cases of a tier, so it gets half an hour, and any of its
answers will do.

Exit status: 0 if all commands were understood, 1 if one of them wasn't.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
GUIDES = ("README.md", "docs/getting-started.md", "docs/how-to/*.md")
"""The pages whose commands are typed."""

GATE = "nox -s gate -- vllm==0.31.0 vllm==0.32.0"
GATE_MINUTES = 30
GATE_ANSWERS = ("UPGRADE: ", "DON'T: ", "UNDECIDED: ")
FIVE_LINES = (
    "nox -s gpu_perf",
    "pytest -k eagle3",
    "pytest -k eagle3 --update-baselines",
    GATE,
    "nox -s cpu_perf",
    "nox -s tests",
)
"""The five lines of the product, which the README must have: one without and with an option."""
WITHOUT_GPU = {"nox -s gpu_perf": "tier 'gpu' needs 1 GPU(s), this machine has 0"}
"""The message with which a line is allowed to fail on a machine without a GPU."""

ELSEWHERE = (
    "python3 -m venv .venv && .venv/bin/pip install ../dist/*.whl 'nox[uv]'",
    "! pytest --help | grep specreg",
    "specreg init",
    "specreg matrix --tier cpu",
    "pytest -k eagle3 --specreg-tier=cpu --co -q",
    "nox --list",
)
"""What is typed in a user's own repository, beside the clone."""
ELSEWHERE_REAL = 'pytest -k "ngram and c1" --specreg-tier=cpu --update-baselines'

STAND_INS = {
    "HOST:PORT": "127.0.0.1:1",
    "CASE": "vllm-eagle3-tiny-toy-c1",
    "OLD": "0.31.0",
    "NEW": "0.32.0",
    "TIER": "cpu",
    "NAME": "gsm8k",
    "FILE": "prompts.jsonl",
}
"""What replaces the placeholders of the guides."""
_PROGRAMS = ("nox ", "pytest ", "specreg ", "uv pip ")
_QUESTIONS_AT_ONCE = 3
_HIDDEN = ("VIRTUAL_ENV", "NOX_CURRENT_SESSION", "SPECREG_LAUNCHER", "PYTHONPATH", "PYTHONHOME")
"""Variables that may be set where this script runs, and that a new user doesn't have."""


class Step(NamedTuple):
    """A command to type, and the line of a page that it tries."""

    command: str
    line: str


def setup_lines(readme: str) -> list[str]:
    """Return the lines of the README's first example, which install and run."""
    block = re.search(r"(?:^    .+\n)+", readme, re.MULTILINE)
    assert block is not None, "README.md: no example; begin it with the set-up"  # noqa: S101
    return [line.strip() for line in block[0].splitlines()]


def commands_of(page: str) -> list[str]:
    """Return the commands of a page, in its text and in its examples, each once.

    Commands with a variable of a shell or of a workflow are left out, because tests type those.
    """
    spans = re.findall(r"`([^`\n]+)`", page)
    examples = [line.strip() for line in re.findall(r"^    (.+)$", page, re.MULTILINE)]
    commands = [re.split(r"\s+#", text)[0] for text in (*spans, *examples)]
    chosen = [text for text in commands if text.startswith(_PROGRAMS)]
    return list(dict.fromkeys(text for text in chosen if not re.search(r"[$…\\]", text)))


def question(command: str) -> str:
    """Return a command that asks whether a command is understood, and does nothing else."""
    for name, stand_in in STAND_INS.items():
        command = re.sub(rf"\b{name}\b", stand_in, command)
    program, *words = shlex.split(command)
    if program == "pytest":
        return f"{command} -q" if "--co" in words else f"{command} --co -q"
    if program == "specreg":
        shell_command, _, _ = command.partition(" -- ")
        return f"{shell_command} --help"
    if program == "uv":
        return f"{command} --dry-run"
    if "-s" not in words:
        return command if "-l" in words else f"{command} --list"
    session = words[words.index("-s") + 1]
    options = shlex.join(words[words.index("--") + 1 :]) if "--" in words else ""
    if session.endswith("_perf"):
        return f"nox -s {session} --list && pytest tests/perf {options} --co -q"
    return f"nox -s {session} --list"


def environment(folder: Path) -> Mapping[str, str]:
    """Return the environment of a user who has nothing yet, and no engine either.

    A SPECREG_CACHE that is set already is kept.
    """
    variables = {name: text for name, text in os.environ.items() if name not in _HIDDEN}
    return {"SPECREG_CACHE": str(folder / "cache"), **variables}


def setup_steps(readme: str, *, real: bool) -> Iterator[Step]:
    """Yield how to install, and with `real` the five lines. Each step needs those before it."""
    for line in setup_lines(readme):
        yield Step(line if real else f"{line} -- --co -q", line)
    activation = re.search(r"^    (\. .venv/bin/activate && .+)$", readme, re.MULTILINE)
    assert activation is not None, "README.md: it doesn't say how to get pytest"  # noqa: S101
    yield Step(activation[1], activation[1])
    known = commands_of(readme)
    for line in FIVE_LINES:
        assert line in known, f"README.md: lacks `{line}`"  # noqa: S101
        if real:
            yield Step(line, line)


def questions(clone: Path) -> list[Step]:
    """Return the steps that ask whether the commands of all pages are understood, each once."""
    steps: dict[str, Step] = {}
    for path in (path for pattern in GUIDES for path in sorted(clone.glob(pattern))):
        for line in commands_of(path.read_text()):
            command = question(line)
            steps.setdefault(command, Step(command, f"{path.relative_to(clone)}: {line}"))
    return list(steps.values())


def elsewhere_steps(*, real: bool) -> Iterator[Step]:
    """Yield what is typed in a user's own repository. Each step needs those before it."""
    yield Step("mkdir ../elsewhere && uv build --wheel --out-dir ../dist", "uv build")
    for line in (*ELSEWHERE, *((ELSEWHERE_REAL,) if real else ())):
        yield Step(f"cd ../elsewhere && export PATH=$PWD/.venv/bin:$PATH && {line}", line)


def limited(command: str) -> str:
    """Return a command, with a limit of time if it would take hours."""
    return f"{command} --minutes {GATE_MINUTES}" if command == GATE else command


def allowed_messages(command: str) -> tuple[str, ...]:
    """Return what a command may say if it ends with another status than 0."""
    if command == GATE:
        return GATE_ANSWERS
    return (WITHOUT_GPU[command],) if command in WITHOUT_GPU else ()


def is_understood(step: Step, clone: Path) -> bool:
    """Type a step in the clone, print how long it took, and return whether it was understood."""
    before = ". .venv/bin/activate && " if (clone / ".venv").exists() else ""
    began_s = time.monotonic()
    done = subprocess.run(  # noqa: S603 - what the README says
        ("bash", "-c", before + limited(step.command)),  # noqa: S607
        check=False,
        cwd=clone,
        env=environment(clone.parent),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    took_s = time.monotonic() - began_s
    output = done.stdout + done.stderr
    messages = allowed_messages(step.command)
    passed = not done.returncode or any(message in output for message in messages)
    end = "" if passed else f"\n{output[-3000:]}"
    print(f"{took_s:7.1f} s  {'ok' if passed else 'FAILED'}  {step.command}{end}")  # noqa: T201
    sys.stdout.flush()
    return passed


def main() -> int:
    """Type all steps, print how long each took, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="run the five lines")
    real = parser.parse_args().real
    failed = []
    with tempfile.TemporaryDirectory(prefix="readme-") as name:
        # Set up a fresh clone, one line after the other.
        clone = Path(name) / "specreg"
        subprocess.run(  # noqa: S603
            ("git", "clone", "--quiet", str(ROOT), str(clone)),  # noqa: S607
            check=True,
        )
        setup = setup_steps((clone / "README.md").read_text(), real=real)
        failed += [step.line for step in setup if not is_understood(step, clone)]
        # The questions about the commands don't depend on each other.
        questions_of_pages = questions(clone)
        with ThreadPoolExecutor(_QUESTIONS_AT_ONCE) as pool:
            answers = pool.map(lambda step: is_understood(step, clone), questions_of_pages)
            failed += [
                step.line
                for step, passed in zip(questions_of_pages, answers, strict=True)
                if not passed
            ]
        # Set up another repository beside the clone, with the wheel alone.
        elsewhere = elsewhere_steps(real=real)
        failed += [step.line for step in elsewhere if not is_understood(step, clone)]
    if failed:
        print("not understood as the pages say: " + "; ".join(failed))  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
