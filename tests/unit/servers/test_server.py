"""A server generates before it is handed out, and nothing of it is left afterwards."""

import contextlib
import dataclasses
import os
import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from specreg.core.errors import ModelError, ServerDiedError, ServerStartError
from specreg.engines.launch_facts import NOTHING_KNOWN, LaunchFacts
from specreg.engines.registry import ENGINES
from specreg.servers.launcher import free_port
from specreg.servers.server import StartedServer, facts_of, start_error
from tests.doubles.protocols.triton import ScriptedTriton
from tests.doubles.vllm.script import Fault, Script
from tests.unit import builders
from tests.unit.builders.http_servers import answering
from tests.unit.builders.started_servers import PROVISION, at_most, left_of, start


def failed_start(
    folder: Path,
    script: Script | None = None,
    *,
    within_s: float = 10,
    **changes: Any,  # noqa: ANN401 - as of `start`
) -> ServerStartError:
    """The error of a server that doesn't start; it must be told in so many seconds."""
    with (
        at_most(within_s),
        pytest.raises(ServerStartError) as error,
        start(folder, script or Script(), **changes),
    ):
        pytest.fail("it started")
    return error.value


def test_a_server_runs_with_its_engines_command_line_and_is_gone_afterwards(tmp_path: Path) -> None:
    with start(tmp_path, Script()) as server:
        running = psutil.Process(server.process.popen.pid)
        command = running.cmdline()
        assert command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        assert command[command.index("--model") + 1] == "some/target"
        assert server.address.url == f"http://127.0.0.1:{command[command.index('--port') + 1]}"
        (card,) = httpx.get(f"{server.address.url}/v1/models").json()["data"]
        assert card["id"] == server.model
        assert re.fullmatch(r"vllm-draft_model-toy-[0-9a-f]{8}", server.model)
        assert server.engine_version == "99.0+scripted"
        server.check_alive()
    assert not running.is_running()
    assert left_of(tmp_path) == []


def test_a_server_has_taken_a_step_that_drafts_before_it_is_handed_out(tmp_path: Path) -> None:
    """SGLang 0.5.16 compiles for 103 s in the first such step, after its first token (on an H100).

    A stream that is silent for 60 s is taken for a server that hangs, so its start has to wait.
    """
    with start(tmp_path, Script()) as server:
        page = httpx.get(f"{server.address.url}/metrics").text
        assert server.engine.wire_format.parse_counters(page).steps == 1


OWN_WORDS = "scripted: the engine is dead"


@pytest.mark.parametrize(
    ("script", "failure"),
    [
        (
            Script(fault=Fault.EXIT_AT_START, exit_status=3, exit_log="CUDA out of memory."),
            "ended with status 3: out of memory",
        ),
        (Script(fault=Fault.NEVER_READY), "generated no token in time"),
        (Script(fault=Fault.HEALTHY_BUT_MUTE), "generated no token in time"),
        *(
            (Script(fault=fault), f"generated no token in time, its last message: .*'{OWN_WORDS}'")
            for fault in (Fault.ERROR_EVENT, Fault.ERROR_BODY)
        ),
        (Script(fault=Fault.HTTP_429), 'refused to generate, .*"message":"scripted: http_429"'),
    ],
    ids=["exit", "never-ready", "mute", "error-event", "error-body", "refused"],
)
def test_a_start_that_fails_says_why_by_its_deadline(
    tmp_path: Path, script: Script, failure: str
) -> None:
    within_s = (4.0 if "said" in failure else 1.5) if "in time" in failure else 30.0
    error = failed_start(tmp_path, script, ready_within_s=within_s)
    words = f"SERVER_NOT_STARTED: server 'vllm-draft_model-toy': {failure}"
    assert re.match(words, str(error))
    assert error.log_path == tmp_path / "logs" / "server.log"
    assert left_of(tmp_path) == []


