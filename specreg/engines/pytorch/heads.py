"""Draft heads that read the target's hidden states, with the tensor names that vLLM loads.

    EAGLE   (https://arxiv.org/abs/2401.15077, `EagleLlamaForCausalLM`) reads the normed state
            beside the next token
    MTP     (`MiMoMTP`) reads the state before its norm beside the next token, in a layer of the
            target's own file
    Medusa  (https://arxiv.org/abs/2401.10774, `Medusa`) reads the normed state alone, with a block
            for each drafted token
    DFlash  (https://arxiv.org/abs/2602.06036, `DFlashQwen3ForCausalLM`) reads the states after
            some layers, and fills in a block of masks behind the next token, all at once

All use the target's output matrix, and all but Medusa its embeddings.
"""

from typing import Annotated, ClassVar, Literal

import msgspec
import torch
from torch import nn
from torch.nn import functional

from specreg.engines.pytorch.eagle3 import Head, Layer, LayerConfig, Unrolled

MTP_LAYER = "model.mtp_layers.0."
"""What begins the names of a target's layer for multi-token prediction."""
MEDUSA_OUTPUT = "lm_heads.0.weight"
"""Medusa's output matrix, which must be the target's."""


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


class DecoderLayer(Layer):
    """A layer of the target's kind; EAGLE's has no norm before its attention."""

    def __init__(
        self, config: LayerConfig, *, norms_first: bool, bias: bool = False, norms: bool = False
    ) -> None:
        super().__init__(config, 1, bias=bias, norms=norms)
        if not norms_first:
            self.input_layernorm = nn.Identity()

    def forward(self, hidden: torch.Tensor, start: int, unrolled: Unrolled) -> torch.Tensor:
        """Return the next hidden states, `[rows, anchors, hidden]`, from a first position on."""
        return self.go_on(self.input_layernorm(hidden), hidden, start, unrolled)


class EagleHead(Head):
    """EAGLE: fuses an embedding and a state, one layer for each drafted token."""

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([DecoderLayer(config, norms_first=False)])

    def unroll(
        self, hidden: torch.Tensor, embeddings: torch.Tensor, drafted: int
    ) -> list[torch.Tensor]:
        """Return each step's states: what a step makes is what the next one reads."""
        unrolled: Unrolled = []
        states = []
        for step in range(drafted):
            after = embeddings[:, step : step + hidden.shape[1]]
            hidden = self.layers[0](self.fc(torch.cat([after, hidden], -1)), step, unrolled)
            states.append(hidden)
        return states


class MtpHead(Head):
    """MiMo's layer for multi-token prediction, run again for each drafted token."""

    normed: ClassVar = False

    def __init__(self, config: LayerConfig) -> None:
        super().__init__()
        norms = [nn.RMSNorm(config.hidden_size, config.rms_norm_eps) for _ in range(3)]
        self.token_layernorm, self.hidden_layernorm, self.final_layernorm = norms
        self.input_proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.block = DecoderLayer(config, norms_first=True, bias=True)

    @staticmethod
    def checkpoint_name(name: str) -> str:
        """Return the name in the target's own file."""
        return f"{MTP_LAYER}{name.removeprefix('block.')}"

    def unroll(
        self, hidden: torch.Tensor, embeddings: torch.Tensor, drafted: int
    ) -> list[torch.Tensor]:
        """Return each step's normed states; the text's first position has no embedding."""
        unrolled: Unrolled = []
        states = []
        for step in range(drafted):
            after = embeddings[:, step : step + hidden.shape[1]]
            if step == 0:
                after = functional.pad(after[:, 1:], (0, 0, 1, 0))
            both = torch.cat([self.hidden_layernorm(hidden), self.token_layernorm(after)], -1)
            hidden = self.final_layernorm(self.block(self.input_proj(both), step, unrolled))
            states.append(hidden)
        return states


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

    def unroll(
        self, hidden: torch.Tensor, embeddings: torch.Tensor, drafted: int
    ) -> list[torch.Tensor]:
        """Return what each block makes of the same states."""
        del embeddings
        return [hidden + functional.silu(block(hidden)) for block in self.blocks[:drafted]]


class DFlashHead(Head):
    """DFlash: masks that see the target's states and each other become the drafted tokens."""

    normed: ClassVar = False
    mask: torch.Tensor

    def __init__(self, config: DFlashConfig, embeddings: torch.Tensor) -> None:
        """Take the mask's embedding from the target's, `[vocabulary, hidden]`."""
        super().__init__()
        self.layers_read = [layer + 1 for layer in config.dflash_config.target_layer_ids]
        self.fc = nn.Linear(
            len(self.layers_read) * config.hidden_size, config.hidden_size, bias=False
        )
        self.layers = nn.ModuleList(
            DecoderLayer(config, norms_first=True, norms=True)
            for _ in range(config.num_hidden_layers)
        )
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        mask = embeddings[config.dflash_config.mask_token_id].detach().clone()
        self.register_buffer("mask", mask, persistent=False)

    def unroll(
        self, hidden: torch.Tensor, embeddings: torch.Tensor, drafted: int
    ) -> list[torch.Tensor]:
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
