"""Workers of a corpus: one engine in this process, or one in each of several Ray actors.

A worker generates several shards at a time, so that its slots stay full while the last texts of a shard finish. Ray
restarts a lost actor, on another machine if necessary, and retries its shards. Writing a shard twice is harmless.
"""

from __future__ import annotations

import gc
import os
import re
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from s1_mini.audio.container import rate_in
from s1_mini.corpus.job import Job, fingerprints
from s1_mini.corpus.manifest import HEADER, Entry, Spoken, header_bytes, write_shard
from s1_mini.corpus.output import open_output
from s1_mini.corpus.rows import BadLine, CorpusError, CorpusRow, Shard
from s1_mini.exceptions import EngineError, EngineNotReadyError, S1MiniError
from s1_mini.files import delete_temporary_folders
from s1_mini.types import SharedOptions

TRIES = 2  # attempts per text; a failure may be caused by the memory use of other texts
SPARE_SHARDS = 6  # additional shards, because some shards are being written or wait for one long text
RESTARTS = 20  # limit per actor, because an actor may fail every time
RETRIES = 3  # attempts per shard after its actor was lost
MAX_SHARDS = 64  # concurrent shards of an actor, each in its own thread
MAX_REASON = 300  # characters of an error of Ray; such errors may be pages long
AGAIN = "run the same command again to continue"


