"""The cause of a failed start is named by words of its own; an unknown one is quoted."""

import re

import pytest

from specreg.core.errors import ModelNotFetchedError, PortInUseError, ServerStartError
from specreg.servers.start_failures import KNOWN_CAUSES, why_not_started

FRAMES = """\
Traceback (most recent call last):
  File "/env/lib/python3.12/site-packages/engine/core.py", line 718, in run
    raise ImportError("CUDA out of memory: No module named 'x', invalid choice: 3")
"""
"""A traceback's frames, whose source says what didn't happen."""
MODEL_CONFIG = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
BF16 = (
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your"
    " Tesla T4 GPU has compute capability 7.5."
)
TRUST = (
    f"{MODEL_CONFIG}  Value error, The repository nobody/brings-code contains custom code which"
    " must be executed to correctly load the model. Please pass the argument"
    " `trust_remote_code=True` to allow custom code to be run."
)
REPORTS = {
    "out of memory, no room is left for the KV cache": {
        "vllm-project/vllm#2248": (
            "ValueError: No available memory for the cache blocks. Try increasing"
        ),
        "vllm-project/vllm#2418": (
            "ValueError: The model's max seq len (4096) is larger than the maximum number of"
            " tokens that can be stored in KV cache (3664)."
        ),
        "vllm-project/vllm#34076": (
            "ValueError: To serve at least one request with the models's max seq len (262144),"
            " (24.0 GiB KV cache is needed, which is larger than the available KV cache memory"
            " (3.18 GiB)."
        ),
        "sgl-project/sglang#4330": (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static."
        ),
    },
    "out of memory": {
        "vllm-project/vllm#14095": (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."
        ),
        "vllm-project/vllm#16142": "Cannot allocate memory",
        "ovg-project/kvcached#29": (
            "ValueError: Free memory on device (59.32/79.15 GiB) on startup is less than"
            " desired GPU memory utilization (0.9, 71.24 GiB)."
        ),
    },
    "too little shared memory, /dev/shm": {
        "llm-d/llm-d#352": (
            "misc/shmutils.cc:129 NCCL WARN Error while creating shared memory segment"
            " /dev/shm/nccl-Ewjreo (size 33030528), error: No space left on device (28)"
        ),
        "vllm-project/vllm#1771": "Fatal python error:Bus error",
    },
    "a disk is full": {
        "bentoml/OpenLLM#754": (
            'IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })'
        )
    },
    "a model brings code of its own": {
        "recorded: vLLM 0.32.0": TRUST,
        "vllm-project/vllm#6215": (
            "ValueError: Loading microsoft/Phi-3-small-8k-instruct requires you to execute the"
            " configuration file in that repo on your local machine."
        ),
    },
    "the model is newer than the engine's Transformers, which lacks qwen3_moe": {
        "vllm-project/vllm#19793": (
            "ValueError: The checkpoint you are trying to load has model type `qwen3_moe` but"
            " Transformers does not recognize this architecture."
        )
    },
    "the model is newer than the engine's Transformers, which lacks TokenizersBackend": {
        "hiyouga/LlamaFactory#10310": (
            "ValueError: Tokenizer class TokenizersBackend does not exist or is not currently"
            " imported."
        )
    },
    "the engine doesn't support the architecture ['LlamaModel']": {
        "vllm-project/vllm#10481": (
            "ValueError: Model architectures ['LlamaModel'] are not supported for now."
        )
    },
    "the engine doesn't support the architecture Qwen2_5_VLForSequenceClassification": {
        "vllm-project/vllm#15006": (
            "ValueError: Qwen2_5_VLForSequenceClassification has no vLLM implementation and the"
            " Transformers implementation is not compatible with vLLM."
        )
    },
    "the engine doesn't support the architecture NewMoe": {
        "sglang/srt/model_loader/utils.py": (
            "ValueError: NewMoe has no SGlang implementation and the Transformers implementation"
        )
    },
    "the engine doesn't support the architecture Llama_Nemotron_Nano_VL": {
        "NVIDIA/TensorRT-LLM#4937": (
            "ValueError: Unknown architecture for AutoModelForCausalLM: Llama_Nemotron_Nano_VL"
        )
    },
    "max_model_len_tokens is more than the model's context": {
        "vllm-project/vllm#3676": (
            "ValueError: User-specified max_model_len (131072) is greater than the derived"
            " max_model_len (None=8192 in model's config.json)."
        ),
        "sglang/srt/configs/model_config.py": (
            "ValueError: Warning: User-specified context_length (65536) is greater than the"
            " derived context_length (32768)."
        ),
    },
    "the GPU's compute capability is too low for the model's data type or the settings": {
        "vllm-project/vllm#1157": BF16,
        "vllm-project/vllm#14040": (
            "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min"
            " capability: 80. ', 'Current capability: 75.')"
        ),
        "vllm-project/vllm#14154": (
            "ValueError: The quantization method bitsandbytes is not supported for the current"
            " GPU. Minimum capability: 70. Current capability: 52."
        ),
    },
    "the model's quantization doesn't fit the settings": {
        "vllm-project/vllm#1919": (
            "ValueError: Unknown quantization method: gptq. Must be one of ['awq', 'squeezellm']."
        ),
        "vllm-project/vllm#28857": (
            "Value error, torch.bfloat16 is not supported for quantization method awq."
        ),
        "vllm-project/vllm#5842": (
            "ValueError: Quantization method specified in the model config (gptq) does not"
            " match the quantization method specified in the `quantization` argument"
            " (gptq_marlin)."
        ),
    },
    "the driver and its libraries are of different versions": {
        "vllm-project/vllm#29737": "RM has detected an NVML/RM version mismatch",
        "gpustack/gpustack#4678": (
            "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda"
            " functions before calling NumCudaDevices() that might have already set an error?"
            " Error 803: system has unsupported display driver / cuda driver combination"
        ),
    },
    "the driver is older than the engine's CUDA": {
        "modelscope/FunASR#2973": (
            "The NVIDIA driver on your system is too old (found version 12080)"
        ),
        "ovg-project/kvcached#74": "CUDA driver version is insufficient for CUDA runtime version",
        "vllm-project/vllm#31700": (
            "torch.AcceleratorError: CUDA error: the provided PTX was compiled with an"
            " unsupported toolchain."
        ),
        "gpustack/gpustack#1540": (
            "Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before"
            " calling NumCudaDevices() that might have already set an error? Error 804: forward"
            " compatibility was attempted on non supported HW"
        ),
    },
    "it sees no GPU": {
        "bentoml/OpenLLM#746": "RuntimeError: Found no NVIDIA driver on your system.",
        "vllm-project/vllm#14413": "RuntimeError: No CUDA GPUs are available",
        "vllm-project/vllm#12847": "RuntimeError: Failed to infer device type",
        "sgl-project/sglang#27487": (
            "RuntimeError: No accelerator (CUDA, XPU, HPU, NPU, MUSA, MPS) or platform plugin"
            " is available."
        ),
        "MeetKai/functionary#182": (
            "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
        ),
    },
    "it was built for other GPUs": {
        "vllm-project/vllm#16901": (
            "RuntimeError: CUDA error: no kernel image is available for execution on the device"
        )
    },
    "the GPU's memory is broken": {
        "vllm-project/vllm#5222": "RuntimeError: CUDA error: uncorrectable ECC error encountered"
    },
    "another process uses the GPU exclusively": {
        "hiyouga/LlamaFactory#10240": (
            "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"
        )
    },
    "unknown or refused argument": {
        "vllm-project/vllm#27389": (
            "api_server.py: error: unrecognized arguments: /root/models/Qwen3-8B"
        ),
        "vllm-project/vllm#9312": (
            "api_server.py: error: argument --tool-call-parser: invalid choice: 'llama3_json'"
        ),
        "vllm-project/vllm#13150": (
            "vllm serve: error: the following arguments are required: model_tag"
        ),
        "vllm-project/vllm#23283": (
            "TypeError: AsyncEngineArgs.__init__() got an unexpected keyword argument"
            " 'disable_log_requests'"
        ),
        "recorded: vLLM 0.32.0": (
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for"
            " SpeculativeConfig\nmethod\n  Input should be 'ngram' or 'dspark'"
            " [type=literal_error, input_value='eagle33']"
        ),
    },
    "port in use": {
        "vllm-project/vllm#7514": (
            "error while attempting to bind on address ('0.0.0.0', 8000): address already in use"
        ),
        "triton-inference-server/tensorrtllm_backend#524": (
            "failed to start GRPC service: Unavailable - Socket '0.0.0.0:18001' already in use "
        ),
        "sglang/srt/server_args.py": (
            "Port is already in use. dist_init_port=30000 port_base=30001 detokenizer_port=30002"
        ),
        "sglang/srt/utils/network.py": (
            "ValueError: nccl_port at 30000 is not available in 30 seconds. port is used"
        ),
    },
    "its kernels are missing, or are of another version": {
        "sgl-project/sglang#3687": "ModuleNotFoundError: No module named 'sgl_kernel'",
        "tests/sglang_cpu/sgl_kernel/__init__.py": (
            "ImportError: sgl_kernel: the stand-in for CPUs is written for SGLang 0.5.23, not"
            " for 0.6"
        ),
    },
    "CUDA's compiler, nvcc, is missing": {
        "flashinfer-ai/flashinfer#1919": "RuntimeError: Could not find nvcc",
        "sgl-project/sglang#3553": (
            "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install"
        ),
        "vllm-project/vllm#21960": "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
        "flashinfer-ai/flashinfer#1781": (
            "FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'"
        ),
    },
    "the container runtime can't give a container GPUs": {
        "NixOS/nixpkgs#337873": (
            'docker: Error response from daemon: could not select device driver "cdi" with'
            " capabilities: []."
        )
    },
    "podman has no description of this machine's GPUs": {
        "NVIDIA/nvidia-container-toolkit#146": (
            "Error: error setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"
        ),
        "NVIDIA/nvidia-container-toolkit#63": (
            "Error: stat nvidia.com/gpu=0: no such file or directory"
        ),
    },
    "CUDA's compiler and its headers are of different releases": {
        "flashinfer-ai/flashinfer#3493": "CUDA compiler and CUDA toolkit headers are incompatible"
    },
    "ninja is missing": {
        "sgl-project/sglang#2514": "Ninja is required to load c++ extensions",
        "transformerlab/transformerlab-api#381": (
            "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"
        ),
    },
    "a C or C++ compiler is missing": {
        "vllm-project/vllm#15329": "RuntimeError: Failed to find C compiler. Please",
        "pytorch/pytorch#92745": (
            "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in"
            " torch._inductor"
        ),
    },
    "Python's headers are missing": {
        "vllm-project/vllm#27890": "fatal error: Python.h: No such file or directory"
    },
    "needs a newer system library, one with GLIBC_2.32": {
        "vllm-project/vllm#15592": (
            "ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by _C.abi3.so)"
        )
    },
    "MPI's library, libmpi, is missing": {
        "NVIDIA/TensorRT-LLM#167": (
            "ImportError: libmpi.so.12: cannot open shared object file: No such file or directory"
        )
    },
    "lacks the package pybase64": {
        "sgl-project/sglang#13276": "ModuleNotFoundError: No module named 'pybase64'"
    },
    "lacks the package sglang": {
        "recorded: Python 3.11": "/envs/bin/python: No module named sglang"
    },
    "lacks the package tiktoken": {
        "OpenCSGs/llm-inference#87": (
            "ImportError: This modeling file requires the following packages that were not"
            " found in your environment: tiktoken. Run `pip install tiktoken`"
        )
    },
    "lacks the package protobuf": {
        "vllm-project/vllm#7182": (
            "The new behaviour of LlamaTokenizer (with `self.legacy = False`) requires the"
            " protobuf library but it was not found in your environment."
        )
    },
    "broken engine environment": {
        "vllm-project/vllm#16995": "ImportError: cannot import name '_vllm_fa3_C'",
        "vllm-project/vllm#20361": (
            "_C.abi3.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb"
        ),
        "vllm-project/vllm#1738": (
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or"
            " directory"
        ),
    },
    "model can't be fetched": {
        "vast-ai/base-image#128": (
            "huggingface_hub.errors.RepositoryNotFoundError: 401 Client Error."
        ),
        "sgl-project/sglang#14644": (
            "OSError: You are trying to access a gated repo.\nMake sure to have access to it at"
            " https://huggingface.co/meta-llama/Llama-3.2-1B-Instruct.\n401 Client Error."
        ),
        "huggingface_hub/utils/_http.py": (
            "Cannot reach https://huggingface.co/org/model: offline mode is enabled."
        ),
        "transformers/utils/hub.py": (
            "OSError: x is not a local folder and is not a valid model identifier listed on"
        ),
        "vllm-project/vllm#13510": (
            "ValueError: Invalid repository ID or local directory specified:"
            " 'neuralmagic/Meta-Llama'."
        ),
        "vllm-project/vllm#1432": (
            "requests.exceptions.ConnectionError:"
            " (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries"
            " exceeded"
        ),
    },
    "a file of the model's weights is broken": {
        "QwenLM/Qwen3-VL#264": (
            "safetensors_rust.SafetensorError: Error while deserializing header:"
            " MetadataIncompleteBuffer"
        )
    },
    "model not found": {
        "vllm-project/vllm#4416": "does not appear to have a file named config.json",
        "vllm-project/vllm#3329": (
            "RuntimeError: Cannot find any model weights with `/home/huggingface_models/vicuna`"
        ),
        "vllm-project/vllm#15120": (
            "ValueError: Unrecognized model in /app/model/gemma2. Should have a `model_type`"
            " key in its config.json"
        ),
        "transformers/configuration_utils.py": (
            "OSError: Can't load the configuration of './x'. If you were trying to load it from"
        ),
    },
    "NCCL, which connects the GPUs, failed": {
        "vllm-project/vllm#7800": (
            "NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)"
        )
    },
}
"""The words of failed starts by what is wrong and by where they are from."""
QUOTES = [
    (says, source, words) for says, reports in REPORTS.items() for source, words in reports.items()
]


