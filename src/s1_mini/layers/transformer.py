"""The pre-norm transformer block of the backbones, depth transformers and codecs of S1 and Qwen3-TTS.

The caller passes the attended positions (a mask) and the storage of keys and values (a store), so that the same block
works for prefill, single steps and the codec's sliding window.
Shapes: B rows, T tokens, S attended positions, H query heads, G key-value heads, D head size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from s1_mini.kernels.backend import runs_triton
from s1_mini.kernels.decode_attention import step_attention
from s1_mini.kernels.head_scores import store_scores
from s1_mini.kernels.linear import linear_sum, norm_linear
from s1_mini.kernels.norm import Norm, add_norm, rms_norm
from s1_mini.kernels.rope import HeadNorms, apply_rope
from s1_mini.kernels.swiglu import swiglu
from s1_mini.kernels.weight import QuantizedWeight, Weight, product
from s1_mini.layers.kv_cache import CachePositions, KVStore


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich 2019).

    By default, the norm is computed in fp32, rounded to the input's dtype, and then multiplied by the weight. With
    `round_last`, the multiplication is also in fp32, and the result is rounded once. In bf16, the two results differ.
    """

    def __init__(self, dim: int, eps: float, *, round_last: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim))
        self.eps = eps
        self.round_last = round_last

    @property
    def spec(self) -> Norm:
        """The norm for kernels that take `Norm`, which has no `round_last`; attention takes `HeadNorms` instead."""
        return Norm(self.weight, self.eps)

    def forward(self, x: Tensor) -> Tensor:
        if runs_triton(x) and not self.round_last and not torch.is_grad_enabled():
            return add_norm(x, None, self.spec)[1]
        return rms_norm(x, self.weight, self.eps, round_last=self.round_last)


def rope_table(
    length: int,
    head_dim: int,
    base: float,
    device: torch.device | str = "cpu",
    *,
    rounded_to: torch.dtype = torch.float32,
) -> Tensor:
    """Return cos and sin of each position and pair [length, head_dim / 2, 2] as fp32, rounded to `rounded_to`.

    The rotary pairs are interleaved: (x0, x1), (x2, x3), … (Su et al. 2021, GPT-J's layout).
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32)[: head_dim // 2]
    angles = torch.outer(torch.arange(length, dtype=torch.float32), 1.0 / (base ** (pairs / head_dim)))
    table = torch.stack((angles.cos(), angles.sin()), dim=-1)
    return table.to(rounded_to).to(device=device, dtype=torch.float32)


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate the pairs of x [B, H, T, D] by `rope` [B or 1, T, D / 2, 2] from `rope_table`, computed in fp32."""
    return apply_rope(x, rope.unsqueeze(1))


