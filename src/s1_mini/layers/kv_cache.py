"""Keys and values of attention, S positions per slot.

Tensors only: the caller assigns slots to requests and counts the positions in use.
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
        """Allocate an empty cache."""
        shape = (layers, slots, heads, positions, head_dim)
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))

    @property
    def num_bytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def save(self, slot: int, count: int) -> tuple[Tensor, Tensor]:
        """Copy the first `count` positions of one slot: keys and values [layers, H, count, D]."""
        return self.keys[:, slot, :, :count].clone(), self.values[:, slot, :, :count].clone()

    def load(self, slot: int, saved: tuple[Tensor, Tensor]) -> None:
        """Restore saved positions as the first ones of a slot."""
        count = saved[0].shape[2]
        self.keys[:, slot, :, :count] = saved[0]
        self.values[:, slot, :, :count] = saved[1]

    def block_store(self, layer: int, rows: slice, start: int) -> KVStore:
        """Return a store for T tokens of `rows` at positions start … start+T; it returns positions 0 … start+T."""

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
    """Cache position of one token of each of n rows, and the positions that it attends to."""

    target: Tensor  # [n] cache position of the token's key and value
    position: Tensor  # [n] last position that the token attends to, its own; kernels of a frame do not change it
    span: int  # upper bound of all positions
    rope: Tensor  # [n, D / 2, 2] rows of the rotary table
    mask: Tensor | None  # [n, 1, 1, span] true up to its position; None if all rows have `span` positions
    slots: Tensor | None = None  # [n] slot of each row; None: the first n slots
    common: CommonPrefixes | None = None  # shared prefixes of these rows
    kept: Sequence[KeptHead] = ()  # heads whose scores are kept; of one layer, when it is passed to the layer
