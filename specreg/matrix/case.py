"""A case: its settings, the server that it needs, what that takes of GPUs, and its tier.

A setting of a server is declared in `engines/engine.py`, one of its requests in
`RequestSettings`, one of their arrival in `Load`: each is then a key of `[[cases]]`, a field of the
case and, of those that must be equal to be compared, a setting of its baseline.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal

import msgspec

from specreg.core.errors import check_name
from specreg.core.redaction import learn
from specreg.core.values import hide_values
from specreg.datasets.prompts import AS_IS
from specreg.engines.engine import LaunchSettings, Parallel, Positive, ServerSettings
from specreg.engines.registry import engine_named
from specreg.engines.wire_format import Form

BESIDE_GIB = 2.0
"""What a server takes of each GPU beside weights and KV cache: CUDA context, activations, captured
graphs. Estimated, not measured."""
_KIB_PER_GIB = 2**20
_OPEN_ROUNDS = 4
_PROMPTS_PER_PLACE = 4
MOST_DRAFT_TOKENS = 128
"""The most tokens drafted per step: vLLM's sampler has room for so many."""
ROUNDING_NATS = 0.25
"""Two tokens whose log-probabilities lie closer may change places by rounding."""
USUAL_DRAFT_TOKENS = 3
"""What is drafted per step unless a table says otherwise; no case's id says it."""

AboveZero = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
DraftTokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_DRAFT_TOKENS)]
Width = Literal["8b", "1b", "30m"]
"""How large a pair is made, by about the parameters of its target."""


class Arrivals(StrEnum):
    """What decides when the next request is sent.

    `CLOSED`: the end of one before it. The others send at a rate, whatever the server does.
    """

    CLOSED = "closed"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


