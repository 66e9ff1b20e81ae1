"""Caches for the keys and values of attention, with S positions per slot.

A cache only holds tensors: the caller assigns slots to requests and counts the positions in use.
Shapes: B slots, H key-value heads, S positions, D head size, T new tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from s1_mini.kernels.common_attention import CommonPrefixes
from s1_mini.kernels.head_scores import KeptHead
from s1_mini.kernels.weight import cast_saturating
from s1_mini.layers.staging import Writes

# Stores new keys and values [B, H, T, D] of one layer, and returns all keys and values to attend to.
KVStore = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class KVCache:
    """Keys and values of all layers: [layers, B, H, S, D] each, in the model's dtype or in fp8."""

    keys: Tensor
    values: Tensor

    @classmethod
    def allocate(
        cls,
        *,
        layers: int,
        slots: int,
        heads: int,
        positions: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        shape = (layers, slots, heads, positions, head_dim)
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))

    def save(self, slot: int, count: int) -> tuple[Tensor, Tensor]:
        """Return copies of the keys and values [layers, H, count, D] of the first `count` positions of one slot."""
        return self.keys[:, slot, :, :count].clone(), self.values[:, slot, :, :count].clone()

    def load(self, slot: int, saved: tuple[Tensor, Tensor], writes: Writes) -> None:
        """Copy keys and values from `save` to the first positions of a slot, when `writes` run."""
        for cached, part in zip((self.keys, self.values), saved, strict=True):
            writes.copy(cached[:, slot, :, : part.shape[2]], part)

    def block_store(self, layer: int, rows: slice, start: int) -> KVStore:
        """Return a store for the next T tokens of `rows`, from position `start` on.

        The store returns the keys and values of all positions so far.
        """

        def store(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            end = start + key.shape[2]
            self.keys[layer, rows, :, start:end] = cast_saturating(key, self.keys.dtype)
            self.values[layer, rows, :, start:end] = cast_saturating(value, self.values.dtype)
            stored = self.keys[layer, rows, :, :end], self.values[layer, rows, :, :end]
            return stored[0].to(key.dtype), stored[1].to(value.dtype)

        return store

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return views of the keys and values [B, H, S, D] of one layer."""
        return self.keys[layer], self.values[layer]


@dataclass(frozen=True)
class CachePositions:
    """The cache position of one new token in each of n rows, and the positions that the token attends to."""

    target: Tensor  # [n] cache position of the token's key and value
    position: Tensor  # [n] position of the token, the last that it attends to; constant during a frame
    span: int  # all positions are below this
    rope: Tensor  # [n, D / 2, 2] rows of the rotary table
    mask: Tensor | None  # [n, 1, 1, span] true up to the token's position; None if all rows have `span` positions
    slots: Tensor | None = None  # [n] slot of each row; None: the first n slots
    is_prompt: bool = False  # whether the rows are positions of prompts, most of them next to others of their slot
    common: CommonPrefixes | None = None  # shared prefixes of these rows
    kept: Sequence[KeptHead] = ()  # heads whose scores are stored; a layer gets only its own heads
