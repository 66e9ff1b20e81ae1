"""A corpus spoken by several Ray actors with an engine each: one per GPU, or the given number on CPUs.

Ray restarts a lost actor, on another machine if necessary, and retries its shards. Writing a shard twice is harmless.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from s1_mini.corpus.job import Job, fingerprints
from s1_mini.corpus.manifest import HEADER, Entry, header_bytes
from s1_mini.corpus.output import open_output
from s1_mini.corpus.rows import CorpusError, Shard
from s1_mini.exceptions import EngineNotReadyError, S1MiniError

if TYPE_CHECKING:
    from s1_mini.corpus.worker import Worker

RESTARTS = 20  # of one actor; limits the restarts of one that always fails
RETRIES = 3  # of one shard whose actor was lost
MAX_SHARDS = 64  # at one actor, which has a thread for each
MAX_REASON = 300  # characters of an error of Ray, which may be pages long
AGAIN = "run the same again, which goes on from there"


@dataclass(frozen=True)
class Ready:
    """Result of a start."""

    num_shards: int  # in progress at a time
    where: str


class Actor:
    """A worker in a Ray process. Errors are returned as sentences, because not every exception can be pickled."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._starting = threading.Lock()
        self._worker: Worker | None = None

    def hello(self) -> Ready | str:
        """Start the engine."""
        try:
            return Ready(min(self._start().num_shards, MAX_SHARDS), self._where)
        except S1MiniError as error:
            return f"{error} ({self._where})"

    def work(self, shard: Shard) -> Entry | str:
        """Speak and write a shard."""
        try:
            return self._start().work(shard)
        except EngineNotReadyError:
            os._exit(1)  # the engine is dead, and the next process may have a better one
        except S1MiniError as error:
            return f"{error} ({self._where})"

    @property
    def _where(self) -> str:
        return f"process {os.getpid()} on {socket.gethostname()}"

    def _start(self) -> Worker:
        from s1_mini.corpus.worker import Worker

        with self._starting:
            if self._worker is None:
                self._check()
                self._worker = Worker(self._job)
            return self._worker

    def _check(self) -> None:
        """Check that output and checkpoint are the same as in the driver. Raises `CorpusError`."""
        if open_output(self._job.output).read(HEADER) != header_bytes(self._job.header):
            raise CorpusError(f"{self._job.output} is not the same here; name s3://bucket/prefix, or a shared folder")
        for name, value in fingerprints(self._job.config, self._job.voices).items():
            if value != self._job.header[name]:
                raise CorpusError(f"{name.replace('_', ' ')}: other files are here; put the same on all machines")


