"""A codec's codebooks while they learn: residual quantisation with gradients, and new life for entries nothing uses."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from recipes.voice.loop import Group
from s1_mini.codecs.dac.model import Quantizer, VectorQuantizer


class Books:
    """All codebooks of a codec, of one size, the semantic one first; and what has been used of them."""

    def __init__(self, quantizer: Quantizer, device: torch.device) -> None:
        self._books: list[VectorQuantizer] = [*quantizer.semantic_quantizer.books, *quantizer.quantizer.books]
        self._used = torch.zeros(len(self._books), len(self._books[0].codebook.weight), device=device)
        self._projected: list[Tensor] = []  # what the books saw last, [B, F, D] each
        self._residual: Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, list[Tensor]]] = self._sum

    def compile_parts(self) -> None:
        """Compile the many small sums."""
        self._residual = torch.compile(self._sum, dynamic=False, fullgraph=True)

    @property
    def num_used(self) -> list[int]:
        """Entries of each book that were used since the last revival."""
        used: list[int] = (self._used > 0).sum(1).tolist()
        return used

    def quantise(self, exact: Tensor, dropout: Tensor | float, bypass: Tensor | float) -> tuple[Tensor, Tensor]:
        """Residual quantisation with straight-through gradients (van den Oord et al. 2017); vectors and commitment.

        A share `dropout` of the rows uses only the first few books, a share `bypass` is not quantised.
        """
        rows, device = len(exact), exact.device
        shortened = torch.rand(rows, device=device) < dropout
        some = torch.randint(1, len(self._books) + 1, (rows,), device=device)
        kept = torch.where(shortened, some, len(self._books))
        total, commitment, codes, self._projected = self._residual(exact, kept)
        numbers = codes + torch.arange(len(self._books), device=device).view(-1, 1, 1) * self._used.shape[1]
        self._used.view(-1).scatter_add_(0, numbers.flatten(), self._ones(numbers.numel()))
        skips = torch.rand(rows, 1, 1, device=device) < bypass
        return torch.where(skips, exact, total), commitment

    def _ones(self, count: int) -> Tensor:
        return torch.ones(count, device=self._used.device)

    def _sum(self, exact: Tensor, kept: Tensor) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
        """Sum of the first `kept` [B] books' vectors, commitment, codes [K, B, F], and what the books saw."""
        rest = exact.transpose(1, 2)  # [B, F, C]
        total, commitment = torch.zeros_like(rest), exact.new_zeros(())
        all_codes, all_projected = [], []
        for index, book in enumerate(self._books):
            projected = F.linear(rest, book.in_proj.weight.squeeze(2), book.in_proj.bias)
            codes = book.nearest(projected.transpose(1, 2))
            entry = book.codebook(codes)
            inside = (index < kept).float()
            pull = (entry - projected.detach()).square().mean((1, 2))
            push = (entry.detach() - projected).square().mean((1, 2))
            commitment = commitment + ((pull + 0.25 * push) * inside).mean()
            straight = projected + (entry - projected).detach()
            vector = F.linear(straight, book.out_proj.weight.squeeze(2), book.out_proj.bias)
            total = total + vector * inside.view(-1, 1, 1)
            rest = rest - vector
            all_codes.append(codes)
            all_projected.append(projected.detach())
        return total.transpose(1, 2), commitment, torch.stack(all_codes), all_projected

    def revive(self, group: Group) -> None:
        """Move entries that nothing used, in no process of `group`, to random vectors of the last batch."""
        group.add(self._used)
        for used, book, projected in zip(self._used, self._books, self._projected, strict=True):
            dead = (used < 1).nonzero()[:, 0]
            vectors = projected.flatten(0, 1)
            chosen = torch.randint(len(vectors), (len(dead),), device=vectors.device)
            with torch.no_grad():
                book.codebook.weight[dead] = vectors[chosen]
        group.share([book.codebook.weight for book in self._books])
        self._used.zero_()


def initialise(module: nn.Module) -> None:
    """Set what the codec's layers leave empty."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith("gamma"):
            nn.init.constant_(parameter, 0.1)
        elif parameter.dim() <= 1 or name.endswith("alpha"):
            nn.init.ones_(parameter)
        elif name.endswith("codebook.weight"):
            nn.init.normal_(parameter)
        else:
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))


def use_fast_kernels() -> torch.device:
    """Allow what is fast and exact enough for training; give the best device there is."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
