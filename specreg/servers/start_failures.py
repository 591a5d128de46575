"""Why a server doesn't start: what it said in; the kind of failure and what to do out."""

import re

from specreg.core.errors import ServerStartError
from specreg.core.logs import log_end
from specreg.servers.server import StartedServer

PORT_IN_USE = "port in use"
NOT_FETCHED = "model can't be fetched"

_OF_A_WORKER = "the log has more of it; if it is the engine's own fault, take another version"

# Kind of failure, how to know it, what to do. The first that matches wins.
_FAILURES = (
    (
        "out of memory",
        r"out of memory|annot allocate|OutOfMemoryError|No available memory",
        "free memory, or lower gpu_memory_frac or max_model_len_tokens in the matrix",
    ),
    (
        "a model brings code of its own",
        r"the argument `trust_remote_code=True`|requires you to execute the",  # in transformers
        "name another model, or read that code and set trust_remote_code = true in the matrix",
    ),
    (
        "it refuses speculation",
        r"spec decode is not supported",  # vLLM's runner for CPUs, up to 0.16
        "take a newer version, or measure without: -k none",
    ),
    (
        r"its worker failed, \1",  # vLLM's API server sees no more of it
        r"Worker failed with error '((?!No module).+?)', please check",
        _OF_A_WORKER,
    ),
    (
        "unknown or refused argument",
        (
            "unrecognized arg|invalid choice|error: arg|(?<!HF)ValidationError"
            r"|__init__\(\) got an unexpected keyword arg"
        ),
        "look at engine_args and the method's settings; another version may spell them otherwise",
    ),
    (
        PORT_IN_USE,
        r"already in use|Errno 98",
        "run again: another program took its port each time",
    ),
    (
        "its kernels are missing",
        r"No module named 'sgl_kernel'",
        "SGLang's are for GPUs; without one set engine_env as fixtures/matrix/sglang_cpu.toml",
    ),
    (
        "the stand-in for its kernels is of another version",
        r"ImportError: sgl_kernel: the stand-in",
        "take the version that the log names",
    ),
    (
        r"needs a newer system library, one with \1",
        r"version `(\S+)' not found \(required by",
        "run it on a newer system, or take another version of the engine",
    ),
    (
        r"lacks the module '\1'",
        # SGLang says "Ignore import error" of the models that it does without.
        r"(?m)^(?!.*Ignore import).*(?:NotFoundError|python[\d.]*): No module named '?([\w.]+)",
        "install its package there, or delete the folder in the cache (docs/commands.md)",
    ),
    (
        "broken engine environment",
        r"(?m)^(?!.*Ignore import).*(No module named|ModuleNotFound|ImportError|undefined symbol)",
        "delete its folder in the cache (docs/commands.md), or mend it if it is your own",
    ),
    (
        NOT_FETCHED,
        # The words of huggingface_hub, transformers and, of any trouble with the hub, vLLM 0.32.0.
        (
            r"(Repository|Entry)NotFound|[Gg]ated ?[Rr]epo|offline mode|not a valid model"
            r"|(connect to|reach) .?https?://|Invalid repository ID"
        ),
        "check the model's name, the network, and HF_TOKEN where it is gated or private",
    ),
    (
        "model not found",
        r"does not appear to have",
        "check the model's name or folder",
    ),
    (
        r"its worker failed, \1",
        r"EngineCore\S* pid=\d+\)\S* ERROR .*\] (\w+Error: .+)",
        _OF_A_WORKER,
    ),
)


def start_error(server: StartedServer, what: str) -> ServerStartError:
    """The error of a start that came to nothing, with the kind of failure that its logs show."""
    tail = server.log_tail()
    # The cause may stand far above the traceback of whoever noticed.
    texts = (f"{what}\n{tail}", log_end(server.log_path))
    known = (
        (match.expand(failure), advice)
        for text in texts
        for failure, pattern, advice in _FAILURES
        for match in [*re.finditer(pattern, text)][-1:]  # above it stands what it did without
    )
    # SGLang kills itself so too when a part of it fails.
    killed = ("killed", "free memory if the log says nothing else")
    unknown = killed if "status -9" in what else ("unknown cause", "read the log")
    failure, advice = next(known, unknown)
    return ServerStartError(
        f"server '{server.spec.id}'", f"{what}: {failure}", advice, server.log_path, tail
    )
