"""What the processes of stages tell each other: a piece of text to be spoken, and what a stage has made of it."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import numpy as np

from s1_mini.core.items import Items
from s1_mini.core.prompt import Prompt
from s1_mini.core.stage import Spec
from s1_mini.exceptions import (
    EngineError,
    EngineNotReadyError,
    GenerationError,
    QueueFullError,
    RequestTimeoutError,
    S1MiniError,
)
from s1_mini.types import ChunkProfile, SamplingParams

logger = logging.getLogger(__name__)

MAX_LOST = 3  # replicas that one utterance may lose at one stage
SAME = 1e-3  # of samples, and of frames of a mel: below what is heard


@dataclass(frozen=True)
class Work:
    """One utterance, as every stage of it is told."""

    prompt: Prompt
    sampling: SamplingParams
    seed: int
    utterance: int  # its number in its request: with the seed it names the random numbers
    max_steps: int
    profile: ChunkProfile = "balanced"
    is_streamed: bool = False  # whether somebody listens while it is made
    keeps: bool = False  # whether what the stages but the last have made is to be told, too
    pins: bool = False  # whether its voice keeps its place in the first stage's cache
    timeout_s: float = float("inf")

    def within(self, timeout_s: float) -> Work:
        """Give the same with less time."""
        return replace(self, timeout_s=timeout_s)


@dataclass(frozen=True)
class Failure:
    """An error on its way to another process: not every exception can be sent."""

    code: str
    sentence: str
    retry_after_s: float = 0.0
    is_lost: bool = False  # the engine of this very stage has gone: another replica can begin anew

    @classmethod
    def of(cls, error: S1MiniError, *, is_lost: bool = False) -> Failure:
        """Put an error down."""
        return cls(error.code, str(error), getattr(error, "retry_after_s", 0.0), is_lost)

    def error(self) -> EngineError:
        """Give the error again."""
        kind = next((kind for kind in _kinds(EngineError) if kind.code == self.code), EngineError)
        error = kind.__new__(kind)
        Exception.__init__(error, self.sentence)
        if isinstance(error, QueueFullError):
            error.retry_after_s = self.retry_after_s
        return error


@dataclass(frozen=True)
class Piece:
    """Items [n, *shape] that a stage has made of an utterance, in order."""

    items: np.ndarray
    consumed: int = 0  # items of the stage before that they are made of
    is_last: bool = False
    was_cut: bool = False  # of the last: a stage ran out of steps before it stopped
    made: Sequence[np.ndarray] | None = None  # by the stages up to this one but not the last of all, once complete
    failure: Failure | None = None  # instead of all that: why there is no more


@dataclass(frozen=True)
class Facts:
    """What a replica of a stage tells of itself."""

    stage: str
    slots: int
    positions: int  # of one utterance
    device: str
    fingerprint: str  # of its checkpoint


class LostError(Exception):
    """The replica that worked has gone, or its engine has; another can begin anew."""


Call = Callable[[Work], AsyncGenerator[Piece, None]]  # has a replica work; raises `LostError`


def _kinds(kind: type[EngineError]) -> list[type[EngineError]]:
    return [kind, *(child for direct in kind.__subclasses__() for child in _kinds(direct))]


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
