"""One engine that speaks several shards at a time, so that its slots stay full while the last texts of a shard end."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import asdict

from s1_mini.audio.container import rate_in
from s1_mini.corpus.job import Job
from s1_mini.corpus.manifest import Entry, Spoken, write_shard
from s1_mini.corpus.output import open_output
from s1_mini.corpus.rows import BadLine, Row, Shard
from s1_mini.engine import ProductionTTSEngine
from s1_mini.exceptions import EngineError, EngineNotReadyError, S1MiniError
from s1_mini.runtime.process import freeze_what_is_loaded, prepare_process

TRIES = 2  # of a text whose generation failed: memory may have run out because of others
SPARE_SHARDS = 6  # being written, or waiting for one long text


class Worker:
    """A started engine and a pool of threads, each of which waits for one text."""

    def __init__(self, job: Job) -> None:
        prepare_process()
        self._job = job
        self._output = open_output(job.output)
        self.engine = ProductionTTSEngine(job.config)
        self.engine.start()
        self.in_flight = job.in_flight or 2 * self.engine.num_slots
        self._pool = ThreadPoolExecutor(self.in_flight, thread_name_prefix="s1_mini corpus")
        self._in_line = threading.Lock()  # held while a shard's texts line up for the pool
        with ExitStack() as cleanup:
            cleanup.callback(self.close)
            if job.voice is not None:
                self.engine.describe_voice(job.voice)
            freeze_what_is_loaded()
            cleanup.pop_all()
        self.num_shards = SPARE_SHARDS + -(-self.in_flight // job.shard_size)

    def work(self, shard: Shard) -> Entry:
        """Speak a shard, write it, write its entry; several threads may. Raises `CorpusError`, `EngineNotReadyError`.

        A text that cannot be spoken becomes a bad line.
        """
        with self._in_line:  # one shard after the other: were they mixed, all would end at once and leave slots empty
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

    def _speak(self, line: Row | BadLine) -> Spoken | BadLine:
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

    def _try(self, row: Row) -> Spoken:
        audio_format = self._job.audio_format
        response = self.engine.generate(
            row.text,
            voice=row.voice,
            **asdict(row.sampling),
            on_unsupported=row.on_unsupported,
            chunk_profile="throughput",
            return_bytes=True,
            audio_format=audio_format,
        )
        return Spoken(
            row=row,
            sound=response.audio_bytes,
            seconds=round(response.audio_seconds, 6),
            sample_rate=rate_in(audio_format, response.sample_rate),
            finish_reason=response.finish_reason,
        )


def work_here(job: Job, shards: Iterator[Shard]) -> Iterator[Entry]:
    """Speak shards with an engine in this process; yield the entry of each when it is complete. Raises as `Worker`."""
    worker = Worker(job)
    try:
        yield from work_by(worker, shards)
    finally:
        worker.close()


def work_by(worker: Worker, shards: Iterator[Shard]) -> Iterator[Entry]:
    """Speak shards with a worker, `num_shards` at a time; yield the entry of each when it is complete."""
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
