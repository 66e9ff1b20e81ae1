"""What the processes of stages tell each other: a piece of text to be spoken, and what a stage has made of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from s1_mini.core.prompt import Prompt
from s1_mini.exceptions import EngineError, QueueFullError, S1MiniError
from s1_mini.types import ChunkProfile, SamplingParams


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
