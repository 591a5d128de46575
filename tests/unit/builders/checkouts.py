"""Checkouts with scripted tools, in which the shell lines of CI are run."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.unit.builders.cases import ROOT

Job = Mapping[str, Any]
"""A job of a workflow, a step of Buildkite or a job of GitLab, as its file has it."""

_TOOLS = ROOT / "tests/doubles/ci_tools"
_OWN_COMMENTS = (
    '.[] | select(.user.login == "github-actions[bot]" and (.body | startswith(env.MARK))).id'
)
"""The filter, for jq, with which a workflow has to look for its own comments."""


class Checkout:
    """A checkout with scripted tools in the place of those that fetch or measure.

    Attributes:
        folder: the root of the checkout.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._calls_of_nox = folder / "calls"
        environments = folder / ".nox"
        for bin_folder in ("nox/bin", "gpu_perf/bin"):
            shutil.copytree(_TOOLS, environments / bin_folder)

    def run(self, lines: str, **variables: str) -> bool:
        """Run shell lines with the flags that all systems have in common; True if they succeed."""
        environment = {
            "PATH": f"{_TOOLS}{os.pathsep}{os.environ['PATH']}",
            "HOME": "/home",
            "CALLS": str(self._calls_of_nox),
            "OWN_COMMENTS": _OWN_COMMENTS,
            "TEST_PYTHON": sys.executable,
            **variables,
        }
        command = ("/bin/bash", "-e", "-c", lines)
        done = subprocess.run(command, check=False, cwd=self.folder, env=environment)
        return done.returncode == 0

    def run_workflow_job(self, job: Job, expressions: Mapping[str, str], **variables: str) -> bool:
        """Run the shell lines of a job of a workflow; True if all steps succeed.

        After a step that failed, only steps run that always do. Steps with any other condition
        are left out.

        Args:
            job: the job.
            expressions: the values of the expressions in its lines.
            variables: further environment variables.
        """
        succeeded = True
        for step in job["steps"]:
            condition = step.get("if", "always()" if succeeded else "")
            if "run" not in step or condition != "always()":
                continue
            step_variables = {
                name: _evaluated(text, expressions) for name, text in step.get("env", {}).items()
            }
            lines = _evaluated(step["run"], expressions)
            succeeded &= self.run(lines, **variables, **step_variables)
        return succeeded

    def take_calls_of_nox(self) -> set[str]:
        """Return what nox was called with since the last time."""
        lines = self._calls_of_nox.read_text().splitlines()
        self._calls_of_nox.unlink()
        return {line.replace("\t", " ").removesuffix(" -- ").strip() for line in lines}


def _evaluated(text: str, expressions: Mapping[str, str]) -> str:
    """Return a text with the values of its expressions."""
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda match: expressions[match[1]], text)


def lines_of(job: Job) -> str:
    """Return the shell lines of a step of Buildkite, as its agent gets them, or a job of GitLab."""
    lines = job.get("command") or job["script"]
    text = lines if isinstance(lines, str) else "\n".join(lines)
    return text.replace("$$", "$")
