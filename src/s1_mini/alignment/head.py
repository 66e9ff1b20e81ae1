"""The attention head that follows the text, given in a checkpoint's `config.json`, and its scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

MAX_SHIFT_MS = 1000
UNREAD = -1e4  # score of a token that the model has not read yet; far below those of attention


@dataclass(frozen=True)
class AlignmentHead:
    """Layer and head, counted from 0, and the delays from the head's attention to the audible speech."""

    layer: int
    head: int
    shift_ms: float  # starts of words
    pause_shift_ms: float  # ends of words before a punctuation mark
    end_shift_ms: float  # end of the last word


class AlignedFrames(NamedTuple):
    """Attention scores of the next frames of an utterance, and the audio that was made from these frames."""

    # logarithms [frames, tokens], up to a constant for each frame; for a calibration [frames, heads, tokens]
    scores: Sequence[np.ndarray]
    waves: Sequence[np.ndarray]  # [samples], one for each of `scores`; parts of it may be cut off
    utterance: int
    start: int  # place of the utterance's first sample in the request's audio, even if that sample is cut off
    stop: int = 0  # if the utterance is complete: its sample from which on silence is cut off
    is_last: bool = False  # the utterance is complete
    was_cut: bool = False  # the utterance reached its step limit before its end
