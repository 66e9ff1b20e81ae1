"""Messages between stages: the work for one utterance and its output. `receive` continues after a replica is lost.

Random numbers are counter-based, so another replica generates the same items. Items that were already delivered are
compared and skipped. If they differ, which may happen on different GPUs, the utterance ends with an error, so that two
different renderings are never joined.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from s1_mini.core.items import Items
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.stage import Spec
from s1_mini.exceptions import EngineNotReadyError, GenerationError, RequestTimeoutError
from s1_mini.types import ChunkProfile, SamplingParams

logger = logging.getLogger(__name__)

MAX_LOST = 3  # replicas that one utterance may lose at one stage
SAME = 1e-3  # tolerance for samples and mel frames; inaudible


@dataclass(frozen=True)
class Work:
    """One utterance, as sent to every stage."""

    prompt: PromptTokens
    sampling: SamplingParams
    seed: int
    utterance: int  # number in its part; selects the random numbers together with the seed
    max_steps: int
    profile: ChunkProfile = "balanced"
    is_streamed: bool = False  # audio is delivered while it is generated
    keeps: bool = False  # also return the output of all stages except the last
    timeout_s: float = float("inf")


class LostError(Exception):
    """The replica or its engine is lost; another replica can repeat the work."""


@dataclass(frozen=True)
class Piece:
    """Items [n, *shape] of the output of a stage, in order."""

    items: np.ndarray
    is_last: bool = False
    was_cut: bool = False  # in the last piece: a stage reached its step limit before the end
    made: Sequence[np.ndarray] | None = None  # complete output of all stages so far, without audio
    failure: Exception | None = None  # `S1MiniError` or `LostError` instead of items: the output ends here


@dataclass(frozen=True)
class Facts:
    """Description of a replica of a stage."""

    stage: str
    slots: int
    positions: int  # maximum length of an utterance
    fingerprint: str  # hash of the checkpoint


Call = Callable[[Work], AsyncGenerator[Piece, None]]  # sends work to a replica; raises `LostError`


async def receive(call: Call, work: Work, stage: str, made: Spec) -> AsyncGenerator[Piece, None]:
    """Yield the output of a stage for an utterance, each item once, even if replicas are lost meanwhile.

    Raises the error of the stage, `RequestTimeoutError`, `GenerationError` if a second replica's output differs from
    that of a lost one, or `EngineNotReadyError` if no replica finished.
    """
    deadline, seen, has_told_made = time.monotonic() + work.timeout_s, Items(made), False
    for number in range(1 + MAX_LOST):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise RequestTimeoutError(f"timed out while waiting for stage {stage}")
        at = 0
        try:
            async with aclosing(call(replace(work, timeout_s=left_s))) as pieces:
                async for piece in pieces:
                    if piece.failure is not None:
                        raise piece.failure
                    fresh = _fresh(piece.items, at, seen, stage)
                    at += len(piece.items)
                    tells_made = piece.made is not None and not has_told_made
                    if len(fresh) or piece.is_last or tells_made:
                        seen.extend(fresh)
                        has_told_made |= tells_made
                        yield replace(piece, items=fresh, made=piece.made if tells_made else None)
                    if piece.is_last:
                        return
        except LostError as lost:
            reason = str(lost)
        else:
            reason = "its output ended too early"
        logger.warning("lost a replica of stage %s (%d so far): %s", stage, number + 1, reason)
    raise EngineNotReadyError(f"stage {stage} lost {1 + MAX_LOST} replicas during this request: {reason}")


def _fresh(items: np.ndarray, at: int, seen: Items, stage: str) -> np.ndarray:
    """Return the new items of `items`, whose first index is `at`. Raises `GenerationError` if known items differ."""
    known = seen.cut(at, at + len(items))
    again = items[: len(known)]
    same = np.allclose(known, again, rtol=0, atol=SAME) if known.dtype.kind == "f" else np.array_equal(known, again)
    if not same:
        raise GenerationError(
            f"a replica of stage {stage} was lost, and its successor's output differs; send the request again"
        )
    return items[len(known) :]
