"""Attention scores of the alignment heads at each step, for utterances of requests for word times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from s1_mini.alignment.head import UNREAD
from s1_mini.core.messages import Begin
from s1_mini.kernels.head_scores import KeptHead

Scores = dict[int | None, np.ndarray]  # [text tokens] or [heads, text tokens], by slot

TINY = 1e-30  # lower limit of attention weights, so that their logarithm is finite


class TextScores:
    """Reads, after each step, how much the alignment heads attend to each token of a slot's text.

    With one head, a score is the logarithm of an attention weight, up to a constant. With several heads, a
    score is the logarithm of a token's share of the head's whole attention. Tokens that the model has not read yet have
    the score `UNREAD`; if the model has read none of the text yet, the first token has the score 0.
    """

    def __init__(self, heads: Sequence[KeptHead]) -> None:
        self._heads = heads
        self._texts: dict[int, slice] = {}  # positions of the text, by slot, for slots whose scores are requested
        # Two buffers [slots, heads × S] in pinned memory, used in turn, because a step is launched before the scores of
        # the previous step are read.
        self._places: list[Tensor] = []
        self._waits: list[Callable[[], Scores]] = [dict, dict]  # for each buffer, waits for the last copy to it
        if heads:
            slots, positions = heads[0].scores.shape
            shape, is_pinned = (slots, len(heads) * positions), heads[0].scores.is_cuda
            self._places = [torch.zeros(shape, pin_memory=is_pinned) for _ in range(2)]

    @property
    def is_wanted(self) -> bool:
        return bool(self._texts)

    def begin(self, begin: Begin) -> None:
        self._texts.pop(begin.slot, None)
        start, stop = begin.conditions.text_start, begin.conditions.text_stop
        if self._heads and start is not None:
            self._texts[begin.slot] = slice(start, len(begin.inputs) if stop is None else stop)

    def read(self, slots: Sequence[int], lengths: Sequence[int], others: Sequence[int]) -> Scores:
        """Return the scores of a step on a CPU.

        `others` are the slots that torch has stepped; compiled steps of the other slots store exponentials of scores.
        `lengths` are, by slot, the numbers of positions that the step attends to.
        """
        found: Scores = {}
        for slot in slots:
            if slot in self._texts:
                row = self._row(slot, lengths[slot]).numpy()
                found[slot] = _whole(self._texts[slot], row if slot in others else np.log(np.maximum(row, TINY)))
        return found

    def copy(self, slots: Sequence[int], lengths: Sequence[int]) -> Callable[[], Scores]:
        """Begin to copy the scores of a step from a GPU; return a function that waits for them."""
        texts = {slot: self._texts[slot] for slot in slots if slot in self._texts}
        rows = {slot: self._row(slot, lengths[slot]) for slot in texts}
        if not rows:
            return dict
        self._waits[0]()  # wait for the copy before the last copy, because its buffer is used again now
        place = self._places[0]
        views = {slot: place[slot, : row.numel()].view(row.shape) for slot, row in rows.items()}
        for slot, view in views.items():
            view.copy_(rows[slot], non_blocking=True)
        done = torch.cuda.Event() if self._heads[0].scores.is_cuda else None
        if done is not None:
            done.record()

        @cache
        def wait() -> Scores:
            if done is not None:
                done.synchronize()
            return {slot: _whole(texts[slot], view.numpy()) for slot, view in views.items()}

        self._places.reverse()
        self._waits = [self._waits[1], wait]
        return wait

    def _row(self, slot: int, length: int) -> Tensor:
        text = slice(self._texts[slot].start, min(self._texts[slot].stop, length))
        if len(self._heads) == 1:
            return self._heads[0].scores[slot, text]
        rows = torch.stack([each.scores[slot, :length] for each in self._heads])
        return rows.log_softmax(-1)[:, text]


def _whole(text: slice, read: np.ndarray) -> np.ndarray:
    """Return the scores of all tokens of a text, given the scores `read` so far [..., tokens]."""
    scores = np.full((*read.shape[:-1], text.stop - text.start), UNREAD, read.dtype)
    scores[..., : read.shape[-1]] = read
    if not read.shape[-1]:
        scores[..., 0] = 0
    return scores
