"""The tables of a matrix file, as they are written."""

import json
from enum import StrEnum
from typing import Annotated

import msgspec

from specreg.datasets.prompts import AS_IS
from specreg.engines.methods import Tree
from specreg.engines.protocols import Form
from specreg.engines.registry import ALONE, Parallel
from specreg.matrix.load import Arrivals

MOST_DRAFT_TOKENS = 16
"""The most tokens drafted per step that the metrics tell apart by position."""
ROUNDING_NATS = 0.25
"""Two tokens whose log-probabilities lie closer may change places by rounding."""
USUAL_DRAFT_TOKENS = 3
"""What is drafted per step unless a table says otherwise; no case's id says it."""

_Positive = Annotated[int, msgspec.Meta(ge=1)]
_AboveZero = Annotated[float, msgspec.Meta(gt=0)]
_DraftTokens = Annotated[int, msgspec.Meta(ge=1, le=MOST_DRAFT_TOKENS)]


class Width(StrEnum):
    """How large a pair is made, by about the parameters of its target."""

    EIGHT_BILLION = "8b"
    ONE_BILLION = "1b"
    THIRTY_MILLION = "30m"


class ModelsTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[models.NAME]`: a target and its drafts.

    Attributes:
        target: a folder (a path with a slash that begins with `.`, `/` or `fixtures/`) or a hub id.
        drafts: by method, the draft model or head.
        padding_layers: identity layers appended to the target at set-up, 0 or more; a tiny target
            then costs enough per step for speculation to save something.
        widen: how large models are made at set-up of those in the folders, which then say the same
            and cost as much as others of that size; left out, they are taken as they are.
        target_gib: what the target's weights take, as they are served; None where nobody said, and
            then nobody checks whether a GPU holds it.
        drafts_gib: by method, what the weights of its draft take.
        token_kib: what a token takes in the target's KV cache.
    """

    target: str
    drafts: dict[str, str] = {}
    padding_layers: Annotated[int, msgspec.Meta(ge=0)] = 0
    widen: Width | None = None
    target_gib: _AboveZero | None = None
    drafts_gib: dict[str, _AboveZero] = {}
    token_kib: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class CasesTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[cases]]`: one case for each of `methods` × `draft_tokens` × the loads.

    The loads are `concurrency` or `requests_per_s`. The fields are those of `Case`, `Load` and
    `ServerSpec`. Of several `models` a machine runs the first that its GPUs hold.
    """

    engine: str
    methods: Annotated[list[str], msgspec.Meta(min_length=1)]
    models: str | Annotated[list[str], msgspec.Meta(min_length=1)]
    dataset: str
    prompts: _Positive
    output_cap_tokens: _Positive
    draft_tokens: _DraftTokens | Annotated[list[_DraftTokens], msgspec.Meta(min_length=1)] = (
        USUAL_DRAFT_TOKENS
    )
    tree: Tree | None = None
    concurrency: list[_Positive] = []
    requests_per_s: list[_AboveZero] = []
    arrivals: Arrivals | None = None
    burstiness: _AboveZero = 1.0
    ramp_up_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    duration_s: _AboveZero | None = None
    rounds: _Positive = 4
    turns: _Positive | None = None
    history_reply: str = AS_IS
    form: Form = Form.CHAT
    chat_template_args: dict[str, object] = {}
    temperature: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    ignore_eos: bool = False
    stream: bool = True
    request_timeout_s: _AboveZero = 600.0
    ttft_limit_ms: _AboveZero | None = None
    tpot_limit_ms: _AboveZero | None = None
    client_processes: _Positive = 1
    speed: bool = True
    power_s: Annotated[float, msgspec.Meta(ge=0)] | None = None
    rounding_nats: Annotated[float, msgspec.Meta(ge=0)] = ROUNDING_NATS
    dtype: str = "auto"
    max_model_len_tokens: _Positive = 1024
    max_sequences: _Positive = 8
    gpu_memory_frac: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.4
    parallel: Parallel = ALONE
    engine_args: list[str] = []
    engine_env: dict[str, str] = {}
    trust_remote_code: bool = False
    tolerances: dict[str, _AboveZero] = {}

    @property
    def each_draft_tokens(self) -> tuple[int, ...]:
        """The tokens drafted per step, each once."""
        written = self.draft_tokens
        return tuple(dict.fromkeys(written)) if isinstance(written, list) else (written,)

    @property
    def each_models(self) -> tuple[str, ...]:
        """The names of the pairs, the one that is preferred first."""
        return tuple(self.models) if isinstance(self.models, list) else (self.models,)


class TierFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole matrix file.

    Attributes:
        needs_gpus: how many GPUs a machine must have for the tier to run at all, 0 for none.
        models: pairs of its own, beside those that all tiers share.
        cases: what is run.
    """

    needs_gpus: Annotated[int, msgspec.Meta(ge=0)]
    models: dict[str, ModelsTable] = {}
    cases: list[CasesTable]


class PairsFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of the pairs that all tiers share."""

    models: dict[str, ModelsTable]


def render_schema() -> str:
    """The JSON Schema of a matrix file; `fixtures/matrix/schema.json` holds it for editors."""
    any_value = {"description": "what a chat template takes"}
    schema = msgspec.json.schema(TierFile, schema_hook=lambda _: any_value)
    return json.dumps(schema, indent=1, sort_keys=True) + "\n"
