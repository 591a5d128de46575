"""Find out from a server's log why the server didn't start.

A cause is named only if the log has words that no other failure writes. If the log has no such
words, the first error of the log is quoted, because the errors after it are often its consequences.
"""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from specreg.core.commands import specreg_command
from specreg.core.errors import ModelNotFetchedError, PortInUseError, ServerStartError
from specreg.servers.interpreters import PYTHON_CHOICE

_QUOTE_CHARACTERS = 300
"""The length to which the quote of an exception is cut."""
_MESSAGE_LINES = 5
"""How many lines of an exception's message are read. The first line is not enough: pydantic names
the cause on its second line, and huggingface_hub on the third or a later one."""
_TAIL_LINES = 40
"""How many of the last lines are searched before the whole log. An early line may report a problem
that the server got over."""
_NEW_ENVIRONMENT = (
    "delete the engine's environment in specreg's cache (usually ~/.cache/specreg), so that it is"
    " made anew, or repair it if you made it yourself"
)
_NEWER_ENGINE = (
    "use a newer version of the engine (--specreg-engine-version, or a side of a gate), or the"
    f" Python of an environment that has a newer Transformers ({PYTHON_CHOICE})"
)
_COMPILERS = f"{specreg_command('doctor')} says which nvcc the server finds"
_MORE_SHARED_MEMORY = (
    "a container gets 64 MB of /dev/shm unless it is started with --ipc=host or --shm-size=16g"
)
_DOCTOR = f"run {specreg_command('doctor')}, which says what the driver shows"
_LOADS = r"^(?!.*Ignore import).*"
"""The beginning of any line but those that SGLang logs for each model that it can't load, after
which it starts anyway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCause:
    r"""A cause of failed starts, and the words by which a log shows it.

    Attributes:
        says: what is wrong; `\1` stands for the text of the first group in `words` that has
            matched.
        words: regular expressions for words that a log has for this cause only, each with its
            source: an issue or a pull request on GitHub that shows the words, the program from
            which they were recorded, or the file that writes them.
        advice: what to do.
        error: the class of the error that is raised for this cause.
    """

    says: str
    words: Mapping[str, str]
    advice: str
    error: type[ServerStartError] = ServerStartError


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailure:
    """Why a server didn't start.

    Attributes:
        says: what is wrong.
        advice: what to do.
        error: the class of the error that is raised.
        is_known: False if the log shows neither a cause nor an error.
    """

    says: str
    advice: str
    error: type[ServerStartError] = ServerStartError
    is_known: bool = True


KNOWN_CAUSES = (
    KnownCause(
        says="out of memory, no room is left for the KV cache",
        words={
            r"No available memory for the cache": "vllm-project/vllm#2248",
            r"can be stored in (?:the )?KV cache": "vllm-project/vllm#2418",
            r"the available KV cache memory": "vllm-project/vllm#34076",
            r"Not enough memory\. Please try to increase": "sgl-project/sglang#4330",
        },
        advice=(
            "raise gpu_memory_frac, or lower max_model_len_tokens or max_sequences in the tier"
        ),
    ),
    KnownCause(
        says="out of memory",
        words={
            r"out of memory": "vllm-project/vllm#14095",
            r"Cannot allocate memory": "vllm-project/vllm#16142",
            r"is less than desired GPU memory": "ovg-project/kvcached#29",
        },
        advice="free memory, or lower gpu_memory_frac or max_model_len_tokens in the tier",
    ),
    KnownCause(
        says="too little shared memory, /dev/shm",
        words={
            r"shared memory segment /dev/shm": "llm-d/llm-d#352",
            # Python's shared memory, which vLLM uses.
            r"Bus error": "vllm-project/vllm#1771",
        },
        advice=_MORE_SHARED_MEMORY,
    ),
    KnownCause(
        says="a disk is full",
        words={r"No space left on device": "bentoml/OpenLLM#754"},
        advice="make room in the caches, in the temporary folder and in /dev/shm",
    ),
    KnownCause(
        says="a model brings code of its own",
        words={
            r"the argument `trust_remote_code=True`": "recorded: vLLM 0.32.0",
            r"requires you to execute the": "vllm-project/vllm#6215",
        },
        advice=(
            "name another model, or read that code and set trust_remote_code = true in the tier"
        ),
    ),
    KnownCause(
        says=r"the model is newer than the engine's Transformers, which lacks \1",
        words={
            r"model type `([^`\n]+)` but Transformers does not recognize": (
                "vllm-project/vllm#19793"
            ),
            r"Tokenizer class (\w+) does not exist": "hiyouga/LlamaFactory#10310",
        },
        advice=_NEWER_ENGINE,
    ),
    KnownCause(
        says=r"the engine doesn't support the architecture \1",
        words={
            r"Model architectures (\[[^\]\n]*\]) are not supported": "vllm-project/vllm#10481",
            # Models that the engine leaves to Transformers.
            r"\b(\w{1,200}) has no vLLM implementation and": "vllm-project/vllm#15006",
            r"\b(\w{1,200}) has no SGlang implementation and": "sglang/srt/model_loader/utils.py",
            r"Unknown architecture for \w+: (\w+)": "NVIDIA/TensorRT-LLM#4937",
        },
        advice="use a version of the engine that has it, or another model",
    ),
    KnownCause(
        says="max_model_len_tokens is more than the model's context",
        words={
            r"rror[:,] User-specified max_model_len": "vllm-project/vllm#3676",
            # It begins with "error", because SGLang also writes the words after it in a mere
            # warning, and goes on.
            r"rror: Warning: User-specified context_length": "sglang/srt/configs/model_config.py",
        },
        advice="lower max_model_len_tokens in the tier",
    ),
    KnownCause(
        says="the GPU's compute capability is too low for the model's data type or the settings",
        words={
            r"compute capability of at least": "vllm-project/vllm#1157",
            r"Quantization scheme is not supported": "vllm-project/vllm#14040",
            r"not supported for the current GPU": "vllm-project/vllm#14154",
        },
        advice="look at dtype and engine_args in the tier, or use another model or GPU",
    ),
    KnownCause(
        says="the model's quantization doesn't fit the settings",
        words={
            r"Unknown quantization method": "vllm-project/vllm#1919",
            r"is not supported for quantization method": "vllm-project/vllm#28857",
            r"does not match the quantization method": "vllm-project/vllm#5842",
        },
        advice="look at dtype and engine_args in the tier, or use another model",
    ),
    KnownCause(
        says="the driver and its libraries are of different versions",
        words={
            r"NVML/RM version mismatch": "vllm-project/vllm#29737",
            r"unsupported display driver / cuda driver": "gpustack/gpustack#4678",
        },
        advice="reload the driver or reboot",
    ),
    KnownCause(
        says="the driver is older than the engine's CUDA",
        words={
            r"driver on your system is too old": "modelscope/FunASR#2973",
            r"driver version is insufficient": "ovg-project/kvcached#74",
            r"with an unsupported toolchain": "vllm-project/vllm#31700",
            r"forward compatibility was attempted": "gpustack/gpustack#1540",
        },
        advice="install a newer driver, or use a version of the engine for an older CUDA",
    ),
    KnownCause(
        says="it sees no GPU",
        words={
            r"Found no NVIDIA driver": "bentoml/OpenLLM#746",
            r"No CUDA GPUs are available": "vllm-project/vllm#14413",
            r"Failed to infer device type": "vllm-project/vllm#12847",
            r"No accelerator \(CUDA": "sgl-project/sglang#27487",
            r"libcuda\.so\S*: cannot open": "MeetKai/functionary#182",
        },
        advice=_DOCTOR,
    ),
    KnownCause(
        says="it was built for other GPUs",
        words={r"no kernel image is available": "vllm-project/vllm#16901"},
        advice="use a version of the engine that has kernels for this GPU",
    ),
    KnownCause(
        says="the GPU's memory is broken",
        words={r"uncorrectable ECC": "vllm-project/vllm#5222"},
        advice="look at the kernel's log (dmesg) for Xid",
    ),
    KnownCause(
        says="another process uses the GPU exclusively",
        words={r"device\(s\) is/are busy": "hiyouga/LlamaFactory#10240"},
        advice="end that process, or choose another GPU with CUDA_VISIBLE_DEVICES",
    ),
    KnownCause(
        says="unknown or refused argument",
        words={
            r"error: unrecognized arguments": "vllm-project/vllm#27389",
            r"error: argument ": "vllm-project/vllm#9312",
            r"error: the following arguments are required": "vllm-project/vllm#13150",
            # Triton hands the arguments to vLLM's class.
            r"EngineArgs\.__init__\(\) got an unexpected keyword": "vllm-project/vllm#23283",
            # A "value error" is left out, because the engine's own checks raise it for any reason.
            r"validation errors? for SpeculativeConfig\n.+\n.*\[type=(?!value_error|assertion)": (
                "recorded: vLLM 0.32.0"
            ),
        },
        advice=(
            "look at engine_args and the method's settings; another version may have other names"
            " for them"
        ),
    ),
    KnownCause(
        says="port in use",
        words={
            r"[Aa]ddress already in use": "vllm-project/vllm#7514",
            r"Socket '[^'\n]*' already in use": "triton-inference-server/tensorrtllm_backend#524",
            r"[Pp]ort is already in use": "sglang/srt/server_args.py",
            r"\bat \d+ is not available in \d+ seconds": "sglang/srt/utils/network.py",
        },
        advice="end the program that has it, or run again: another port is chosen",
        error=PortInUseError,
    ),
    KnownCause(
        says="its kernels are missing, or are of another version",
        words={
            r"No module named 'sgl_kernel'": "sgl-project/sglang#3687",
            r"ImportError: sgl_kernel: the stand-in": "tests/sglang_cpu/sgl_kernel/__init__.py",
        },
        advice=(
            "SGLang's kernels need a GPU; on a machine without one, set engine_env as"
            " fixtures/matrix/sglang_cpu.toml does"
        ),
    ),
    KnownCause(
        says="the container runtime can't give a container GPUs",
        words={r"could not select device driver": "NixOS/nixpkgs#337873"},
        advice="install the NVIDIA Container Toolkit, and restart docker's daemon",
    ),
    KnownCause(
        says="podman has no description of this machine's GPUs",
        words={
            r"unresolvable CDI devices": "NVIDIA/nvidia-container-toolkit#146",
            r"stat nvidia\.com/gpu": "NVIDIA/nvidia-container-toolkit#63",
        },
        advice="write it: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    KnownCause(
        says="CUDA's compiler, nvcc, is missing",
        words={
            r"Could not find nvcc": "flashinfer-ai/flashinfer#1919",
            r"CUDA_HOME environment variable is not set": "sgl-project/sglang#3553",
            r"\bnvcc: not found": "vllm-project/vllm#21960",
            r"No such file or directory: '(?:[^'\n]*/)?nvcc'": "flashinfer-ai/flashinfer#1781",
        },
        advice=f"unset CUDA_HOME, or set it to the folder of a CUDA toolkit; {_COMPILERS}",
    ),
    KnownCause(
        says="CUDA's compiler and its headers are of different releases",
        words={
            r"CUDA compiler and CUDA toolkit headers are incompatible": (
                "flashinfer-ai/flashinfer#3493"
            )
        },
        advice=f"use a toolkit whose nvcc and headers are of one release; {_COMPILERS}",
    ),
    KnownCause(
        says="ninja is missing",
        words={
            r"Ninja is required": "sgl-project/sglang#2514",
            r"No such file or directory: 'ninja'": "transformerlab/transformerlab-api#381",
        },
        advice=f"install ninja, or {_NEW_ENVIRONMENT}",
    ),
    KnownCause(
        says="a C or C++ compiler is missing",
        words={
            r"Failed to find C compiler": "vllm-project/vllm#15329",
            r"InvalidCxxCompiler": "pytorch/pytorch#92745",
        },
        advice="install gcc and g++, or name a compiler in CC and CXX",
    ),
    KnownCause(
        says="Python's headers are missing",
        words={r"Python\.h: No such file": "vllm-project/vllm#27890"},
        advice="install them (python3-dev), or use an interpreter that has them",
    ),
    KnownCause(
        says=r"needs a newer system library, one with \1",
        words={r"version `(\S+)' not found \(required by": "vllm-project/vllm#15592"},
        advice="run it on a newer system, or use another version of the engine",
    ),
    KnownCause(
        says="MPI's library, libmpi, is missing",
        words={r"libmpi\S*: cannot open shared": "NVIDIA/TensorRT-LLM#167"},
        advice="install it for the whole system (libopenmpi3, openmpi), as TensorRT-LLM needs it",
    ),
    KnownCause(
        says=r"lacks the package \1",
        words={
            rf"{_LOADS}NotFoundError: No module named '([\w.]+)": "sgl-project/sglang#13276",
            r"python[\d.]*: No module named ([\w.]+)": "recorded: Python 3.11",
            # Transformers writes these if a model's code or a file format needs a package.
            r"packages that were not found in your environment: ([\w-]+)": (
                "OpenCSGs/llm-inference#87"
            ),
            r"requires the (\S+) library but it was not found": "vllm-project/vllm#7182",
        },
        advice=(
            f"install it in an environment of your own and name its Python ({PYTHON_CHOICE}), or"
            f" {_NEW_ENVIRONMENT}"
        ),
    ),
    KnownCause(
        says="broken engine environment",
        words={
            rf"{_LOADS}ImportError": "vllm-project/vllm#16995",
            rf"{_LOADS}undefined symbol": "vllm-project/vllm#20361",
            rf"{_LOADS}cannot open shared object": "vllm-project/vllm#1738",
        },
        advice=_NEW_ENVIRONMENT,
    ),
    KnownCause(
        says="model can't be fetched",
        words={
            r"RepositoryNotFoundError": "vast-ai/base-image#128",
            r"gated repo|\b40[13] Client Error": "sgl-project/sglang#14644",
            r"offline mode": "huggingface_hub/utils/_http.py",
            r"not a valid model identifier": "transformers/utils/hub.py",
            # vLLM writes this for any problem with the hub.
            r"Invalid repository ID": "vllm-project/vllm#13510",
            r"host='huggingface\.co'": "vllm-project/vllm#1432",
        },
        advice="check the model's name, the network, and HF_TOKEN if it is gated or private",
        error=ModelNotFetchedError,
    ),
    KnownCause(
        says="a file of the model's weights is broken",
        words={r"Error while deserializing header": "QwenLM/Qwen3-VL#264"},
        advice=(
            "fetch it again; a repository that was cloned without git-lfs holds only pointers to"
            " its files"
        ),
    ),
    KnownCause(
        says="model not found",
        words={
            r"does not appear to have": "vllm-project/vllm#4416",
            r"Cannot find any model weights": "vllm-project/vllm#3329",
            r"Should have a `model_type` key": "vllm-project/vllm#15120",
            r"Can't load the configuration of": "transformers/configuration_utils.py",
        },
        advice="check the model's name or folder",
    ),
    KnownCause(
        says="NCCL, which connects the GPUs, failed",
        # Without NCCL_DEBUG, this is all that it writes.
        words={r"NCCL error": "vllm-project/vllm#7800"},
        advice=f"{_MORE_SHARED_MEMORY}; else set NCCL_DEBUG=INFO in engine_env and read the log",
    ),
)
"""The known causes. The first one whose words are in a text is named, so a special cause comes
before a general one."""

_LINE = re.compile(
    # The process that wrote the line, as vLLM, Ray and the ranks of torch name it.
    r"(?P<process>(?:\([^()\n]*pid=\d+[^()\n]*\) ?)*(?:\[rank\d+\]: ?)?)"
    r"(?:(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL)\b:?(?: [\d :.,-]+\[[^\]\n]*\] ?)?)?"
    r"(?P<text>.*)"
)
_QUIET_LEVELS = {"DEBUG", "INFO", "WARNING"}
"""The levels of lines that a server also writes when it starts without a problem."""
_EXCEPTION = re.compile(
    r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)(?:: .+)?|Fatal Python error: .+"
    r"|.{0,300}\b[Aa]ssertion .{0,300}\bfailed.{0,300}| *what\(\): .+"
)
"""A line that reports an exception without a traceback above it, a crash of Python itself, or an
assertion or exception of C++."""
_TRACEBACK = "Traceback (most recent call last):"
_ENDS_MESSAGE = ("During handling of the above", "The above exception was", "[20")
"""The beginnings of lines that follow an exception's message: Python introduces the next exception,
or SGLang begins its next line with the time."""
_POINTERS = re.compile(
    r"[Ss]ee (?:the )?(?:root cause|stack trace|error messages? above)|EngineDeadError"
    r"|[Cc]heck the logs for more details|scheduler (?:is dead|died)|Engine core init"
    r"|^(?:SystemExit|KeyboardInterrupt|asyncio\.\w*CancelledError|concurrent\.futures)"
    r"|(?:CalledProcess|ChildFailed)Error",
    re.MULTILINE,
)
"""Exceptions that only say that something else failed, and not why."""


@dataclass(slots=True, kw_only=True)
class LoggedException:
    """An exception in a log.

    Attributes:
        level: the level at which it was logged; None if it was printed.
        frame: the last line of its traceback that names a file.
        source: the line of source code below `frame`.
        message: the lines of its message, the type in the first; empty while its traceback is read.
    """

    level: str | None = None
    frame: str = ""
    source: str = ""
    message: list[str] = field(default_factory=list)

    @property
    def quote(self) -> str:
        """Its type and its message in one line, cut to `_QUOTE_CHARACTERS`."""
        lines = self.message

        # An assertion without a message says nothing but its source.
        if lines[0] == "AssertionError" and self.source:
            return f"AssertionError: {self.source}"[:_QUOTE_CHARACTERS]

        # All lines of pydantic's errors are quoted, because the first one only counts the errors.
        if "validation error" not in lines[0]:
            lines = lines[:1]
        line = " ".join(text.strip() for text in lines)
        line = line.partition(" [type=")[0]
        return line if len(line) <= _QUOTE_CHARACTERS else f"{line[:_QUOTE_CHARACTERS]}…"


class LogReading:
    """The exceptions and error lines of a log.

    All processes of a server write into one log, and their lines may alternate. The name of the
    process at the beginning of a line tells their tracebacks apart.

    Attributes:
        exceptions: the exceptions in the order of the log, without those that only point to
            another one.
        lines: the lines, without the frames of tracebacks and without debug messages, infos and
            warnings.
        _exceptions: all exceptions in the order of the log.
        _reading: the exception whose lines are being read, by process.
    """

    def __init__(self, log: str) -> None:
        """Read a log."""
        self.lines: list[str] = []
        self._exceptions: list[LoggedException] = []
        self._reading: dict[str, LoggedException] = {}
        for line in log.splitlines():
            match = _LINE.fullmatch(line)
            if match is not None:
                self._read(match)

    @property
    def exceptions(self) -> list[LoggedException]:
        """The exceptions that say what is wrong, in the order of the log."""
        return [
            exception
            for exception in self._exceptions
            if not _POINTERS.search("\n".join(exception.message))
        ]

    def _read(self, match: re.Match[str]) -> None:
        """Read a line, which may be part of a traceback or of an exception's message."""
        process = match["process"]
        level = match["level"]
        text = match["text"]
        exception = self._reading.get(process)

        # The line is the head of a traceback.
        if text.endswith(_TRACEBACK):
            self._reading[process] = LoggedException(level=level)
            return

        # The line is part of a traceback's frames, which are indented.
        reads_frames = exception is not None and not exception.message
        if exception is not None and reads_frames and text.startswith((" ", "\t")):
            if text.lstrip().startswith("File "):
                exception.frame = text.strip()
                exception.source = ""
            elif not exception.source:
                exception.source = text.strip()
            return

        # Any other line may report an exception, or continue the message of one.
        if level in _QUIET_LEVELS:
            return
        self.lines.append(match.string)
        if exception is None and _EXCEPTION.fullmatch(text):
            exception = LoggedException(level=level)
            self._reading[process] = exception
        if exception is not None and level == exception.level and text:
            self._extend(process, exception, text)

    def _extend(self, process: str, exception: LoggedException, text: str) -> None:
        """Add a line to an exception's message, unless the message has ended."""
        if text.startswith(_ENDS_MESSAGE) or len(exception.message) == _MESSAGE_LINES:
            del self._reading[process]
            return
        if not exception.message:
            self._exceptions.append(exception)
        exception.message.append(text)


