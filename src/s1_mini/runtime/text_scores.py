"""Attention scores of the alignment heads at each step, for the utterances whose word times are wanted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from s1_mini.core.messages import Begin
from s1_mini.kernels.head_scores import KeptHead

Scores = dict[int | None, np.ndarray]  # [text tokens] or [heads, text tokens], by slot

TINY = 1e-30  # weights below it count as this much


class TextScores:
    """Reads the scores of the tokens of each slot's text after a step.

    Of one head they are logarithms up to a constant; of several, the logarithms of their shares of all attention.
    """

    def __init__(self, heads: Sequence[KeptHead]) -> None:
        self._heads = heads
        self._texts: dict[int, slice] = {}  # positions of the text, by slot whose scores are wanted

    @property
    def is_wanted(self) -> bool:
        return bool(self._texts)

    def begin(self, begin: Begin) -> None:
        self._texts.pop(begin.slot, None)
        if self._heads and begin.conditions.text_start is not None:
            self._texts[begin.slot] = slice(begin.conditions.text_start, len(begin.inputs))

    def read(self, slots: Sequence[int], lengths: Sequence[int], others: Sequence[int]) -> Scores:
        """Return the scores of a step on a CPU; steps of slots not in `others` are compiled and store exponentials.

        `lengths` are the numbers of positions that a step attends to, by slot.
        """
        found: Scores = {}
        for slot in slots:
            if slot in self._texts:
                row = self._row(slot, lengths[slot]).numpy()
                found[slot] = row.copy() if slot in others else np.log(np.maximum(row, TINY))
        return found

    def copy(self, slots: Sequence[int], lengths: Sequence[int]) -> Callable[[], Scores]:
        """Begin to copy the scores of a step from a GPU; return a function that waits for them."""
        rows = {slot: self._row(slot, lengths[slot]) for slot in slots if slot in self._texts}
        if not rows:
            return dict
        copies = {
            slot: torch.empty(row.shape, pin_memory=True).copy_(row, non_blocking=True) for slot, row in rows.items()
        }
        done = torch.cuda.Event()
        done.record()

        def wait() -> Scores:
            done.synchronize()
            return {slot: copy.numpy() for slot, copy in copies.items()}

        return wait

    def _row(self, slot: int, length: int) -> Tensor:
        text = self._texts[slot]
        if len(self._heads) == 1:
            return self._heads[0].scores[slot, text]
        rows = torch.stack([each.scores[slot, :length] for each in self._heads])
        return rows.log_softmax(-1)[:, text]
