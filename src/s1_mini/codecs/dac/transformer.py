"""The codec's transformer: every step looks at itself and the window - 1 steps before it.

Positions count from the start of the stream, so the carry keeps them beside each layer's last keys and values.
Shapes: B rows, C channels, T steps, S = window - 1 + T attended steps.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from s1_mini.codecs.carry import Carry
from s1_mini.layers.kv_cache import KVStore
from s1_mini.layers.transformer import BlockConfig, RMSNorm, TransformerBlock, rope_table

PADDING = 64  # steps that may be computed beyond the longest stream, to be thrown away


class WindowTransformer(nn.Module):
    """Causal transformer over x [B, C, T] with a sliding window."""

    def __init__(self, config: BlockConfig, *, layers: int, window: int, max_steps: int, rope_base: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerBlock(config) for _ in range(layers))
        self.norm = RMSNorm(config.dim, config.norm_eps)
        self.window = window
        self.rope_shape = (max_steps, config.head_dim, rope_base)

    def prepare(self, device: torch.device) -> None:
        """Compute the rotary table, which is not stored."""
        max_steps, head_dim, base = self.rope_shape
        self.rope = rope_table(max_steps + PADDING, head_dim, base, device, rounded_to=torch.bfloat16)

    def forward(self, x: Tensor, carry: Carry) -> Tensor:
        steps = torch.arange(x.shape[-1], device=x.device)
        start = carry.advance((self, "position"), len(x), len(steps), x.device)
        rope = self.rope[start.unsqueeze(1) + steps]
        mask = self._mask(start, steps)
        x = x.transpose(1, 2)
        for layer in self.layers:
            x = layer(x, rope, mask, self._store(layer, carry))
        return self.norm(x).transpose(1, 2)

    def _mask(self, start: Tensor, steps: Tensor) -> Tensor:
        """True where step t may look: inside its window and not before the stream began; [B, 1, T, S]."""
        context = self.window - 1
        offset = torch.arange(context + len(steps), device=steps.device) - context  # relative to `start`
        distance = steps.unsqueeze(1) - offset
        near = (distance >= 0) & (distance < self.window)
        began = offset >= -start.unsqueeze(1)
        return (near & began.unsqueeze(1)).unsqueeze(1)

    def _store(self, layer: nn.Module, carry: Carry) -> KVStore:
        def store(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            context = self.window - 1
            return (
                carry.extend((layer, "key"), key, context, axis=2),
                carry.extend((layer, "value"), value, context, axis=2),
            )

        return store