class Worker:
    """A started engine and a pool of threads, each of which waits for one text."""

    def __init__(self, job: Job) -> None:
        from s1_mini.engine import ProductionTTSEngine
        from s1_mini.runtime.process import freeze_what_is_loaded, prepare_process

        prepare_process()
        self._job, self._output = job, open_output(job.output)
        self._in_line = threading.Lock()  # held while a shard submits its texts to the pool
        self.engine = ProductionTTSEngine(job.config)
        with ExitStack() as cleanup:
            cleanup.callback(self.engine.stop, drain=False)
            self.engine.start()
            if job.voice is not None:
                self.engine.describe_voice(job.voice)
            cleanup.pop_all()
        self.in_flight = job.in_flight or 2 * self.engine.num_slots
        self.num_shards = SPARE_SHARDS + -(-self.in_flight // job.shard_size)
        self._pool = ThreadPoolExecutor(self.in_flight, thread_name_prefix="s1_mini corpus")
        freeze_what_is_loaded()

    def work(self, shard: Shard) -> Entry:
        """Speak a shard, then write it and its entry. Raises `CorpusError` or `EngineNotReadyError`. Thread-safe.

        A text that cannot be spoken becomes a bad line.
        """
        with self._in_line:  # otherwise the shards' texts would mix, and all shards would end together
            begun = self._pool.map(self._speak, shard.lines)
        results = list(begun)
        return write_shard(self._output, shard, results, self._job.layout, self._job.audio_format)

    def close(self) -> None:
        """Cancel the texts in progress, and release the checkpoint."""
        try:
            self.engine.stop(drain=False)
            self._pool.shutdown(cancel_futures=True)
        finally:
            gc.unfreeze()

    def _speak(self, line: CorpusRow | BadLine) -> Spoken | BadLine:
        if isinstance(line, BadLine):
            return line
        for left in reversed(range(TRIES)):
            try:
                return self._try(line)
            except EngineNotReadyError:
                raise
            except S1MiniError as error:
                if not left or not isinstance(error, EngineError):
                    return BadLine(line.number, line.file, line.line, line.id, str(error))
        raise AssertionError

    def _try(self, row: CorpusRow) -> Spoken:
        audio_format = self._job.audio_format
        options: SharedOptions = {**row.options, "voice": row.voice, "chunk_profile": "throughput"}
        response = self.engine.generate(row.text, return_bytes=True, audio_format=audio_format, **options)
        return Spoken(
            row=row,
            sound=response.audio_bytes,
            seconds=round(response.audio_seconds, 6),
            sample_rate=rate_in(audio_format, response.sample_rate),
            finish_reason=response.finish_reason,
        )


@dataclass(eq=False)
class Member:
    """A worker in this process or in an actor. Calls of an actor return errors instead of raising them."""

    starting: Future[Any]  # (number of concurrent shards, node)
    begin: Callable[[Shard], Future[Entry | S1MiniError]]
    num_shards: int = 0
    num_free: int = 0  # number of further shards that the worker can take


class Team:
    """Distributes the shards of a corpus to workers.

    `tell` receives progress messages; `lost` are the exceptions that a call raises if its worker is lost for good.
    """

    def __init__(self, members: Sequence[Member], tell: Callable[[str], None], *lost: type[Exception]) -> None:
        self._tell, self._lost = tell, lost
        self._refused: tuple[type[Exception], ...] = (S1MiniError, *lost)
        self._starting: dict[Future[Any], Member] = {member.starting: member for member in members}
        self._members: list[Member] = []  # ready
        self._running: dict[Future[Any], tuple[Member, Shard]] = {}
        self._again: deque[Shard] = deque()
        self._num_lost: Counter[int] = Counter()  # lost workers, by shard
        self._why = ""  # why the last worker was lost

    def work(self, shards: Iterator[Shard]) -> Iterator[Entry]:
        """Send each shard to the worker with the most free capacity; yield its entry when it is complete.

        Raises `CorpusError` if no worker is left or a shard has lost two, and the errors of the workers.
        """
        while self._hand_out(shards) or self._running or self._again:
            if not self._starting and not self._members:
                raise CorpusError(f"no actor is left: {self._why}; fix this problem and run the same command again")
            done, _ = wait([*self._starting, *self._running], return_when=FIRST_COMPLETED)
            for future in done:
                if future in self._starting:
                    self._greet(future)
                elif (entry := self._finish(future)) is not None:
                    yield entry

    def _hand_out(self, shards: Iterator[Shard]) -> bool:
        """Send shards to all workers with free capacity; return whether there may be more shards."""
        while self._members:
            member = max(self._members, key=self._num_free)
            if self._num_free(member) <= 0:
                return True
            shard = self._again.popleft() if self._again else next(shards, None)
            if shard is None:
                return False
            member.num_free -= 1
            self._running[member.begin(shard)] = (member, shard)
        return True

    def _num_free(self, member: Member) -> int:
        """Return how many more shards to send to a worker.

        While other workers start, half of its capacity stays free, so that they also get a part of a small corpus.
        """
        return member.num_free - (member.num_shards // 2 if self._starting else 0)

    def _greet(self, future: Future[Any]) -> None:
        member = self._starting.pop(future)
        try:
            member.num_shards, where = _result(future)
        except self._refused as error:
            self._why = _short(error)
            self._tell(f"an actor did not start: {self._why}")
            return
        member.num_free = member.num_shards
        self._members.append(member)
        self._tell(f"{where} generates {member.num_shards} shards at a time")

    def _finish(self, future: Future[Any]) -> Entry | None:
        member, shard = self._running.pop(future)
        member.num_free += 1
        try:
            entry: Entry = _result(future)
        except self._lost as error:
            self._why = _short(error)
        else:
            return entry
        self._num_lost[shard.number] += 1
        if self._num_lost[shard.number] > 1:
            first, times = shard.lines[0], 2 * (RETRIES + 1)
            where = f"shard {shard.number}, from line {first.line} of {first.file}"
            raise CorpusError(f"{where}, has lost its actor {times} times: {self._why}; {AGAIN}")
        self._tell(f"an actor was lost, and others generate its shards: {self._why}")
        if member in self._members:
            self._members.remove(member)
        self._again.append(shard)
        return None


def _result(future: Future[Any]) -> Any:
    result = future.result()
    if isinstance(result, S1MiniError):
        raise result
    return result


def _short(error: Exception) -> str:
    """Return an error's message in one line without colours; only the end of Ray's messages, which has the cause."""
    if isinstance(error, S1MiniError):
        return str(error)
    message = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return message if len(message) <= MAX_REASON else f"… {message[-MAX_REASON:]}"


def work_here(job: Job, shards: Iterator[Shard]) -> Iterator[Entry]:
    """Speak shards with an engine in this process; yield the entry of each when it is complete.

    Raises `S1MiniError`.
    """
    worker = Worker(job)
    try:
        yield from work_by(worker, shards)
    finally:
        worker.close()


def work_by(worker: Worker, shards: Iterator[Shard]) -> Iterator[Entry]:
    """Speak shards with a worker, `num_shards` at a time; yield the entry of each when it is complete."""
    started: Future[tuple[int, str]] = Future()
    started.set_result((worker.num_shards, ""))
    pool = ThreadPoolExecutor(worker.num_shards, thread_name_prefix="s1_mini shard")
    try:
        yield from Team([Member(started, lambda shard: pool.submit(worker.work, shard))], lambda _: None).work(shards)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


class Actor:
    """A worker in a Ray process. Methods return errors instead of raising them, because Ray would wrap them."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._starting = threading.Lock()
        self._worker: Worker | None = None

    def start(self) -> tuple[int, str] | CorpusError:
        """Start the engine; return how many shards it speaks at a time, and where."""
        try:
            return min(self._start().num_shards, MAX_SHARDS), _here()
        except S1MiniError as error:
            return CorpusError(f"{error} ({_here()})")

    def work(self, shard: Shard) -> Entry | CorpusError:
        try:
            return self._start().work(shard)  # Ray restarts an actor without calling `start`
        except EngineNotReadyError:
            delete_temporary_folders()
            os._exit(1)  # the engine is dead; Ray starts a new process
        except S1MiniError as error:
            return CorpusError(f"shard {shard.number}: {error} ({_here()}); {AGAIN}")

    def _start(self) -> Worker:
        with self._starting:
            if self._worker is None:
                self._check()
                self._worker = Worker(self._job)
            return self._worker

    def _check(self) -> None:
        """Check that output and checkpoint are the same as in the driver. Raises `CorpusError`."""
        if open_output(self._job.output).read(HEADER) != header_bytes(self._job.header):
            raise CorpusError(
                f"{self._job.output} is a different place on this machine; specify s3://bucket/prefix or a "
                "shared folder"
            )
        for name, value in fingerprints(self._job.config, self._job.voices).items():
            if value != self._job.header[name]:
                raise CorpusError(
                    f"{name.replace('_', ' ')}: the files differ on this machine; use identical files on all machines"
                )


def _here() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def work_on_ray(
    job: Job, shards: Iterator[Shard], num_actors: int | None, tell: Callable[[str], None]
) -> Iterator[Entry]:
    """Speak shards on actors, and yield the entry of each when it is complete; `tell` receives progress messages.

    Uses the cluster at `RAY_ADDRESS`, or starts one on this machine that ends with this process. Raises `CorpusError`.
    """
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray reports every start to its developers
    address = os.environ.get("RAY_ADDRESS")
    own = {} if address else {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **own)
    except Exception as error:  # of no class of its own if Ray's processes do not start within 30 s
        place = f"answers at RAY_ADDRESS={address!r}" if address else "could be started on this machine"
        raise CorpusError(f"no Ray cluster {place}: {error}") from None
    try:
        count, needs = actors_for(ray.cluster_resources(), job.config.device, num_actors)
        restarts = {"max_restarts": RESTARTS, "max_task_retries": RETRIES}
        kind = ray.remote(**needs, **restarts, max_concurrency=MAX_SHARDS)(Actor)
        actors = [kind.remote(job) for _ in range(count)]
        members = [
            Member(each.start.remote().future(), lambda shard, work=each.work: work.remote(shard).future())  # type: ignore[misc]
            for each in actors
        ]
        yield from Team(members, tell, ray.exceptions.RayActorError).work(shards)
    except ray.exceptions.RayError as error:
        raise CorpusError(f"an actor failed: {_short(error)}; {AGAIN}") from None
    finally:
        ray.shutdown()


def actors_for(there: dict[str, float], device: str, requested: int | None) -> tuple[int, dict[str, int]]:
    """Return the number of actors (default: one per GPU, or a single one without GPUs) and the resources of each.

    Raises `CorpusError` if Ray has too few GPUs or CPUs.
    """
    has_gpu = there.get("GPU", 0) >= 1 and device != "cpu"
    kind = "GPU" if has_gpu or device.startswith("cuda") else "CPU"
    count = int(there.get(kind, 0))
    chosen = requested or (count if kind == "GPU" else 1)
    if not 1 <= chosen <= count:
        raise CorpusError(
            f"{chosen} actors need a {kind} each, and Ray has {count}; add GPUs or CPUs to Ray, or request fewer actors"
        )
    return chosen, {"num_cpus": int(kind == "CPU"), "num_gpus": int(kind == "GPU")}
