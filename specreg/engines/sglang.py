"""SGLang: the package `sglang`, whose kernels need a GPU.

The server also starts without a GPU if another package takes the place of the kernels.
`tests/sglang_cpu` has such a package. It only serves to test the protocol, never to measure.
"""

import contextlib
import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec

from specreg.acceptance.record import Copies, Counters, Source
from specreg.acceptance.trace import Body, StreamEvent
from specreg.core.errors import AttachError, UnsupportedError
from specreg.core.files import UNREADABLE
from specreg.core.http import Count, ShortText
from specreg.core.readable import readable_line
from specreg.engines.engine import (
    CUDA_COMPILER,
    Engine,
    Fetch,
    Identity,
    Memory,
    ReadConfig,
    Requirement,
    Site,
    given_flags,
)
from specreg.engines.launch_facts import NONE, LaunchFacts
from specreg.engines.methods import (
    BRANCHES,
    DRAFT,
    DRAFT_TOKENS,
    VERIFIED_TOKENS,
    Setting,
    Spelling,
)
from specreg.engines.repetition import RepeatingStream
from specreg.engines.serve_command import NO_KEY, NO_TLS, OWN_PORT, TARGET, ServeCommand
from specreg.engines.server_spec import ServerSpec
from specreg.engines.wire_format import (
    AnswerSettings,
    Ask,
    Call,
    Event,
    Form,
    MetricsPage,
    ParseEvent,
    Scores,
    SpecTokensDetails,
    TokenApi,
    Transcript,
    WireFormat,
    check_ended_well,
    check_no_error,
    decode_answer,
    decode_event,
    unreadable,
)

_VERIFY_CALLS = "sglang:spec_verify_calls_total"
_GENERATE = "/generate"


class _FinishReason(msgspec.Struct, frozen=True):
    type: ShortText


class _MetaInfo(SpecTokensDetails, frozen=True):
    """The part of an answer of `/generate` that describes it."""

    completion_tokens: Count = 0
    prompt_tokens: Count | None = None
    finish_reason: _FinishReason | None = None
    output_token_ids_logprobs: tuple[tuple[tuple[float, Count, str | None], ...], ...] = ()


class _Event(Event, frozen=True, kw_only=True):
    text: str = ""
    output_ids: tuple[int, ...] | None = None
    meta_info: _MetaInfo = _MetaInfo()


_decoder = msgspec.json.Decoder(_Event)
_EMPTY_EVENT = _Event()


class _Tokens(msgspec.Struct, frozen=True):
    tokens: tuple[Count, ...]


_Word = Annotated[str, msgspec.Meta(max_length=48, pattern=r"^[^\x00-\x1f\x7f]*$")]
"""A word of the server's. Two of them fit into a fact."""


class _Graphs(msgspec.Struct, frozen=True):
    """The CUDA graphs of a phase: `full`, `breakable` or `disabled`."""

    backend: _Word | None = None


class _CudaGraphs(msgspec.Struct, frozen=True):
    prefill: _Graphs = _Graphs()
    decode: _Graphs = _Graphs()


class _ServerInfo(msgspec.Struct, frozen=True):
    """The settings in `/server_info` that the server has chosen itself.

    A phase without a backend of its own has `attention_backend`.
    """

    device: _Word | None = None
    attention_backend: _Word | None = None
    prefill_attention_backend: _Word | None = None
    decode_attention_backend: _Word | None = None
    sampling_backend: _Word | None = None
    disable_overlap_schedule: bool | None = None
    cuda_graph_config: _CudaGraphs | None = None


_SAMPLERS = {None: "", "flashinfer": "on"}
"""The fact about FlashInfer's sampler for each sampling backend; `off` for all others."""
_ASYNC_SCHEDULING = {None: "", True: "off", False: "on"}
"""The fact about asynchronous scheduling for each value of `disable_overlap_schedule`."""


class _Answer(msgspec.Struct, frozen=True):
    output_ids: Annotated[tuple[Count, ...], msgspec.Meta(min_length=1)]
    meta_info: _MetaInfo
    text: str | None = None


