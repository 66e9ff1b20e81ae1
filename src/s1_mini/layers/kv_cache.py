"""Keys and values of attention, one row of columns per slot.

Tensors only: the caller knows which request has which slot, and how many columns are in use.
Shapes: B slots, H key-value heads, S columns, D head size, T new tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from s1_mini.kernels.common_attention import CommonPrefixes
from s1_mini.kernels.weight import narrow

# Stores new keys and values [B, H, T, D] of one layer; returns all that may be attended to.
KVStore = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class KVCache:
    """Keys and values of all layers: [layers, B, H, S, D] each, in the model's format or in fp8."""

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
        """Allocate an empty cache, all of its memory at once."""
        shape = (layers, slots, heads, positions, head_dim)
        return cls(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))

    @property
    def num_bytes(self) -> int:
        return 2 * self.keys.numel() * self.keys.element_size()

    def save(self, slot: int, count: int) -> tuple[Tensor, Tensor]:
        """Copy the first `count` columns of one slot: keys and values [layers, H, count, D]."""
        return self.keys[:, slot, :, :count].clone(), self.values[:, slot, :, :count].clone()

    def load(self, slot: int, saved: tuple[Tensor, Tensor]) -> None:
        """Restore saved columns as the first ones of a slot."""
        count = saved[0].shape[2]
        self.keys[:, slot, :, :count] = saved[0]
        self.values[:, slot, :, :count] = saved[1]

    def block_store(self, layer: int, rows: slice, start: int) -> KVStore:
        """Return a store of T tokens of every row of `rows` at columns start … start+T; it returns 0 … start+T."""

        def store(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
            end = start + key.shape[2]
            self.keys[layer, rows, :, start:end] = narrow(key, self.keys.dtype)
            self.values[layer, rows, :, start:end] = narrow(value, self.values.dtype)
            kept = self.keys[layer, rows, :, :end], self.values[layer, rows, :, :end]
            return kept[0].to(key.dtype), kept[1].to(value.dtype)

        return store

    def rows(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H, S, D] of one layer, where they lie."""
        return self.keys[layer], self.values[layer]


@dataclass(frozen=True)
class CachePositions:
    """Place of one token of each of n rows, and the columns that it attends to."""

    target: Tensor  # [n] column of its key and value
    position: Tensor  # [n] the last column that it attends to, the new one's own; no kernel of a frame writes it
    span: int  # every position is below it
    rope: Tensor  # [n, D / 2, 2] its part of the rotary table
    mask: Tensor | None  # [n, 1, 1, span] true up to its position; None if all have `span` columns
    slots: Tensor | None = None  # [n] the rows' slots; None: the first ones, in order
    common: CommonPrefixes | None = None  # of the first slots, in order
