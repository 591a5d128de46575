"""Types what README.md and docs/commands.md say, word for word, in a fresh clone.

Without an option: the installation, and whether each command is understood (`--co`, `--help`);
then what `specreg init` makes of an empty folder, with the wheel alone. With `--real` the five
lines are run, and a case there, which takes an hour; of the gate, which takes hours on all cases
of a tier, half of one, and any of its answers will do. Status 1 where one fails.
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
from pathlib import Path

ROOT = Path(__file__).parents[1]
GATE = "nox -s gate -- vllm==0.31.0 vllm==0.32.0"
GATE_MINUTES, ANSWERS = 30, ("UPGRADE: ", "DON'T: ", "UNDECIDED: ")
REAL = (
    "nox -s gpu_perf",
    "pytest -k eagle3",
    "pytest -k eagle3 --update-baselines",
    GATE,
    "nox -s cpu_perf",
    "nox -s tests",
)
"""The lines that people type; the README must hold each of them."""
WITHOUT_GPU = {"nox -s gpu_perf": "tier 'gpu' needs 1 GPU(s), this machine has 0"}
"""What fails where there is no GPU, and how it says so."""
ELSEWHERE = (
    "python -m venv .venv && .venv/bin/pip install ../dist/*.whl 'nox[uv]'",
    "! pytest --help | grep specreg",
    "specreg init",
    "specreg matrix --tier cpu",
    "pytest -k eagle3 --specreg-tier=cpu --co -q",
    "nox --list",
)
"""What is typed in another repository; `--real` runs a case there."""
ELSEWHERE_REAL = 'pytest -k "ngram and c1" --specreg-tier=cpu --update-baselines'
STAND_INS = {"HOST:PORT": "127.0.0.1:1", "FROM.jsonl TO.jsonl": "a.jsonl b.jsonl"}
_OURS = ("VIRTUAL_ENV", "NOX_CURRENT_SESSION", "SPECREG_LAUNCHER", "PYTHONPATH", "PYTHONHOME")


def first_lines(text: str) -> list[str]:
    """The lines of the README's first example, which install and run the suite."""
    block = re.search(r"(?:^    .+\n)+", text, re.MULTILINE)
    assert block is not None, "README.md: no example; begin it with how to install"  # noqa: S101
    return [line.strip() for line in block[0].splitlines()]


def typed(text: str) -> list[str]:
    """All commands of a page, each once."""
    spans = re.findall(r"`([^`\n]+)`", text)
    wanted = ("nox ", "pytest ", "specreg ", "uv pip ")
    return list(dict.fromkeys(one for one in spans if one.startswith(wanted)))


def question(command: str) -> str:
    """A command that asks whether another is understood, and does nothing else."""
    for name, stand_in in STAND_INS.items():
        command = command.replace(name, stand_in)
    program, *words = shlex.split(command)
    if program == "pytest":
        return f"{command} {'' if '--co' in words else '--co '}-q"
    if program == "specreg":
        own, _, _ = command.partition(" -- ")
        return f"{own} --help"
    if program == "uv":
        return f"{command} --dry-run"
    session = words[words.index("-s") + 1]
    options = shlex.join(words[words.index("--") + 1 :] if "--" in words else [])
    if session.endswith("_perf"):
        return f"nox -s {session} --list && pytest tests/perf {options} --co -q"
    return f"nox -s {session} --list"


def environment(folder: Path) -> Mapping[str, str]:
    """That of a user who has nothing yet: no engine, and nothing of who runs this."""
    kept = {name: text for name, text in os.environ.items() if name not in _OURS}
    return {"SPECREG_CACHE": str(folder / "cache"), **kept}


def steps(text: str, *, real: bool) -> Iterator[tuple[str, str]]:
    """What to type, and the line of the README that it is of."""
    venv, nox, perf = first_lines(text)
    once = re.search(r"once: `(uv pip install [^`]+)`", text)
    assert once is not None, "README.md: doesn't say how to install pytest and specreg"  # noqa: S101
    yield venv, venv
    yield nox, nox
    if real:
        yield perf, perf
    else:
        yield f"{perf} -- --co -q", perf
    yield once[1], once[1]
    for line in ("pytest --co -q", 'pytest -k "eagle3 and c4" --co -q'):
        yield line, line
    commands = typed(text)
    for line in REAL:
        assert line in (*commands, perf), f"README.md: lacks `{line}`"  # noqa: S101
        if real and line != perf:
            yield line, line
    for line in commands:
        if not (real and line in REAL):
            yield question(line), line
    yield "mkdir ../elsewhere && uv build --wheel --out-dir ../dist", "uv build"
    for line in (*ELSEWHERE, *((ELSEWHERE_REAL,) if real else ())):
        yield f"cd ../elsewhere && export PATH=$PWD/.venv/bin:$PATH && {line}", line


def limited(command: str) -> str:
    """The command, with a limit where it would take hours."""
    return f"{command} --minutes {GATE_MINUTES}" if command == GATE else command


def expected(command: str) -> tuple[str, ...]:
    """What a command may say where it ends with another status than 0."""
    return ANSWERS if command == GATE else tuple(filter(None, (WITHOUT_GPU.get(command),)))


def main() -> int:
    """Types it all, and says how long each took and what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="run the five lines")
    real = parser.parse_args().real
    failed = []
    with tempfile.TemporaryDirectory(prefix="readme-") as name:
        folder = Path(name)
        clone = folder / "specreg"
        subprocess.run(  # noqa: S603
            ("git", "clone", "--quiet", str(ROOT), str(clone)),  # noqa: S607
            check=True,
        )
        text = (clone / "README.md").read_text() + (clone / "docs/commands.md").read_text()
        for number, (command, line) in enumerate(steps(text, real=real)):
            before = ". .venv/bin/activate && " if number else ""
            began_s = time.monotonic()
            done = subprocess.run(  # noqa: S603 - what README.md says
                ("bash", "-c", before + limited(command)),  # noqa: S607
                check=False,
                cwd=clone,
                env=environment(folder),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            said = done.stdout + done.stderr
            fine = not done.returncode or any(one in said for one in expected(command))
            print(f"{time.monotonic() - began_s:7.1f} s  {'ok' if fine else 'FAILED'}  {command}")  # noqa: T201
            sys.stdout.flush()
            if not fine:
                failed.append(line)
                print(said[-3000:])  # noqa: T201
    if failed:
        print("not as README.md and docs/commands.md say: " + "; ".join(failed))  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
