"""Draft heads that read the target's hidden states, with the tensor names that vLLM loads.

    EAGLE-3 (https://arxiv.org/abs/2503.01840, `LlamaForCausalLMEagle3`) reads three residual
            streams side by side, and the next token
    EAGLE   (https://arxiv.org/abs/2401.15077, `EagleLlamaForCausalLM`) reads the normed state
            beside the next token
    MTP     (`MiMoMTP`) reads the state before its norm beside the next token, in a layer of the
            target's own file
    Medusa  (https://arxiv.org/abs/2401.10774, `Medusa`) reads the normed state alone, with a block
            for each drafted token
    DFlash  (https://arxiv.org/abs/2602.06036, `DFlashQwen3ForCausalLM`) reads the states after
            some layers, and fills in a block of masks behind the next token, all at once

All but EAGLE-3 use the target's output matrix, and all but Medusa its embeddings. In training a
head is unrolled: draft step j sees the hidden states that step j - 1 made, as it does when it
drafts ("training-time test" in the EAGLE-3 paper).
"""

import functools
import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaMLP

Model = Any
"""A causal language model of transformers, built as Llama."""
Unrolled = list[tuple[Tensor, Tensor]]
"""Keys and values of the draft steps so far, each `[rows, heads, anchors, head_dim]`."""
MTP_LAYER = "model.mtp_layers.0."
"""What begins the names of a target's layer for multi-token prediction."""
MEDUSA_OUTPUT = "lm_heads.0.weight"
"""Medusa's output matrix, which must be the target's."""


class Rope(msgspec.Struct, frozen=True):
    """Plain rotary position embeddings."""

    rope_theta: float
    rope_type: Literal["default"] = "default"


class LayerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What of a `config.json` says how the layer of a head is built."""

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


class HeadConfig(LayerConfig, frozen=True, kw_only=True):
    """What of an EAGLE-3 head's `config.json` says how it is built."""

    eagle_aux_hidden_state_layer_ids: tuple[int, int, int]
    norm_before_residual: bool = False


class MedusaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What of the `config.json` of Medusa heads says how they are built."""

    model_type: Literal["medusa"]
    hidden_size: int
    vocab_size: int
    num_heads: int
    num_hidden_layers: Literal[1]
    original_lm_head: Literal[True]


class BlockConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a DFlash head reads of the target, whose layers it counts from 0, and its mask."""

    mask_token_id: int
    target_layer_ids: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)]


class DFlashConfig(LayerConfig, frozen=True, kw_only=True):
    """What of a DFlash head's `config.json` says how it is built."""

    num_hidden_layers: int
    layer_types: tuple[Literal["full_attention"], ...] = ()
    dflash_config: BlockConfig


def rotate(states: Tensor, positions: Tensor, base: float) -> Tensor:
    """Return `[..., positions, channels]` with rotary position embeddings applied.

    The angles are float32, in which alone they are exact; the states keep their number format.
    """
    channels = states.shape[-1]
    evens = torch.arange(0, channels, 2, device=states.device)
    frequencies = 1 / (base ** (evens.float() / channels))
    angles = (positions[:, None].float() * frequencies[None]).repeat(1, 2)
    first, second = states.chunk(2, -1)
    turned = states * angles.cos() + torch.cat([-second, first], -1) * angles.sin()
    return turned.to(states.dtype)


