"""Take what a stage makes from whatever replica has it in hand, and go on with another where that one is lost.

Random numbers are counted, not rolled on, so another replica makes the same items. Those that are there already are
compared with what it makes, and left out. Where they differ, as they may on GPUs of two kinds, the utterance ends with
an error: nobody hears two voices of chance joined.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import numpy as np

from s1_mini.core.items import Items
from s1_mini.core.stage import Spec
from s1_mini.exceptions import EngineNotReadyError, GenerationError, RequestTimeoutError
from s1_mini.remote.work import Call, LostError, Piece, Work

logger = logging.getLogger(__name__)

MAX_LOST = 3  # replicas that one utterance may lose at one stage
SAME = 1e-3  # of samples, and of frames of a mel: below what is heard


async def draw(call: Call, work: Work, stage: str, made: Spec) -> AsyncGenerator[Piece, None]:
    """Give the pieces that a stage makes of an utterance, each once, whoever is lost on the way.

    Raises `EngineError`: the stage's own, `RequestTimeoutError`, or what tells that no replica came to the end.
    """
    deadline, seen, has_told_made = time.monotonic() + work.timeout_s, Items(made), False
    for number in range(1 + MAX_LOST):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise RequestTimeoutError(f"not finished in time, waiting for the stage {stage}")
        at = 0
        try:
            async with aclosing(call(work.within(left_s))) as pieces:
                async for piece in pieces:
                    _check(piece)
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
            reason = "it came to no end"
        logger.warning("a replica of the stage %s is lost, for the %d. time: %s", stage, number + 1, reason)
    raise EngineNotReadyError(
        f"the stage {stage} has lost {1 + MAX_LOST} replicas while this was being spoken: {reason}"
    )


def _check(piece: Piece) -> None:
    if piece.failure is None:
        return
    if piece.failure.is_lost:
        raise LostError(piece.failure.sentence)
    raise piece.failure.error()


def _fresh(items: np.ndarray, at: int, seen: Items, stage: str) -> np.ndarray:
    """Give those of items from number `at` on that are new; the others must be as they were."""
    known = seen.cut(at, at + len(items))
    again = items[: len(known)]
    same = np.allclose(known, again, rtol=0, atol=SAME) if known.dtype.kind == "f" else np.array_equal(known, again)
    if not same:
        raise GenerationError(
            f"a replica of the stage {stage} was lost, and another one does not go on as it did; send the request again"
        )
    return items[len(known) :]