def test_a_missing_interpreter_is_a_server_that_cannot_start(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no-python")
    error = failed_start(tmp_path, provision=dataclasses.replace(PROVISION, python=nowhere))
    assert error.failure == f"can't be started, No such file or directory: '{nowhere}'"
    assert isinstance(error.__cause__, FileNotFoundError)


@contextlib.contextmanager
def one_file_left() -> Iterator[None]:
    """Let this process open one further file at a time, which is too few for a pipe."""
    free_fd = os.dup(0)
    os.close(free_fd)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free_fd + 1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_start_that_fails_at_no_file_names_none(tmp_path: Path) -> None:
    with one_file_left():
        error = failed_start(tmp_path)
    assert isinstance(error.__cause__, OSError)
    assert error.__cause__.filename is None
    assert str(error).startswith(
        "SERVER_NOT_STARTED: server 'vllm-draft_model-toy': can't be started, Too many open files;"
        " raise the limit that it met, which `ulimit -a` shows, or end other programs\n"
    )


@pytest.mark.parametrize(("draft", "offline"), [("./model", True), ("some/draft", False)])
def test_a_server_is_offline_when_all_its_models_are_folders(
    tmp_path: Path, draft: str, *, offline: bool
) -> None:
    (tmp_path / "model").mkdir()
    for name in ("config.json", "model.safetensors"):
        (tmp_path / "model" / name).write_text("{}")
    spec = dataclasses.replace(builders.SPEC, target="./model", draft=draft)
    with start(tmp_path, Script(), spec=spec) as server:
        environment = psutil.Process(server.process.popen.pid).environ()
        assert ("HF_HUB_OFFLINE" in environment) == offline
        server.process.popen.kill()
        server.process.popen.wait()
        with pytest.raises(ServerDiedError, match="ended with status -9 while it was measured"):
            server.check_alive()


def port_of(server: StartedServer) -> int:
    return int(server.address.url.rpartition(":")[2])


def test_a_port_that_another_server_has_is_left_to_it(tmp_path: Path) -> None:
    with start(tmp_path, Script()) as stranger:
        ports = iter([port_of(stranger), free_port()])
        with start(tmp_path, Script(), choose_port=lambda: next(ports)) as server:
            assert port_of(server) != port_of(stranger)
            assert server.log_path == tmp_path / "logs" / "server~3.log"
        (tmp_path / "slow").mkdir()
        slow = Script(ready_after_s=30.0)  # so that it is ours that doesn't listen yet
        error = failed_start(
            tmp_path / "slow", slow, within_s=20, choose_port=lambda: port_of(stranger)
        )
        by = f"its port is already in use by a server of '{stranger.model}': port in use"
        assert error.failure == by
        assert stranger.process.popen.poll() is None
    assert left_of(tmp_path) == []


def test_a_port_that_another_service_has_is_left_to_it(tmp_path: Path) -> None:
    """It is healthy, and knows no path of an engine."""
    with answering(lambda path, _: b"" if path == "/health" else 404) as url:
        port = int(url.rpartition(":")[2])
        slow = Script(ready_after_s=30.0)
        error = failed_start(tmp_path, slow, within_s=20, choose_port=lambda: port)
    by = "its port is already in use by another service: port in use"
    assert error.failure == by
    assert left_of(tmp_path) == []


def test_modules_that_an_engine_needs_are_found_beside_those_of_the_case(tmp_path: Path) -> None:
    spec = builders.on_server(method="scheduled", draft=None, pinned_length_tokens=2.5).server
    with start(tmp_path, Script(), spec=spec) as server:
        python_path = psutil.Process(server.process.popen.pid).environ()["PYTHONPATH"]
    first_folder, project = python_path.split(os.pathsep)
    assert (Path(first_folder) / "scheduled.py").is_file()
    assert project == str(builders.ROOT / "tests/doubles")


def test_what_a_server_inherits_from_the_shell_is_a_fact_of_its_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", "/usr/local/cuda")
    monkeypatch.setenv("VLLM_NO_USAGE_STATS", "1")  # specreg sets it too
    with start(tmp_path, Script()) as server:
        assert server.facts.variables == ()
    monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", "0")
    with start(tmp_path, Script()) as server:
        assert server.facts.variables == (("VLLM_USE_FLASHINFER_SAMPLER", "0"),)


def test_a_server_takes_no_module_of_the_working_folder(tmp_path: Path) -> None:
    with start(tmp_path, Script()) as server:
        variables = psutil.Process(server.process.popen.pid).environ()
    assert variables["PYTHONSAFEPATH"] == "1"


def test_a_missing_model_folder_starts_nothing(tmp_path: Path) -> None:
    spec = dataclasses.replace(builders.SPEC, draft="fixtures/nowhere")
    with (
        pytest.raises(ModelError, match=r"config\.json is missing"),
        start(tmp_path, Script(), spec=spec),
    ):
        pytest.fail("it has no model")
    assert not (tmp_path / "logs").exists()


KERNEL = "TypeError: _sample_kernel_impl() got an unexpected keyword argument 'USE_FP64_GUMBEL'"
FRAME = '  File "core.py", line 12345 in step\n'


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "out of memory"),
        (
            "pydantic_core.ValidationError: 1 error",
            "its first error is 'pydantic_core.ValidationError: 1 error'",
        ),
        (
            "OSError: x is not a local folder and is not a valid model identifier",
            "model can't be fetched",
        ),
        (
            "RuntimeError: Worker failed with error 'too many values', please check the stack",
            (
                "its first error is 'RuntimeError: Worker failed with error 'too many values',"
                " please check the stack'"
            ),
        ),
        (
            f"(EngineCore pid=11) ERROR 11-22 [core.py:1195] {KERNEL}",
            f"its first error is '{KERNEL}'",
        ),
        (
            "HFValidationError: Repo id must use",
            "its first error is 'HFValidationError: Repo id must use'",
        ),
        ("Ignore import error when loading m: No module named 'cutlass'", "unknown cause"),
        (
            # They do without the first one.
            "WARNING ModuleNotFoundError: No module named 'a'\nNotFoundError: No module named 'b'",
            "lacks the package b",
        ),
        ("RuntimeError: something else", "its first error is 'RuntimeError: something else'"),
        ("INFO done", "unknown cause"),
    ],
)
def test_a_failure_is_told_by_its_last_words(tmp_path: Path, line: str, failure: str) -> None:
    log_path = tmp_path / "log"
    log_path.write_text(f"INFO starting\n{line}\n")
    process = builders.server(log_path=log_path).process
    error = start_error(builders.SPEC.id, process, "ended with status 1")
    assert error.failure == f"ended with status 1: {failure}"
    assert line in str(error)
    reason = "MODEL_NOT_FETCHED" if "fetched" in failure else "SERVER_NOT_STARTED"
    assert str(error).startswith(f"{reason}: server 'vllm-draft_model-toy': ended")
    by_hand = "or run the server's command by hand:\n/bin/false" in str(error)
    assert by_hand == (failure == "unknown cause")


