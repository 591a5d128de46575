"""Build draft heads that read the target's hidden states, with the tensor names that vLLM loads.

    EAGLE-3 (https://arxiv.org/abs/2503.01840, `LlamaForCausalLMEagle3`) reads three residual
            streams, concatenated, and the next token.
    P-EAGLE (the same class) reads the same, and drafts all tokens of a step in one pass, with a
            mask and a learnt state in place of each token that isn't known yet.
    EAGLE   (https://arxiv.org/abs/2401.15077, `EagleLlamaForCausalLM`) reads the normed state and
            the next token.
    MTP     (`MiMoMTP`) reads the state before its norm and the next token, in a layer of the
            target's own file.
    Medusa  (https://arxiv.org/abs/2401.10774, `Medusa`) reads only the normed state, with a block
            for each drafted token.
    DFlash  (https://arxiv.org/abs/2602.06036, `DFlashQwen3ForCausalLM`) reads the states after
            some layers, and fills in a block of masks after the next token, all at once.

EAGLE-3 and P-EAGLE have an output matrix of their own; the other heads use the target's. All heads
but Medusa use the target's embeddings. In training, EAGLE-3, EAGLE and MTP are unrolled: draft step
j reads the hidden states that step j - 1 computed, as it does when the head drafts ("training-time
test" in the EAGLE-3 paper).

An anchor is a position of the text after which a step of decoding drafts several tokens. A draft
step computes one of these tokens, for all anchors at once.
"""

import functools
import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import msgspec
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP

from specreg.engines.pytorch.models import Model

StepCache = list[tuple[Tensor, Tensor]]
"""Keys and values of the draft steps so far, each `[rows, heads, anchors, head_dim]`."""
MTP_LAYER = "model.mtp_layers.0."
"""The prefix of the tensors of a target's layer for multi-token prediction."""
MEDUSA_OUTPUT = "lm_heads.0.weight"
"""The name of Medusa's output matrix, which must be the target's."""
_MASKED_SCORE = -1e9
"""The attention score of a position that must not be read; its weight after the softmax is 0."""


class Rope(msgspec.Struct, frozen=True):
    """Plain rotary position embeddings."""

    rope_theta: float
    rope_type: Literal["default"] = "default"


class LayerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a `config.json` that describes the layer of a head."""

    model_type: Literal["llama", "qwen2", "qwen3"] = "llama"
    hidden_act: Literal["silu"] = "silu"
    mlp_bias: Literal[False] = False
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_parameters: Rope
    max_position_embeddings: int | None = None


class Eagle3Config(LayerConfig, frozen=True, kw_only=True):
    """The part of an EAGLE-3 head's `config.json` that describes how it is built."""

    eagle_aux_hidden_state_layer_ids: tuple[int, int, int]
    norm_before_residual: bool = False


class ParallelEagle3Config(Eagle3Config, frozen=True, kw_only=True):
    """The part of a P-EAGLE head's `config.json` that describes how it is built.

    Attributes:
        ptd_token_id: the token whose embedding stands for a token that isn't known yet.
    """

    ptd_token_id: int


class MedusaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The part of the `config.json` of Medusa heads that describes how they are built."""

    model_type: Literal["medusa"]
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_hidden_layers: Literal[1]
    original_lm_head: Literal[True]


class BlockConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The layers of the target that a DFlash head reads, counted from 0, and its mask token."""

    mask_token_id: int
    target_layer_ids: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]


class DFlashConfig(LayerConfig, frozen=True, kw_only=True):
    """The part of a DFlash head's `config.json` that describes how it is built."""

    num_hidden_layers: int
    layer_types: tuple[Literal["full_attention"], ...] = ()
    dflash_config: BlockConfig


def rotate(states: Tensor, positions: Tensor, base: float) -> Tensor:
    """Apply rotary position embeddings to states, `[..., positions, channels]`.

    The angles are computed in float32, because half precision isn't exact enough for them. The
    states keep their number format.
    """
    channels = states.shape[-1]
    evens = torch.arange(0, channels, 2, device=states.device)
    exponents = evens.float() / channels
    frequencies = 1 / base**exponents
    half_angles = positions[:, None].float() * frequencies[None]

    # As in Llama, channel i is turned together with channel i + channels / 2.
    angles = half_angles.repeat(1, 2)
    first, second = states.chunk(2, -1)
    partners = torch.cat([-second, first], -1)
    turned = states * angles.cos() + partners * angles.sin()
    return turned.to(states.dtype)


