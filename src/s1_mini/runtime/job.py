"""A request while it is in the engine room, and its sentence pieces.

Times are seconds of one monotonic clock. Once submitted, a job belongs to the engine thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from s1_mini.runtime.outbox import Outbox
from s1_mini.types import ChunkProfile, FinishReason, SamplingParams, Timing

if TYPE_CHECKING:
    from torch import Tensor

    from s1_mini.audio.join import Joiner
    from s1_mini.families.base import Prompt

# Frames of the first, second, … chunk of a piece, the last for all further ones (facts of Nari's Qwen3-TTS server).
CHUNK_FRAMES: dict[ChunkProfile, tuple[int, ...]] = {
    "ttfa": (1, 2, 4, 8, 12),
    "balanced": (4, 4, 8, 16, 25),
    "throughput": (25,),
}

INFINITE = float("inf")

# A later piece is wanted that much later than the one before it: sooner than its turn comes in any sound, so that long
# texts do not wait for themselves, and late enough that they do not take all slots from those who come after them.
PIECE_SPACING_S = 2.0


class Codes:
    """Codes of the frames that a piece has made, on the host; one thread appends while another reads."""

    def __init__(self) -> None:
        self._rows = np.zeros((0, 0), np.int64)  # [room, K]
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def append(self, frame: np.ndarray) -> None:
        """Add one frame [K]."""
        if self._count == len(self._rows):
            grown = np.zeros((max(64, 2 * self._count), len(frame)), np.int64)
            if self._count:
                grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        self._rows[self._count] = frame
        self._count += 1

    def cut(self, start: int, end: int) -> np.ndarray:
        """Give frames start … end as [end - start, K], not copied."""
        return self._rows[start : min(end, self._count)]


@dataclass(eq=False)
class Piece:
    """One sentence piece of a job: first it waits, then its prompt is read, then it makes frames."""

    job: Job
    index: int
    prompt: Prompt
    max_frames: int
    slot: int | None = None  # while it is read and makes frames
    num_read: int = 0  # columns of its prompt
    has_looked: bool = False  # for its prefix in the cache
    frames: Codes = field(default_factory=Codes)
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
        over = self.finish_reason is not None  # looked at first: the last frame is there before the end is
        size = self.chunk_size(self.num_chunks)
        ready = len(self.frames) - self.num_decoded
        if ready >= size:
            return size
        return ready if over else None


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
    row_is_begun: bool = False  # whether the row remembers what was decoded of the piece
    admitted: float | None = None  # when its first piece got a slot
    begun: float | None = None  # when its first prompt was read
    first_sent: float | None = None
    sent_s: float = 0.0  # seconds of sound delivered
    runs_dry: float = INFINITE  # when the listener will have heard all of it; infinite if nobody listens
    last_choice: int = 0  # the choice of whose sound to make that fell upon it last
    is_sounding: bool = False  # a thread is making its next chunk
    has_failed: bool = False  # its last chunk; the engine decides what becomes of it
    has_ended: bool = False
    underruns: int = 0  # chunks that came after the listener had heard all before them

    @property
    def is_new(self) -> bool:
        """Whether somebody waits for its first sound."""
        return self.streams and self.first_sent is None

    def timing(self) -> Timing:
        """Tell where its first seconds went."""
        return Timing(
            _between(self.arrived, self.admitted),
            _between(self.admitted, self.begun),
            _between(self.arrived, self.first_sent),
        )

    def count_sound(self, seconds: float, now: float) -> None:
        """Count sound that was delivered; a listener who had run dry before it goes on with it now."""
        if self.first_sent is None:
            self.first_sent = now
        elif now > self.runs_dry:
            self.underruns += 1
        self.sent_s += seconds
        if self.streams:
            self.runs_dry = seconds + (now if self.runs_dry == INFINITE else max(self.runs_dry, now))

    @property
    def front_piece(self) -> Piece | None:
        """The piece whose sound is delivered now; None after the last."""
        front = self.front
        return self.pieces[front] if front < len(self.pieces) else None

    def next_chunk(self) -> int | None:
        """Frames of the front piece that can be decoded now, as `Piece.next_chunk`."""
        if self.has_failed:
            return None
        piece = self.front_piece  # once: another thread may go on to the next meanwhile
        return None if piece is None else piece.next_chunk()


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
