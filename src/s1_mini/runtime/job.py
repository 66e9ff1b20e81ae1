"""A request while it is in the engine room, and its sentence pieces.

Times are seconds of one monotonic clock. Once submitted, a job belongs to the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from s1_mini.runtime.outbox import Outbox
from s1_mini.types import ChunkProfile, FinishReason, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from s1_mini.audio.join import Joiner
    from s1_mini.models.base import Prompt

# Frames of the first, second, … chunk of a piece, the last for all further ones (facts of Nari's Qwen3-TTS server).
CHUNK_FRAMES: dict[ChunkProfile, tuple[int, ...]] = {
    "ttfa": (1, 2, 4, 8, 12),
    "balanced": (4, 4, 8, 16, 25),
    "throughput": (25,),
}

# A later piece is wanted that much later than the one before it: sooner than its turn comes in any sound, so that long
# texts do not wait for themselves, and late enough that they do not take all slots from those who come after them.
PIECE_SPACING_S = 2.0


@dataclass(eq=False)
class Piece:
    """One sentence piece of a job: first it waits, then its prompt is read, then it makes frames."""

    job: Job
    index: int
    prompt: Prompt
    max_frames: int
    slot: int | None = None  # while it is read and makes frames
    num_read: int = 0  # columns of its prompt
    frames: list[Any] = field(default_factory=list)  # codes [K] of each frame made
    num_decoded: int = 0  # frames that became sound
    num_chunks: int = 0
    finish_reason: FinishReason | None = None

    @property
    def due(self) -> float:
        """When it should be begun."""
        return self.job.arrived + self.index * PIECE_SPACING_S

    @property
    def num_columns(self) -> int:
        """Columns of prompt and frames together."""
        return int(self.prompt.columns.shape[1]) + len(self.frames)

    @property
    def last_column(self) -> int:
        """The prompt's last column, which the first step reads and not the prefill."""
        return int(self.prompt.columns.shape[1]) - 1

    def chunk_size(self, number: int) -> int:
        """Frames of the chunk of this number, if the piece does not end in it."""
        sizes = CHUNK_FRAMES[self.job.profile]
        return sizes[min(number, len(sizes) - 1)]

    def next_chunk(self) -> int | None:
        """Frames of the chunk that can be decoded now; 0 if only the end is left, None if there is none yet."""
        size = self.chunk_size(self.num_chunks)
        ready = len(self.frames) - self.num_decoded
        if ready >= size:
            return size
        return ready if self.finish_reason is not None else None


@dataclass(eq=False)
class Job:
    """One accepted request."""

    number: int  # in the order of arrival
    outbox: Outbox
    joiner: Joiner
    sampling: SamplingParams
    seed: int
    arrived: float
    deadline: float
    profile: ChunkProfile = "balanced"
    streams: bool = False  # somebody listens while it is made
    pieces: list[Piece] = field(default_factory=list)
    # Where no voice was asked for, the first piece's becomes that of the others: its codes [K, F] make their pieces.
    continue_with: Callable[[Tensor], list[Piece]] | None = None
    front: int = 0  # the piece whose sound is delivered now
    row: int | None = None  # of the codec, while sound is made
    first_sent: float | None = None
    sent_s: float = 0.0  # seconds of sound delivered
    last_turn: int = 0  # of the engine in which some of its frames became sound

    @property
    def runs_dry(self) -> float:
        """When a listener who began with the first sound will have heard all; infinite if nobody listens."""
        if not self.streams or self.first_sent is None:
            return float("inf")
        return self.first_sent + self.sent_s

    def next_chunk(self) -> int | None:
        """Frames of the front piece that can be decoded now, as `Piece.next_chunk`."""
        return self.pieces[self.front].next_chunk() if self.front < len(self.pieces) else None