class SglangWireFormat(WireFormat, TokenApi):
    """The wire format of SGLang: `/generate`, and OpenAI's endpoint for a chat."""

    request_source: ClassVar[Source | None] = Source.SGLANG_REQUEST
    counters_path: ClassVar[str | None] = "/metrics"
    counters_flag: ClassVar = "--enable-metrics"
    # SGLang refuses a top_k of 0.
    neutral_sampling: ClassVar[Mapping[str, float]] = {**WireFormat.neutral_sampling, "top_k": -1}

    def path(self, ask: Ask) -> str:
        """Return OpenAI's path for a chat, and SGLang's own for any other prompt."""
        if ask.form is Form.CHAT:
            return ask.openai_path
        # `/generate` takes a text or token ids without a template.
        return _GENERATE

    def body(self, ask: Ask) -> Body:
        """Return a body that requests the usage in each chunk, and the record of the drafts.

        `/generate` sends both without a request for them.
        """
        if ask.form is Form.CHAT:
            return {**super().body(ask), "return_spec_tokens_details": True}
        body: dict[str, object] = {"sampling_params": self._sampling_params(ask), "stream": True}
        if ask.token_ids:
            body["input_ids"] = ask.token_ids
        else:
            body["text"] = ask.text

        return body

    def new_parser(self, ask: Ask) -> ParseEvent:
        """Return a parser for the endpoint of the prompt.

        An event of `/generate` either repeats the whole answer so far, or has only its new part.
        """
        if ask.form is Form.CHAT:
            return super().new_parser(ask)
        stream = RepeatingStream()

        def parse_event(event: bytes) -> StreamEvent:
            parsed = decode_event(_decoder, event)
            meta = parsed.meta_info
            finish_reason = None
            if meta.finish_reason is not None:
                finish_reason = meta.finish_reason.type
                check_ended_well(finish_reason, event)

            # An error that isn't in a field `error` decodes as an event without any field.
            if parsed == _EMPTY_EVENT:
                check_no_error(event)
                return StreamEvent()
            added = stream.take(
                text=parsed.text,
                token_ids=parsed.output_ids,
                all_tokens=meta.completion_tokens,
                is_last=meta.finish_reason is not None,
            )
            return StreamEvent(
                tokens=added.tokens,
                text=added.text,
                token_ids=added.token_ids,
                finish_reason=finish_reason,
                usage_tokens=meta.completion_tokens,
                acceptance=meta.counts,
                prompt_tokens=meta.prompt_tokens,
            )

        return parse_event

    def count_steps(self, page: MetricsPage) -> Counters:
        """Return the number of verify calls, which is all that SGLang counts of its steps.

        Raises:
            InvalidMeasurementError: the page doesn't have it, or it isn't a count.
        """
        page.require(_VERIFY_CALLS, advice=f"start the server with {self.counters_flag}")
        copies = page.copies(_VERIFY_CALLS)
        return Counters(steps=page.total(_VERIFY_CALLS), copies=Copies(steps=copies[_VERIFY_CALLS]))

    def encode(self, ask: Ask) -> Call[tuple[int, ...]]:
        """Return a call that tokenizes a chat with the model's template, or a text as it is."""
        return Call(
            path="/v1/tokenize",
            body={"model": ask.model, **ask.openai_prompt},
            parse=lambda answer: decode_answer(answer, _Tokens).tokens,
        )

    def complete(
        self, model: str, ids: Sequence[int], settings: AnswerSettings
    ) -> Call[Transcript]:
        """Return a call that continues a text. SGLang's own endpoint needs no model's name."""
        del model

        def parse(answer: bytes) -> Transcript:
            parsed = decode_answer(answer, _Answer)
            output = parsed.output_ids
            tokens = parsed.meta_info.completion_tokens

            # 0 is the value of an answer that doesn't count its tokens.
            if tokens not in {0, len(output)}:
                mismatch = f"it has {len(output)} output_ids, but counts {tokens} tokens"
                raise unreadable(mismatch, answer)
            counts = parsed.meta_info.counts
            return Transcript(prompt=tuple(ids), output=output, counts=counts, text=parsed.text)

        body = {"input_ids": ids, "sampling_params": self._sampling_params(settings)}
        return Call(path=_GENERATE, body=body, parse=parse)

    def score(self, model: str, ids: Sequence[int], candidates: Sequence[int]) -> Call[Scores]:
        """Return a call for the log-probabilities of the candidates, which are all exact."""
        del model

        def parse(answer: bytes) -> Scores:
            logprobs = decode_answer(answer, _Answer).meta_info.output_token_ids_logprobs

            # The answer has one generated token, whose candidates are scored.
            first_token = logprobs[0] if logprobs else ()
            scores = {token: score for score, token, _ in first_token}
            for candidate in candidates:
                if candidate not in scores:
                    raise unreadable(f"no log-probability of token {candidate}", answer)
            return tuple(scores[candidate] for candidate in candidates)

        body = {
            "input_ids": ids,
            "sampling_params": self._sampling_params(AnswerSettings(output_cap_tokens=1)),
            "return_logprob": True,
            # Unlike vLLM, SGLang reports any token that it is asked for, likely or not.
            "token_ids_logprob": candidates,
        }
        return Call(path=_GENERATE, body=body, parse=parse)

    def _sampling_params(self, settings: AnswerSettings) -> dict[str, object]:
        """Return the settings of an answer by the names of `/generate`."""
        parameters: dict[str, object] = {
            "max_new_tokens": settings.output_cap_tokens,
            **self.sampling(settings),
            "ignore_eos": settings.ignore_eos,
        }
        if settings.seed is not None:
            parameters["sampling_seed"] = settings.seed
        if settings.stops:
            parameters["stop"] = settings.stops
        return parameters


