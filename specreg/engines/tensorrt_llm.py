"""TensorRT-LLM: `trtllm-serve` of the package `tensorrt-llm`, which needs a GPU.

This file was written from TensorRT-LLM's documentation and source, and was never run.

TensorRT-LLM has counters for each position of a draft, to which it adds a request when the request
has ended. The first position is drafted as often as there are steps that draft, and the sums over
all positions are the numbers of drafted and of accepted tokens. The request is added between
`[DONE]` and the end of the answer's body (openai_server.py), and specreg's client waits for that
end. Before TensorRT-LLM#17082 the counters took the drafts of the next step for the drafts of the
verified step, and the stable 1.2 has no such counters (they came with TensorRT-LLM#12636). So the
acceptance of older versions is estimated from the chunks of the answers.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from specreg.acceptance.record import Copies, Counters, Source, StepCounts
from specreg.core.errors import UnsupportedError
from specreg.engines.engine import Engine, Requirement, Site, given_flags
from specreg.engines.methods import DRAFT, DRAFT_TOKENS, Setting, Spelling
from specreg.engines.serve_command import OWN_PORT, ServeCommand
from specreg.engines.server_spec import ServerSpec
from specreg.engines.wire_format import FINISH_LABEL, MetricsPage, WireFormat

_VERSION = "1.3.0rc29"
"""The release of September 29, 2026.

It surely has TensorRT-LLM#17082: TensorRT-LLM#19311 shows that the source had it on September 17.
"""
PATH = "/prometheus/metrics"
_PREFIX = "trtllm_"
_SPEC_DECODE = f"{_PREFIX}spec_decode_"
_ENDED = f"{_PREFIX}request_success_total"


class TensorrtLlmWireFormat(WireFormat):
    """The wire format of `trtllm-serve`: OpenAI's, with counters for each position of a draft."""

    counters_source: ClassVar[Source | None] = Source.TRTLLM_COUNTERS
    counters_path: ClassVar[str | None] = PATH
    counters_since: ClassVar = _VERSION
    counters_flag: ClassVar = "return_perf_metrics: true"
    ended_counter: ClassVar = _ENDED

    def count_steps(self, page: MetricsPage) -> Counters:
        """Return the counters of all positions.

        A position that never counted anything isn't on the page.

        Raises:
            InvalidMeasurementError: the counters are missing, or one of them isn't a count.
        """
        drafted_name = f"{_SPEC_DECODE}drafted_tokens_total"
        accepted_name = f"{_SPEC_DECODE}accepted_tokens_total"
        drafted = page.by_position(drafted_name, "token_position")
        accepted = page.by_position(accepted_name, "token_position")

        # Only this counter is required. A position has no counter until it counts something.
        page.require(_ENDED, advice=f"start the server with {self.counters_flag}")
        depth = max(drafted, default=-1) + 1
        position_counts = [accepted[position] for position in range(depth)]
        counts = StepCounts(
            # A step that drafts at all drafts the first position.
            steps=drafted[0],
            accepted=accepted.total(),
            proposed=drafted.total(),
            position_counts=tuple(position_counts),
        )
        copies = page.copies(
            *(drafted_name, accepted_name, _ENDED), labels=("token_position", FINISH_LABEL)
        )
        return Counters(
            steps=counts.steps,
            counts=counts,
            requests=page.total(_ENDED),
            copies=Copies(
                steps=copies[drafted_name],
                accepted=copies[accepted_name],
                proposed=copies[drafted_name],
                positions=copies[accepted_name],
                requests=copies[_ENDED],
            ),
        )


_OPTIONS = "options.yaml"
_SECTION = "speculative_config"
"""The section of the file of options."""