class Attention(nn.Module):
    """Attention over the anchors and the draft steps after them."""

    def __init__(
        self, config: LayerConfig, states_read: int = 1, *, bias: bool = False, norms: bool = False
    ) -> None:
        """Build the projections.

        Args:
            config: the configuration of the layer.
            states_read: the number of states per anchor that are read, concatenated.
            bias: True if queries, keys and values have a bias.
            norms: True if queries and keys are normed for each attention head, as in Qwen3.
        """
        super().__init__()
        self.config = config
        width = states_read * config.hidden_size
        inner_width = config.num_attention_heads * config.head_dim
        self.q_proj = nn.Linear(width, inner_width, bias=bias)
        self.k_proj = nn.Linear(width, inner_width, bias=bias)
        self.v_proj = nn.Linear(width, inner_width, bias=bias)
        self.o_proj = nn.Linear(inner_width, config.hidden_size, bias=False)
        self.q_norm: nn.Module = nn.Identity()
        self.k_norm: nn.Module = nn.Identity()
        if norms:
            self.q_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, config.rms_norm_eps)

    def project(self, states: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return queries, and keys with values, each `[rows, heads, anchors, head_dim]`."""
        base = self.config.rope_parameters.rope_theta
        query = self._split_heads(self.q_proj(states))
        key = self._split_heads(self.k_proj(states))
        value = self._split_heads(self.v_proj(states))
        query = rotate(self.q_norm(query), positions, base)
        key = rotate(self.k_norm(key), positions, base)
        return query, (key, value)

    def _split_heads(self, states: Tensor) -> Tensor:
        """Turn `[rows, anchors, heads * head_dim]` into `[rows, heads, anchors, head_dim]`."""
        heads = states.unflatten(-1, (-1, self.config.head_dim))
        return heads.transpose(1, 2)

    def read(self, query: Tensor, step_cache: StepCache) -> Tensor:
        """Let each anchor attend to step 0 of all anchors up to itself, and to its own later steps.

        Args:
            query: the queries of the current step, `[rows, heads, anchors, head_dim]`.
            step_cache: the keys and values of all steps so far.

        Returns:
            The output for each anchor, `[rows, anchors, hidden]`.
        """
        first_key, first_value = step_cache[0]
        later_steps = step_cache[1:]
        anchors = query.shape[-2]
        scale = math.sqrt(query.shape[-1])

        # Of step 0 an anchor reads all anchors up to itself; of a later step it reads only itself.
        masked = query.new_full((anchors, anchors), _MASKED_SCORE)
        mask = torch.triu(masked, 1)
        past_scores = query @ first_key.transpose(-1, -2) / scale + mask
        all_scores = [past_scores]
        for key, _ in later_steps:
            products = query * key
            all_scores.append(products.sum(-1, keepdim=True) / scale)

        # One softmax over both kinds of scores: the weights of an anchor add up to 1.
        weights = torch.softmax(torch.cat(all_scores, -1), -1)
        widths = [anchors, *[1] * len(later_steps)]
        past_weights, *later_weights = weights.split(widths, -1)
        attended = past_weights @ first_value
        for weight, (_, value) in zip(later_weights, later_steps, strict=True):
            attended = attended + weight * value
        joined_heads = attended.transpose(1, 2).flatten(2)
        return self.o_proj(joined_heads)


class Layer(nn.Module):
    """A layer of a head, around its attention.

    The layer doesn't norm what its attention reads. If a method has such a norm, its head applies
    `input_layernorm` before it calls the layer.
    """

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        config = attention.config
        self.self_attn = attention
        self.mlp = LlamaMLP(config)
        self.input_layernorm: nn.Module = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, states: Tensor, hidden: Tensor, step: int, step_cache: StepCache) -> Tensor:
        """Return the next hidden states, `[rows, anchors, hidden]`.

        Args:
            states: the states that the attention reads.
            hidden: the hidden states to which the layer adds its output.
            step: the number of the draft step, from 0. In draft step j, the state of an anchor has
                the anchor's position plus j.
            step_cache: the keys and values of the draft steps before; those of this one are
                appended.
        """
        positions = torch.arange(hidden.shape[1], device=hidden.device) + step
        query, key_and_value = self.self_attn.project(states, positions)
        # A state also reads itself, so its keys and values are appended before the attention reads.
        step_cache.append(key_and_value)
        hidden = hidden + self.self_attn.read(query, step_cache)
        normed = self.post_attention_layernorm(hidden)
        return hidden + self.mlp(normed)


class Head(nn.Module):
    """The base class of heads. By default a head drafts one token after another."""

    has_output: ClassVar = False
    """True if it has an output matrix of its own, and returns logits instead of states."""
    normed: ClassVar = True
    """True if it reads the target's last state after its norm."""
    layers_read: Sequence[int] = ()
    """How many target layers have run at each point where the head reads the states. Empty to read
    them only after the last layer."""

    @staticmethod
    def checkpoint_name(name: str) -> str:
        """Return the name that a tensor of the head has in a checkpoint."""
        return name

    def unroll(self, hidden: Tensor, embeddings: Tensor, drafted: int) -> list[Tensor]:
        """Return the states of each drafted token, `[rows, anchors, hidden]`, or its logits.

        A head with `has_output` returns logits, `[rows, anchors, vocabulary]`.

        Args:
            hidden: the target's states, `[rows, anchors, hidden]`. The states of several layers are
                concatenated.
            embeddings: the embeddings of the tokens after each anchor,
                `[rows, anchors + drafted - 1, hidden]`.
            drafted: the number of draft steps, 1 or more.
        """
        step_cache: StepCache = []
        states = []
        anchors = hidden.shape[1]
        for step in range(drafted):
            # All anchors draft at once, and read the text's next tokens in place of their drafts.
            # If a draft differs from the text, it and all later drafts are rejected, so it doesn't
            # matter what those later drafts read.
            after = embeddings[:, step : step + anchors]
            hidden = self.step(after, hidden, step, step_cache)
            states.append(hidden)

        return states

    def step(self, after: Tensor, hidden: Tensor, step: int, step_cache: StepCache) -> Tensor:
        """Return the hidden states of the next drafted tokens.

        Args:
            after: the embeddings of the tokens after the anchors.
            hidden: the hidden states of the anchors.
            step: the number of the draft step, from 0.
            step_cache: the keys and values of the draft steps before.
        """
        raise NotImplementedError


class Eagle3Head(Head):
    """EAGLE-3: fuses the target's streams once, and runs `midlayer` for each drafted token."""

    has_output: ClassVar = True
    normed: ClassVar = False

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.layers_read = config.eagle_aux_hidden_state_layer_ids
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(Attention(config, states_read=2))
        self.midlayer.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def unroll(self, hidden: Tensor, embeddings: Tensor, drafted: int) -> list[Tensor]:
        """Return each step's logits. `hidden` has three concatenated streams of the target."""
        steps = super().unroll(self.fc(hidden), embeddings, drafted)
        return [self.lm_head(self.norm(states)) for states in steps]

    def step(self, after: Tensor, hidden: Tensor, step: int, step_cache: StepCache) -> Tensor:
        """Read the embedding and the hidden state, concatenated."""
        layer = self.midlayer
        normed_embedding = layer.input_layernorm(after)
        normed_hidden = layer.hidden_norm(hidden)
        both = torch.cat([normed_embedding, normed_hidden], -1)
        return layer(both, hidden, step, step_cache)


class ParallelEagle3Head(Eagle3Head):
    """P-EAGLE: an EAGLE-3 head that drafts all tokens of a step in one pass.

    Each further token reads a learnt state and the embedding of a mask, where EAGLE-3 reads what it
    has drafted.
    """

    mask: Tensor

    def __init__(self, config: ParallelEagle3Config, embeddings: Tensor) -> None:
        """Take the mask's embedding from the target's, `[vocabulary, hidden]`."""
        super().__init__(config)
        self.mask_hidden = nn.Parameter(torch.zeros(1, 3 * config.hidden_size))
        mask = embeddings[config.ptd_token_id].detach().clone()
        self.register_buffer("mask", mask, persistent=False)

    def unroll(self, hidden: Tensor, embeddings: Tensor, drafted: int) -> list[Tensor]:
        """Return each step's logits. `hidden` has three concatenated streams of the target."""
        first = embeddings[:, : hidden.shape[1]]
        step_cache: StepCache = []

        # Step 0 reads what EAGLE-3 reads there.
        states = [self.step(first, self.fc(hidden), 0, step_cache)]

        # The later steps read nothing that has been drafted.
        masks = self.mask.expand_as(first)
        unknown = self.fc(self.mask_hidden).expand_as(first)
        states += [self.step(masks, unknown, step, step_cache) for step in range(1, drafted)]
        return [self.lm_head(self.norm(state)) for state in states]


class EagleHead(Head):
    """EAGLE: fuses an embedding and a state, and runs one layer for each drafted token."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        layer = Layer(Attention(config))
        # EAGLE's layer has no norm before its attention, so a checkpoint has no tensor for it.
        layer.input_layernorm = nn.Identity()
        self.layers = nn.ModuleList([layer])

    def step(self, after: Tensor, hidden: Tensor, step: int, step_cache: StepCache) -> Tensor:
        """Fuse the embedding and the hidden state, and run the layer."""
        both = torch.cat([after, hidden], -1)
        fused = self.fc(both)
        return self.layers[0](fused, fused, step, step_cache)


class MtpHead(Head):
    """MiMo's layer for multi-token prediction, run again for each drafted token."""

    normed: ClassVar = False

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        norms = [nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(3)]
        self.token_layernorm, self.hidden_layernorm, self.final_layernorm = norms
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = Layer(Attention(config, bias=True))

    @staticmethod
    def checkpoint_name(name: str) -> str:
        """Return the name in the target's own file."""
        return f"{MTP_LAYER}{name.removeprefix('block.')}"

    def step(self, after: Tensor, hidden: Tensor, step: int, step_cache: StepCache) -> Tensor:
        """Norm and fuse the embedding and the hidden state, and run the layer."""
        if step == 0:
            # MiMo's layer gets zeros instead of an embedding at the first position of a text.
            after = nn.functional.pad(after[:, 1:], (0, 0, 1, 0))
        normed_hidden = self.hidden_layernorm(hidden)
        normed_embedding = self.token_layernorm(after)
        both = torch.cat([normed_hidden, normed_embedding], -1)
        fused = self.input_proj(both)
        states = self.block.input_layernorm(fused)
        output = self.block(states, fused, step, step_cache)
        return self.final_layernorm(output)


class MedusaHead(Head):
    """Medusa: one residual block for each drafted token."""

    def __init__(self, hidden_size: int, drafted: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(drafted)
        )

    @staticmethod
    def checkpoint_name(name: str) -> str:
        """Return the name in a checkpoint, in which a block is a list with one layer."""
        return name.replace(".weight", ".layers.0.weight")

    def unroll(self, hidden: Tensor, embeddings: Tensor, drafted: int) -> list[Tensor]:
        """Return the states of each block, which all read the same states of the target."""
        del embeddings
        states = []
        for block in self.blocks[:drafted]:
            update = nn.functional.silu(block(hidden))
            states.append(hidden + update)
        return states


class DFlashHead(Head):
    """DFlash: drafts all tokens of a step by filling in masks, which read the target's states."""

    normed: ClassVar = False
    mask: Tensor

    def __init__(self, config: DFlashConfig, embeddings: Tensor) -> None:
        """Take the mask's embedding from the target's, `[vocabulary, hidden]`."""
        super().__init__()

        # The configuration counts layers from 0; `layers_read` counts those that have been run.
        self.layers_read = [layer + 1 for layer in config.dflash_config.target_layer_ids]
        width_read = len(self.layers_read) * config.hidden_size
        self.fc = nn.Linear(width_read, config.hidden_size, bias=False)
        layers = [Layer(Attention(config, norms=True)) for _ in range(config.num_hidden_layers)]
        self.layers = nn.ModuleList(layers)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        mask = embeddings[config.dflash_config.mask_token_id].detach().clone()
        self.register_buffer("mask", mask, persistent=False)

    def unroll(self, hidden: Tensor, embeddings: Tensor, drafted: int) -> list[Tensor]:
        """Return the normed states of the masks.

        They depend on the number of masks, because all masks of a step read each other.
        """
        context = self.hidden_norm(self.fc(hidden))
        positions = torch.arange(hidden.shape[1], device=hidden.device)
        next_tokens = embeddings[:, : hidden.shape[1]]
        masks = [self.mask.expand_as(next_tokens)] * drafted

        # The block of an anchor consists of the token after it and a mask for each drafted token.
        block = [next_tokens, *masks]
        for layer in self.layers:
            attention = layer.self_attn
            # Each state of a block reads the context and all states of the block.
            _, context_key_value = attention.project(context, positions)
            key_values = [context_key_value]
            queries = []
            for offset, states in enumerate(block, 1):
                normed = layer.input_layernorm(states)
                query, state_key_value = attention.project(normed, positions + offset)
                queries.append(query)
                key_values.append(state_key_value)
            next_block = []
            for query, states in zip(queries, block, strict=True):
                attended = states + attention.read(query, key_values)
                normed = layer.post_attention_layernorm(attended)
                next_block.append(attended + layer.mlp(normed))
            block = next_block

        # The token after the anchor isn't drafted, so its state isn't returned.
        return [self.norm(states) for states in block[1:]]


class ObservedTarget:
    """A frozen target that records the residual streams that a head reads.

    A stream is named by the number of layers before it.
    """

    def __init__(self, model: Model, aux_layers: Sequence[int]) -> None:
        self.model = model
        self._aux_layers = aux_layers
        self._streams: dict[int, Tensor] = {}

        # The input of a stage is the output of the layers before it. The hidden states that
        # transformers returns can't be used, because the last one is already normed.
        stages = [*model.model.layers, model.model.norm]
        for layers in aux_layers:
            stages[layers].register_forward_pre_hook(functools.partial(self._keep, layers))

    def _keep(self, layers: int, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._streams[layers] = arguments[0]

    def observe(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the embeddings and the concatenated residual streams per token."""
        with torch.no_grad():
            logits = self.model(input_ids=rows).logits
            embeddings = self.model.model.embed_tokens(rows)
        streams = torch.cat([self._streams[layers] for layers in self._aux_layers], -1)
        return logits, embeddings, streams