def why_not_started(problem: str, log: str, *, status: int | None = None) -> StartFailure:
    """Return why a server didn't start.

    Args:
        problem: what is known without the log: how the server ended, or what it answered.
        log: the end of its log. It should be long, because the cause may be far above the last
            lines.
        status: the status with which it ended, or the negative number of the signal that killed
            it; None if it still runs.
    """
    reading = LogReading(log)
    exceptions = reading.exceptions

    # The last exception comes first, because the engine may have handled those before it.
    tracebacks = [
        "\n".join((exception.frame, *exception.message)) for exception in reversed(exceptions)
    ]
    tail = "\n".join(reading.lines[-_TAIL_LINES:])
    whole_log = "\n".join(reading.lines)

    # The text that most surely holds the cause is searched first.
    for text in (problem, *tracebacks, tail, whole_log):
        failure = _known_failure(text)
        if failure is not None:
            return failure

    advice = "read the log"
    says = "unknown cause"
    if status == -signal.SIGKILL:
        # The kernel kills a process when memory runs short. SGLang kills itself with the same
        # signal when one of its processes fails.
        advice = "read the log; if it has no other cause, make more memory available"
        says = "killed by SIGKILL"

    if exceptions:
        says = f"its first error is '{exceptions[0].quote}'"
    return StartFailure(says=says, advice=advice, is_known=bool(exceptions))


def _known_failure(text: str) -> StartFailure | None:
    """Return the failure with the first known cause that a text shows; None if it shows none."""
    for cause in KNOWN_CAUSES:
        matches = [*re.finditer("|".join(cause.words), text, re.MULTILINE)]
        if matches:
            # The last match is quoted, because an earlier one didn't stop the server.
            groups = [group for group in matches[-1].groups() if group is not None]
            first_group = groups[0] if groups else ""
            says = cause.says.replace(r"\1", first_group)
            return StartFailure(says=says, advice=cause.advice, error=cause.error)
    return None