@pytest.mark.parametrize(("says", "source", "words"), QUOTES)
@pytest.mark.parametrize("prefix", ["", "(EngineCore_DP0 pid=7) ERROR 11-26 13:00:01 [core.py:9] "])
def test_a_cause_is_named_by_its_own_words(says: str, source: str, words: str, prefix: str) -> None:
    lines = "".join(f"{prefix}{line}\n" for line in words.splitlines())
    failure = why_not_started("ended with status 1", f"INFO starting\n{lines}")
    assert failure.says == says, source
    assert failure.is_known


def test_the_words_of_each_source_are_quoted() -> None:
    sources = [
        (pattern, source) for cause in KNOWN_CAUSES for pattern, source in cause.words.items()
    ]
    unquoted = [
        (pattern, source)
        for pattern, source in sources
        if not any(re.search(pattern, words) for _, quoted, words in QUOTES if quoted == source)
    ]
    assert unquoted == []
    assert {source for _, source, _ in QUOTES} == {source for _, source in sources}


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ("port in use", PortInUseError),
        ("model can't be fetched", ModelNotFetchedError),
        ("out of memory", ServerStartError),
    ],
)
def test_a_cause_that_a_run_treats_otherwise_has_an_error_of_its_own(
    says: str, error: type[ServerStartError]
) -> None:
    for words in REPORTS[says].values():
        assert why_not_started("ended with status 1", words).error is error