def _drafter(kind: str, *, overlaps: bool = True, **further: Setting) -> Spelling:
    """Return the settings of a decoding type, as paths into the file of options.

    Args:
        kind: the decoding type by TensorRT-LLM's name.
        overlaps: False to switch off the scheduler that overlaps steps, as TensorRT-LLM's
            documentation does for n-grams and draft models.
        further: further settings of the section.
    """
    config: dict[str, Setting] = {"decoding_type": kind, "max_draft_len": DRAFT_TOKENS, **further}
    settings = {f"{_SECTION}.{key}": value for key, value in config.items()}
    if not overlaps:
        # This setting stands at the top of the file, not in the section.
        settings["disable_overlap_scheduler"] = True
    return Spelling(settings=settings)


_METHODS = {
    "none": Spelling(settings={}),
    # With a pool of its own, a request drafts only from its own text.
    "ngram": _drafter("NGram", overlaps=False, max_matching_ngram_size=4, is_public_pool=False),
    "draft_model": _drafter("Draft_Target", overlaps=False, speculative_model=DRAFT),
    "eagle3": _drafter("Eagle3", speculative_model=DRAFT),
    "mtp": _drafter("MTP"),
    "pard": _drafter("PARD", speculative_model=DRAFT),
    "suffix_automaton": _drafter("SA"),
    # The head's own config.json has its mask token and the layers that it reads.
    "dflash": _drafter("DFlash", speculative_model=DRAFT),
    "dspark": _drafter("DSpark", speculative_model=DRAFT),
}


_OWN_FILE = (
    "specreg writes this file itself; name the method in methods, and the other keys of its"
    " speculative_config in speculation"
)
_SERVE_COMMAND = ServeCommand(
    programs=(("trtllm-serve", "serve"), ("trtllm-serve",)),
    keys={
        "max-batch-size": "max_sequences",
        "max-seq-len": "max_model_len_tokens",
        "tp-size": "parallel.tensor",
        "tensor-parallel-size": "parallel.tensor",
        "pp-size": "parallel.pipeline",
        "pipeline-parallel-size": "parallel.pipeline",
        "ep-size": "parallel.expert",
        "moe-expert-parallel-size": "parallel.expert",
        "free-gpu-memory-fraction": "gpu_memory_frac",
        "kv-cache-free-gpu-memory-fraction": "gpu_memory_frac",
        "trust-remote-code": "trust_remote_code",
    },
    refused={
        "port": OWN_PORT,
        "host": OWN_PORT,
        "extra-llm-api-options": _OWN_FILE,
        "config": _OWN_FILE,
    },
)


