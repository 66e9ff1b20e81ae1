"""What the engine does next: which prompt to read on, whether to make a frame, whose frames become sound.

Every turn of the engine is one plan: at most one bounded chunk of one prompt, one frame of every running piece, and a
few chunks of sound. Who listens and is about to run dry goes first, then first sounds, then the rest; nobody is put off
for ever. Pure bookkeeping with the time as an argument.
"""

from __future__ import annotations

from dataclasses import dataclass

from s1_mini.runtime.job import Job, Piece

PREFILL_COLUMNS = 128  # of a prompt that are read in one turn
RESERVE_S = 0.3  # a listener with less than this left to hear is about to run dry
MAX_PUT_OFF = 4  # turns that reading may wait in a row for those about to run dry


@dataclass(frozen=True)
class Plan:
    """The first half of a turn: what comes before the frame."""

    read: Piece | None  # whose prompt to read on
    columns: int  # how many columns of it


class Scheduler:
    """Plans turns for the pieces that have a slot and the jobs that have sound to make."""

    def __init__(self, *, max_decodes: int, prefill_columns: int = PREFILL_COLUMNS) -> None:
        assert max_decodes >= 2, "one for the urgent, one for the rest"
        self.max_decodes = max_decodes
        self.prefill_columns = prefill_columns
        self.reading: list[Piece] = []  # in the order of admission
        self.running: list[Piece] = []
        self.speaking: list[Job] = []  # in the order of arrival
        self._put_off = self._turn = 0
        self._somebody_runs_dry = False  # as of the last turn

    def admit(self, piece: Piece) -> None:
        """Take on a piece that has got its slot."""
        self.reading.append(piece)
        if piece.job not in self.speaking:
            self.speaking.append(piece.job)

    def start(self, piece: Piece) -> None:
        """Let a piece make frames whose prompt is read."""
        self.reading.remove(piece)
        self.running.append(piece)

    def drop(self, piece: Piece) -> None:
        """Let go of a piece that has ended."""
        for pieces in (self.reading, self.running):
            if piece in pieces:
                pieces.remove(piece)

    def drop_job(self, job: Job) -> None:
        """Let go of a job that has ended, and of all its pieces."""
        self.reading = [piece for piece in self.reading if piece.job is not job]
        self.running = [piece for piece in self.running if piece.job is not job]
        if job in self.speaking:
            self.speaking.remove(job)

    @property
    def has_work(self) -> bool:
        """Whether there is anything to plan."""
        return bool(self.reading or self.running) or any(job.next_chunk() is not None for job in self.speaking)

    def plan(self) -> Plan:
        """Begin a turn: choose what to read. A frame of all that run comes next, then `decodes`."""
        self._turn += 1
        return Plan(*self._next_read())

    def decodes(self, now: float) -> list[Job]:
        """Choose whose next chunk becomes sound in this turn, in this order."""
        ready = [job for job in self.speaking if job.next_chunk() is not None]
        urgent = [job for job in ready if job.runs_dry - now < RESERVE_S]
        self._somebody_runs_dry = bool(urgent)
        return self._next_decodes(ready, urgent)

    def _next_read(self) -> tuple[Piece | None, int]:
        piece = next((piece for piece in self.reading if not self._waits_for_prefix(piece)), None)
        if piece is None:
            return None, 0
        if self._somebody_runs_dry and self._put_off < MAX_PUT_OFF:
            self._put_off += 1
            return None, 0
        self._put_off = 0
        # A chunk never reaches over the end of what is shared: what is cached is read in the chunks of what is not.
        shared, last = piece.prompt.num_shared, piece.last_column
        end = shared if piece.num_read < shared else last
        return piece, min(self.prefill_columns, min(end, last) - piece.num_read)

    def _waits_for_prefix(self, piece: Piece) -> bool:
        """Whether another is reading what this piece shares with it: that is read once."""
        key = piece.prompt.prefix_key
        if not key or piece.num_read:
            return False
        first = next(other for other in self.reading if other.prompt.prefix_key == key)
        return first is not piece and first.num_read < first.prompt.num_shared

    def _next_decodes(self, ready: list[Job], urgent: list[Job]) -> list[Job]:
        urgent = sorted(urgent, key=lambda job: job.runs_dry)
        firsts = [job for job in ready if job.streams and job.first_sent is None]
        known = {id(job) for job in (*urgent, *firsts)}
        rest = sorted((job for job in ready if id(job) not in known), key=lambda job: job.last_turn)
        chosen = (urgent + firsts)[: self.max_decodes - bool(rest)]  # the rest get on, too
        chosen += rest[: self.max_decodes - len(chosen)]
        for job in chosen:
            job.last_turn = self._turn
        return chosen
