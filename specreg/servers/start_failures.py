"""Find out from a server's log why the server didn't start.

A cause is named only if the log has words that no other failure writes. If the log has no such
words, the first error of the log is quoted, because the errors after it are often its consequences.
"""

import re
import signal
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


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCause:
    r"""A cause of failed starts, and the words by which a log shows it.

    Attributes:
        says: What is wrong; `\1` stands for the text of the first group in `pattern` that has
            matched.
        pattern: A regular expression for words that a log has for this cause only.
        advice: What to do.
        error: The class of the error that is raised for this cause.
    """

    says: str
    pattern: str
    advice: str
    error: type[ServerStartError] = ServerStartError


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFailure:
    """Why a server didn't start.

    Attributes:
        says: What is wrong.
        advice: What to do.
        error: The class of the error that is raised.
        is_known: False if the log shows neither a cause nor an error.
    """

    says: str
    advice: str
    error: type[ServerStartError] = ServerStartError
    is_known: bool = True


_CAUSES = (
    KnownCause(
        says="out of memory, no room is left for the KV cache",
        # The words of older and newer versions of vLLM, and of SGLang.
        pattern=(
            r"No available memory for the cache|the available KV cache memory"
            r"|can be stored in (?:the )?KV cache|Not enough memory\. Please try to increase"
        ),
        advice=(
            "raise gpu_memory_frac, or lower max_model_len_tokens or max_sequences in the tier"
        ),
    ),
    KnownCause(
        says="out of memory",
        pattern=(
            r"out of memory|annot allocate|can't allocate memory|OutOfMemoryError|MemoryError"
            r"|No available memory|is less than desired GPU memory|std::bad_alloc"
        ),
        advice="free memory, or lower gpu_memory_frac or max_model_len_tokens in the tier",
    ),
    KnownCause(
        says="too little shared memory, /dev/shm",
        # The words of NCCL, of PyTorch, and of Python's shared memory, which vLLM uses.
        pattern=(
            r"shared memory segment /dev/shm|extend /dev/shm/nccl|insufficient shared memory"
            r"|[Bb]us error"
        ),
        advice=_MORE_SHARED_MEMORY,
    ),
    KnownCause(
        says="a disk is full",
        pattern=r"No space left on device|Errno 28\b",
        advice="make room in the caches, in the temporary folder and in /dev/shm",
    ),
    KnownCause(
        says="a model brings code of its own",
        pattern=r"the argument `trust_remote_code=True`|requires you to execute the",
        advice=(
            "name another model, or read that code and set trust_remote_code = true in the tier"
        ),
    ),
    KnownCause(
        says=r"the model's type '\1' is newer than the engine's Transformers",
        pattern=(
            r"model type `([^`\n]+)` but Transformers does not recognize"
            # An older Transformers looks the type up in a table.
            r"|configuration_auto\.py\", line \d+, in \w+\nKeyError: '([^'\n]+)'"
        ),
        advice=_NEWER_ENGINE,
    ),
    KnownCause(
        says=r"the model's tokenizer \1 is newer than the engine's Transformers",
        pattern=r"Tokenizer class (\w+) does not exist",
        advice=_NEWER_ENGINE,
    ),
    KnownCause(
        says="the model's config.json names no type that the engine's Transformers has",
        pattern=r"Should have a `model_type` key",
        advice=f"check the model's name or folder, or {_NEWER_ENGINE}",
    ),
    KnownCause(
        says=r"the engine doesn't support the architecture \1",
        # The words of vLLM and SGLang; their words for a model that they leave to Transformers; and
        # the words of TensorRT-LLM.
        pattern=(
            r"Model architectures (\[[^\]\n]*\]) are not supported"
            r"|\b(\w{1,200}) has no (?:vLLM|SG[Ll]ang) implementation and"
            r"|Unknown architecture for \w+: (\w+)"
        ),
        advice="use a version of the engine that has it, or another model",
    ),
    KnownCause(
        says="max_model_len_tokens is more than the model's context",
        # The pattern begins with "error", because SGLang also writes the words after it in a mere
        # warning, and goes on.
        pattern=r"rror[:,] (?:Warning: )?User-specified (?:max_model_len|context_length)",
        advice="lower max_model_len_tokens in the tier",
    ),
    KnownCause(
        says="the GPU's compute capability is too low for the model's data type or the settings",
        pattern=(
            r"[Cc]ompute capability of at least|for the current GPU\. Min"
            r"|[Qq]uantization scheme is not supported|not supported for the current GPU"
            r"|requires? (?:a GPU with )?(?:CUDA )?compute capability"
        ),
        advice="look at dtype and engine_args in the tier, or use another model or GPU",
    ),
    KnownCause(
        says="the model's quantization doesn't fit the settings",
        pattern=(
            r"Unknown quantization method|is not supported for quantization method"
            r"|does not match the quantization method"
        ),
        advice="look at dtype and engine_args in the tier, or use another model",
    ),
    KnownCause(
        says="the driver and its libraries are of different versions",
        pattern=(
            r"[Dd]river/library version mismatch|NVML/RM version mismatch"
            r"|unsupported display driver / cuda driver"
        ),
        advice="reload the driver or reboot",
    ),
    KnownCause(
        says="the driver is older than the engine's CUDA",
        pattern=(
            r"driver on your system is too old|driver version is insufficient"
            r"|with an unsupported toolchain|forward compatibility was attempted"
        ),
        advice="install a newer driver, or use a version of the engine for an older CUDA",
    ),
    KnownCause(
        says="it sees no GPU",
        pattern=(
            r"Found no NVIDIA driver|No CUDA GPUs are available|Failed to infer device type"
            r"|no CUDA-capable device|CUDA driver initialization failed|libcuda\.so\S*: cannot open"
        ),
        advice=_DOCTOR,
    ),
    KnownCause(
        says="it was built for other GPUs",
        pattern=r"no kernel image is available|CUDA capability sm_\d+ is not compatible",
        advice="use a version of the engine that has kernels for this GPU",
    ),
    KnownCause(
        says="the GPU is lost or broken",
        pattern=r"uncorrectable ECC|GPU is lost|fallen off the bus",
        advice="look at the kernel's log (dmesg) for Xid",
    ),
    KnownCause(
        says="another process uses the GPU exclusively",
        pattern=r"device\(s\) is/are busy",
        advice="end that process, or choose another GPU with CUDA_VISIBLE_DEVICES",
    ),
    KnownCause(
        says="unknown or refused argument",
        # The words of argparse, of the classes that hold the arguments, and of pydantic about a
        # field of such a class. pydantic's "value error" is left out, because the engine's own
        # checks raise it for any reason.
        pattern=(
            r"error: unrecognized arg|error: arg|invalid choice:|error: ambiguous option"
            r"|error: the following arguments are required"
            r"|(?:EngineArgs|ServerArgs|SpeculativeConfig)\.__init__\(\) got an unexpected keyword"
            r"|validation errors? for (?:\w*LlmArgs|(?:Speculative|Model|Cache|Parallel|Scheduler"
            r"|Load|Compilation|Vllm|\w*Decoding)Config)\n"
            r".+\n.*\[type=(?!value_error|assertion_error)"
        ),
        advice=(
            "look at engine_args and the method's settings; another version may have other names"
            " for them"
        ),
    ),
    KnownCause(
        says="port in use",
        pattern=(
            r"[Aa]ddress already in use|Errno 98\b|[Pp]ort (?:\d+ )?is (?:already )?in use"
            r"|ADDRINUSE|Socket '[^'\n]*' already in use|Failed to bind to address"
            # SGLang writes this about each of its ports.
            r"|\bat \d+ is not available in \d+ seconds"
        ),
        advice="end the program that has it, or run again: another port is chosen",
        error=PortInUseError,
    ),
    KnownCause(
        says="its kernels are missing, or are of another version",
        pattern=r"No module named 'sgl_kernel'|ImportError: sgl_kernel: the stand-in",
        advice=(
            "SGLang's kernels need a GPU; on a machine without one, set engine_env as"
            " fixtures/matrix/sglang_cpu.toml does"
        ),
    ),
    KnownCause(
        says="CUDA's compiler, nvcc, is missing",
        pattern=(
            r"Could not find nvcc|CUDA_HOME (?:environment variable )?is not set"
            r"|\bnvcc: (?:command )?not found|No such file or directory: '(?:[^'\n]*/)?nvcc'"
        ),
        advice=f"unset CUDA_HOME, or set it to the folder of a CUDA toolkit; {_COMPILERS}",
    ),
    KnownCause(
        says="CUDA's compiler and its headers are of different releases",
        pattern=r"CUDA compiler and CUDA toolkit headers are incompatible",
        advice=f"use a toolkit whose nvcc and headers are of one release; {_COMPILERS}",
    ),
    KnownCause(
        says="ninja is missing",
        pattern=(
            r"Ninja is required|\bninja: (?:command )?not found"
            r"|No such file or directory: '(?:[^'\n]*/)?ninja'"
        ),
        advice=f"install ninja, or {_NEW_ENVIRONMENT}",
    ),
    KnownCause(
        says="a C or C++ compiler is missing",
        pattern=(
            r"Failed to find C compiler|No working C\+\+ compiler|InvalidCxxCompiler"
            r"|(?:gcc|g\+\+|c\+\+|clang\+*): (?:command )?not found"
            r"|No such file or directory: '(?:[^'\n]*/)?(?:gcc|g\+\+|c\+\+|cc|clang\+*)'"
        ),
        advice="install gcc and g++, or name a compiler in CC and CXX",
    ),
    KnownCause(
        says="Python's headers are missing",
        pattern=r"Python\.h: No such file",
        advice="install them (python3-dev), or use an interpreter that has them",
    ),
    KnownCause(
        says=r"needs a newer system library, one with \1",
        pattern=r"version `(\S+)' not found \(required by",
        advice="run it on a newer system, or use another version of the engine",
    ),
    KnownCause(
        says="MPI's library, libmpi, is missing",
        pattern=r"libmpi\S*: cannot open shared|cannot load MPI library",
        advice="install it for the whole system (libopenmpi3, openmpi), as TensorRT-LLM needs it",
    ),
    KnownCause(
        says=r"lacks the package \1",
        # Transformers writes this if a model's code or a file format needs another package.
        pattern=(
            r"packages that were not found in your environment: ([\w.-]+)"
            r"|requires the (\S+) library but it was not found"
        ),
        advice=f"install it in an environment of your own, and name its Python ({PYTHON_CHOICE})",
    ),
    KnownCause(
        says=r"lacks the module '\1'",
        # SGLang logs "Ignore import error" for each model that it can't load, and starts anyway.
        pattern=(
            r"(?m)^(?!.*Ignore import).*"
            r"(?:NotFoundError|python[\d.]*): No module named '?([\w.]+)"
        ),
        advice=f"install its package in the engine's environment, or {_NEW_ENVIRONMENT}",
    ),
    KnownCause(
        says="broken engine environment",
        pattern=(
            r"(?m)^(?!.*Ignore import).*"
            r"(?:No module named|ModuleNotFound|ImportError|undefined symbol|cannot open shared)"
        ),
        advice=_NEW_ENVIRONMENT,
    ),
    KnownCause(
        says="model can't be fetched",
        # The words of huggingface_hub and transformers, and those of vLLM 0.32.0 for any problem
        # with the hub.
        pattern=(
            r"(?:Repository|Entry)NotFound|[Gg]ated ?[Rr]epo|offline mode|not a valid model"
            r"|(?:connect to|reach) .?https?://|Invalid repository ID|host='huggingface\.co'"
            r"|Access to model \S+ is restricted|\b40[13] Client Error"
        ),
        advice="check the model's name, the network, and HF_TOKEN if it is gated or private",
        error=ModelNotFetchedError,
    ),
    KnownCause(
        says="a file of the model's weights is broken",
        pattern=r"Error while deserializing header|SafetensorError|HeaderTooLarge",
        advice=(
            "fetch it again; a repository that was cloned without git-lfs holds only pointers to"
            " its files"
        ),
    ),
    KnownCause(
        says="model not found",
        pattern=(
            r"does not appear to have|Cannot find any model weights|Incorrect path_or_model_id"
            r"|Can't load the configuration of"
        ),
        advice="check the model's name or folder",
    ),
    KnownCause(
        says="NCCL, which connects the GPUs, failed",
        # Without NCCL_DEBUG, this is all that it writes.
        pattern=r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError",
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
        level: The level at which it was logged; None if it was printed.
        frame: The last line of its traceback that names a file.
        source: The line of source code below `frame`.
        message: The lines of its message, the type in the first; empty while its traceback is read.
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
        exceptions: The exceptions in the order of the log, without those that only point to
            another one.
        lines: The lines, without the frames of tracebacks and without debug messages, infos and
            warnings.
        _exceptions: All exceptions in the order of the log.
        _reading: The exception whose lines are being read, by process.
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
        problem: What is known without the log: how the server ended, or what it answered.
        log: The end of its log. It should be long, because the cause may be far above the last
            lines.
        status: The status with which it ended, or the negative number of the signal that killed
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
    for cause in _CAUSES:
        matches = [*re.finditer(cause.pattern, text)]
        if matches:
            # The last match is quoted, because an earlier one didn't stop the server.
            groups = [group for group in matches[-1].groups() if group is not None]
            first_group = groups[0] if groups else ""
            says = cause.says.replace(r"\1", first_group)
            return StartFailure(says=says, advice=cause.advice, error=cause.error)
    return None