def test_a_cause_of_another_failure_is_named_before_it() -> None:
    words = "NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'"
    assert why_not_started("ended with status 1", words).says == "out of memory"


@pytest.mark.parametrize(
    "words",
    [
        "model type `x` but Transformers does not recognize this architecture",
        "requires the foo library but it was not found in your environment",
    ],
)
def test_the_advice_can_be_followed_in_a_run_and_in_a_gate(words: str) -> None:
    advice = why_not_started("ended with status 1", words).advice
    assert "(--specreg-engine-python, or a side of a gate)" in advice


@pytest.mark.parametrize(
    ("message", "quote"),
    [
        ("RuntimeError: something new", "RuntimeError: something new"),
        ("KeyError: 'NewMoeForCausalLM'", "KeyError: 'NewMoeForCausalLM'"),
        ("engine.errors.Failed: words", "engine.errors.Failed: words"),
        ("AssertionError: the head has 4 layers", "AssertionError: the head has 4 layers"),
        ("Fatal Python error: Segmentation fault", "Fatal Python error: Segmentation fault"),
        (
            "TypeError: LlamaAttention.__init__() got an unexpected keyword argument 'x'",
            "TypeError: LlamaAttention.__init__() got an unexpected keyword argument 'x'",
        ),
        (
            f"{MODEL_CONFIG}  Value error, not today [type=value_error, input_value=Args(())]",
            (
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"
                " Value error, not today"
            ),
        ),
        (
            (
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for RopeSettings"
                "\nfactor\n  Input should be a number [type=float_type, input_value=None]"
            ),
            (
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for RopeSettings"
                " factor Input should be a number"
            ),
        ),
    ],
)
@pytest.mark.parametrize("prefix", ["", "(APIServer pid=212) ", "[rank0]: "])
def test_an_exception_whose_cause_is_unknown_is_quoted_and_blames_nothing(
    message: str, quote: str, prefix: str
) -> None:
    lines = f"INFO 11-26 13:00:00 [a.py:1] no kernel image is available\n{FRAMES}{message}\n"
    failure = why_not_started(
        "ended with status 1", "".join(f"{prefix}{line}\n" for line in lines.splitlines())
    )
    assert failure.says == f"its first error is '{quote}'"
    assert failure.advice == "read the log"