@dataclass(frozen=True)
class BlockConfig:
    """Sizes and options of one transformer block."""

    dim: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    norm_eps: float
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: bool = False
    qk_norm_rounds_last: bool = True  # `round_last` of the norms of queries and keys
    layer_scale: bool = False


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023) with rotary positions and optional q/k norm."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        query_dim = config.num_heads * config.head_dim
        self.wqkv = nn.Linear(config.dim, query_dim + 2 * config.num_kv_heads * config.head_dim, bias=config.qkv_bias)
        self.wo = nn.Linear(query_dim, config.dim, bias=config.o_bias)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.norm_eps, round_last=config.qk_norm_rounds_last)
            self.k_norm = RMSNorm(config.head_dim, config.norm_eps, round_last=config.qk_norm_rounds_last)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, store: KVStore) -> Tensor:
        """Attend from x [B, T, dim]. `mask` [B or 1, 1, T, S] is true for attended positions; None attends to all."""
        heads, groups = self.config.num_heads, self.config.num_kv_heads
        qkv = self.wqkv(x).unflatten(-1, (heads + 2 * groups, self.config.head_dim)).transpose(1, 2)
        rotated, value = qkv.split((heads + groups, groups), dim=1)
        if self.config.qk_norm:
            query, key = rotated.split((heads, groups), dim=1)
            rotated = torch.cat((self.q_norm(query), self.k_norm(key)), dim=1)
        query, key = rotate(rotated, rope).split((heads, groups), dim=1)
        keys, values = store(key, value)
        grouped = keys.shape[1] != heads  # a store may return a copy for every query head
        out = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=grouped)
        return self.wo(out.transpose(1, 2).flatten(2))

    def step(self, qkv: Tensor, cached: tuple[Tensor, Tensor], positions: CachePositions) -> Tensor:
        """Attend from one token per row, projected to `qkv` [B, (H + 2 G) D], to its row up to and including it.

        Returns the input of `wo`, [B, H D].
        """
        norms = None
        if self.config.qk_norm:
            weights = self.q_norm.weight, self.k_norm.weight
            norms = HeadNorms(*weights, self.q_norm.eps, self.config.qk_norm_rounds_last)
        attended = step_attention(
            qkv,
            *cached,
            positions.target,
            positions.position,
            positions.rope,
            norms,
            span=positions.span,
            mask=positions.mask,
            slots=positions.slots,
            common=positions.common,
            is_prompt=positions.is_prompt,
        )
        for kept in positions.kept:
            store_scores(qkv, cached[0], positions.position, positions.rope, norms, positions.span, kept)
        return attended


class FeedForward(nn.Module):
    """Gated feed-forward (SwiGLU, Shazeer 2020): w1 projects to the gate, w3 to the gated values, and w2 back."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.w3 = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.dim, bias=False)
        self.both: Weight | None = None

    def merge(self) -> None:
        """Concatenate the weights of w1 and w3, so that one product computes both; only for inference."""
        joined = []
        for first, second in zip(self.w1.parameters(), self.w3.parameters(), strict=True):
            joined.append(torch.cat((first.detach(), second.detach())))
            first.data, second.data = joined[-1].chunk(2)
        self.both = joined[0] if len(joined) == 1 else QuantizedWeight(*joined)

    def forward(self, x: Tensor) -> Tensor:
        if self.both is not None:
            return self.w2(swiglu(product(x, self.both)))
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class LayerScale(nn.Module):
    """One learned factor per channel on a residual branch (Touvron et al. 2021)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(dim))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class TransformerBlock(nn.Module):
    """A pre-norm block: x + attention(norm(x)), then x + feed_forward(norm(x))."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        scale = LayerScale if config.layer_scale else (lambda _: nn.Identity())
        self.attention_layer_scale = scale(config.dim)
        self.ffn_layer_scale = scale(config.dim)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor | None, store: KVStore) -> Tensor:
        return self.feed(x + self.attention_layer_scale(self.attention(self.attention_norm(x), rope, mask, store)))

    def step(
        self, x: Tensor, branch: Tensor | None, cached: tuple[Tensor, Tensor], positions: CachePositions
    ) -> tuple[Tensor, Tensor | None]:
        """Compute `forward` for one token per row; the input is x [B, dim] + `branch`.

        The output, too, is returned as two summands, because the norm of the next block adds them in its kernel. The
        feed-forward weights must be merged (`merge`), and the block must have no layer scale.
        """
        attention, feed = self.attention, self.feed_forward
        assert feed.both is not None, "the gate's weights are not merged"
        x, qkv = norm_linear(x, branch, self.attention_norm.spec, attention.wqkv.weight, attention.wqkv.bias)
        x, branch = linear_sum(attention.step(qkv, cached, positions), attention.wo.weight, attention.wo.bias, x)
        x, activated = norm_linear(x, branch, self.ffn_norm.spec, feed.both, gated=True)
        return linear_sum(activated, feed.w2.weight, None, x)

    def feed(self, x: Tensor) -> Tensor:
        """Compute the feed-forward half, a separate method so that torch.compile can compile it."""
        return x + self.ffn_layer_scale(self.feed_forward(self.ffn_norm(x)))
