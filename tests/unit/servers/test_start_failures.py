"""The cause of a failed start is named by words of its own; an unknown one is quoted."""

import pytest

from specreg.core.errors import ModelNotFetchedError, PortInUseError, ServerStartError
from specreg.servers.start_failures import why_not_started

FRAMES = """\
Traceback (most recent call last):
  File "/env/lib/python3.12/site-packages/engine/core.py", line 718, in run
    raise ImportError("CUDA out of memory: No module named 'x', invalid choice: 3")
"""
"""A traceback's frames, whose source says what didn't happen."""
TYPE_IS_NEWER = """\
(APIServer pid=212) Traceback (most recent call last):
(APIServer pid=212) pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
(APIServer pid=212)   Value error, The checkpoint you are trying to load has model type \
`newmoe_lite` but Transformers does not recognize this architecture. This could be because of an \
issue with the checkpoint, or because your version of Transformers is out of date.
"""
IN_OLDER_TABLE = """\
Traceback (most recent call last):
  File "/env/transformers/models/auto/configuration_auto.py", line 1360, in from_pretrained
    config_class = CONFIG_MAPPING[config_dict["model_type"]]
  File "/env/transformers/models/auto/configuration_auto.py", line 1048, in __getitem__
    raise KeyError(key)
KeyError: 'newmoe_lite'
"""
REFUSED_METHOD = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig
method
  Input should be 'ngram', 'medusa' or 'eagle' [type=literal_error, input_value='eagle33']
    For further information visit https://errors.pydantic.dev/2.12/v/literal_error
"""
REFUSED_KEY = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig
draft_length
  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=3, input_type=int]
"""
CONTEXT = (
    "  Value error, User-specified max_model_len (65536) is greater than the derived max_model_len"
    " (max_position_embeddings=32768.0 or model_max_length=None in model's config.json)."
)
MODEL_CONFIG = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
BF16 = (
    "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your"
    " Tesla T4 GPU has compute capability 7.5."
)
FP8 = (
    "RuntimeError: ('Quantization scheme is not supported for ', 'the current GPU. Min capability:"
    " 80. ', 'Current capability: 75.')"
)
QUANTIZED = (
    "  Value error, The quantization method compressed-tensors is not supported for the current"
    " GPU. Minimum capability: 70. Current capability: 61. [type=value_error, input_value=Args]"
)
NO_CACHE = (
    "ValueError: To serve at least one request with the model's max seq len (40960), (4.38 GiB KV"
    " cache is needed, which is larger than the available KV cache memory (1.0 GiB)."
)
OLD_DRIVER = (
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update"
)
MISMATCH = (
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported"
    " display driver / cuda driver combination"
)
GATED = (
    "OSError: You are trying to access a gated repo.\nMake sure to have access to it at"
    " https://huggingface.co/org/model.\n401 Client Error."
)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        (TYPE_IS_NEWER, "the model's type 'newmoe_lite' is newer than the engine's Transformers"),
        (IN_OLDER_TABLE, "the model's type 'newmoe_lite' is newer than the engine's Transformers"),
        (
            "ValueError: Tokenizer class NewTokenizer does not exist or is not currently imported.",
            "the model's tokenizer NewTokenizer is newer than the engine's Transformers",
        ),
        (
            "ValueError: Model architectures ['NewMoe'] are not supported for now. Supported: a",
            "the engine doesn't support the architecture ['NewMoe']",
        ),
        (
            "ValueError: NewMoe has no SGLang implementation and the Transformers implementation",
            "the engine doesn't support the architecture NewMoe",
        ),
        (f"{MODEL_CONFIG}{CONTEXT}", "max_model_len_tokens is more than the model's context"),
        (BF16, "the GPU's compute capability is too low for the model's data type or the settings"),
        (FP8, "the GPU's compute capability is too low for the model's data type or the settings"),
        (
            f"{MODEL_CONFIG}{QUANTIZED}",
            "the GPU's compute capability is too low for the model's data type or the settings",
        ),
        ("ValueError: Unknown quantization method: x.", "the model's quantization doesn't fit"),
        (OLD_DRIVER, "the driver is older than the engine's CUDA"),
        (MISMATCH, "the driver and its libraries are of different versions"),
        ("RuntimeError: No CUDA GPUs are available", "it sees no GPU"),
        ("ImportError: libcuda.so.1: cannot open shared object file", "it sees no GPU"),
        (
            "torch.AcceleratorError: CUDA error: no kernel image is available for execution",
            "it was built for other GPUs",
        ),
        (NO_CACHE, "out of memory, no room is left for the KV cache"),
        (
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "out of memory, no room is left for the KV cache",
        ),
        (
            (
                "ValueError: Free memory on device (3.2/16.0 GiB) on startup is less than desired"
                " GPU memory utilization (0.9, 14.4 GiB)."
            ),
            "out of memory",
        ),
        ("OSError: [Errno 12] Cannot allocate memory", "out of memory"),
        ("OSError: [Errno 28] No space left on device: '/dev/shm/x'", "a disk is full"),
        ("RuntimeError: Could not find nvcc and default cuda_home='/usr'", "CUDA's compiler, nvcc"),
        (
            (
                "RuntimeError: Ninja build failed. Ninja output:\n#error -- CUDA compiler and CUDA"
                " toolkit headers are incompatible, please check your include paths"
            ),
            "CUDA's compiler and its headers are of different releases",
        ),
        (
            (
                "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:94, unhandled"
                " system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.30.7\n"
                "ncclSystemError: System call (e.g. socket, malloc) or external library call"
                " failed or device error.\nLast error:\nError while creating shared memory segment"
                " /dev/shm/nccl-lL1Vm2 (size 9637888), error: No space left on device (28)"
            ),
            "too little shared memory, /dev/shm",
        ),
        (
            "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)",
            "NCCL, which connects the GPUs, failed",
        ),
        (
            (
                "RuntimeError: NCCL error: unhandled cuda error\nLast error:\nCuda failure 2"
                " 'out of memory'"
            ),
            "out of memory",
        ),
        ("Fatal Python error: Bus error", "too little shared memory, /dev/shm"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "ninja is missing"),
        ("RuntimeError: Failed to find C compiler. Please specify via CC", "a C or C++ compiler"),
        ("cuda_utils.c:6:10: fatal error: Python.h: No such file", "Python's headers are missing"),
        (
            "ImportError: /lib/libc.so.6: version `GLIBC_2.38' not found (required by x.so)",
            "needs a newer system library, one with GLIBC_2.38",
        ),
        (
            (
                "ImportError: This modeling file requires the following packages that were not"
                " found in your environment: flash_attn. Run `pip install flash_attn`"
            ),
            "lacks the package flash_attn",
        ),
        (
            "ImportError: libmpi.so.40: cannot open shared object file: No such file or directory",
            "MPI's library, libmpi, is missing",
        ),
        ("RuntimeError: cannot load MPI library", "MPI's library, libmpi, is missing"),
        ("ImportError: cannot import name 'x' from 'transformers'", "broken engine environment"),
        ("safetensors_rust.SafetensorError: Error while deserializing header", "a file of the"),
        ("serve.py: error: argument --dtype: invalid choice: 'x'", "unknown or refused argument"),
        ("serve.py: error: unrecognized arguments: --x", "unknown or refused argument"),
        ("serve.py: error: the following arguments are required: -x", "unknown or refused"),
        ("NVMLError: RM has detected an NVML/RM version mismatch.", "the driver and its libraries"),
        ("OSError: Can't load the configuration of './x'. If you", "model not found"),
        (
            "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'x'",
            "unknown or refused argument",
        ),
        (REFUSED_METHOD, "unknown or refused argument"),
        (REFUSED_KEY, "unknown or refused argument"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "(EngineCore_DP0 pid=7) ERROR 11-26 13:00:01 [core.py:9] "])