_VERSION = "0.5.23"
_MAX_CHARACTERS = 1024
"""The length at which a value that a server reports about itself is cut."""
_SENT_PARAMETERS = {
    "temperature",
    "max_new_tokens",
    "ignore_eos",
    *SglangWireFormat.neutral_sampling,
}
"""The sampling parameters that each request sets."""
# All of these are built for CUDA, and none is of use without a GPU.
_KERNELS = (
    *("cuda-tile", "cuda-python", "flash-attn-4", "flashinfer-python", "humming-kernels"),
    *("nvidia-cutlass-dsl", "nvidia-mathdx", "nvshmem4py-cu13", "quack-kernels", "sgl-deep-ep"),
    *("sgl-deep-gemm", "sgl-flash-mla", "sglang-kernel", "tilelang", "tokenspeed-mla"),
    *("torch-memory-saver", "torchaudio", "torchcodec"),
)


def _drafter(algorithm: str, settings: dict[str, Setting], *, learns: bool = False) -> Spelling:
    """Return the flags of an algorithm, with the number of tokens that a step verifies."""
    flags: dict[str, Setting] = {
        "speculative-algorithm": algorithm,
        **settings,
        "speculative-num-draft-tokens": VERIFIED_TOKENS,
    }
    return Spelling(settings=flags, learns=learns)


_DRAFT: dict[str, Setting] = {"speculative-draft-model-path": DRAFT}
_STEPS: dict[str, Setting] = {"speculative-num-steps": DRAFT_TOKENS, "speculative-eagle-topk": 1}
_CHAIN = _DRAFT | _STEPS
_TREE = _CHAIN | {"speculative-eagle-topk": BRANCHES}
# By default SGLang drafts n-grams as a tree. With a single branch, it drafts like other engines.
_SINGLE_BRANCH: dict[str, Setting] = {"speculative-ngram-max-bfs-breadth": 1}
_THRESHOLDS = ("speculative-accept-threshold-single", "speculative-accept-threshold-acc")
"""The flags that set which drafts are accepted. Their values are probabilities."""
_METHODS = {
    "none": Spelling(settings={}),
    # It learns, because the texts of every batch are added to its corpus.
    "ngram": _drafter("NGRAM", _SINGLE_BRANCH, learns=True),
    "draft_model": _drafter("STANDALONE", _CHAIN),
    "eagle": _drafter("EAGLE", _CHAIN),
    "eagle3": _drafter("EAGLE3", _CHAIN),
    "draft_model_tree": _drafter("STANDALONE", _TREE),
    "eagle_tree": _drafter("EAGLE", _TREE),
    "eagle3_tree": _drafter("EAGLE3", _TREE),
    "mtp": _drafter("EAGLE", _STEPS),
    "frozen_kv_mtp": _drafter("FROZEN_KV_MTP", _CHAIN),
    "multi_layer_eagle": _drafter("EAGLE", _CHAIN | {"enable-multi-layer-eagle": True}),
    "dflash": _drafter("DFLASH", _DRAFT),
    # SGLang tells its head apart by the architecture in the head's config.json.
    "dflash2": _drafter("DFLASH", _DRAFT),
    "dspark": _drafter("DSPARK", _DRAFT),
}