def test_an_exception_without_its_traceback_is_quoted_too() -> None:
    """A log's end may begin below it."""
    failure = why_not_started("ended with status 1", "pydantic_core.ValidationError: 1 error\n")
    assert "pydantic_core.ValidationError: 1 error" in failure.says


ASSERTION = """\
Traceback (most recent call last):
  File "/env/engine/scheduler.py", line 12, in run
    self.load()
  File "/env/engine/eagle.py", line 34, in load
    assert head.vocabulary == target.vocabulary
           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
AssertionError
"""
LATER = f"{FRAMES}RuntimeError: the event loop is closed\n"


@pytest.mark.parametrize(
    ("log", "quote"),
    [
        (ASSERTION, "AssertionError: assert head.vocabulary == target.vocabulary"),
        (
            "python3: ../src/eagle.cc:34: void load(): Assertion `head == target' failed.",
            "python3: ../src/eagle.cc:34: void load(): Assertion `head == target' failed.",
        ),
        (
            "[TensorRT-LLM][ERROR] Assertion failed: head must fit (eagle.cpp:34)",
            "[TensorRT-LLM][ERROR] Assertion failed: head must fit (eagle.cpp:34)",
        ),
        ("terminate called after\n  what():  no head", "what():  no head"),
    ],
)
@pytest.mark.parametrize("status", [1, -9])
def test_the_first_error_of_an_engine_is_quoted_and_not_what_follows_from_it(
    log: str, quote: str, status: int
) -> None:
    """SGLang kills itself when one of its processes fails."""
    failure = why_not_started(f"ended with status {status}", f"{log}\n{LATER}", status=status)
    assert quote in failure.says
    assert "event loop" not in failure.says
    assert failure.is_known


