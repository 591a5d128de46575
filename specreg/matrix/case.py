"""A case: its server, its requests, its load and how it is judged; and its tier.

A setting of a server is a field in `engines/server_spec.py`, any other a field of a class here.
Each is then a key of `[[cases]]`. If it must be equal for two measurements to be compared, it is
declared in `ServerSettings`, `RequestSettings` or `Load`, and so is a setting of the baseline.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

import msgspec

from specreg.core.errors import check_name
from specreg.core.readable import Label
from specreg.core.values import hide_values, readable_values
from specreg.datasets.prompts import AS_IS
from specreg.engines.registry import engine_named
from specreg.engines.server_spec import Positive, ServerSettings, ServerSpec
from specreg.engines.wire_format import Form

BESIDE_GIB = 2.0
"""The memory of each GPU that a server needs besides weights and KV cache: for the CUDA context,
activations and captured graphs. It is estimated, not measured."""
_OPEN_ROUNDS = 4
"""The most rounds of a case whose load is a rate or has a duration."""
_PROMPTS_PER_SLOT = 4
"""How many prompts a round has for each request in flight. A shorter round would mostly consist of
its start and its end, in which fewer requests are in flight."""
ROUNDING_NATS = 0.25
"""The gap between the log-probabilities of two tokens below which rounding may choose either."""

THINKING_SWITCHES = ("enable_thinking", "thinking")
"""The arguments of chat templates that switch thinking on or off. Qwen, GLM and Nemotron have the
first one, DeepSeek and Granite the second. A template ignores an argument that it doesn't have."""

MAX_CLIENT_PROCESSES = 256
"""The largest number of client processes. Each of them is a process of Python, with a port for each
request in flight."""
AboveZero = Annotated[float, msgspec.Meta(gt=0, le=1e12)]
Rate = Annotated[float, msgspec.Meta(ge=1e-6, le=1e9)]
"""Requests per second; at the lowest rate the next one comes after eleven days."""
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class Arrivals(StrEnum):
    """What decides when the next request is sent.

    With `CLOSED` it is the end of an earlier request. The others send requests at a rate that
    doesn't depend on the server.
    """

    CLOSED = "closed"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"