class Attention(nn.Module):
    """Attention whose queries, keys and values come from some states, side by side.

    Qwen3's norms the queries and keys of each head.
    """

    def __init__(
        self, config: LayerConfig, states: int = 1, *, bias: bool = False, norms: bool = False
    ) -> None:
        super().__init__()
        self.config = config
        width, inner = states * config.hidden_size, config.num_attention_heads * config.head_dim
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, inner, bias=bias) for _ in "qkv")
        self.o_proj = nn.Linear(inner, config.hidden_size, bias=False)
        self.q_norm, self.k_norm = (
            nn.RMSNorm(config.head_dim, config.rms_norm_eps) if norms else nn.Identity()
            for _ in "qk"
        )

    def project(self, states: Tensor, positions: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return queries, and keys and values, each `[rows, heads, anchors, head_dim]`."""
        base = self.config.rope_parameters.rope_theta
        query, key, value = (
            projected.unflatten(-1, (-1, self.config.head_dim)).transpose(1, 2)
            for projected in (self.q_proj(states), self.k_proj(states), self.v_proj(states))
        )
        key = rotate(self.k_norm(key), positions, base)
        return rotate(self.q_norm(query), positions, base), (key, value)

    def read(self, query: Tensor, unrolled: Unrolled) -> Tensor:
        """Return what each anchor finds in the past of step 0 and in its own later steps.

        That is `[rows, anchors, hidden]`.
        """
        (first_key, first_value), *own = unrolled
        anchors, scale = query.shape[-2], math.sqrt(query.shape[-1])
        mask = torch.triu(query.new_full((anchors, anchors), -1e9), 1)
        past = query @ first_key.transpose(-1, -2) / scale + mask
        scores = [(query * key).sum(-1, keepdim=True) / scale for key, _ in own]
        weights = torch.softmax(torch.cat([past, *scores], -1), -1)
        past_weights, *own_weights = weights.split([anchors, *[1] * len(own)], -1)
        attended = past_weights @ first_value
        for weight, (_, value) in zip(own_weights, own, strict=True):
            attended = attended + weight * value
        return self.o_proj(attended.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A layer of a head, around its attention."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        config = attention.config
        self.self_attn = attention
        self.mlp = LlamaMLP(config)
        self.input_layernorm: nn.Module = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, states: Tensor, hidden: Tensor, start: int, unrolled: Unrolled) -> Tensor:
        """Return the next hidden states, `[rows, anchors, hidden]`, from a first position on.

        `states` are what the attention reads; this step's keys and values join the others.
        """
        positions = torch.arange(hidden.shape[1], device=hidden.device) + start
        query, own = self.self_attn.project(states, positions)
        unrolled.append(own)
        hidden = hidden + self.self_attn.read(query, unrolled)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Head(nn.Module):
    """A head that drafts one token after another, or all at once."""

    has_output: ClassVar = False
    """Whether it has an output matrix of its own, and drafts logits instead of states."""
    normed: ClassVar = True
    """Whether it reads the target's last state after its norm."""
    layers_read: Sequence[int] = ()
    """After how many of the target's layers it reads; of none named, after all."""

    @staticmethod
    def checkpoint_name(name: str) -> str:
        """Return what a checkpoint calls a tensor of the head."""
        return name

    def unroll(self, hidden: Tensor, embeddings: Tensor, drafted: int) -> list[Tensor]:
        """Return the states of each drafted token, or their logits, `[rows, anchors, vocabulary]`.

        Args:
            hidden: the target's states, `[rows, anchors, hidden]`; of several layers side by side.
            embeddings: of the tokens after each anchor, `[rows, anchors + drafted - 1, hidden]`.
            drafted: how many tokens a step drafts, 1 or more.
        """
        unrolled: Unrolled = []
        states = []
        for step in range(drafted):
            after = embeddings[:, step : step + hidden.shape[1]]
            hidden = self.step(after, hidden, step, unrolled)
            states.append(hidden)
        return states

    def step(self, after: Tensor, hidden: Tensor, start: int, unrolled: Unrolled) -> Tensor:
        """Return the states that follow others and the embeddings after them, from a step on."""
        raise NotImplementedError


class Eagle3Head(Head):
    """EAGLE-3: fuses once, then one `midlayer` per drafted token."""

    has_output: ClassVar = True
    normed: ClassVar = False

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.layers_read = config.eagle_aux_hidden_state_layer_ids
        self.fc = nn.Linear(3 * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Layer(Attention(config, states=2))
        self.midlayer.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def unroll(self, hidden: Tensor, embeddings: Tensor, drafted: int) -> list[Tensor]:
        """Return each step's logits; three residual streams of the target are side by side."""
        states = super().unroll(self.fc(hidden), embeddings, drafted)
        return [self.lm_head(self.norm(one)) for one in states]

    def step(self, after: Tensor, hidden: Tensor, start: int, unrolled: Unrolled) -> Tensor:
        """Read an embedding beside a hidden state."""
        layer = self.midlayer
        both = torch.cat([layer.input_layernorm(after), layer.hidden_norm(hidden)], -1)
        return layer(both, hidden, start, unrolled)


class EagleHead(Head):
    """EAGLE: fuses an embedding and a state, one layer for each drafted token."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(Attention(config))])
        self.layers[0].input_layernorm = nn.Identity()

    def step(self, after: Tensor, hidden: Tensor, start: int, unrolled: Unrolled) -> Tensor:
        """Fuse them first."""
        fused = self.fc(torch.cat([after, hidden], -1))
        return self.layers[0](fused, fused, start, unrolled)


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

    def step(self, after: Tensor, hidden: Tensor, start: int, unrolled: Unrolled) -> Tensor:
        """Fuse and norm them; the text's first position has no embedding."""
        if start == 0:
            after = nn.functional.pad(after[:, 1:], (0, 0, 1, 0))
        both = torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(after)], -1)
        fused = self.input_proj(both)
        states = self.block.input_layernorm(fused)
        return self.final_layernorm(self.block(states, fused, start, unrolled))


