"""The window transformer of a codec for rows chosen on the device, in few kernels and with its weights merged.

The same sums as `WindowTransformer.forward` with a carry; the scales of its branches are part of the weights.
Shapes: B rows, T steps, C channels, S = window - 1 + T attended steps.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from s1_mini.codecs.dac.transformer import WindowTransformer
from s1_mini.kernels.gate import gate
from s1_mini.kernels.linear import linear
from s1_mini.kernels.norm import add_norm
from s1_mini.kernels.rope import turn_and_part
from s1_mini.kernels.snake import Rows, snake_extend
from s1_mini.layers.transformer import LayerScale, TransformerBlock

ALIGNED = 8  # attention wants masks whose rows lie a multiple of this apart


class WindowRows:
    """Streams of `rows` rows through one transformer; x [B, T, C], channels last."""

    def __init__(self, transformer: WindowTransformer, rows: int) -> None:
        self._rope, self._window, self._norm = transformer.rope, transformer.window, transformer.norm
        self._seen = torch.zeros(rows, dtype=torch.int64, device=transformer.rope.device)
        self._layers = [_Layer(cast(TransformerBlock, layer), self._window - 1, rows) for layer in transformer.layers]

    def __call__(self, x: Tensor, rows: Rows) -> Tensor:
        steps = torch.arange(x.shape[1], device=x.device)
        start = self._seen[rows.chosen].masked_fill(rows.fresh, 0)
        self._seen[rows.chosen] = start + x.shape[1]
        rope = self._rope[start.unsqueeze(1) + steps]
        mask = self._mask(start, steps, x.dtype)
        branch = None
        for layer in self._layers:
            x, branch = layer(x, branch, rope, mask, rows)
        return add_norm(x, branch, self._norm.spec)[1]

    def _mask(self, start: Tensor, steps: Tensor, dtype: torch.dtype) -> Tensor:
        """What is added to scores: 0 where step t may look, else minus infinity; [B, 1, T, S]."""
        context = self._window - 1
        length = context + len(steps)
        offset = torch.arange(length + -length % ALIGNED, device=steps.device) - context  # relative to `start`
        distance = steps.unsqueeze(1) - offset
        near = (distance >= 0) & (distance < self._window)
        sees = near & (offset >= -start.unsqueeze(1)).unsqueeze(1)
        mask = torch.zeros(sees.shape, dtype=dtype, device=steps.device).masked_fill(~sees, -torch.inf)
        return mask.unsqueeze(1)[..., :length]


class _Layer:
    def __init__(self, block: TransformerBlock, context: int, rows: int) -> None:
        attention, feed = block.attention, block.feed_forward
        config = attention.config
        assert not config.qk_norm
        assert isinstance(block.attention_layer_scale, LayerScale)
        self._heads, self._groups, self._size = config.num_heads, config.num_kv_heads, config.head_dim
        self._norms = block.attention_norm, block.ffn_norm
        self._qkv = attention.wqkv
        self._out = block.attention_layer_scale.gamma.unsqueeze(1) * attention.wo.weight
        self._opened = torch.cat((feed.w1.weight, feed.w3.weight))
        self._closed = cast(LayerScale, block.ffn_layer_scale).gamma.unsqueeze(1) * feed.w2.weight
        self.past = self._out.new_zeros(rows, context, 2 * self._groups * self._size)  # keys, then values

    def __call__(
        self, x: Tensor, branch: Tensor | None, rope: Tensor, mask: Tensor, rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """Take and give x and what is still to be added to it."""
        first, second = self._norms
        x, normal = add_norm(x, branch, first.spec)
        queries, pairs = turn_and_part(
            linear(normal, self._qkv.weight, self._qkv.bias), rope, self._heads, self._groups
        )
        _, joined = snake_extend(pairs, None, self.past, rows)
        keys, values = joined.unflatten(-1, (2, self._groups, self._size)).unbind(2)
        sound = F.scaled_dot_product_attention(
            queries.unflatten(-1, (self._heads, self._size)).transpose(1, 2),
            keys.transpose(1, 2),
            values.transpose(1, 2),
            attn_mask=mask.expand(-1, self._heads, -1, -1),
            enable_gqa=self._groups != self._heads,
        )
        branch = linear(sound.transpose(1, 2).flatten(2), self._out, None)
        x, normal = add_norm(x, branch, second.spec)
        return x, linear(gate(linear(normal, self._opened, None)), self._closed, None)