def work_on_ray(
    job: Job, shards: Iterator[Shard], num_actors: int | None, tell: Callable[[str], None]
) -> Iterator[Entry]:
    """Speak shards on actors, and yield the entry of each when it is complete; `tell` receives progress messages.

    The cluster is the one of `RAY_ADDRESS`, or one of this machine alone that ends with this process. Raises
    `CorpusError`.
    """
    import ray

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports every start to its makers
    address = os.environ.get("RAY_ADDRESS")
    own = {} if address else {"include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise CorpusError(f"there is no Ray at RAY_ADDRESS={address!r}: {error}") from None
    try:
        yield from Actors(ray, job, num_actors, tell).work(shards)
    finally:
        ray.shutdown()


class Actors:
    """Actors of one corpus."""

    def __init__(self, ray: Any, job: Job, num_actors: int | None, tell: Callable[[str], None]) -> None:
        self._ray, self._tell = ray, tell
        needs = _needs(ray.cluster_resources(), job.config.device, num_actors)
        restarts = {"max_restarts": RESTARTS, "max_task_retries": RETRIES}
        kind = ray.remote(**needs.each, **restarts, max_concurrency=MAX_SHARDS)(Actor)
        actors = [kind.remote(job) for _ in range(needs.count)]
        self._starting = {actor.hello.remote(): actor for actor in actors}
        self._room: dict[Any, int] = {}  # free places for shards
        self._wanted: dict[Any, int] = {}  # at a time
        self._running: dict[Any, tuple[Any, Shard]] = {}
        self._again: deque[Shard] = deque()
        self._lost: Counter[int] = Counter()
        self._why = ""  # the last actor was lost

    def work(self, shards: Iterator[Shard]) -> Iterator[Entry]:
        """Send each shard to the actor with the most free places; yield its entry when it is complete."""
        while self._hand_out(shards) or self._running or self._again:
            if not self._starting and not self._room:
                raise CorpusError(f"no actor is left: {self._why}; mend that and run the same again")
            (ready,), _ = self._ray.wait([*self._starting, *self._running], num_returns=1)
            if ready in self._starting:
                self._greet(ready)
            elif (entry := self._finish(ready)) is not None:
                yield entry

    def _hand_out(self, shards: Iterator[Shard]) -> bool:
        """Fill all free places; return whether shards may be left."""
        while self._room:
            actor = max(self._room, key=self._free)
            if self._free(actor) <= 0:
                return True
            shard = self._again.popleft() if self._again else next(shards, None)
            if shard is None:
                return False
            self._room[actor] -= 1
            self._running[actor.work.remote(shard)] = (actor, shard)
        return True

    def _free(self, actor: Any) -> int:
        """Return the free places of an actor; half are kept while others start, so that a small corpus is shared."""
        return self._room[actor] - (self._wanted[actor] // 2 if self._starting else 0)

    def _greet(self, ready: Any) -> None:
        actor = self._starting.pop(ready)
        told = self._get(ready)
        if isinstance(told, Ready):
            self._room[actor] = self._wanted[actor] = told.num_shards
            self._tell(f"{told.where} speaks {told.num_shards} shards at a time")
        else:
            self._why = told or self._why
            self._tell(f"an actor did not start: {self._why}")

    def _finish(self, ready: Any) -> Entry | None:
        actor, shard = self._running.pop(ready)
        told = self._get(ready)
        if isinstance(told, Entry):
            if actor in self._room:
                self._room[actor] += 1
            return told
        if told is not None:
            raise CorpusError(f"shard {shard.number}: {told}; {AGAIN}")
        self._lost[shard.number] += 1
        if self._lost[shard.number] > 1:
            first, times = shard.lines[0], 2 * (RETRIES + 1)
            where = f"shard {shard.number}, from line {first.line} of {first.file}"
            raise CorpusError(f"{where}, has lost its actor {times} times: {self._why}; {AGAIN}")
        self._tell(f"an actor is lost, and others speak its shards: {self._why}")
        self._room.pop(actor, None)
        self._again.append(shard)
        return None

    def _get(self, ready: Any) -> Any:
        """Return the answer of an actor, or None if it is lost."""
        try:
            return self._ray.get(ready)
        except self._ray.exceptions.RayActorError as error:
            self._why = _short(error)
            return None
        except self._ray.exceptions.RayError as error:
            raise CorpusError(f"an actor failed: {_short(error)}; {AGAIN}") from None


def _short(error: Exception) -> str:
    """Return the end of Ray's message, which has the cause, in one line without colours."""
    told = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())
    return told if len(told) <= MAX_REASON else f"… {told[-MAX_REASON:]}"


@dataclass(frozen=True)
class Needs:
    """How many actors, and what Ray keeps for each."""

    count: int
    each: dict[str, int]


def _needs(there: dict[str, float], device: str, wanted: int | None) -> Needs:
    """Choose one actor for each GPU, or one where there is none. Raises `CorpusError` for more than there is."""
    has_gpu = there.get("GPU", 0) >= 1 and device != "cpu"
    kind = "GPU" if has_gpu or device.startswith("cuda") else "CPU"
    count = int(there.get(kind, 0))
    chosen = wanted or (count if kind == "GPU" else 1)
    if not 1 <= chosen <= count:
        raise CorpusError(f"{chosen} actors need a {kind} each, and Ray has {count}; give it more, or ask for fewer")
    return Needs(chosen, {"num_cpus": 0 if kind == "GPU" else 1, "num_gpus": 1 if kind == "GPU" else 0})
