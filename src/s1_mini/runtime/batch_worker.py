"""The one thread that owns the device: it lets pieces in, reads, steps and makes sound, turn by turn.

Requests come in through `submit` and leave through their outboxes; each that was taken in ends exactly once, with
sound or with an error of its own. What goes wrong with one row is that row's error, and the others go on. If this
thread, or that of sound, does not come back, a third one tells all who wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

import torch

from s1_mini.byte_cache import ByteCache
from s1_mini.exceptions import (
    CapacityError,
    EngineError,
    EngineNotReadyError,
    GenerationError,
    QueueFullError,
    RequestTimeoutError,
    S1MiniError,
)
from s1_mini.families.base import Prefix
from s1_mini.metrics import EngineMetrics
from s1_mini.runtime.batch_queue import BatchQueue
from s1_mini.runtime.job import Job, Piece
from s1_mini.runtime.model_runner import HostFrames, ModelRunner
from s1_mini.runtime.scheduler import Read, Scheduler
from s1_mini.runtime.slots import Slots
from s1_mini.runtime.sound_maker import NOTHING, SoundMaker
from s1_mini.runtime.task import Task
from s1_mini.runtime.watch import Pulse, Watch
from s1_mini.types import FinishReason

logger = logging.getLogger(__name__)

POLL_S = 0.1  # how often deadlines are looked at while nothing else happens
LOOK_S = 0.01  # and otherwise
GRACE_S = 2.0  # for a thread that was given up, and comes back after all
SPEAKING_SHARE = 3.0  # seconds of speaking, where somebody speaks, for each second of encoding references
MIN_SHARED_COLUMNS = 16  # shorter prefixes are read sooner than they are found

Result = TypeVar("Result")


class BatchedModelWorker:
    """Runs jobs on one `ModelRunner`, in a thread of its own, once started."""

    def __init__(
        self,
        runner: ModelRunner,
        queue: BatchQueue,
        prefixes: ByteCache[Prefix],
        *,
        clears_memory: bool = True,
        stuck_after_s: float = float("inf"),
        metrics: EngineMetrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.runner, self.queue, self.prefixes, self.clock = runner, queue, prefixes, clock
        self.metrics = metrics or EngineMetrics()
        self.slots = Slots(runner.slots)
        # Reading takes nothing from those who wait for sound if that is made beside it.
        self.scheduler = Scheduler(max_put_off=0) if runner.sounds_beside else Scheduler()
        self.sound = SoundMaker(runner, self.scheduler, wake=self._wake, clock=clock)
        self._clears_memory = clears_memory
        self.failure: BaseException | None = None  # what killed the thread
        self._jobs: dict[int, Job] = {}  # all that were taken in and have not ended
        self._cancelled: deque[Job] = deque()
        self._tasks: deque[Task] = deque()
        self._changed = threading.Condition()
        self._takes_in = self._drains = True
        self._next_task = 0.0  # when work that is no speech may go on beside speech
        self._next_look = 0.0  # for requests whose time is over
        self._pulse = Pulse()
        self._over = threading.Event()  # nobody waits for anything any more
        self._is_given_up = False
        threads = {"the engine's thread": self._pulse, "the thread that makes sound": self.sound.pulse}
        self._watch = Watch(threads, stuck_after_s, self._give_up)
        self._thread = threading.Thread(target=self._run, name="s1_mini engine", daemon=True)

    # ---- from any thread ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def watch(self) -> None:
        """Give up from now on, and tell all who wait, if a thread does not come back from what it does."""
        self._watch.start()

    def submit(self, job: Job) -> None:
        """Take a job in. Raises `QueueFullError`, or `EngineNotReadyError` once stopped."""
        with self._changed:
            self._check_open()
            self._jobs[job.number] = job  # first, since the engine may take its pieces at once
            try:
                self.queue.submit(job, self._retry_after_s())
            except QueueFullError:
                del self._jobs[job.number]
                raise
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """End a job whose listener has gone, within one frame; does nothing if it has ended."""
        with self._changed:
            self._cancelled.append(job)
            self._changed.notify()

    def do(self, make: Callable[[], Generator[None, None, Result]]) -> Future[Result]:
        """Let the engine thread do what `make` begins between its turns, one `yield` at a time; give its result.

        Raises `QueueFullError`, or `EngineNotReadyError` once stopped.
        """
        task = Task(make)
        with self._changed:
            self._check_open()
            if len(self._tasks) >= self.queue.max_size:
                raise QueueFullError(len(self._tasks), self.queue.max_size, float(len(self._tasks)))
            self._tasks.append(task)
            self._changed.notify()
        return task.future

    def stop(self, *, drains: bool = True, timeout_s: float | None = None) -> None:
        """Take in no more; finish what was taken in, or end it with `EngineNotReadyError`."""
        with self._changed:
            self._takes_in, self._drains = False, drains
            self._changed.notify()
        if not self._over.wait(timeout_s):  # it took too long: give up on the rest
            with self._changed:
                self._drains = False
            self._over.wait()
        self._thread.join(GRACE_S if self._is_given_up else None)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs, and comes back from what it does."""
        return self._thread.is_alive() and self.failure is None

    @property
    def num_jobs(self) -> int:
        """Jobs that were taken in and have not ended."""
        return len(self._jobs)

    def _check_open(self) -> None:
        if self.failure is not None:
            raise EngineError(f"the engine has failed and must be started anew: {self.failure!r}")
        if not self._takes_in:
            raise EngineNotReadyError("the engine is stopping and takes in nothing more")

    def _retry_after_s(self) -> float:
        """Guess when there will be room: a piece takes some seconds, and all slots work at once."""
        return max(1.0, 2.0 * len(self.queue) / self.slots.count)

    # ---- the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.runner.enter_thread()
            self.runner.capture()
            self.sound.start()
            while self._wait():
                with self._pulse:
                    self.turn()
        except BaseException as error:
            self.failure = error
            logger.exception("the engine's thread has died")
        finally:
            with self._changed:
                self._takes_in = False
            self.sound.stop()
            reason = "has died" if self.failure else "was stopped"
            try:
                with self._pulse:
                    for job in list(self._jobs.values()):
                        with suppress(Exception):  # of a device that is gone; the listener is told all the same
                            self._end(job, EngineNotReadyError(f"the engine {reason} while this was being spoken"))
                    for task in self._tasks:
                        task.end(EngineNotReadyError(f"the engine {reason}"))
            finally:
                self._watch.stop()
                self._over.set()

    def _give_up(self, thread: str, seconds: float) -> None:
        """Tell all who wait that a thread does not come back, from the watch's own. What it holds is left to it."""
        self.failure = self.failure or EngineError(f"{thread} has not come back for {seconds:.4g} s")
        self._is_given_up = True
        try:
            with self._changed:
                self._takes_in = self._drains = False
            for job in list(self._jobs.values()):
                self._tell_end(job, EngineNotReadyError("the engine has died while this was being spoken"))
            for task in list(self._tasks):
                task.fail(EngineNotReadyError("the engine has died"))
        finally:
            self._over.set()
        logger.critical("%s has not come back for %.4g s; the engine is given up", thread, seconds)

    def _wait(self) -> bool:
        """Sleep until there is something to do; tell whether to go on at all."""
        with self._changed:
            while not self._has_work():
                if self.failure is not None or (not self._takes_in and not self._jobs):
                    return False
                wakes = self.queue.wakes(self.clock())
                self._changed.wait(min(POLL_S, wakes) if wakes else POLL_S)
                if self._jobs:
                    break  # look at deadlines
            return self.failure is None and (self._drains or self._takes_in)

    def _has_work(self) -> bool:
        held_back = self.queue.wakes(self.clock())
        can_admit = held_back is not None and held_back <= 0 and self.slots.num_free > 0 and not self._is_behind()
        return bool(self._cancelled or self._tasks or can_admit or self.scheduler.has_work or self._has_sound())

    def _is_behind(self) -> bool:
        """Whether so many jobs only wait for their sound that no more are begun: frames must not pile up."""
        made = [job for job in self.scheduler.speaking if (front := job.front_piece) and front.finish_reason]
        return len(made) >= self.slots.count and sum(bool(job.next_chunk()) for job in made) >= self.slots.count

    def _has_sound(self) -> bool:
        """Whether a chunk, or the end of one's sound, is for this thread to see to."""
        if self.sound.has_failed:
            return True
        chunks = (job.next_chunk() for job in self.scheduler.speaking)
        return any(size == 0 or (size and not self.runner.sounds_beside) for size in chunks)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def turn(self) -> None:
        """Read on in some prompts, make a frame of all that run, see that those who wait for sound get it."""
        now = self.clock()
        self._end_cancelled()
        self._end_late(now)
        self._admit(now)
        for read in self.scheduler.reads():
            self._read(read)
        if self.scheduler.running:
            self._step()
        self._make_sound()
        self._do_task()

    def _end_cancelled(self) -> None:
        while self._cancelled:
            job = self._cancelled.popleft()
            if job.number in self._jobs:
                self.sound.deliver(job, NOTHING, 0, "cancelled")
                self._end(job, reason="cancelled")

    def _end_late(self, now: float) -> None:
        if now < self._next_look:
            return
        self._next_look = now + LOOK_S
        for job in [job for job in list(self._jobs.values()) if now > job.deadline]:
            made = sum(len(piece.frames) for piece in job.pieces)
            self._end(job, RequestTimeoutError(f"not finished in time, after {made} frames"))

    def _admit(self, now: float) -> None:
        free = 0 if not len(self.queue) or self._is_behind() else self.slots.num_free
        for piece in self.queue.take(free, now):
            piece.slot = self.slots.take()
            self.scheduler.admit(piece)
            if piece.job.admitted is None:
                piece.job.admitted = now
                self.metrics.queue_s.observe(now - piece.job.arrived)
        for piece in list(self.scheduler.reading):
            if piece.num_read == 0 and piece.slot is not None:
                self._load_prefix(piece)

    def _load_prefix(self, piece: Piece) -> None:
        if piece.prompt.num_shared < MIN_SHARED_COLUMNS or not piece.prompt.prefix_key:
            return
        if piece.has_looked and piece.prompt.prefix_key not in self.prefixes:
            return  # it was missed once, and counted
        piece.has_looked = True
        prefix = self.prefixes.get(piece.prompt.prefix_key)
        if prefix is not None:
            self._attempt(piece.job, partial(self.runner.load, piece, prefix))
            piece.num_read = prefix.columns

    def _read(self, read: Read) -> None:
        if read.piece.slot is not None:  # its job may have ended in this turn
            self._attempt(read.piece.job, partial(self._read_on, read.piece, read.columns))

    def _read_on(self, piece: Piece, columns: int) -> None:
        """Read a chunk; may be done again from the start if it fails on the way."""
        self.runner.read(piece, columns)
        end = piece.num_read + columns
        if end == piece.prompt.num_shared:
            self._save_prefix(piece)
        if end == piece.last_column:
            self.runner.start(piece)
            self.scheduler.start(piece)
            self._count_begun(piece.job)
        piece.num_read = end

    def _count_begun(self, job: Job) -> None:
        if job.begun is None and job.admitted is not None:
            job.begun = self.clock()
            self.metrics.prefill_s.observe(job.begun - job.admitted)

    def _save_prefix(self, piece: Piece) -> None:
        key = piece.prompt.prefix_key
        if key and piece.prompt.num_shared >= MIN_SHARED_COLUMNS and key not in self.prefixes:
            with suppress(torch.OutOfMemoryError):  # it is read again another time
                prefix = self.runner.save(piece)
                self.prefixes.put(key, prefix, prefix.num_bytes)

    def _step(self) -> None:
        running = list(self.scheduler.running)
        try:
            frames = self._with_memory(lambda: self.runner.step(running))
        except torch.OutOfMemoryError as error:
            self._end(running[-1].job, _out_of_memory(error))  # the newest makes room for the others
        except torch.AcceleratorError:
            raise  # the device is lost, and all that comes would fail
        except Exception as error:
            logger.warning("a step failed; each row is tried alone", exc_info=error)
            self._step_one_by_one(running)
        else:
            self.metrics.rows.observe(len(frames.pieces))
            for piece in frames.pieces:
                self._take(piece, frames)

    def _step_one_by_one(self, running: list[Piece]) -> None:
        for piece in running:
            if piece not in self.scheduler.running:
                continue  # its job has ended meanwhile
            others = [other for other in self.scheduler.running if other is not piece]
            if frames := self._attempt(piece.job, partial(self.runner.step_alone, piece, others)):
                self._take(piece, frames)

    def _take(self, piece: Piece, frames: HostFrames) -> None:
        """Keep the frame that a piece has made, or end the piece."""
        slot = piece.slot
        if slot is None:
            return  # its job has ended meanwhile
        if not frames.valid[slot]:
            self._end(piece.job, GenerationError(f"the model's logits were not finite at frame {len(piece.frames)}"))
        elif frames.stop[slot]:
            self._end_piece(piece, "stop")
        else:
            piece.frames.append(frames.codes[slot])
            self.metrics.frames += 1
            if len(piece.frames) == piece.max_frames:
                self._end_piece(piece, "length")

    def _end_piece(self, piece: Piece, reason: FinishReason) -> None:
        piece.finish_reason = reason
        self._free(piece)
        job = piece.job
        if job.continue_with is not None:
            make, job.continue_with = job.continue_with, None
            if added := self._attempt(
                job, lambda: make(torch.from_numpy(piece.frames.cut(0, len(piece.frames)).T.copy()))
            ):
                job.pieces += added
                self.queue.extend(added)

    def _make_sound(self) -> None:
        self.sound.turn()
        for job, error in self.sound.failures():
            if job.number in self._jobs:
                self._attempt(job, partial(self._make_again, job, [error]))
        for job in [job for job in self.scheduler.speaking if job.next_chunk() == 0]:
            if not self.sound.end_piece(job):
                self._end(job)

    def _make_again(self, job: Job, errors: list[Exception]) -> None:
        """Raise what a chunk failed with; called again, make the chunk."""
        if errors:
            raise errors.pop()
        self.sound.make_again(job)

    def _do_task(self) -> None:
        if not self._tasks or (self.scheduler.has_work and self.clock() < self._next_task):
            return
        task, started = self._tasks[0], self.clock()
        error: Exception | None = None
        try:
            ended = task.future.cancelled() or self._with_memory(task.step)
        except torch.OutOfMemoryError as failure:
            ended, error = True, _out_of_memory(failure)
        except torch.AcceleratorError:
            raise
        except Exception as failure:
            ended, error = True, failure
        if error is not None:
            task.end(error)
        if ended:
            self._tasks.popleft()
        now = self.clock()
        self._next_task = now + SPEAKING_SHARE * (now - started)

    # ---- ends and errors ------------------------------------------------------------------------------------------

    def _attempt(self, job: Job, work: Callable[[], Result]) -> Result | None:
        """Do some work for one job and give its result; if it fails, the job ends with the reason."""
        try:
            return self._with_memory(work)
        except torch.OutOfMemoryError as error:
            self._end(job, _out_of_memory(error))
        except S1MiniError as error:
            self._end(job, error)
        except torch.AcceleratorError:
            raise
        except Exception as error:
            logger.exception("request %d failed", job.number)
            self._end(job, GenerationError(f"the model failed on this request: {type(error).__name__}: {error}"))
        return None

    def _with_memory(self, work: Callable[[], Result]) -> Result:
        """Do some work; if the memory runs out, let go of the caches and try once more."""
        try:
            return work()
        except torch.OutOfMemoryError:
            pass  # what it held is let go of with the exception, before it is tried again
        self.metrics.out_of_memory += 1
        freed = self.prefixes.shrink(0)
        if self._clears_memory:
            self.runner.free_memory()
        logger.warning("out of memory: let go of %.1f MB of prefixes, trying again", freed / 1e6)
        return work()

    def _end(self, job: Job, error: S1MiniError | None = None, *, reason: str = "spoken") -> None:
        """Let go of all that a job has, and tell its listener; does nothing the second time."""
        if job.number not in self._jobs:
            return
        try:
            self.queue.remove(job)
            for piece in job.pieces:
                self._free(piece)
            self.scheduler.drop_job(job)
            self.sound.drop(job)
            self._count_end(job, error.code if error else reason)
        finally:
            self._tell_end(job, error)

    def _tell_end(self, job: Job, error: S1MiniError | None) -> None:
        """Tell a job's listener the end, unless the other of this thread and the watch's has just done so."""
        if self._jobs.pop(job.number, None) is not None:
            job.outbox.end(error)

    def _count_end(self, job: Job, end: str) -> None:
        metrics, took = self.metrics, self.clock() - job.arrived
        metrics.ends[end] += 1
        metrics.total_s.observe(took)
        metrics.audio_s += job.sent_s
        metrics.underruns += job.underruns
        if job.first_sent is not None:
            metrics.first_chunk_s.observe(job.first_sent - job.arrived)
        if job.sent_s:
            metrics.real_time_factor.observe(took / job.sent_s)

    def _free(self, piece: Piece) -> None:
        self.scheduler.drop(piece)
        if piece.slot is not None:
            self.runner.release(piece.slot)
            self.slots.give_back(piece.slot)
            piece.slot = None

    def audit(self) -> Iterator[str]:
        """Tell what is held though no job holds it; nothing, if all is well."""
        if not self._jobs and not self.sound.is_busy:
            if self.slots.num_free != self.slots.count:
                yield f"{self.slots.count - self.slots.num_free} slots"
            if self.runner.num_free_rows != self.runner.num_rows:
                yield f"{self.runner.num_rows - self.runner.num_free_rows} codec rows"
            if len(self.queue) or self.scheduler.has_work or self.scheduler.speaking:
                yield "waiting or running pieces"


def _out_of_memory(error: BaseException) -> CapacityError:
    reason = str(error).partition(".")[0]
    return CapacityError(f"out of memory: {reason}. Use a shorter text or reference, or fewer requests at once.")
