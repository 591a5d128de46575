"""The command `specreg gate` as a process, with scripted servers."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

from specreg.report.document import ComparedReport
from specreg.report.files import load_report
from tests.doubles.vllm.script import Script, record_script
from tests.plugin.preloaded import PreloadedPython
from tests.unit.builders.cases import ROOT
from tests.unit.builders.tiers import tiny_tier

PROMPTS = 10


class Gate:
    """A tier of two cases, two sides, and a script for each."""

    def __init__(
        self, folder: Path, sides: tuple[str, str] = (sys.executable, sys.executable)
    ) -> None:
        self.folder = folder
        self.sides = sides
        self.out = folder / "gate"
        self.write_tier(speed=True)

    def write_tier(self, *, speed: bool) -> None:
        """Write the tier, whose speeds are judged or not."""
        tier = tiny_tier(
            "none",
            "eagle3",
            drafts={"eagle3": "fixtures/models/tiny/eagle3"},
            prompts=PROMPTS,
            output_cap_tokens=32,
            speed=speed,
        )
        (self.folder / "cpu.toml").write_text(tier)

    def script(self, name: str, script: Script) -> str:
        """The path of one side's script."""
        (self.folder / name).mkdir(exist_ok=True)
        self.environment = record_script(script, self.folder / name)
        return self.environment["SCRIPTED_SERVER"]

    def start(self, *arguments: str, b: Script | None = None) -> subprocess.Popen[str]:
        """Start the command in a process of its own; `b` is what side B does otherwise."""
        command = (sys.executable, "-m", *self._command(*arguments, b=b))
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=self._variables(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, preloaded: PreloadedPython, *arguments: str, status: int, b: Script | None = None
    ) -> tuple[str, str]:
        """What it said in a fork, once it has ended with a status: on stdout, and on stderr."""
        done = preloaded.run(self._command(*arguments, b=b), self._variables())
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout, done.stderr

    def _command(self, *arguments: str, b: Script | None) -> tuple[str, ...]:
        """What Python runs; `b` is what side B does otherwise."""
        both = self.script("both", Script())
        planted = self.script("b", b) if b is not None else both
        return (
            *("specreg", "gate", *self.sides),
            *("--root", str(ROOT), "--matrix", str(self.folder), "--tier", "cpu"),
            *("--out", str(self.out), "--a", f"engine_env.SCRIPTED_SERVER={both}"),
            *("--b", f"engine_env.SCRIPTED_SERVER={planted}"),
            *("--seconds", "1"),
            *arguments,
        )

    def _variables(self) -> dict[str, str]:
        """The environment of the command, whose sides name their scripts themselves."""
        return os.environ | {"PYTHONPATH": self.environment["PYTHONPATH"]}

    def servers(self) -> list[psutil.Process]:
        """Those of its processes that live."""
        pids = []
        for process in psutil.process_iter():
            try:
                if str(self.folder) in process.environ().get("SCRIPTED_SERVER", ""):
                    pids.append(process)
            except psutil.Error:
                continue
        return pids

    def report(self) -> ComparedReport:
        report = load_report(self.out / "report.json")
        assert isinstance(report, ComparedReport)
        return report

    def launches(self) -> int:
        """How many servers were measured."""
        lines = (self.out / "ledger.jsonl").read_bytes().splitlines()
        return sum(b'"Measured"' in line for line in lines)
