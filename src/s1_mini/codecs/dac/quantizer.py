"""Codebooks: vectors to codes and codes to vectors, in a low-dimensional projection (Kumar et al. 2023, DAC).

Shapes: B rows, C channels, F frames, K codebooks.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class VectorQuantizer(nn.Module):
    """One codebook. `in_proj` is only there where waves are encoded."""

    def __init__(self, dim: int, size: int, code_dim: int, *, encodes: bool) -> None:
        super().__init__()
        self.codebook = nn.Embedding(size, code_dim)
        self.out_proj = nn.Conv1d(code_dim, dim, 1)
        if encodes:
            self.in_proj = nn.Conv1d(dim, code_dim, 1)

    def decode(self, codes: Tensor) -> Tensor:
        """Vectors [B, C, F] of codes [B, F]; a code past the book means its last entry, as upstream clamps."""
        last = self.codebook.num_embeddings - 1
        return self.out_proj(self.codebook(codes.clamp(0, last)).transpose(1, 2))

    def encode(self, x: Tensor) -> Tensor:
        """Codes [B, F] of vectors [B, C, F]."""
        return self.nearest(self.in_proj(x))

    def nearest(self, projected: Tensor) -> Tensor:
        """Codes [B, F] of the entries nearest by angle to projected vectors [B, code_dim, F]."""
        query = F.normalize(projected.transpose(1, 2), dim=-1)
        entries = F.normalize(self.codebook.weight, dim=-1)
        # Of unit vectors the nearest has the largest product; written as upstream's distance, for its rounding.
        distance = query.square().sum(-1, keepdim=True) - 2 * query @ entries.T + entries.square().sum(-1)
        return distance.argmin(-1)


class QuantizerStack(nn.Module):
    """Codebooks one upon another, each coding what those before it left."""

    def __init__(self, count: int, dim: int, size: int, code_dim: int, *, encodes: bool) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(VectorQuantizer(dim, size, code_dim, encodes=encodes) for _ in range(count))

    @property
    def books(self) -> list[VectorQuantizer]:
        return cast("list[VectorQuantizer]", self.quantizers)

    def decode(self, codes: Tensor) -> Tensor:
        """Sum of the vectors [B, C, F] of codes [B, K, F]."""
        first, *others = (book.decode(codes[:, index]) for index, book in enumerate(self.books))
        return sum(others, start=first)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Codes [B, K, F] of vectors [B, C, F], and what is left of the vectors."""
        codes = []
        for book in self.books:
            codes.append(book.encode(x))
            x = x - book.decode(codes[-1])
        return torch.stack(codes, dim=1), x
