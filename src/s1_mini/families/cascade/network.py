"""The three transformers, GPT-2 with learned positions: two causal, one bidirectional.

A causal transformer prefills a prompt; then each step reads one token of every row.
Shapes: B rows, T positions of a block, S positions, W width, H heads, V ids.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.families.cascade.config import NUM_COARSE, GPTConfig, Numbers
from s1_mini.kernels.decode_attention import step_attention
from s1_mini.kernels.linear import branch_sum, linear_sum, norm_linear
from s1_mini.kernels.norm import Norm
from s1_mini.kernels.weight import cast_saturating
from s1_mini.layers.kv_cache import CachePositions, KVCache, KVStore


class Attention(nn.Module):
    """Attention whose projection computes the queries, keys and values of all heads in one product, in this order."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.num_heads, self.is_causal = config.num_heads, config.is_causal
        self.att_proj = nn.Linear(config.width, 3 * config.width, bias=config.bias)
        self.out_proj = nn.Linear(config.width, config.width, bias=config.bias)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [B, H, T, D] of x [B, T, W]."""
        heads = self.att_proj(x).unflatten(-1, (3 * self.num_heads, -1)).transpose(1, 2)
        query, key, value = heads.chunk(3, dim=1)
        return query, key, value

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return the attention [B, T, W] of queries [B, H, T, D]."""
        is_causal = self.is_causal and mask is None
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=is_causal)
        out: Tensor = self.out_proj(attended.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    """Two linear layers with the exact GELU between them."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.in_proj = nn.Linear(config.width, 4 * config.width, bias=config.bias)
        self.out_proj = nn.Linear(4 * config.width, config.width, bias=config.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out_proj(F.gelu(self.in_proj(x)))
        return out


class Block(nn.Module):
    """A pre-norm block: x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        # The norms of the bidirectional model always have a bias.
        has_bias = config.bias or not config.is_causal
        self.layernorm_1 = nn.LayerNorm(config.width, bias=has_bias)
        self.layernorm_2 = nn.LayerNorm(config.width, bias=has_bias)
        self.attn = Attention(config)
        self.mlp = MLP(config)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, store: KVStore | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the layer's output for x [B, T, W], and keys and values [B, H, T, D] of these positions.

        Without `store`, x has all positions of its rows. With a `store` of earlier positions, x has the next positions
        of one slot, and `mask` [T, S] is true for the positions that they attend to.
        """
        query, key, value = self.attn.project(self.layernorm_1(x))
        keys, values = (key, value) if store is None else store(key, value)
        x = x + self.attn.attend(query, keys, values, mask)
        return x + self.mlp(self.layernorm_2(x)), key, value

    def step(
        self, x: Tensor, branch: Tensor | None, cached: tuple[Tensor, Tensor], at: CachePositions
    ) -> tuple[Tensor, Tensor | None]:
        """Compute `forward` for one token of each row; the input is x [B, W] + `branch`.

        The output is also two summands, which the next layer adds in its norm.
        """
        attn, mlp = self.attn, self.mlp
        x, qkv = _normed(x, branch, self.layernorm_1, attn.att_proj)
        target, position, span, rope, mask = at.target, at.position, at.span, at.rope, at.mask
        attended = step_attention(qkv, *cached, target, position, rope, None, span=span, mask=mask)
        x, branch = linear_sum(attended, attn.out_proj.weight, attn.out_proj.bias, x)
        x, activated = _normed(x, branch, self.layernorm_2, mlp.in_proj, gelu=True)
        return linear_sum(activated, mlp.out_proj.weight, mlp.out_proj.bias, x)


def _normed(
    x: Tensor, branch: Tensor | None, norm: nn.LayerNorm, linear: nn.Linear, *, gelu: bool = False
) -> tuple[Tensor, Tensor]:
    """Return x + `branch`, and `linear` applied to the norm of this sum, with GELU if `gelu`."""
    if cast("Tensor | None", norm.bias) is None:
        return norm_linear(x, branch, Norm(norm.weight, norm.eps, centred=True), linear.weight, linear.bias, gelu=gelu)
    x = branch_sum(x, branch)
    out = linear(norm(x))
    return x, F.gelu(out) if gelu else out


class CausalGPT(nn.Module):
    """An autoregressive transformer. `head_rows` is the number of ids that it can generate."""

    def __init__(self, config: GPTConfig, head_rows: int) -> None:
        super().__init__()
        self.config = config
        self.input_embeds_layer = nn.Embedding(config.input_size, config.width)
        self.position_embeds_layer = nn.Embedding(config.block_size, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.layernorm_final = nn.LayerNorm(config.width, bias=config.bias)
        self.lm_head = nn.Linear(config.width, head_rows, bias=False)

    @property
    def device(self) -> torch.device:
        return self.position_embeds_layer.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.position_embeds_layer.weight.dtype

    def embed(self, tokens: Tensor, start: int) -> Tensor:
        """Return embeddings [B, T, W] of tokens [B, T], or of sums of n tokens [B, T, n], at positions from `start`."""
        x = self.input_embeds_layer(tokens)
        x = x.sum(2) if tokens.ndim == 3 else x
        out: Tensor = x + self.position_embeds_layer.weight[start : start + tokens.shape[1]]
        return out

    def read_block(self, tokens: Tensor, cache: KVCache, slot: int, start: int) -> None:
        """Prefill tokens [1, T] or [1, T, n] of one slot from position `start` on; the cache has all earlier ones."""
        end = start + tokens.shape[1]
        positions = torch.arange(end, device=tokens.device)
        mask = positions <= positions[start:].unsqueeze(1)
        x = self.embed(tokens, start)
        for number, layer in enumerate(self.layers):
            x = layer(x, mask, cache.block_store(number, slice(slot, slot + 1), start))[0]

    def read_whole(self, tokens: Tensor, cache: KVCache, slots: Tensor) -> None:
        """Prefill whole prompts, tokens [B, T] or [B, T, n], in `slots` [B]. A CUDA graph can capture this."""
        x, length = self.embed(tokens, 0), tokens.shape[1]
        for number, layer in enumerate(self.layers):
            x, key, value = layer(x)
            cache.keys[number, slots, :, :length] = cast_saturating(key, cache.keys.dtype)
            cache.values[number, slots, :, :length] = cast_saturating(value, cache.values.dtype)

    def step(self, tokens: Tensor, cache: KVCache, at: CachePositions) -> Tensor:
        """Read one token [B] of each row; return the logits [B, V] of the next token."""
        x = self.input_embeds_layer(tokens) + self.position_embeds_layer(at.position)
        branch: Tensor | None = None
        for number, layer in enumerate(self.layers):
            x, branch = layer.step(x, branch, cache.rows(number), at)  # type: ignore[operator]
        return _normed(x, branch, self.layernorm_final, self.lm_head)[1]


class FineGPT(nn.Module):
    """The transformer that adds codes of six codebooks to those of two, in one pass over a window for each codebook."""

    def __init__(self, config: GPTConfig, numbers: Numbers) -> None:
        super().__init__()
        self.config, self.codebook_size = config, numbers.codebook_size
        books = numbers.num_books
        self.input_embeds_layers = nn.ModuleList(nn.Embedding(config.input_size, config.width) for _ in range(books))
        self.position_embeds_layer = nn.Embedding(config.block_size, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.layernorm_final = nn.LayerNorm(config.width)
        # Books are counted from 0. The first pass generates book 2; published files also have an unused head of book 1.
        self.lm_heads = nn.ModuleList(
            nn.Linear(config.width, self.codebook_size, bias=False) for _ in range(NUM_COARSE, books)
        )

    @property
    def device(self) -> torch.device:
        return self.position_embeds_layer.weight.device

    def embed(self, book: int, codes: Tensor) -> Tensor:
        """Embed codes [B, T] of a codebook."""
        out: Tensor = self.input_embeds_layers[book](codes)
        return out

    def logits(self, book: int, x: Tensor) -> Tensor:
        """Return logits [B, T, codes] of a codebook; x [B, T, W] is the sum of embeddings up to this codebook."""
        x = x + self.position_embeds_layer.weight[: x.shape[1]]
        for layer in self.layers:
            x = layer(x)[0]
        out: Tensor = self.lm_heads[book - NUM_COARSE](self.layernorm_final(x))
        return out