@dataclass(frozen=True, kw_only=True)
class Load:
    """How many requests come, and when.

    Attributes:
        burstiness: the shape of the gaps of `arrivals = "gamma"`, whose coefficient of variation
            is its -1/2th power: 1 is Poisson, less comes in bursts, more is more even.
        ramp_up_s: how long a round takes to reach its load, in seconds: the requests of a closed
            loop start one after another over this time, and a rate rises linearly from 0.
        duration_s: how long a round repeats its prompts, in seconds; without it each prompt is sent
            once.
        arrivals: what decides when the next request is sent: `"closed"` (the end of an earlier
            one), or at a rate `"poisson"`, `"constant"` or `"gamma"`.
        concurrency: the requests in flight of a closed loop; 0 at a rate.
        requests_per_s: the mean rate of requests; 0 in a closed loop.
        seed: the seed of the gaps, which is the same in every round of a case.
    """

    burstiness: AboveZero = 1.0
    ramp_up_s: NotNegative = 0.0
    duration_s: AboveZero | None = None
    arrivals: Arrivals = Arrivals.CLOSED
    concurrency: int = 0
    requests_per_s: float = 0.0
    seed: int = 0

    @property
    def id(self) -> str:
        """`c4` for four in flight; `poisson2.5` for 2.5 requests/s."""
        if self.arrivals is Arrivals.CLOSED:
            return f"c{self.concurrency}"
        return f"{self.arrivals}{self.requests_per_s:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request must keep to count as good; None for no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """The settings of requests that must be equal for two measurements to be compared.

    Attributes:
        output_cap_tokens: the most tokens of an answer (`max_tokens`).
        temperature: the sampling temperature; 0 is greedy.
        paired_seeds: True if each turn of a prompt has a seed of its own that is the same on every
            server and launch, so that two servers draw alike as far as speculation allows.
        turns: the most turns of a conversation; without it all turns are sent.
        history_reply: what the next turn has of a reply: `"as_is"`, `"stripped"` of surrounding
            blanks, or `"without_thinking"` (without everything up to the last `</think>`).
        form: `"chat"` (through the model's chat template) or `"completions"`.
        chat_template_args: arguments of the chat template, such as `{ enable_thinking = false }`.
        ignore_eos: True if every answer goes on to `output_cap_tokens`.
    """

    output_cap_tokens: Positive
    temperature: NotNegative = 0.0
    paired_seeds: bool = False
    turns: Positive | None = None
    history_reply: str = AS_IS
    form: Form = Form.CHAT
    chat_template_args: tuple[tuple[str, object], ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, kw_only=True)
class WorkloadSettings(RequestSettings):
    """What is asked of a server, and how it is measured.

    Attributes:
        dataset: the name of a prompt set, such as `"toy"` or `"mt-bench"`.
        prompts: how many prompts of the dataset are replayed, from the first.
        request_timeout_s: how long a request may take, in seconds; a slower one has failed. A
            stream that is silent for 60 s has failed too.
        client_processes: how many processes send the requests.
        speed: False if the time of the server means nothing, so that nothing timed is judged.
        least_s: how long each server is kept under load, in seconds, where a speed is recorded or
            compared; its prompts repeat, for the speed alone.
        rounding_nats: the gap between the log-probabilities of two tokens, in nats, below which
            rounding may choose the other one; 0 demands equal tokens.
        tolerances: by metric, the relative change that passes instead of the metric's own.
        shown: the metrics that are shown and recorded, but not judged, because they differ from
            hour to hour by more than one would call a loss.
    """

    dataset: str
    prompts: Positive
    request_timeout_s: AboveZero = 600.0
    client_processes: Positive = 1
    speed: bool = True
    least_s: NotNegative = 0.0
    rounding_nats: NotNegative = ROUNDING_NATS
    tolerances: tuple[tuple[str, float], ...] = ()
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSettings(ServerSettings, RequestSettings, Load):
    """What must be equal for two measurements of a case to be compared: the key of a baseline.

    The engine's version and the draft are not among them: they are what one compares.

    Attributes:
        engine: the name of the engine.
        method: the name of the speculative method; `none` for the target alone.
        draft_tokens: the most drafts that a step can accept; 0 without speculation.
        target_sha256: the checksum of the target's files; empty for a hub id.
        target: the hub id of the target; empty for files.
        prompts_sha256: the checksum of the prompts of a run and of its extension.
        limits: the limits on TTFT and TPOT that a good request keeps.
        prompts: how many prompts the tier says.
        num_prompts: how many prompts `--num-prompts` asked for instead; null without it.
    """

    engine: str
    method: str
    draft_tokens: int
    target_sha256: str
    target: str
    prompts_sha256: str
    limits: Limits = NO_LIMITS
    prompts: int | None = None
    num_prompts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much memory the weights of a server take, and a token in its KV cache.

    `draft_gib` is 0 without a draft, None where it isn't known.
    """

    target_gib: float
    draft_gib: float | None
    token_kib: float

    def weights_gib(self, parallel: Parallel) -> float | None:
        """The weights on each GPU of a copy; None where the draft's size is unknown."""
        if self.draft_gib is None:
            return None
        draft_gib = self.draft_gib / (parallel.draft_tensor or parallel.tensor)
        return self.target_gib / (parallel.tensor * parallel.pipeline) + draft_gib

    def cache_gib(self, parallel: Parallel, tokens: int) -> float:
        """The KV cache of so many tokens on each GPU; all copies together hold them."""
        split = parallel.tensor * parallel.pipeline * parallel.data
        return self.token_kib * tokens / split / _KIB_PER_GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec(LaunchSettings):
    """What has to be equal for two cases to share a server.

    Attributes:
        target, draft: folders or hub ids; `draft` is None where the method needs none.
        padding_layers, widen: how the models are made larger, see `ModelsTable`.
        draft_tokens: the most drafts that a step can accept, which are all that it drafts where
            there is no tree; 0 without speculation.
        sizes: what the models take, None where it isn't known.
    """

    engine: str
    method: str
    models: str
    target: str
    draft: str | None
    padding_layers: int
    draft_tokens: int
    sizes: Sizes | None = None
    widen: Width | None = None

    def __post_init__(self) -> None:
        """Hide the secrets among arguments and variables in all that is written or said."""
        learn(dict(self.engine_env), self.engine_args)

    @property
    def drafted_tokens(self) -> int:
        """All tokens that a step drafts, D / S."""
        return self.tree.drafted_tokens if self.tree else self.draft_tokens

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny`; `-k5` tells an unusual number of drafts, `-al2.5` a pinned length."""
        usual = self.draft_tokens in {0, USUAL_DRAFT_TOKENS}
        drafts = "" if usual else f"-k{self.draft_tokens}"
        pinned = f"-al{self.pinned_length_tokens:g}" if self.pinned_length_tokens else ""
        return f"{self.engine}-{self.method}-{self.models}{drafts}{pinned}"

    @property
    def without_speculation(self) -> "ServerSpec":
        """The server that differs in speculation alone."""
        return dataclasses.replace(
            self,
            method="none",
            draft=None,
            draft_tokens=0,
            tree=None,
            pinned_length_tokens=None,
            parallel=self.parallel.without_draft,
            sizes=self.sizes and dataclasses.replace(self.sizes, draft_gib=0.0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(WorkloadSettings):
    """One measurement of the matrix.

    Attributes:
        control: the `none` server of the same target, measured in alternation for the speedup;
            None where the tier has no such case, and for `none` itself.
        matrix_prompts: how many prompts the matrix says, where this run replays another number.
        power_s: how long each server is kept under load for its power; 0 for the rounds alone.
    """

    server: ServerSpec
    control: ServerSpec | None
    load: Load
    matrix_prompts: int | None = None
    limits: Limits = NO_LIMITS
    power_s: float = 0.0

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny-toy-c4`: engine, method, model pair, dataset, load."""
        return f"{self.server.id}-{self.dataset}-{self.load.id}"

    @property
    def key(self) -> str:
        """All of it as JSON without secrets; equal where two cases are measured alike."""
        return msgspec.json.encode(hide_values(self)).decode()

    @property
    def in_flight(self) -> int:
        """How many of its requests are on their way at once; of a rate, all that a server takes."""
        return self.load.concurrency or self.server.max_sequences

    @property
    def rounds(self) -> int:
        """How many rounds its prompts are dealt into; case and control take turns by the round.

        As many as can be, for neighbours slow a machine for seconds: a prompt each where one is in
        flight; four for each place of a closed loop, whose ramp and drain would be most of a
        shorter round. A rate or a duration has its own pace, and four rounds.
        """
        places = self.load.concurrency
        if not places or self.load.duration_s is not None:
            return min(_OPEN_ROUNDS, self.prompts)
        size = places if places == 1 else _PROMPTS_PER_PLACE * places
        return max(self.prompts // size, 1)

    @property
    def memory_gib(self) -> float | None:
        """How much memory it needs of each GPU; None where its pair doesn't say.

        Case and control share the GPUs; into a server's share of the memory must go the weights,
        the KV cache of all that is in flight, and what it takes beside them.
        """
        server, sizes = self.server, self.server.sizes
        tokens = self.in_flight * server.max_model_len_tokens
        if sizes is None or (weights_gib := sizes.weights_gib(server.parallel)) is None:
            return None
        share_gib = weights_gib + sizes.cache_gib(server.parallel, tokens) + BESIDE_GIB
        return share_gib / server.gpu_memory_frac

    def unmet(self, gpus_gib: Sequence[float | None]) -> str:
        """What a machine with such GPUs lacks of what it needs, empty when nothing is known to be.

        Args:
            gpus_gib: The memory of each of the machine's GPUs, None where it isn't known.
        """
        gpus = self.server.parallel.gpus_by_node
        memory_gib = self.memory_gib
        known_gib = [gib for gib in gpus_gib[:gpus] if gib is not None]
        is_too_small = memory_gib is not None and min(known_gib, default=memory_gib) < memory_gib
        if len(gpus_gib) >= gpus and not is_too_small:
            return ""
        each = "" if memory_gib is None else f" of {math.ceil(memory_gib)} GiB"
        there = render_memory(gpus_gib) or "none"
        return f"needs {gpus} GPU(s){each}, this machine has {there}"

    @property
    def speculates(self) -> bool:
        """Whether the case has a method other than `none`."""
        return self.server.method != "none"

    def replaying(self, prompts: int) -> "Case":
        """The case with so many prompts, whatever the matrix says."""
        by_matrix = self.matrix_prompts or self.prompts
        return dataclasses.replace(
            self, prompts=prompts, matrix_prompts=by_matrix if prompts != by_matrix else None
        )

    @property
    def needs_fresh_server(self) -> bool:
        """Whether another case's requests to the server would change what this one measures."""
        return engine_named(self.server.engine).spelling_of(self.server.method).learns


def render_memory(gpus_gib: Sequence[float | None]) -> str:
    """Return the memory of each GPU in words, `79 GiB, unknown`."""
    return ", ".join("unknown" if gib is None else f"{math.floor(gib)} GiB" for gib in gpus_gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The cases of one matrix file.

    Attributes:
        needs_gpus: how many GPUs a machine must have for the tier to run at all, 0 for none.
        places: by case, where its table stands, for errors.
        choices: by case, the model pairs that its table names, the preferred one first.
    """

    name: str
    needs_gpus: int
    cases: tuple[Case, ...]
    places: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def named(self, case_id: str) -> Case:
        """The case of an id, else an UnknownNameError that lists what the tier has."""
        cases = {case.id: case for case in self.cases}
        check_name("case", case_id, cases, f"tier '{self.name}'")
        return cases[case_id]

    def chosen(self, gpus_gib: Sequence[float | None]) -> "Tier":
        """The tier as a machine runs it: of several pairs the first all of whose cases fit.

        Where none fits that is the last one; a machine without GPUs is taken to hold all.
        """
        unmet = self.unmet(gpus_gib) if gpus_gib else {}
        pairs = [(case, self.choices[case.id]) for case in self.cases]
        too_large = {(names, case.server.models) for case, names in pairs if case.id in unmet}

        def taken(names: tuple[str, ...]) -> str:
            return next((name for name in names if (names, name) not in too_large), names[-1])

        cases = tuple(case for case, names in pairs if taken(names) == case.server.models)
        return dataclasses.replace(self, cases=cases)

    def unmet(self, gpus_gib: Sequence[float | None]) -> dict[str, str]:
        """By case's id what it needs and a machine lacks, in a sentence; none where all fit."""
        if not self.needs_gpus:
            return {}
        lacks = {case.id: case.unmet(gpus_gib) for case in self.cases}
        return {case_id: f"{case_id} {lack}" for case_id, lack in lacks.items() if lack}

    def gpus_used(self, gpus_gib: Sequence[float | None]) -> int:
        """How many of a machine's GPUs the widest case takes that it can run."""
        lacking = self.unmet(gpus_gib)
        able = [case.server for case in self.cases if case.id not in lacking]
        widths = [server.parallel.gpus_by_node for server in able]
        return max(widths, default=self.needs_gpus) if self.needs_gpus else 0