_SERVE_COMMAND = ServeCommand(
    programs=(("python", "-m", "sglang.launch_server"), ("sglang", "serve")),
    takes_target=False,
    keys={
        "model-path": TARGET,
        "model": TARGET,
        "dtype": "dtype",
        "context-length": "max_model_len_tokens",
        "max-running-requests": "max_sequences",
        "tp-size": "parallel.tensor",
        "tp": "parallel.tensor",
        "tensor-parallel-size": "parallel.tensor",
        "dp-size": "parallel.data",
        "dp": "parallel.data",
        "data-parallel-size": "parallel.data",
        "ep-size": "parallel.expert",
        "ep": "parallel.expert",
        "expert-parallel-size": "parallel.expert",
        "mem-fraction-static": "gpu_memory_frac",
        "trust-remote-code": "trust_remote_code",
    },
    speculation_flags=("speculative-", "enable-multi-layer-eagle"),
    speculation_names={"speculative-draft-model": "speculative-draft-model-path"},
    refused={
        "port": OWN_PORT,
        "host": OWN_PORT,
        "api-key": NO_KEY,
        "ssl-keyfile": NO_TLS,
        "ssl-certfile": NO_TLS,
        "config": "specreg doesn't see what the file sets; write its settings out",
    },
    preset={"disable-radix-cache": (), "enable-metrics": (), "sampling-defaults": ("openai",)},
    dropped={"served-model-name": "specreg gives each server a name of its own"},
)


