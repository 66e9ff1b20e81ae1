"""What the engine does next: which prompts to read on, whether to make a frame, whose frames become sound.

A turn of the engine reads a bounded number of columns and makes one frame of every running piece; chunks of sound are
chosen as there is time for them. Who listens and is about to run dry goes first, then first sounds, then the rest;
nobody is put off for ever. Pure bookkeeping with the time as an argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from s1_mini.runtime.job import Job, Piece

PREFILL_COLUMNS = 256  # of all prompts that are read in one turn
MAX_READS = 4  # in one turn: each costs some time of its own, however short
RESERVE_S = 0.1  # a listener with less than this left to hear is about to run dry
MAX_PUT_OFF = 4  # turns that reading may wait in a row for those about to run dry
SMALL_CHUNK = 4  # frames of a first sound that may be made between two steps
# Choices in a row that may fall upon others while somebody waits in a class: urgent, first, dry, the rest.
MAX_PASSED_OVER = (9, 1, 3, 4)


@dataclass(frozen=True)
class Read:
    """A part of a prompt that is read in one go."""

    piece: Piece
    columns: int


class Scheduler:
    """Chooses among the pieces that have a slot and the jobs that have sound to make."""

    def __init__(self, *, prefill_columns: int = PREFILL_COLUMNS, max_put_off: int = MAX_PUT_OFF) -> None:
        self.prefill_columns, self.max_put_off = prefill_columns, max_put_off
        self.reading: list[Piece] = []  # in the order of admission
        self.running: list[Piece] = []
        self.speaking: list[Job] = []  # in the order of arrival
        self._put_off = self._choices = 0
        self._passed_over = [0, 0, 0, 0]  # in a row, by class
        self._somebody_runs_dry = False  # as of the last choice

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
        """Whether there is a prompt to read or a frame to make."""
        return bool(self.reading or self.running)

    def reads(self) -> list[Read]:
        """Begin a turn: choose what to read. A frame of all that run comes next."""
        reading = [piece for piece in self.reading if not self._waits_for_prefix(piece)]
        if reading and self._somebody_runs_dry and self._put_off < self.max_put_off:
            self._put_off += 1
            return []
        self._put_off = 0
        chosen: list[Read] = []
        room = self.prefill_columns
        for piece in reading:
            at = piece.num_read
            if at == piece.last_column and len(chosen) < MAX_READS:
                chosen.append(Read(piece, 0))  # nothing left to read, only to begin
            while room and at < piece.last_column and len(chosen) < MAX_READS:
                # No chunk reaches over the end of what is shared: what is cached is read in the chunks of what is not.
                end = piece.prompt.num_shared if at < piece.prompt.num_shared else piece.last_column
                columns = min(room, min(end, piece.last_column) - at)
                chosen.append(Read(piece, columns))
                at, room = at + columns, room - columns
        return chosen

    def decodes(self, now: float, most: int, *, can_begin: bool = True, only_new: bool = False) -> list[Job]:
        """Choose whose next chunk becomes sound, at most `most`, in this order; safe to call from another thread.

        Without `can_begin`, of those only that have a row of the codec; with `only_new`, small first sounds alone.
        """
        speaking = [job for job in list(self.speaking) if not job.is_sounding and (can_begin or job.row is not None)]
        ready = [job for job in speaking if job.next_chunk()]
        classes = Classes(ready, now)
        self._somebody_runs_dry = bool(classes.urgent)
        if only_new:
            small = [job for job in classes.firsts if (job.next_chunk() or 0) <= SMALL_CHUNK]
            return small[:most]
        chosen: list[Job] = []
        while len(chosen) < min(most, len(ready)):
            chosen.append(self._choose(classes))
        for job in chosen:
            self._choices += 1
            job.last_choice = self._choices
        return chosen

    def _choose(self, classes: Classes) -> Job:
        """Choose by class, each in its own order; a class is passed over a few times in a row at most."""
        waiting = [number for number, jobs in enumerate(classes.all) if jobs]
        overdue = [number for number in waiting if self._passed_over[number] >= MAX_PASSED_OVER[number]]
        taken = overdue[0] if overdue else waiting[0]
        for number in waiting:
            self._passed_over[number] += 1
        self._passed_over[taken] = 0
        return classes.all[taken].popleft()

    def _waits_for_prefix(self, piece: Piece) -> bool:
        """Whether another is reading what this piece shares with it: that is read once."""
        key = piece.prompt.prefix_key
        if not key or piece.num_read:
            return False
        first = next(other for other in self.reading if other.prompt.prefix_key == key)
        return first is not piece and first.num_read < first.prompt.num_shared


class Classes:
    """Jobs with a chunk to decode: who is about to run dry, who waits for a first sound, who has run dry, the rest."""

    def __init__(self, ready: list[Job], now: float) -> None:
        self.urgent = deque(sorted((j for j in ready if now <= j.runs_dry < now + RESERVE_S), key=_runs_dry))
        self.firsts = deque(job for job in ready if job.is_new)
        self.dry = deque(sorted((job for job in ready if job.runs_dry < now), key=_runs_dry))
        rest = (job for job in ready if job.runs_dry >= now + RESERVE_S and not job.is_new)
        self.rest = deque(sorted(rest, key=lambda job: job.last_choice))
        self.all = (self.urgent, self.firsts, self.dry, self.rest)


def _runs_dry(job: Job) -> float:
    return job.runs_dry
