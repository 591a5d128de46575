"""Triton's backend `vllm` for machines that the real one doesn't come to.

The real one (triton-inference-server/vllm_backend) is a Python model in NVIDIA's container and
loads vLLM into its own process. This one has the same interface and lies in the same place,
`backends/vllm/model.py`: a model repository that says `backend: "vllm"` runs here unchanged.

What is real: tritonserver with its HTTP layer and its Python backend; vLLM, which is started as a
server of its own from the repository's `model.json`; the text, the counts of tokens, and that a
response comes when vLLM has it. What is not: a response passes one HTTP connection and one thread
more than there, and the engine runs at nice 19, so its times are no measurement; and of the
interface only the text is here: no images, embeddings, log probabilities, LoRA, nor vLLM's metrics
among Triton's.

In: `model.json`, vLLM's engine arguments, and requests. Out: a response for each piece that vLLM
sends. Names, defaults and errors are those of the real
backend's `src/model.py` and `src/utils/request.py` in 2026. Written against vLLM 0.32.

Its input is never part of the output, as specreg asks. Environment: `SPECREG_VLLM_PYTHON`, the
interpreter that has vLLM.
"""

# Triton adds its classes to the module after it has read this file.
from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils  # type: ignore[import-not-found]

_POLL_S = 0.2
_STOP_S = 10.0
_NICE = 19
_MAX_REQUESTS = 256
_LAST = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

_EXTRAS = ("finish_reason", "num_output_tokens")
"""Outputs that come when the input `return_…` asks for them."""

_STRINGS = ("text_input", "sampling_parameters")
_SWITCHES = ("stream", "exclude_input_in_output", *(f"return_{extra}" for extra in _EXTRAS))

