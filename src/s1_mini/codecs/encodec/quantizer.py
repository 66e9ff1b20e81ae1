"""Residual codebooks: vectors to codes and codes to vectors.

Shapes: B rows, C channels, F frames, K codebooks, N entries of a book.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Codebook(nn.Module):
    """Entries [N, C], of which the nearest is a vector's code."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(size, dim))

    def decode(self, codes: Tensor) -> Tensor:
        """Vectors [B, F, C] of codes [B, F]; a code past the book means its last entry."""
        return F.embedding(codes.clamp(0, len(self.embed) - 1), self.embed)

    def encode(self, x: Tensor) -> Tensor:
        """Codes [B, F] of vectors [B, F, C]."""
        return self.distances(x).argmin(-1)

    def distances(self, x: Tensor) -> Tensor:
        """Squared distances [B, F, N] of vectors [B, F, C]; written as the original's, for its rounding."""
        return x.square().sum(-1, keepdim=True) - 2 * x @ self.embed.T + self.embed.square().sum(-1)


class _Layer(nn.Module):
    """Gives a book the name that it has in a checkpoint."""

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.codebook = Codebook(size, dim)


class Quantizer(nn.Module):
    """Codebooks one upon another, each coding what those before it left."""

    def __init__(self, count: int, size: int, dim: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(size, dim) for _ in range(count))

    @property
    def books(self) -> list[Codebook]:
        """The codebooks in order."""
        return [cast("_Layer", layer).codebook for layer in self.layers]

    def decode(self, codes: Tensor) -> Tensor:
        """Sum of the vectors [B, C, F] of codes [B, K, F]; K may be fewer than all books."""
        first, *others = (book.decode(codes[:, at]) for at, book in enumerate(self.books[: codes.shape[1]]))
        return sum(others, start=first).transpose(1, 2)

    def encode(self, x: Tensor, count: int) -> Tensor:
        """Codes [B, `count`, F] of vectors [B, C, F] in the first books."""
        rest, codes = x.transpose(1, 2), []
        for book in self.books[:count]:
            codes.append(book.encode(rest))
            rest = rest - book.decode(codes[-1])
        return torch.stack(codes, dim=1)