class MedusaHead(Head):
    """Medusa: a residual block for each drafted token."""

    def __init__(self, hidden_size: int, drafted: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(drafted)
        )

    @staticmethod
    def checkpoint_name(name: str) -> str:
        """Return the name of a block's only layer."""
        return name.replace(".weight", ".layers.0.weight")

    def unroll(self, hidden: Tensor, embeddings: Tensor, drafted: int) -> list[Tensor]:
        """Return what each block makes of the same states."""
        del embeddings
        return [hidden + nn.functional.silu(block(hidden)) for block in self.blocks[:drafted]]


class DFlashHead(Head):
    """DFlash: masks that see the target's states and each other become the drafted tokens."""

    normed: ClassVar = False
    mask: Tensor

    def __init__(self, config: DFlashConfig, embeddings: Tensor) -> None:
        """Take the mask's embedding from the target's, `[vocabulary, hidden]`."""
        super().__init__()
        self.layers_read = [layer + 1 for layer in config.dflash_config.target_layer_ids]
        self.fc = nn.Linear(
            len(self.layers_read) * config.hidden_size, config.hidden_size, bias=False
        )
        self.layers = nn.ModuleList(
            Layer(Attention(config, norms=True)) for _ in range(config.num_hidden_layers)
        )
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        mask = embeddings[config.dflash_config.mask_token_id].detach().clone()
        self.register_buffer("mask", mask, persistent=False)

    def unroll(self, hidden: Tensor, embeddings: Tensor, drafted: int) -> list[Tensor]:
        """Return the normed states of the masks, which depend on how many there are."""
        context = self.hidden_norm(self.fc(hidden))
        places = torch.arange(hidden.shape[1], device=hidden.device)
        first = embeddings[:, : hidden.shape[1]]
        block = [first, *[self.mask.expand_as(first)] * drafted]
        for layer in self.layers:
            attention, normed = layer.self_attn, map(layer.input_layernorm, block)
            asked = [attention.project(one, places + step) for step, one in enumerate(normed, 1)]
            seen = [attention.project(context, places)[1], *(own for _, own in asked)]
            found = [attention.read(query, seen) for query, _ in asked]
            block = [one + more for one, more in zip(block, found, strict=True)]
            block = [one + layer.mlp(layer.post_attention_layernorm(one)) for one in block]
        return [self.norm(one) for one in block[1:]]


class ObservedTarget:
    """The target, frozen, with its residual streams, each by the number of layers before it."""

    def __init__(self, model: Model, aux_layers: Sequence[int]) -> None:
        self.model = model
        self._aux_layers = aux_layers
        self._streams: dict[int, Tensor] = {}
        # What goes into a stage is what comes out of the layers before it. Hidden states as
        # transformers returns them won't do: the last one is normed already.
        stages = [*model.model.layers, model.model.norm]
        for layers in aux_layers:
            stages[layers].register_forward_pre_hook(functools.partial(self._keep, layers))

    def _keep(self, layers: int, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self._streams[layers] = arguments[0]

    def observe(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits, embeddings and residual streams side by side, per token."""
        with torch.no_grad():
            logits = self.model(input_ids=rows).logits
            embeddings = self.model.model.embed_tokens(rows)
        streams = torch.cat([self._streams[layers] for layers in self._aux_layers], -1)
        return logits, embeddings, streams