Outputs = dict[str, str | int]
"""What vLLM sends at once, by output; `num_output_tokens` are those of this piece alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ask:
    text: str
    sampling: Mapping[str, object]
    names: Sequence[str]


class TritonPythonModel:
    """What Triton's Python backend loads."""

    @staticmethod
    def auto_complete_config(config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Adds to a `config.pbtxt` what it leaves out."""
        for name in (*_STRINGS, *_SWITCHES):
            kind = "TYPE_STRING" if name in _STRINGS else "TYPE_BOOL"
            optional = {} if name == "text_input" else {"optional": True}
            config.add_input({"name": name, "data_type": kind, "dims": [1]} | optional)
        for name in ("text_output", *_EXTRAS):
            kind = "TYPE_UINT32" if name.startswith("num_") else "TYPE_STRING"
            config.add_output({"name": name, "data_type": kind, "dims": [-1]})
        config.set_model_transaction_policy({"decoupled": True})
        config.set_max_batch_size(0)  # vLLM batches
        return config

    def initialize(self, arguments: Mapping[str, str]) -> None:
        """Returns once vLLM answers; an error ends the loading of the model."""
        del arguments
        engine_args = json.loads((Path(pb_utils.get_model_dir()) / "model.json").read_text())
        self._port = _free_port()
        self._threads = ThreadPoolExecutor(_MAX_REQUESTS)
        self._vllm = _start_vllm(engine_args, self._port)
        try:
            _wait_until_healthy(self._vllm, self._port)
            _put_engine_behind(self._vllm.pid)
        except BaseException:
            _stop(self._vllm)
            raise

    def execute(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        """Returns at once; the answers follow."""
        for request in requests:
            self._threads.submit(self._answer, request, request.get_response_sender())

    def finalize(self) -> None:
        """Triton has awaited the requests in flight already."""
        self._threads.shutdown()
        _stop(self._vllm)

    def _answer(
        self, request: pb_utils.InferenceRequest, sender: pb_utils.InferenceResponseSender
    ) -> None:
        try:
            ask = _parse_request(request)
            pieces = _pieces(ask, self._port)
            for piece in pieces:
                last = piece["finish_reason"] != "None"
                sender.send(_response(ask, piece), _LAST if last else 0)
        except Exception as error:  # noqa: BLE001 - as there: whatever it is, the client hears it
            message = f"Error generating stream: {error}"
            triton_error = pb_utils.TritonError(message, pb_utils.TritonError.INTERNAL)
            sender.send(pb_utils.InferenceResponse(error=triton_error), _LAST)


def _parse_request(request: pb_utils.InferenceRequest) -> _Ask:
    tensors = {
        name: tensor.as_numpy()[0]
        for name in (*_STRINGS, *_SWITCHES)
        if (tensor := pb_utils.get_input_tensor_by_name(request, name)) is not None
    }
    return _Ask(
        text=tensors["text_input"].decode(),
        sampling=json.loads(tensors.get("sampling_parameters") or request.parameters()),
        names=["text_output", *(name for name in _EXTRAS if tensors.get(f"return_{name}"))],
    )


def _pieces(ask: _Ask, port: int) -> Iterator[Outputs]:
    counted = {"include_usage": True, "continuous_usage_stats": True}
    body = {**ask.sampling, "prompt": ask.text, "stream": True, "stream_options": counted}
    connection = http.client.HTTPConnection("127.0.0.1", port)
    with contextlib.closing(connection):
        headers = {"Content-Type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != http.HTTPStatus.OK:
            raise ValueError(response.read().decode())
        tokens = 0
        finish_reason = None
        for line in response:
            event = json.loads(line.removeprefix(b"data: ")) if line[:7] == b"data: {" else {}
            if "error" in event:
                raise ValueError(event["error"])
            for choice in event.get("choices", ()):
                before = tokens
                tokens = event["usage"]["completion_tokens"]
                finish_reason = choice["finish_reason"]
                yield {
                    "text_output": choice["text"],
                    "finish_reason": str(finish_reason),  # "None" until the end
                    "num_output_tokens": tokens - before,
                }
        if finish_reason is None:  # a request without a last response stays for ever
            raise ConnectionError("vLLM's answer has no end")


def _response(ask: _Ask, piece: Outputs) -> pb_utils.InferenceResponse:
    kinds = {name: np.uint32 if name.startswith("num_") else np.object_ for name in ask.names}
    return pb_utils.InferenceResponse(
        output_tensors=[
            pb_utils.Tensor(name, np.asarray([piece[name]], dtype=kind))
            for name, kind in kinds.items()
        ]
    )


def _start_vllm(engine_args: Mapping[str, object], port: int) -> subprocess.Popen[bytes]:
    """In a session of its own, so that its workers can be ended with it; it logs where we do."""
    module = ("-m", "vllm.entrypoints.openai.api_server")
    here = ("--host", "127.0.0.1", "--port", str(port))
    command = (os.environ["SPECREG_VLLM_PYTHON"], *module, *here, *_flags(engine_args))
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)


def _flags(engine_args: Mapping[str, object]) -> Iterator[str]:
    for name, value in engine_args.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{flag}" if value else f"--no-{flag}"
        else:
            yield f"--{flag}"
            yield value if isinstance(value, str) else json.dumps(value)


def _wait_until_healthy(vllm: subprocess.Popen[bytes], port: int) -> None:
    while vllm.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        with contextlib.closing(connection), contextlib.suppress(OSError):
            connection.request("GET", "/health")
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        time.sleep(_POLL_S)
    raise pb_utils.TritonModelException(f"vLLM ended with status {vllm.returncode}")


def _put_engine_behind(front_end: int) -> None:
    """Has the front end go first on busy cores: what waits there of several steps is one chunk."""
    for thread in Path(f"/proc/{front_end}/task").iterdir():
        for engine in (thread / "children").read_text().split():
            os.setpriority(os.PRIO_PROCESS, int(engine), _NICE)


def _stop(vllm: subprocess.Popen[bytes]) -> None:
    vllm.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        vllm.wait(_STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(vllm.pid, signal.SIGKILL)
    vllm.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