class Sglang(Engine):
    """SGLang."""

    name: ClassVar = "sglang"
    methods: ClassVar = _METHODS
    seen: ClassVar = dict.fromkeys(
        (
            *("none", "ngram", "draft_model", "eagle", "eagle3", "mtp"),
            *("draft_model_tree", "eagle_tree", "eagle3_tree"),
        ),
        "measured 0.5.23, 2026-11-24",
    )
    oldest: ClassVar = "0.5.21"
    module: ClassVar = "sglang"
    version_path: ClassVar = "/server_info"
    parallel_fields: ClassVar = frozenset({"tensor", "data", "expert"})
    wire_format: ClassVar = SglangWireFormat()
    memory_flags: ClassVar = ("--max-total-tokens", "--mem-fraction-static")
    # With a pinned acceptance, all requests of a batch accept the same number of drafts in a step.
    # SGLang can do that only for methods whose model drafts a single branch.
    pinned_on_gpu: ClassVar = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
    pinned_on_cpu: ClassVar = pinned_on_gpu
    compiles: ClassVar = True
    revisions: ClassVar = ("target", "draft")

    sampling_flags: ClassVar = ("--sampling-defaults", "--preferred-sampling-params")
    serve_command: ClassVar = _SERVE_COMMAND
    reserved_speculation_keys: ClassVar = {
        "speculative-algorithm": "methods",
        "speculative-draft-model-path": "the drafts of the model pair",
        "speculative-num-steps": "draft_tokens",
        "speculative-num-draft-tokens": "draft_tokens, and drafted_tokens of a tree",
        "speculative-eagle-topk": "branches of a tree",
    }

    def further_speculation(
        self, speculation: Sequence[tuple[str, Setting]]
    ) -> Mapping[str, Setting]:
        """Return the further settings by the names of flags, with dashes instead of underscores.

        Raises:
            UnsupportedError: a flag isn't one of speculation, can't have the value, or is set by
                another setting of the tier.
        """
        flags = [(key.replace("_", "-"), value) for key, value in speculation]
        for key, value in flags:
            # This is the only flag of SGLang's speculation whose name doesn't contain "spec".
            if "spec" not in key and key != "enable-multi-layer-eagle":
                message = f"speculation.{key}: isn't a flag of SGLang's speculation"
                raise UnsupportedError(f"{message}; put it into engine_args")
            if value is False or isinstance(value, tuple):
                message = f"speculation.{key} = {value}: a flag takes one value, or true"
                raise UnsupportedError(f"{message}; correct it, or leave it out")
            if key in _THRESHOLDS and not _is_number(value):
                message = f"speculation.{key} = {value}: is no number"
                raise UnsupportedError(f"{message}; correct it, or leave it out")

        return super().further_speculation(flags)

    def check_draft(self, spec: ServerSpec, read_config: ReadConfig) -> None:
        """Check that the context is no longer than the draft's, or that this is allowed.

        SGLang 0.5.23 gives the draft the context of the server, and raises if that is more than the
        draft's configuration states (`_derive_context_length` in srt/configs/model_config.py).

        Raises:
            UnsupportedError: the context is too long for the draft.
        """
        variables = {**os.environ, **dict(spec.engine_env)}
        if variables.get(_LONGER_CONTEXT, "").lower() in {"1", "true", "yes", "y"}:
            return
        longest_tokens = _context_tokens(read_config())
        if longest_tokens is None or spec.max_model_len_tokens <= longest_tokens:
            return
        raise UnsupportedError(
            f"max_model_len_tokens = {spec.max_model_len_tokens}: the draft's context has only"
            f" {longest_tokens} tokens, and SGLang refuses a longer one; lower it, or set"
            f' engine_env = {{ {_LONGER_CONTEXT} = "1" }} if the draft works beyond its context'
        )

    def canonical_speculation(self, speculation: Mapping[str, Setting]) -> Mapping[str, Setting]:
        """Return a configuration with the algorithm in capitals, and EAGLE instead of NEXTN."""
        algorithm = str(speculation.get("speculative-algorithm", "")).upper()
        if algorithm == "NEXTN":
            algorithm = "EAGLE"
        return {**speculation, "speculative-algorithm": algorithm}

    def counts_drafts_correctly(self, speculation: Mapping[str, Setting]) -> bool:
        """Return False for adaptive speculation, whose steps draft different numbers of tokens.

        SGLang 0.5.23 computes the drafted tokens as the verify calls × the number of drafts with
        which the server started (managers/tokenizer_manager.py). That is wrong once the number
        changes.
        """
        return "speculative-adaptive" not in self.further_speculation(tuple(speculation.items()))

    def accepts_unlikely_drafts(self, speculation: Mapping[str, Setting]) -> bool:
        """Return True if a threshold is below 1, so that less likely drafts are accepted too."""
        flags = self.further_speculation(tuple(speculation.items()))
        # 1 is SGLang's default. A tier may also have the number as a text, such as "0.9".
        values = [float(str(flags.get(name, 1.0))) for name in _THRESHOLDS]
        return min(values) < 1.0

    def requirement(self, *, on_gpu: bool) -> Requirement:
        """Return the package `sglang`.

        For a machine without a GPU, torch is replaced by its build for CPUs, and the CUDA kernels
        are left out.
        """
        if on_gpu:
            return Requirement(package="sglang", version=_VERSION, extras=(CUDA_COMPILER,))

        # A platform that doesn't exist makes uv leave a package out.
        left_out = [f"{package} ; sys_platform == 'never'" for package in _KERNELS]
        return Requirement(
            package="sglang",
            version=_VERSION,
            overrides=(*left_out, "torch==2.13.0"),
            local_torch="torch==2.13.0",
        )

    def command(self, python: Path, spec: ServerSpec, site: Site) -> tuple[str, ...]:
        """Return the server's module, and the method's settings as flags."""
        device_flags: tuple[str, ...] = _CPU_FLAGS
        if site.on_gpu:
            device_flags = _gpu_flags(spec, site.memory)
        parallel = spec.parallel

        # SGLang spreads experts over the GPUs of `tensor`.
        expert_gpus = 1
        if parallel.expert:
            expert_gpus = parallel.tensor
        flags_unless_default = given_flags(
            ("--tp-size", parallel.tensor),
            ("--dp-size", parallel.data),
            ("--ep-size", expert_gpus),
            ("--trust-remote-code", spec.trust_remote_code),
        )
        return (
            *(str(python), "-m", "sglang.launch_server"),
            *("--model-path", site.target, "--served-model-name", site.served_name),
            *_revision_flags(spec),
            *("--host", "127.0.0.1", "--port", str(site.port)),
            *("--dtype", _dtype(spec, site.target_config)),
            *("--context-length", str(spec.max_model_len_tokens)),
            *("--max-running-requests", str(spec.max_sequences)),
            "--enable-metrics",
            # A prompt that is sent again must take as much time as the first time.
            "--disable-radix-cache",
            # With its default, the model's own generation_config.json would set the sampling.
            *("--sampling-defaults", "openai"),
            *device_flags,
            *flags_unless_default,
            *_speculation_flags(self.rendered_speculation(spec, site.draft)),
            # The user's own flags come last, because the last of several equal flags counts.
            *spec.engine_args,
        )

    def environment(self, spec: ServerSpec, site: Site) -> Mapping[str, str]:
        """Return the variables for offline use, for a CPU, and to pin the acceptance."""
        variables = dict(super().environment(spec, site))
        if not site.on_gpu:
            variables |= {"SGLANG_USE_CPU_ENGINE": "1", "TORCHDYNAMO_DISABLE": "1"}
        if spec.pinned_length_tokens:
            variables |= {
                "SGLANG_SIMULATE_ACC_LEN": str(spec.pinned_length_tokens),
                "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
                # By default every accepted token is one fixed token, and not the drafted one.
                "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
            }

        return variables

    def launch_facts(self, log: str, fetch: Fetch) -> LaunchFacts:
        """Return the facts that `/server_info` reports."""
        del log
        info = decode_answer(fetch("GET", self.version_path), _ServerInfo)
        graphs = info.cuda_graph_config

        # On a CPU SGLang reports the modes that a GPU would have.
        if graphs is None or info.device == "cpu":
            graphs = _CudaGraphs()
        return LaunchFacts(
            attention_backend=_by_phase(
                info.prefill_attention_backend or info.attention_backend,
                info.decode_attention_backend or info.attention_backend,
            ),
            flashinfer_sampler=_SAMPLERS.get(info.sampling_backend, "off"),
            async_scheduling=_ASYNC_SCHEDULING[info.disable_overlap_schedule],
            cuda_graphs=_by_phase(graphs.prefill.backend, graphs.decode.backend),
        )

    def identify(self, fetch: Fetch) -> Identity:
        """Identify the server by `/server_info`, which has all its settings."""
        identity = super().identify(fetch)
        if identity.engine != self.name:
            return identity
        with contextlib.suppress(*UNREADABLE):
            info = msgspec.json.decode(fetch("GET", self.version_path), type=dict[str, object])
            _check_preferred(info.get("preferred_sampling_params"))
            target = str(info.get("model_path") or identity.target)
            speculation = {}
            for name, value in info.items():
                if name.startswith("speculative_") and value is not None:
                    flag = name.replace("_", "-")
                    speculation[flag] = str(value)[:_MAX_CHARACTERS]
            return dataclasses.replace(
                identity,
                target=target[:_MAX_CHARACTERS],
                speculates=info.get("speculative_algorithm") is not None,
                speculation=speculation,
            )

        # A server whose settings can't be read is still identified by its list of models.
        return identity


