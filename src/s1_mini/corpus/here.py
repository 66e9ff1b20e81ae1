"""A corpus by one engine in this process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from s1_mini.corpus.job import Job
from s1_mini.corpus.manifest import Entry
from s1_mini.corpus.rows import Shard
from s1_mini.corpus.worker import Worker


def work_here(job: Job, shards: Iterator[Shard]) -> Iterator[Entry]:
    """Speak shards, and give the entry of each when it is whole. Raises what `Worker` raises."""
    worker = Worker(job)
    try:
        yield from work_by(worker, shards)
    finally:
        worker.close()


def work_by(worker: Worker, shards: Iterator[Shard]) -> Iterator[Entry]:
    """Let a worker speak shards, as many at a time as it wants."""
    pool = ThreadPoolExecutor(worker.num_shards, thread_name_prefix="s1_mini shard")
    running = set[Future[Entry]]()
    try:
        for shard in shards:
            if len(running) >= worker.num_shards:
                done, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (each.result() for each in done)
            running.add(pool.submit(worker.work, shard))
        while running:
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (each.result() for each in done)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
