"""Which tokens the repetition penalty looks back at.

`upstream` reproduces the original (decode_n_tokens at d3df505) with its two faults: the main token is penalised
only by what was said exactly 16 frames ago (a column is read where a row was meant), and code 0 is penalised
during the first 16 frames (unwritten history reads as zeros). The first frame is never remembered.
`fixed` does what was meant: the last 16 frames, all of them, and nothing that was not said.
Shapes: B rows, W window, K codebooks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

WINDOW = 16  # frames, about 0.74 s


class RepetitionWindow(NamedTuple):
    """A ring of the last frames of every row. `count` [n] is always how many frames each of the first n rows made."""

    history: Tensor  # int64 [B, W, K + 1], zeros where nothing was said
    as_meant: bool  # `fixed`

    @property
    def skipped(self) -> int:
        """Frames at the start that are not remembered."""
        return 0 if self.as_meant else 1

    def main_tokens(self, count: Tensor) -> tuple[Tensor, Tensor]:
        """Give the ids to penalise when the main token is drawn, and which of them count: [n, N] each."""
        rows = len(count)
        if self.as_meant:
            return self.history[:rows, :, 0], self.counted(count)
        recorded = count - self.skipped
        oldest = torch.where(recorded >= WINDOW, recorded % WINDOW, 0)
        tokens = self.history[torch.arange(rows, device=count.device), oldest]
        return tokens, (recorded >= 0).unsqueeze(1).expand_as(tokens)

    def codes(self, codebook: int, rows: int) -> Tensor:
        """Give the codes [rows, W] to penalise when `codebook` is drawn, where `counted` says so."""
        return self.history[:rows, :, codebook + 1]

    def counted(self, count: Tensor) -> Tensor:
        """Tell which of the codes count, the same for all codebooks: [n, W]."""
        if self.as_meant:
            return torch.arange(WINDOW, device=count.device) < count.unsqueeze(1)
        return (count >= self.skipped).unsqueeze(1).expand(-1, WINDOW)