def _check_preferred(preferred: object) -> None:
    """Check that each request sets all sampling parameters that a server has defaults for.

    Args:
        preferred: what the server reports of `--preferred-sampling-params`: None, or JSON.

    Raises:
        AttachError: some of the defaults apply to each request.
    """
    if isinstance(preferred, str):
        preferred = msgspec.json.decode(preferred)
    if not isinstance(preferred, dict):
        return
    names = sorted(map(str, preferred.keys() - _SENT_PARAMETERS))
    if names:
        shown = readable_line(", ".join(names), _MAX_CHARACTERS)
        raise AttachError(
            f"has defaults of its own for {shown} (--preferred-sampling-params), which change what"
            " is measured; start it without them"
        )


def _by_phase(prefill: str | None, decode: str | None) -> str:
    """Return what the two phases of a server have, as one fact; empty if it isn't known."""
    if prefill == decode:
        return prefill or ""
    return f"prefill {prefill or NONE}, decode {decode or NONE}"


def _dtype(spec: ServerSpec, config: Mapping[str, Any]) -> str:
    """Return the number format of a server's target and draft.

    With `auto`, SGLang takes the format of each model from that model's own configuration. Many
    EAGLE heads are in float16 beside a target in bfloat16, and a head in another format than its
    target's states fails at the first request. So the draft gets the target's format, as on vLLM.

    Args:
        config: the target's `config.json`; empty if it isn't on this machine.

    Returns:
        The format that SGLang 0.5.23 takes for the target (`_get_and_verify_dtype` in
        srt/configs/model_config.py); `auto` if the configuration isn't known, or has another
        format than these.
    """
    if spec.dtype != "auto" or not config:
        return spec.dtype
    language_model = _language_model(config)
    stated = _stated_format(language_model) or _stated_format(config)
    if stated in {"float16", "bfloat16"}:
        return stated
    if stated not in {"", "float32"}:
        return "auto"

    # SGLang never takes float32 by itself.
    if str(language_model.get("model_type", "")).startswith("gemma"):
        return "bfloat16"
    return "float16"


