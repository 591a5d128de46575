"""What the tables make: a case, the server that it needs, and the tier that it is of."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specreg.core.redaction import learn
from specreg.datasets.prompts import AS_IS
from specreg.engines.methods import METHODS, Tree
from specreg.engines.protocols import Form
from specreg.engines.registry import ALONE, Parallel, engine_named
from specreg.matrix.load import Load
from specreg.matrix.needs import Needs, Sizes
from specreg.matrix.tables import ROUNDING_NATS, USUAL_DRAFT_TOKENS, Width


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """What has to be equal for two cases to share a server.

    Attributes:
        engine, method: their names.
        models: the name of the model pair.
        target, draft: folders or hub ids; `draft` is None where the method needs none.
        padding_layers: identity layers appended to the target.
        widen: how large the models are made, None for as they are.
        draft_tokens: the most drafts that a step can accept, which are all that it drafts where
            there is no tree; 0 without speculation.
        tree: how the drafts branch, None for one continuation.
        dtype: the engine's name of the number format.
        max_model_len_tokens: prompt and output together.
        max_sequences: requests that the server takes on at once.
        gpu_memory_frac: share of a GPU's memory that the server may take at most, 0..1. Case and
            control run beside one another, so at most half.
        parallel: how the models are spread over GPUs.
        engine_args, engine_env: further arguments and environment variables, as pairs.
        trust_remote_code: whether the engine runs code that the models bring.
        sizes: what the models take, None where nobody said.
    """

    engine: str
    method: str
    models: str
    target: str
    draft: str | None
    padding_layers: int
    draft_tokens: int
    dtype: str
    max_model_len_tokens: int
    max_sequences: int
    gpu_memory_frac: float
    parallel: Parallel = ALONE
    engine_args: tuple[str, ...] = ()
    engine_env: tuple[tuple[str, str], ...] = ()
    trust_remote_code: bool = False
    tree: Tree | None = None
    sizes: Sizes | None = None
    widen: Width | None = None

    def __post_init__(self) -> None:
        """From here on nothing that we write or say has the secrets among them."""
        learn(dict(self.engine_env), self.engine_args)

    @property
    def drafted_tokens(self) -> int:
        """All tokens that a step drafts, D / S."""
        return self.tree.drafted_tokens if self.tree else self.draft_tokens

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny`: what a server is called in ids, logs and errors.

        With `-k5` where it drafts another number of tokens per step than the usual.
        """
        usual = self.draft_tokens in {0, USUAL_DRAFT_TOKENS}
        drafts = "" if usual else f"-k{self.draft_tokens}"
        return f"{self.engine}-{self.method}-{self.models}{drafts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a request must keep to count as good; None for no limit."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measurement of the matrix.

    Attributes:
        server: what to start.
        control: the `none` server of the same target, measured in alternation for the speedup;
            None where the tier has no such case, and for `none` itself.
        dataset: the name of the prompt set.
        prompts: how many of its prompts are replayed.
        matrix_prompts: how many the matrix says, where this run replays another number.
        load: how many requests come, and when; its duration is that of a round.
        rounds: how many parts the prompts are dealt into; case and control alternate by round.
        turns: the most turns of a conversation, None for all.
        history_reply: what of a reply the next turn is told, a name of `REPLIES`.
        form: whether prompts go through the model's chat template.
        chat_template_args: arguments of that template, as pairs.
        output_cap_tokens: the most tokens of a reply; temperature: 0 is greedy.
        ignore_eos: whether every reply goes on to the cap.
        stream: whether replies come as they are made, not at once.
        request_timeout_s: how long a request may take; one that takes longer failed.
        limits: what a request must keep to count as good.
        client_processes: how many processes send the requests.
        speed: whether the time that the server takes means anything.
        power_s: how long each server is kept under load for its power; 0 for the rounds alone.
        rounding_nats: two tokens whose log-probabilities lie closer may change places by rounding;
            0 demands that speculation changes none.
        tolerances: by metric, a relative change that overrides the metric's own.
    """

    server: ServerSpec
    control: ServerSpec | None
    dataset: str
    prompts: int
    load: Load
    rounds: int
    output_cap_tokens: int
    temperature: float
    matrix_prompts: int | None = None
    turns: int | None = None
    history_reply: str = AS_IS
    form: Form = Form.CHAT
    chat_template_args: tuple[tuple[str, object], ...] = ()
    ignore_eos: bool = False
    stream: bool = True
    request_timeout_s: float = 600.0
    limits: Limits = NO_LIMITS
    client_processes: int = 1
    speed: bool = True
    power_s: float = 0.0
    rounding_nats: float = ROUNDING_NATS
    tolerances: tuple[tuple[str, float], ...] = ()

    @property
    def id(self) -> str:
        """`vllm-eagle3-tiny-toy-c4`: engine, method, model pair, dataset, load."""
        return f"{self.server.id}-{self.dataset}-{self.load.id}"

    @property
    def needs(self) -> Needs:
        """What it needs of a machine's GPUs, where it spans several of each.

        Case and control stand beside one another on the same GPUs, each with its share of the
        memory; into that must go the weights, the KV cache of all that is in flight, and a reserve.
        """
        server = self.server
        in_flight = self.load.concurrency or server.max_sequences
        tokens = in_flight * server.max_model_len_tokens
        share_gib = server.sizes.share_gib(server.parallel, tokens) if server.sizes else None
        return Needs(
            gpus=server.parallel.gpus_by_node,
            memory_gib=None if share_gib is None else share_gib / server.gpu_memory_frac,
        )

    @property
    def speculates(self) -> bool:
        """Whether the case has a method other than `none`."""
        return self.server.method != "none"

    def replaying(self, prompts: int) -> "Case":
        """The case with so many prompts, whatever the matrix says."""
        if prompts == self.prompts:
            return self
        by_matrix = self.matrix_prompts or self.prompts
        return dataclasses.replace(
            self, prompts=prompts, matrix_prompts=by_matrix if prompts != by_matrix else None
        )

    @property
    def needs_fresh_server(self) -> bool:
        """Whether what another case asked the server would change what this one measures."""
        spelling = engine_named(self.server.engine).spelling
        return spelling in METHODS[self.server.method].learns_on


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """The cases of one matrix file.

    Attributes:
        name: the file's, without its ending.
        needs_gpus: how many GPUs a machine must have for the tier to run at all, 0 for none.
        cases: in the order of the file.
        places: by case, where its table stands, for errors.
        remarks: what the file says to no effect, a sentence each.
        choices: by case of a table that names several pairs, their names, the preferred one first.
    """

    name: str
    needs_gpus: int
    cases: tuple[Case, ...]
    places: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def chosen(self, gpus_gib: Sequence[float]) -> "Tier":
        """The tier as a machine runs it: of several pairs the first all of whose cases fit.

        Where none fits that is the last one.

        Args:
            gpus_gib: the memory of each of the machine's GPUs; none for a machine that isn't there
                yet, which is taken to hold all.
        """
        unmet = self.unmet(gpus_gib) if gpus_gib else {}
        too_large = {
            (self.choices.get(case.id), case.server.models)
            for case in self.cases
            if case.id in unmet
        }
        taken = {
            names: next((name for name in names if (names, name) not in too_large), names[-1])
            for names in self.choices.values()
        }
        cases = tuple(
            case
            for case in self.cases
            if case.id not in self.choices or taken[self.choices[case.id]] == case.server.models
        )
        return dataclasses.replace(self, cases=cases)

    def unmet(self, gpus_gib: Sequence[float], where: str = "this machine") -> dict[str, str]:
        """By case's id what it needs and a machine lacks, in a sentence; none where all fit.

        Args:
            gpus_gib: the memory of each of the machine's GPUs.
            where: what to call it.
        """
        if not self.needs_gpus:
            return {}
        lacks = {case.id: case.needs.unmet(gpus_gib, where) for case in self.cases}
        return {case_id: f"{case_id} {lack}" for case_id, lack in lacks.items() if lack}

    def gpus_used(self, gpus_gib: Sequence[float]) -> int:
        """How many of a machine's GPUs the widest case takes that it can run."""
        lacking = self.unmet(gpus_gib)
        widths = [case.needs.gpus for case in self.cases if case.id not in lacking]
        return max(widths, default=self.needs_gpus) if self.needs_gpus else 0
