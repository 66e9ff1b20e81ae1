"""A codec's codebooks while they learn: residual quantisation with gradients, and new life for entries nothing uses."""

from __future__ import annotations

import torch
from torch import Tensor

from s1_mini.codecs.dac.model import Quantizer
from s1_mini.codecs.dac.quantizer import VectorQuantizer
from training.group import Group


class Books:
    """All codebooks of a codec, of one size, the semantic one first; and what has been used of them."""

    def __init__(self, quantizer: Quantizer, device: torch.device) -> None:
        self._books: list[VectorQuantizer] = [*quantizer.semantic_quantizer.books, *quantizer.quantizer.books]
        self._used = torch.zeros(len(self._books), len(self._books[0].codebook.weight), device=device)
        self._projected: list[Tensor] = []  # what the books saw last

    @property
    def num_used(self) -> list[int]:
        """Entries of each book that were used since the last revival."""
        used: list[int] = (self._used > 0).sum(1).tolist()
        return used

    def quantise(self, exact: Tensor, dropout: Tensor | float, bypass: Tensor | float) -> tuple[Tensor, Tensor]:
        """Residual quantisation with straight-through gradients (van den Oord et al. 2017); vectors and commitment.

        A share `dropout` of the rows uses only the first few books, a share `bypass` is not quantised.
        """
        rows, rest, device = len(exact), exact, exact.device
        shortened = torch.rand(rows, device=device) < dropout
        some = torch.randint(1, len(self._books) + 1, (rows,), device=device)
        kept = torch.where(shortened, some, len(self._books))
        total, commitment = torch.zeros_like(exact), exact.new_zeros(())
        self._projected = []
        for index, book in enumerate(self._books):
            projected = book.in_proj(rest)
            codes = book.nearest(projected)
            entry = book.codebook(codes).transpose(1, 2)
            inside = (index < kept).float()
            pull = (entry - projected.detach()).square().mean((1, 2))
            push = (entry.detach() - projected).square().mean((1, 2))
            commitment = commitment + ((pull + 0.25 * push) * inside).mean()
            vector = book.out_proj(projected + (entry - projected).detach())
            total = total + vector * inside.view(-1, 1, 1)
            rest = rest - vector
            self._used[index].scatter_add_(0, codes.flatten(), torch.ones_like(codes.flatten(), dtype=torch.float32))
            self._projected.append(projected.detach())
        skips = torch.rand(rows, 1, 1, device=device) < bypass
        return torch.where(skips, exact, total), commitment

    def revive(self, group: Group) -> None:
        """Move entries that nothing used, in no process of `group`, to random vectors of the last batch."""
        group.add(self._used)
        for used, book, projected in zip(self._used, self._books, self._projected, strict=True):
            dead = (used < 1).nonzero()[:, 0]
            vectors = projected.transpose(1, 2).flatten(0, 1)
            chosen = torch.randint(len(vectors), (len(dead),), device=vectors.device)
            with torch.no_grad():
                book.codebook.weight[dead] = vectors[chosen]
        group.share([book.codebook.weight for book in self._books])
        self._used.zero_()
