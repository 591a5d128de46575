"""The schema of a case: the tables of a matrix file, and the settings that are derived from them.

A setting of a server is declared in `engines/engine.py`, one of its requests in
`RequestSettings`, one of their arrival in `Load`: each is then a key of `[[cases]]`, a field of the
case and, of those that must be equal to be compared, a setting of its baseline.
"""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec

from specreg.datasets.prompts import AS_IS
from specreg.engines.engine import LaunchSettings, Positive, ServerSettings
from specreg.engines.wire_format import Form

MOST_DRAFT_TOKENS = 128
"""The most tokens drafted per step: vLLM's sampler has room for so many."""
ROUNDING_NATS = 0.25
"""Two tokens whose log-probabilities lie closer may change places by rounding."""
USUAL_DRAFT_TOKENS = 3
"""What is drafted per step unless a table says otherwise; no case's id says it."""

_AboveZero = Annotated[float, msgspec.Meta(gt=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
DraftTokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_DRAFT_TOKENS)]
Width = Literal["8b", "1b", "30m"]
"""How large a pair is made, by about the parameters of its target."""
_SomeNames = Annotated[list[str], msgspec.Meta(min_length=1)]


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
        burstiness: the shape of gamma's gaps: their coefficient of variation is its -1/2th power;
            1 is Poisson, below 1 comes in bursts, above is more even.
        ramp_up_s: a round begins this gently: a closed loop's requests start one after another
            over this time; a rate rises from 0 linearly.
        duration_s: a round sends its prompts again and again for this long; None sends each once.
        concurrency: requests in flight in a closed loop; requests_per_s: the mean rate of the
            others; each is 0 where it doesn't apply.
        seed: of the gaps. Every round of a case has the same.
    """

    burstiness: _AboveZero = 1.0
    ramp_up_s: _NotNegative = 0.0
    duration_s: _AboveZero | None = None
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
        temperature: 0 is greedy.
        paired_seeds: whether each turn of a prompt has a seed of its own, the same on every server:
            what one draws at a temperature another draws too, as far as speculation lets it.
        turns: the most turns of a conversation, None for all.
        history_reply: what of a reply enters the history of the next turn, a name of `REPLIES`.
        chat_template_args: arguments of the model's chat template, as pairs.
        ignore_eos: whether every reply goes on to the cap.
    """

    output_cap_tokens: Positive
    temperature: _NotNegative = 0.0
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
        prompts: how many of the dataset's prompts are replayed, from the first.
        request_timeout_s: how long a request may take; one that takes longer failed.
        speed: whether the time that the server takes means anything.
        least_s: how long each server is asked at least where a speed is recorded or compared.
        rounding_nats: two tokens whose log-probabilities lie closer may change places by rounding;
            0 demands that speculation changes none.
        tolerances: by metric, a relative change that overrides the metric's own.
        shown: the metrics that are shown and recorded, and not judged: what differs from hour to
            hour by more than what one would call a loss.
    """

    dataset: str
    prompts: Positive
    request_timeout_s: _AboveZero = 600.0
    client_processes: Positive = 1
    speed: bool = True
    least_s: _NotNegative = 0.0
    rounding_nats: _NotNegative = ROUNDING_NATS
    tolerances: tuple[tuple[str, float], ...] = ()
    shown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseSettings(ServerSettings, RequestSettings, Load):
    """What must be equal for two measurements of a case to be compared: the key of a baseline.

    The engine's version and the draft are not among them: they are what one compares.

    Attributes:
        engine, method, draft_tokens: of the server.
        target_sha256: of the target's files; empty of a hub id, which is `target` then.
        prompts_sha256: of the prompts of a run by the matrix and of its extension.
        limits: what a request must keep to count as good.
        prompts: how many the matrix says; None in a file of an earlier form.
        num_prompts: how many a run replays instead of those; None for those.
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


class ModelsTable(msgspec.Struct, frozen=True, kw_only=True):
    """`[models.NAME]`: a target and its drafts.

    Attributes:
        target: a folder (a path with a slash that begins with `.`, `/` or `fixtures/`) or a hub id.
        drafts, drafts_gib: by method, the draft model or head, and what its weights take.
        padding_layers: identity layers appended to the target at set-up, 0 or more; a tiny target
            then costs enough per step for speculation to save something.
        widen: how large models are made at set-up of those in the folders, which then say the same
            and cost as much as others of that size; left out, they are taken as they are.
        target_gib: what the target's weights take, as they are served; None where it isn't known,
            and then it isn't checked whether a GPU holds it.
        token_kib: what a token takes in the target's KV cache.
    """

    target: str
    drafts: dict[str, str] = {}
    padding_layers: Annotated[int, msgspec.Meta(ge=0)] = 0
    widen: Width | None = None
    target_gib: _AboveZero | None = None
    drafts_gib: dict[str, _AboveZero] = {}
    token_kib: _NotNegative = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CasesTable(LaunchSettings, WorkloadSettings, Load):
    """`[[cases]]`: one case for each of `methods` × `draft_tokens` × the loads.

    The loads are `concurrency` or `requests_per_s`. Of several `models` a machine runs the first
    that its GPUs hold. Where a case has pairs, which can be hashed, a file has tables. Pinned
    `acceptance` goes with a length to pin it to.
    """

    engine: str
    methods: _SomeNames
    models: str | _SomeNames
    draft_tokens: DraftTokens | Annotated[list[DraftTokens], msgspec.Meta(min_length=1)] = (
        USUAL_DRAFT_TOKENS
    )
    acceptance: Literal["real", "pinned"] = "real"
    concurrency: tuple[Positive, ...] = ()  # type: ignore[assignment]
    requests_per_s: tuple[_AboveZero, ...] = ()  # type: ignore[assignment]
    arrivals: Arrivals | None = None  # type: ignore[assignment]
    ttft_limit_ms: _AboveZero | None = None
    tpot_limit_ms: _AboveZero | None = None
    power_s: _NotNegative | None = None
    engine_env: dict[str, str] = field(default_factory=dict)  # type: ignore[assignment]
    chat_template_args: dict[str, object] = field(default_factory=dict)  # type: ignore[assignment]
    tolerances: dict[str, _AboveZero] = field(default_factory=dict)  # type: ignore[assignment]


class TierFile(msgspec.Struct, frozen=True, kw_only=True):
    """A whole matrix file, its tables not yet decoded; see `Tier`.

    `models` are pairs of its own, `defaults` keys of all tables of cases that don't have them.
    """

    needs_gpus: Annotated[int, msgspec.Meta(ge=0)]
    models: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    cases: list[Any]


class PairsFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file of the pairs that all tiers share."""

    models: dict[str, Any]