def test_a_cause_is_named_by_its_own_words(log: str, says: str, prefix: str) -> None:
    lines = "".join(f"{prefix}{line}\n" for line in log.splitlines())
    failure = why_not_started("ended with status 1", f"INFO starting\n{lines}")
    assert failure.says.startswith(says)
    assert failure.is_known
    assert failure.error is ServerStartError


@pytest.mark.parametrize(
    ("log", "advice"),
    [
        (
            TYPE_IS_NEWER,
            (
                "use a newer version of the engine (--specreg-engine-version, or a side of a gate),"
                " or the Python of an environment that has a newer Transformers"
                " (--specreg-engine-python, or a side of a gate)"
            ),
        ),
        (
            "ImportError: requires the foo library but it was not found in your environment.",
            (
                "install it in an environment of your own, and name its Python"
                " (--specreg-engine-python, or a side of a gate)"
            ),
        ),
    ],
)
def test_the_advice_can_be_followed_in_a_run_and_in_a_gate(log: str, advice: str) -> None:
    assert why_not_started("ended with status 1", log).advice == advice


@pytest.mark.parametrize(
    ("log", "error"),
    [
        (GATED, ModelNotFetchedError),
        ("OSError: We couldn't connect to 'https://huggingface.co' to load", ModelNotFetchedError),
        ("OSError: [Errno 98] Address already in use", PortInUseError),
        (
            "ValueError: nccl_port at 30000 is not available in 30 seconds. port is used",
            PortInUseError,
        ),
        (
            "failed to start HTTP service: Unavailable - Socket '127.0.0.1:8000' already in use ",
            PortInUseError,
        ),
        ("RuntimeError: Failed to bind to address 127.0.0.1:50051", PortInUseError),
    ],
)
def test_a_cause_that_a_run_treats_otherwise_has_an_error_of_its_own(
    log: str, error: type[ServerStartError]
) -> None:
    assert why_not_started("ended with status 1", log).error is error


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
    assert why_not_started(ending, "MemoryError\n", status=-9).says == "out of memory"
    # The engine may have handled the error long before the kernel killed it.
    handled = why_not_started(ending, f"ConnectionError: no statistics sent\n{loading}", status=-9)
    assert "make more memory available" in handled.advice


def test_a_log_of_one_long_word_is_read_as_any_other() -> None:
    """A pattern that begins anew at each of its letters would take minutes."""
    assert why_not_started("ended with status 1", "a" * 2**16).says == "unknown cause"