class TensorrtLlm(Engine):
    """TensorRT-LLM. A method's settings are paths into its file of options."""

    name: ClassVar = "tensorrt_llm"
    methods: ClassVar = _METHODS
    oldest: ClassVar = "1.2"
    module: ClassVar = "tensorrt_llm"
    # The classifiers of the package, and what mpi4py loads at its import.
    pythons: ClassVar = ("3.10", "3.12")
    libraries: ClassVar = {"mpi": "Open MPI (libopenmpi-dev, openmpi)"}
    # `trtllm-serve` has no option for the revision of a draft.
    revisions: ClassVar = ("target",)
    parallel_fields: ClassVar = frozenset({"tensor", "pipeline", "expert"})
    wire_format: ClassVar = TensorrtLlmWireFormat()
    serves_names: ClassVar = False
    # Acceptance can be pinned only for methods whose drafter is part of the target's engine.
    pinned_on_gpu: ClassVar = ("eagle3", "mtp")
    pinned_on_cpu: ClassVar = pinned_on_gpu
    serve_command: ClassVar = _SERVE_COMMAND
    reserved_speculation_keys: ClassVar = {
        "decoding_type": "methods",
        "speculative_model": "the drafts of the model pair",
        "speculative_model_dir": "the drafts of the model pair",
        "max_draft_len": "draft_tokens",
    }

    def requirement(self, *, on_gpu: bool) -> Requirement:
        """Return the package `tensorrt-llm`.

        Raises:
            UnsupportedError: there is no GPU.
        """
        if not on_gpu:
            message = (
                "engine 'tensorrt_llm': runs only on a GPU; put it into a tier that needs a GPU"
            )
            raise UnsupportedError(message)
        # What PyPI has fetches the wheel of 2 GB from NVIDIA's index while it is installed.
        return Requirement(
            package="tensorrt-llm", version=_VERSION, index="https://pypi.nvidia.com"
        )

    def further_speculation(
        self, speculation: Sequence[tuple[str, Setting]]
    ) -> Mapping[str, Setting]:
        """Return the further settings as paths into the file of options; errors as in `Engine`."""
        keys = super().further_speculation(speculation)
        return {f"{_SECTION}.{key}": value for key, value in keys.items()}

    def accepts_unlikely_drafts(self, speculation: Mapping[str, Setting]) -> bool:
        """Return True for relaxed acceptance in a model's thoughts, which is lossy by design."""
        return bool(speculation.get("use_relaxed_acceptance_for_thinking"))

    def environment(self, spec: ServerSpec, site: Site) -> Mapping[str, str]:
        """Return the variables for offline use, and to pin the acceptance if the case does."""
        variables = dict(super().environment(spec, site))
        length_tokens = spec.pinned_length_tokens
        if length_tokens:
            # TensorRT-LLM's number doesn't include the token after the accepted drafts.
            accepted_tokens = f"{length_tokens - 1:g}"
            variables["TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"] = accepted_tokens
        return variables

    def files(self, spec: ServerSpec, site: Site) -> Mapping[str, str]:
        """Return the file of options. It is JSON, which is also valid YAML."""
        settings = {
            "dtype": spec.dtype,
            # A prompt that is sent again must take as much time as the first time.
            "kv_cache_config.enable_block_reuse": False,
            "kv_cache_config.free_gpu_memory_fraction": spec.gpu_memory_frac,
            # Without it, TensorRT-LLM counts nothing.
            "return_perf_metrics": True,
        }
        speculation = self.rendered_speculation(spec, site.draft)
        all_settings = _nested({**settings, **speculation})
        return {_OPTIONS: json.dumps(all_settings, indent=2)}

    def command(self, python: Path, spec: ServerSpec, site: Site) -> tuple[str, ...]:
        """Return the command `trtllm-serve` from the folder of the interpreter."""
        program = str(python.with_name("trtllm-serve"))
        parallel = spec.parallel

        # TensorRT-LLM spreads experts over the GPUs of `tensor`.
        expert_gpus = 1
        if parallel.expert:
            expert_gpus = parallel.tensor
        revision_flags: tuple[str, ...] = ()
        if spec.target_revision:
            revision_flags = ("--revision", spec.target_revision)
        flags_unless_default = given_flags(
            ("--tp_size", parallel.tensor),
            ("--pp_size", parallel.pipeline),
            ("--ep_size", expert_gpus),
            ("--trust_remote_code", spec.trust_remote_code),
        )
        return (
            *(program, site.target),
            *revision_flags,
            *("--host", "127.0.0.1", "--port", str(site.port)),
            *("--max_batch_size", str(spec.max_sequences)),
            *("--max_seq_len", str(spec.max_model_len_tokens)),
            *flags_unless_default,
            *("--extra_llm_api_options", str(site.folder / _OPTIONS)),
            *spec.engine_args,
        )


def _nested(settings: Mapping[str, object]) -> dict[str, object]:
    """Nest settings by the last dot in their names: `{"a.b": 1}` becomes `{"a": {"b": 1}}`."""
    sections: dict[str, dict[str, object]] = {}
    for path, value in settings.items():
        section_name, _, key = path.rpartition(".")
        section = sections.setdefault(section_name, {})
        section[key] = value

    # The settings without a dot belong to no section, but to the top of the file.
    top_level = sections.pop("", {})
    return {**top_level, **sections}