@dataclass(frozen=True, kw_only=True)
class Load:
    """How many requests come, and when.

    Attributes:
        burstiness: the shape of the gaps between requests with `arrivals = "gamma"`, whose
            coefficient of variation is 1 / √burstiness: 1 is Poisson; below 1 requests come in
            bursts, above 1 more evenly.
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
        """The name in ids: `c4` for four requests in flight, `poisson2.5` for 2.5 requests/s."""
        if self.arrivals is Arrivals.CLOSED:
            return f"c{self.concurrency}"
        return f"{self.arrivals}{self.requests_per_s:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits that a good request keeps.

    Attributes:
        ttft_ms: the highest TTFT, in ms; None for no limit.
        tpot_ms: the highest TPOT, in ms; None for no limit.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, kw_only=True)
class RequestSettings:
    """The settings of requests that must be equal for two measurements to be compared.

    Attributes:
        output_cap_tokens: the most tokens of an answer (`max_tokens`).
        temperature: the sampling temperature; 0 is greedy.
        top_p: tokens are drawn from the likeliest ones that have this probability together.
        top_k: tokens are drawn from this many of the likeliest ones; without it from all.
        paired_seeds: True if each turn of a prompt has a seed of its own that is the same on every
            server and launch, so that two servers draw the same tokens as far as speculation
            allows.
        turns: the most turns of a conversation; without it all turns are sent.
        history_reply: the part of a reply that the next turn sends: `"as_is"`, `"stripped"` of
            surrounding blanks, or `"without_thinking"` (without everything up to the last
            `</think>`).
        form: `"chat"` (through the model's chat template) or `"completions"`.
        chat_template_args: arguments of the chat template, such as `{ reasoning_effort = "low" }`.
        thinking: True or False for a model whose chat template can switch its thought on or off;
            without it the template decides.
        ignore_eos: True if every answer goes on to `output_cap_tokens`.
    """

    output_cap_tokens: Positive
    temperature: NotNegative = 0.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    top_k: Positive | None = None
    paired_seeds: bool = False
    turns: Positive | None = None
    history_reply: str = AS_IS
    form: Form = Form.CHAT
    chat_template_args: tuple[tuple[str, object], ...] = ()
    thinking: bool | None = None
    ignore_eos: bool = False

    @property
    def template_args(self) -> tuple[tuple[str, object], ...]:
        """The arguments of the chat template, with those that switch a thought on or off."""
        if self.thinking is None:
            return self.chat_template_args
        switches = tuple((name, self.thinking) for name in THINKING_SWITCHES)
        return (*self.chat_template_args, *switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request(RequestSettings):
    """Which requests a server gets.

    Attributes:
        dataset: the name of a prompt set, such as `"toy"` or `"mt-bench"`.
        prompts: how many prompts of the dataset are replayed, beginning with the first.
        matrix_prompts: how many prompts the tier sets; None if this run replays as many.
        request_timeout_s: how long a request may take, in seconds; a slower one has failed. A
            stream that is silent for 60 s has failed too.
        client_processes: how many processes send the requests.
    """

    dataset: str
    prompts: Positive
    matrix_prompts: int | None = None
    request_timeout_s: AboveZero = 600.0
    client_processes: Annotated[int, msgspec.Meta(ge=1, le=MAX_CLIENT_PROCESSES)] = 1

    @property
    def usual_prompts(self) -> int:
        """How many prompts the case replays without `--num-prompts`."""
        return self.matrix_prompts or self.prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Judging:
    """How long a case is measured, and how it is judged.

    Attributes:
        speed: False if the times of the server aren't realistic, so that no speed is judged.
        least_s: how long each server is kept under load, in seconds, where a speed is recorded or
            compared; the prompts are repeated for that, and only the speed uses the repetitions.
        power_s: how long each server is kept under load for its power, in seconds; 0 for no longer
            than the rounds take.
        rounding_nats: the gap between the log-probabilities of two tokens, in nats, below which
            rounding may choose the other one; 0 demands equal tokens.
        tolerances: by metric, the tolerance that replaces the metric's own.
        shown: the metrics that are shown and recorded, but not judged, because they differ from
            hour to hour by more than a loss that matters.
        limits: the limits that a good request keeps.
    """

    speed: bool = True
    least_s: NotNegative = 0.0
    power_s: NotNegative = 0.0
    rounding_nats: NotNegative = ROUNDING_NATS
    tolerances: tuple[tuple[str, float], ...] = ()
    shown: tuple[str, ...] = ()
    limits: Limits = NO_LIMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSettings(ServerSettings, RequestSettings, Load):
    """What must be equal for two measurements of a case to be compared: the key of a baseline.

    The engine's version and the draft are not among them, because comparisons show their effect.

    Attributes:
        engine: the name of the engine.
        method: the name of the speculative method; `none` for the target alone.
        draft_tokens: the most drafts that a step can accept; 0 without speculation.
        target_sha256: the checksum of the target's files; empty for a hub id.
        target: the hub id of the target; empty for files.
        prompts_sha256: the checksum of the prompts that the case replays without `--num-prompts`,
            and of the further prompts that it replays if its acceptance is undecided.
        limits: the limits on TTFT and TPOT that a good request keeps.
        prompts: the number of prompts that the tier sets for the case.
        num_prompts: how many prompts `--num-prompts` sets instead; null without it.
    """

    engine: Label
    method: Label
    draft_tokens: int
    target_sha256: Label
    target: Label
    prompts_sha256: Label
    limits: Limits = NO_LIMITS
    prompts: int | None = None
    num_prompts: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement of the tier.

    Attributes:
        server: the server that is measured.
        control: the `none` server of the same target, measured in alternation for the speedup;
            None if the tier has no such case, and for `none` itself.
        request: which requests the server gets.
        load: how many requests come, and when.
        judging: how long the case is measured, and how it is judged.
    """

    server: ServerSpec
    control: ServerSpec | None = None
    request: Request
    load: Load
    judging: Judging = Judging()

    @property
    def id(self) -> str:
        """The name: engine, method, model pair, dataset and load (`vllm-eagle3-tiny-toy-c4`).

        A temperature adds `-t0.6` to the dataset.
        """
        parts = [self.server.id, self.request.dataset]
        if self.request.temperature:
            parts.append(f"t{self.request.temperature:g}")
        return "-".join((*parts, self.load.id))

    def identity(self, *, target_sha256: str, prompts_sha256: str) -> CaseSettings:
        """Return what must be equal for two measurements of the case to be compared.

        Secrets are hidden, as in the file of a baseline.

        Args:
            target_sha256: the checksum of the target's files; empty for a hub id.
            prompts_sha256: the checksum of its prompts, see `CaseSettings`.
        """
        settings: dict[str, object] = {}
        for part in (self.load, self.request, self.server):
            settings |= msgspec.to_builtins(part)
        settings |= {
            "target_sha256": target_sha256,
            # A folder may be anywhere, so it is identified by its files, and a hub id by its name.
            "target": "" if target_sha256 else self.server.target,
            "prompts_sha256": prompts_sha256,
            "limits": msgspec.to_builtins(self.judging.limits),
            "prompts": self.request.usual_prompts,
            "num_prompts": self.request.prompts if self.request.matrix_prompts else None,
        }

        # What isn't compared isn't a field of the settings, and is left out.
        return readable_values(msgspec.convert(settings, CaseSettings))

    @property
    def key(self) -> str:
        """The case as JSON without secrets. Cases measured in the same way have the same key."""
        return msgspec.json.encode(hide_values(self)).decode()

    @property
    def in_flight(self) -> int:
        """The largest number of requests in flight."""
        # A load at a rate has no limit of its own, so the limit of the server counts.
        return self.load.concurrency or self.server.max_sequences

    @property
    def rounds(self) -> int:
        """The number of rounds that its prompts are divided into.

        Case and control take turns after each round. Other users of a machine may slow it down for
        seconds, so there are as many rounds as possible. A round has one prompt if one request is
        in flight, and otherwise at least four prompts for each request in flight, unless the case
        has fewer. A load at a rate or with a duration has at most four rounds.
        """
        concurrency = self.load.concurrency

        # Shorter rounds at a rate or with a duration would mostly consist of their start and end.
        if not concurrency or self.load.duration_s is not None:
            return min(_OPEN_ROUNDS, self.request.prompts)
        round_prompts = 1
        if concurrency > 1:
            round_prompts = _PROMPTS_PER_SLOT * concurrency
        return max(self.request.prompts // round_prompts, 1)

    @property
    def memory_gib(self) -> float | None:
        """The memory that each GPU must have, in GiB; None if the sizes of the models aren't known.

        The server's share of this memory must hold the weights, the KV cache of all requests in
        flight, and the engine's other memory. The rest is for the control.
        """
        server = self.server
        if server.sizes is None:
            return None
        weights_gib = server.sizes.weights_gib(server.parallel)
        if weights_gib is None:
            return None
        tokens = self.in_flight * server.max_model_len_tokens
        cache_gib = server.sizes.cache_gib(server.parallel, tokens)
        share_gib = weights_gib + cache_gib + BESIDE_GIB
        return share_gib / server.gpu_memory_frac

    def unmet(self, gpus_gib: Sequence[float | None]) -> str:
        """Return why a machine can't run the case; empty if nothing is known to be lacking.

        Args:
            gpus_gib: the memory of each of the machine's GPUs; None if it isn't known.

        Returns:
            A reason that doesn't name the case, so that cases with the same reason can be counted.
        """
        gpus = self.server.parallel.gpus_by_node
        memory_gib = self.memory_gib

        # A GPU whose memory isn't known may be large enough.
        known_gib = [gib for gib in gpus_gib[:gpus] if gib is not None]
        is_too_small = memory_gib is not None and min(known_gib, default=memory_gib) < memory_gib
        if len(gpus_gib) >= gpus and not is_too_small:
            return ""
        needed = f"{gpus} GPU(s)"
        if memory_gib is not None:
            needed += f" of {math.ceil(memory_gib)} GiB"
        present = render_memory(gpus_gib) or "none"
        return f"{needed} needed, this machine has {present}"

    @property
    def speculates(self) -> bool:
        """True if the method isn't `none`."""
        return self.server.method != "none"

    def replaying(self, prompts: int) -> "Case":
        """Return the case with another number of prompts than the tier has."""
        matrix_prompts = None
        if prompts != self.request.usual_prompts:
            matrix_prompts = self.request.usual_prompts
        request = dataclasses.replace(self.request, prompts=prompts, matrix_prompts=matrix_prompts)
        return dataclasses.replace(self, request=request)

    def tolerating(self, tolerances_frac: Mapping[str, float]) -> "Case":
        """Return the case with other tolerances for some metrics, by their names."""
        tolerances = {**dict(self.judging.tolerances), **tolerances_frac}
        judging = dataclasses.replace(self.judging, tolerances=tuple(tolerances.items()))
        return dataclasses.replace(self, judging=judging)

    @property
    def needs_fresh_server(self) -> bool:
        """True if another case's requests to the server would change what this case measures."""
        return engine_named(self.server.engine).spelling_of(self.server.method).learns

    @property
    def only_for(self) -> str:
        """The id of the case if no other case may use its server; empty if cases share it."""
        return self.id if self.needs_fresh_server else ""

    @property
    def control_case(self) -> "Case":
        """The case with its workload on the control, or on its own server if it has no control."""
        return dataclasses.replace(self, server=self.control or self.server, control=None)


def in_run_order(cases: Sequence[Case]) -> list[Case]:
    """Return cases in the order in which a run measures them.

    The cases of a server follow each other, and servers keep the order of their first cases.
    """
    servers = list(dict.fromkeys(case.server for case in cases))
    return sorted(cases, key=lambda case: servers.index(case.server))


def companions_of(
    case: Case,
    later_cases: Iterable[Case],
    *,
    may_join: Callable[[Case], bool],
    fit: Callable[[Sequence[ServerSpec]], bool],
) -> list[Case]:
    """Return the later cases that are measured side by side with a case, and share its control.

    They differ from the case only in their speculation.

    Args:
        case: the first case.
        later_cases: the cases that the run measures after it, in order.
        may_join: returns whether a case may be measured together with others.
        fit: returns whether the memory is enough for several servers at the same time.
    """
    # A drafter that learns from requests needs a server that no other case uses.
    if case.needs_fresh_server:
        return []
    control_case = case.control_case
    servers = dict.fromkeys((control_case.server, case.server))
    companions = []
    for later_case in later_cases:
        if later_case.control_case.server != control_case.server:
            # Cases after this one may have the same control again. But it would have to be kept
            # running until then.
            break
        has_same_workload = later_case.control_case == control_case
        if not has_same_workload or later_case.needs_fresh_server or not may_join(later_case):
            continue
        with_case = {**servers, later_case.server: None}
        if fit(list(with_case)):
            servers = with_case
            companions.append(later_case)

    return companions


def render_memory(gpus_gib: Sequence[float | None]) -> str:
    """Return the memory of each GPU in words, such as `79 GiB, unknown`."""
    return ", ".join("unknown" if gib is None else f"{math.floor(gib)} GiB" for gib in gpus_gib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The cases of one file.

    Attributes:
        name: the name of the file, without its suffix.
        needs_gpus: the number of GPUs that a machine must have to run the tier; 0 for none.
        cases: the cases in the order of the file.
        locations: the file and the number of each case's table, by case id, for errors.
        choices: the model pairs that each case's table names, by case id, the preferred one first.
        licences: the licences of the models, by model pair; a pair without a stated licence isn't
            in it.
        commands: lines that explain the `command` of a table, by the file and number of the table.
    """

    name: str
    needs_gpus: int
    cases: tuple[Case, ...]
    locations: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    licences: Mapping[str, str] = field(default_factory=dict)
    commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def named(self, case_id: str) -> Case:
        """Return the case with an id.

        Raises:
            UnknownNameError: the tier has no such case; the message lists what it has.
        """
        cases = {case.id: case for case in self.cases}
        check_name("case", case_id, cases, f"tier '{self.name}'")
        return cases[case_id]

    def chosen(self, gpus_gib: Sequence[float | None]) -> "Tier":
        """Return the tier with one model pair for each table, chosen by the memory of the GPUs.

        If a table names several pairs, the first one with no case that is too large is chosen, or
        else the last one. Without GPUs everything is assumed to fit.

        Args:
            gpus_gib: the memory of each of the machine's GPUs; None if it isn't known.
        """
        unmet: dict[str, str] = {}
        if gpus_gib:
            unmet = self.unmet(gpus_gib)

        # Find the pairs with a case that doesn't fit. The key is the list of pairs that the case's
        # table names, so all tables with the same list get the same pair.
        too_large: dict[tuple[str, ...], set[str]] = {}
        for case in self.cases:
            if case.id in unmet:
                too_large.setdefault(self.choices[case.id], set()).add(case.server.models)

        # Keep the cases of the chosen pairs.
        cases = []
        for case in self.cases:
            pairs = self.choices[case.id]
            fitting_pairs = [pair for pair in pairs if pair not in too_large.get(pairs, set())]
            # Tables name the largest pair first, so the last one is the most likely to fit.
            chosen_pair = next(iter(fitting_pairs), pairs[-1])
            if case.server.models == chosen_pair:
                cases.append(case)

        return dataclasses.replace(self, cases=tuple(cases))

    def unmet(self, gpus_gib: Sequence[float | None]) -> dict[str, str]:
        """Return why a machine can't run some cases, by case id.

        Args:
            gpus_gib: the memory of each of the machine's GPUs; None if it isn't known.
        """
        if not self.needs_gpus:
            return {}
        needs = {case.id: case.unmet(gpus_gib) for case in self.cases}
        return {case_id: need for case_id, need in needs.items() if need}

    def gpus_used(self, gpus_gib: Sequence[float | None]) -> int:
        """Return the most GPUs that a case takes on each machine, of the cases that can be run.

        If the machine can run none, this is the number that the tier needs. For a tier that needs
        no GPU it is 0.

        Args:
            gpus_gib: the memory of each of the machine's GPUs; None if it isn't known.
        """
        if not self.needs_gpus:
            return 0
        unmet = self.unmet(gpus_gib)
        servers = [case.server for case in self.cases if case.id not in unmet]
        widths = [server.parallel.gpus_by_node for server in servers]
        return max(widths, default=self.needs_gpus)