def test_an_unknown_error_is_quoted_as_it_may_be_shown(tmp_path: Path) -> None:
    """A log that was written for a terminal has colours."""
    log_path = tmp_path / "log"
    log_path.write_text(
        f"Traceback (most recent call last):\n{FRAME}\x1b[31mValueError: new\x1b[0m\n"
    )
    process = builders.server(log_path=log_path).process
    error = start_error(builders.SPEC.id, process, "ended with status 1")
    first, *_ = str(error).splitlines()
    assert first.endswith("ended with status 1: its first error is 'ValueError: new'; read the log")


def test_the_cause_may_stand_far_above_the_last_words(tmp_path: Path) -> None:
    """It is sought in the last 64 KiB, and 500 lines of a traceback are half of that."""
    log_path = tmp_path / "log"
    log_path.write_text(f"torch.OutOfMemoryError: CUDA out of memory.\n{FRAME * 500}")
    process = builders.server(log_path=log_path).process
    error = start_error(builders.SPEC.id, process, "ended with status 1")
    assert error.failure == "ended with status 1: out of memory"
    assert error.log_tail.splitlines() == [FRAME.rstrip()] * 40

    killed = builders.server(command=("/bin/sh", "-c", "kill -9 $$"))
    error = start_error(builders.SPEC.id, killed.process, "ended with status -9")
    assert error.failure == "ended with status -9: killed by SIGKILL"


TRITONSERVER = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.doubles.protocols.triton import ScriptedTriton
from tests.doubles.vllm.launch import Launch
from tests.doubles.vllm.script import Script
after = dict(zip(sys.argv, sys.argv[1:]))
launch = Launch(model="folder", name=after["--load-model"], port=int(after["--http-port"]))
ScriptedTriton(launch, Script()).serve()
"""


def test_a_program_tells_its_version_and_what_it_reads_lies_beside_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "tritonserver"
    program.write_text(TRITONSERVER.format(python=sys.executable, root=str(builders.ROOT)))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = dataclasses.replace(builders.PLAIN_SPEC, engine="triton")
    program_on_path = dataclasses.replace(PROVISION, python=None)
    with start(tmp_path, Script(), spec=spec, provision=program_on_path) as server:
        assert server.engine_version == ScriptedTriton.version
    (read,) = (tmp_path / "logs/server").rglob("model.json")
    assert '"model": "some/target"' in read.read_text()


def test_what_a_server_runs_with_is_what_it_tells_and_what_the_hubs_cache_has(
    tmp_path: Path,
) -> None:
    log = (builders.ROOT / "fixtures/recordings/vllm/0.26.0/log_eagle3.txt").read_text()
    for model in ("target", "draft"):
        refs = tmp_path / f"models--some--{model}" / "refs"
        refs.mkdir(parents=True)
        (refs / "main").write_text(f"commit-of-{model}")
    server = builders.server()
    spec = dataclasses.replace(server.spec, engine_env=(("HF_HUB_CACHE", str(tmp_path)),))
    before = LaunchFacts(flashinfer="none", cuda_toolkit="13.0")
    facts = facts_of(dataclasses.replace(server, spec=spec, facts=before), log)
    assert facts == LaunchFacts(
        model_runner="v2",
        attention_backend="FLASH_ATTN",
        flashinfer="none",
        flashinfer_sampler="off",
        async_scheduling="on",
        cuda_graphs="NONE",
        cuda_toolkit="13.0",
        target_revision="commit-of-target",
        draft_revision="commit-of-draft",
    )


def test_a_server_that_tells_nothing_is_measured_nevertheless() -> None:
    server = dataclasses.replace(builders.server("http://127.0.0.1:9"), engine=ENGINES["sglang"])
    assert facts_of(server, log="") == NOTHING_KNOWN
