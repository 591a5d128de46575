"""Servers that answer, and what the scripted one truly does."""

import dataclasses
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from specreg.acceptance.record import StepCounts
from specreg.core.address import Address
from specreg.core.processes import Program, SupervisedProcess
from specreg.datasets.prompts import Prompt
from specreg.engines.engine import Requirement
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import ServerSpec
from specreg.matrix.case import Case
from specreg.servers.provision import MARKER, interpreter_of
from specreg.servers.server import StartedServer
from tests.doubles.vllm.script import Script, chat_prompt, record_script, steps_of
from tests.doubles.vllm.steps import Steps
from tests.unit.builders.cases import CASE, SPEC


def seem_installed(requirement: Requirement) -> Path:
    """The interpreter of an environment without its engine, in the cache of SPECREG_CACHE."""
    python = interpreter_of(requirement)
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (python.parents[1] / MARKER).touch()
    return python


def server(
    base_url: str = "http://scripted",
    *,
    log_path: Path = Path("/dev/null"),
    command: Sequence[str] = ("/bin/false",),
) -> StartedServer:
    """A server that answers at `base_url`; its process has ended."""
    process = subprocess.Popen(command)
    process.wait()
    with io.FileIO(os.devnull) as status:
        program = Program(
            args=command, pid=process.pid, status=status, returncode=process.returncode
        )
    return StartedServer(
        spec=SPEC,
        engine=engine_named("vllm"),
        address=Address(base_url),
        model=SPEC.id,
        target="some/target",
        draft="some/draft",
        engine_version="99.0+scripted",
        process=SupervisedProcess(
            popen=program,
            supervisor=process,
            orders=io.BytesIO(),
            log_path=log_path,
            temporary=None,
        ),
    )


def scripted(spec: ServerSpec, script: Script, folder: Path) -> ServerSpec:
    """The spec with what makes its command line start the scripted server."""
    return dataclasses.replace(spec, engine_env=tuple(record_script(script, folder).items()))


def truth(prompt: Prompt, script: Script, case: Case = CASE) -> Steps:
    """What the scripted server does for a prompt of a case."""
    return steps_of(
        chat_prompt([{"role": "user", "content": prompt.turns[0]}]),
        script,
        num_speculative_tokens=case.server.draft_tokens,
        max_tokens=case.request.output_cap_tokens,
    )


def counts_of(steps: Sequence[Steps]) -> StepCounts:
    """The truth of some requests, added up by hand."""
    by_position = zip(*(step.accepted_per_position for step in steps), strict=True)
    return StepCounts(
        steps=sum(step.verify_steps for step in steps),
        accepted=sum(step.accepted_tokens for step in steps),
        proposed=sum(step.drafted_tokens for step in steps),
        position_counts=tuple(sum(column) for column in by_position),
    )