def test_an_exception_that_only_points_to_another_one_is_not_the_cause() -> None:
    pointer = (
        f"{FRAMES}RuntimeError: Engine core initialization failed. See root cause above. Failed"
        " core proc(s): {}\n"
    )
    prefix = "(EngineCore_DP0 pid=9) ERROR 11-26 13:00:01 [core.py:9] "
    root = "".join(f"{prefix}{line}\n" for line in f"{FRAMES}{BF16}".splitlines())
    failure = why_not_started("ended with status 1", f"{root}{pointer}")
    assert (
        failure.says
        == "the GPU's compute capability is too low for the model's data type or the settings"
    )
    assert why_not_started("ended with status 1", pointer).advice == "read the log"


def test_two_processes_that_write_at_once_are_told_apart() -> None:
    first_lines = f"{FRAMES}ValueError: of one worker".splitlines()
    second_lines = f"{FRAMES}{BF16}".splitlines()
    lines = [
        f"({name} pid={number}) {line}"
        for pair in zip(first_lines, second_lines, strict=True)
        for name, number, line in (("Worker_TP0", 1, pair[0]), ("Worker_TP1", 2, pair[1]))
    ]
    failure = why_not_started("ended with status 1", "\n".join(lines))
    assert (
        failure.says
        == "the GPU's compute capability is too low for the model's data type or the settings"
    )


def test_what_the_server_answered_counts_before_what_its_log_says() -> None:
    failure = why_not_started("refused to generate, CUDA out of memory", f"{FRAMES}{BF16}\n")
    assert failure.says == "out of memory"


def test_a_server_that_was_killed_says_so_unless_its_log_has_the_cause() -> None:
    ending = "ended with status -9"
    loading = "INFO loading weights\n"
    assert why_not_started(ending, loading, status=-9).says == "killed by SIGKILL"
    assert why_not_started(ending, loading, status=1).says == "unknown cause"
    assert why_not_started(ending, "Cannot allocate memory\n", status=-9).says == "out of memory"
    # The engine may have handled the error long before the kernel killed it.
    handled = why_not_started(ending, f"ConnectionError: no statistics sent\n{loading}", status=-9)
    assert "make more memory available" in handled.advice


def test_a_log_of_one_long_word_is_read_as_any_other() -> None:
    """A pattern that begins anew at each of its letters would take minutes."""
    assert why_not_started("ended with status 1", "a" * 2**16).says == "unknown cause"
