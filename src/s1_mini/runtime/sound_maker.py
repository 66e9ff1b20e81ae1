"""Frames become sound: by a thread beside the engine's where that is worth it, else between its turns.

On a CPU with a small model, step and codec keep a core busy each; on a GPU each has a queue of work there, and while
one thread waits for a frame, the other hands out sound. Whose chunk is next is chosen when there is time for it, never
earlier. On a CPU a first sound does not wait for the thread beside: if that is busy, the engine's makes it. On a GPU
it waits for one batch at most, which is bounded (`sound_graphs.MAX_FRAMES`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from s1_mini.exceptions import EngineError
from s1_mini.runtime.job import Job
from s1_mini.runtime.model_runner import ModelRunner
from s1_mini.runtime.scheduler import Scheduler
from s1_mini.runtime.watch import Pulse
from s1_mini.types import AudioChunk, FinishReason

NOTHING = np.zeros(0, np.float32)
FIRSTS_A_TURN = 2  # first sounds that the engine's thread makes itself
SPARE_FRAMES = 32  # that become sound in a turn beyond twice the frames it makes


class SoundMaker:
    """Decodes the chunks of all jobs in the order that the scheduler says, one job at a time or several together."""

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        *,
        wake: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._scheduler, self._wake, self._clock = runner, scheduler, wake, clock
        self._failed: deque[tuple[Job, Exception]] = deque()
        self._lock = threading.Condition()  # of who makes whose sound, and of the codec's rows
        self._num_beside = 0  # chunks that the thread beside is making
        self._stopped = False
        self.failure: BaseException | None = None  # what killed the thread
        self._thread: threading.Thread | None = None
        self.pulse = Pulse()  # of the thread beside

    def start(self) -> None:
        """Begin to work, in a thread beside if the runner wants that."""
        if self._runner.sounds_beside:
            self._thread = threading.Thread(target=self._run, name="s1_mini sound", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread, if there is one, after the chunk that it is at."""
        with self._lock:
            self._stopped = True
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()

    @property
    def has_failed(self) -> bool:
        """Whether something went wrong that the engine's thread is to see to."""
        return bool(self._failed) or self.failure is not None

    @property
    def is_busy(self) -> bool:
        """Whether a chunk is being made beside the engine's thread."""
        return self._num_beside > 0

    # ---- in the engine's thread -----------------------------------------------------------------------------------

    def turn(self) -> None:
        """Make some chunks, or let the thread beside know that there may be some to make.

        Raises `EngineError` if that thread has died.
        """
        if self.failure is not None:
            raise EngineError("the thread that makes sound has died") from self.failure
        if self._thread is None:
            self._make_some()
            return
        with self._lock:
            self._lock.notify()
            # Else the engine's thread has newcomers to read, or the graphs of sound are the other's.
            helps = self._num_beside and not self._scheduler.reading and not self._runner.decodes_together
            firsts = self._claim(FIRSTS_A_TURN, only_new=True) if helps else []
        for job in firsts:
            self._try([job])

    def failures(self) -> list[tuple[Job, Exception]]:
        """Give the chunks that failed since the last call; each is to be made again or its job ended."""
        failed = []
        while self._failed:
            failed.append(self._failed.popleft())
        return failed

    def make_again(self, job: Job) -> None:
        """Make a chunk that has failed; raises what it fails with now."""
        with self._lock:
            if job.has_ended or (job.row is None and not self._runner.take_row(job)):
                job.has_failed = False  # with no row free it is chosen again later
                return
            job.has_failed, job.is_sounding = False, True
        try:
            self._make([job])
        finally:
            self._let_go(job)

    def deliver(self, job: Job, wave: np.ndarray, frames: int, reason: FinishReason | None = None) -> None:
        """Put sound into the outbox of a job."""
        rate = self._runner.codec.sample_rate
        if len(wave):
            job.count_sound(len(wave) / rate, self._clock())
        job.outbox.put(AudioChunk(wave, rate, frames, reason, job.timing() if reason else None))

    def end_piece(self, job: Job) -> bool:
        """Go on to a job's next piece and tell whether there is one; what is left of the sound is delivered."""
        goes_on = job.front + 1 < len(job.pieces)
        if goes_on:
            self.deliver(job, job.joiner.end_piece(), 0)
        else:
            cut = any(piece.finish_reason == "length" for piece in job.pieces)
            self.deliver(job, job.joiner.finish(), 0, "length" if cut else "stop")
        with self._lock:
            self._runner.give_back_row(job)
            job.front += 1  # from now on the next piece may be chosen
            self._lock.notify()
        return goes_on

    def drop(self, job: Job) -> None:
        """Let go of the codec row of a job that has ended; if its sound is being made, as soon as that is done."""
        with self._lock:
            job.has_ended = True
            if not job.is_sounding:
                self._runner.give_back_row(job)
                self._lock.notify()

    def _make_some(self) -> None:
        """Make chunks of so many frames that sound keeps up with the frames of a turn, one job's after the other's."""
        with self._lock:
            jobs = self._claim(self._runner.slots)
        room = SPARE_FRAMES + 2 * self._runner.slots
        for job in jobs:
            if room <= 0:
                self._let_go(job)
                continue
            room -= job.next_chunk() or 0
            self._try([job])

    def _claim_together(self) -> list[Job]:
        """Choose the next chunk and those that are decoded with it in one call; with the lock held."""
        if not self._runner.decodes_together:
            return self._claim(1)
        jobs = self._claim(self._runner.num_rows)
        first = (jobs[0].next_chunk() or 0) if jobs else 0
        if not first:
            return jobs[:1]
        most = self._runner.most_together(first)
        taken: list[Job] = []
        for job in jobs:
            if len(taken) < most and self._runner.goes_with(first, job.next_chunk() or 0):
                taken.append(job)
            else:
                job.is_sounding = False
        return taken

    # ---- in either thread -----------------------------------------------------------------------------------------

    def _claim(self, most: int, *, only_new: bool = False) -> list[Job]:
        """Choose jobs whose next chunk the caller makes, each with a row of the codec; with the lock held."""
        rows = self._runner.num_free_rows
        jobs = []
        for job in self._scheduler.decodes(self._clock(), most, can_begin=rows > 0, only_new=only_new):
            if not job.has_ended and (job.row is not None or self._runner.take_row(job)):
                job.is_sounding = True
                jobs.append(job)
        return jobs

    def _try(self, jobs: list[Job]) -> None:
        """Make a chunk of claimed jobs; what one fails with is kept for the worker, which knows whose error it is."""
        failure: Exception | None = None
        try:
            self._make(jobs)
        except Exception as error:
            failure = error.with_traceback(None)  # it would keep tensors alive
        if failure is not None and len(jobs) > 1:
            for job in jobs:
                self._try([job])
            return
        if failure is not None:
            with self._lock:
                jobs[0].has_failed = True
                self._failed.append((jobs[0], failure))
        for job in jobs:
            self._let_go(job)

    def _make(self, jobs: list[Job]) -> None:
        sizes = [job.next_chunk() or 0 for job in jobs]
        if not sizes[0]:
            return
        for job, size, wave in zip(jobs, sizes, self._runner.decode(jobs, sizes), strict=True):
            piece = job.pieces[job.front]
            self.deliver(job, job.joiner.push(wave), size)
            piece.num_chunks += 1
            piece.num_decoded += size

    def _let_go(self, job: Job) -> None:
        with self._lock:
            job.is_sounding = False
            if job.has_ended:
                self._runner.give_back_row(job)
            self._lock.notify()

    # ---- beside ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._runner.enter_thread()
            while jobs := self._next():
                with self.pulse:
                    self._try(jobs)
                self._num_beside = 0
                if any(job.has_failed or job.next_chunk() == 0 for job in jobs):
                    self._wake()
        except BaseException as error:
            self.failure = error
            self._wake()

    def _next(self) -> list[Job]:
        """Wait for chunks to make together; none once stopped."""
        with self._lock:
            while not self._stopped:
                if jobs := self._claim_together():
                    self._num_beside = len(jobs)
                    return jobs
                self._lock.wait()
        return []