def _language_model(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the part of a model's configuration that is about its language model.

    The configuration of a model that also takes images has a part for it, and others are all of it.
    """
    parts = [config[key] for key in _LANGUAGE_MODELS if isinstance(config.get(key), dict)]
    return next(iter(parts), config)


def _context_tokens(config: Mapping[str, Any]) -> int | None:
    """Return the longest context that SGLang takes a model to have; None if it isn't stated.

    That is `get_context_length` of 0.5.23 (srt/utils/hf_transformers/common.py).
    """
    language_model = _language_model(config)
    lengths = [language_model[key] for key in _CONTEXT_KEYS if language_model.get(key)]
    if not lengths:
        return None

    # transformers 5 has renamed the key.
    scaling = language_model.get("rope_scaling") or language_model.get("rope_parameters") or {}
    is_in_length = "original_max_position_embeddings" in scaling
    is_in_length = is_in_length or scaling.get("rope_type") == "llama3"
    factor = 1 if is_in_length else scaling.get("factor", 1)
    return int(factor * lengths[0])


def _stated_format(config: Mapping[str, Any]) -> str:
    """Return the number format in a model's configuration; empty if it states none."""
    # transformers 5 has renamed the key.
    return str(config.get("dtype") or config.get("torch_dtype") or "")


def _is_number(value: Setting) -> bool:
    """Return whether the value of a flag is a number, which may also be written as a text."""
    try:
        float(str(value))
    except ValueError:
        return False
    return True


def _speculation_flags(speculation: Mapping[str, Setting]) -> tuple[str, ...]:
    """Return the settings of a speculation as flags. A setting that is True has no value."""
    flags = []
    for key, value in speculation.items():
        flag = f"--{key}"
        if value is not True:
            flag = f"--{key}={value}"
        flags.append(flag)
    return tuple(flags)


def _revision_flags(spec: ServerSpec) -> Sequence[str]:
    """Return the flags that choose the revisions of the models on the hub, if a case has any."""
    words: list[str] = []
    if spec.target_revision:
        words += ["--revision", spec.target_revision]
    if spec.draft_revision:
        words += ["--speculative-draft-model-revision", spec.draft_revision]
    return words


_CONTEXT_KEYS = (
    *("max_sequence_length", "seq_length", "max_seq_len", "model_max_length"),
    "max_position_embeddings",
)
"""What a configuration may call the longest context, in SGLang's order."""
_LONGER_CONTEXT = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_LANGUAGE_MODELS = ("thinker_config", "llm_config", "language_config", "text_config")
"""Where a model's configuration has that of its language model, in SGLang's order."""
_CPU_FLAGS = (
    # Without a limit of tokens, SGLang would take most of the machine's memory.
    *("--device", "cpu", "--max-total-tokens", "8192"),
    # This is the only backend for CPUs that can verify drafts. It is the default only with AMX.
    *("--prefill-attention-backend", "intel_amx", "--decode-attention-backend", "intel_amx"),
)


def _gpu_flags(spec: ServerSpec, memory: Memory | None) -> tuple[str, ...]:
    """Return the flags for the memory, and for CUDA graphs of prefills up to the longest prompt."""
    graphs = ("--cuda-graph-max-bs-prefill", str(spec.max_model_len_tokens))
    if memory is None:
        return ("--mem-fraction-static", str(spec.gpu_memory_frac), *graphs)

    # SGLang counts all memory taken since its own start, and so also the memory of a control that
    # starts at the same time. So the share has to cover both servers. The cache stays as large as
    # planned, because `--max-total-tokens` fixes it.
    both_share_frac = memory.share_frac + spec.gpu_memory_frac
    share_frac = min(both_share_frac, 0.95)
    return (
        *("--max-total-tokens", str(memory.cache_tokens)),
        *("--mem-fraction-static", f"{share_frac:.4f}"),
        *graphs,
    )
