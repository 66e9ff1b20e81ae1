"""What a streamed chunk of audio costs the server's process, in CPU time, without any computation of an engine.

A real server runs with an engine whose requests get chunks at a fixed pace, as from a codec that decodes many requests
at once: `engine` in the server's process, `process` in a process of its own. Clients read pcm streams over HTTP from
another process. Linux only. Prints a table, then one line of JSON.

python -m benchmark.chunks --streams 60 --chunks 100 --interval 0.05
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import uvicorn

from benchmark.command import columns, make_parser, names, report
from benchmark.command import run as run_command
from benchmark.http_load import Place, processes_of, until_ready
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.bench.report import describe_machine
from s1_mini.core.output_queue import Output, OutputQueue
from s1_mini.families.s1.random import RECIPES, write_random_checkpoint
from s1_mini.remote import engine_process, engine_worker
from s1_mini.remote.engine_process import EngineProcess
from s1_mini.server.app import create_app
from s1_mini.server.run import make_config
from s1_mini.server.settings import ServerSettings
from s1_mini.speech_engine import SpeechEngine
from s1_mini.types import AudioChunk, Timing, TTSRequest

WAYS = ("engine", "process")
NUM_SAMPLES = 2048  # a frame of S1-mini, the first chunk of a stream
RATE = 44_100  # Hz
GROUPS = 4  # of requests that get their chunks at the same time
HEAD = ["way", "chunks", "chunks per second", "server, ms per chunk", "engine's process, ms per chunk"]
BODY = json.dumps({"text": "We are going home.", "format": "pcm", "stream": True}).encode()


class PacedEngine(ProductionTTSEngine):
    """Gives each request `num_chunks` chunks of the same noise; a quarter of the requests gets the next at once."""

    num_chunks, interval_s = 100, 0.05

    def __init__(self, config: EngineConfig | None = None) -> None:
        super().__init__(config)
        wave = np.random.default_rng(0).uniform(-0.1, 0.1, NUM_SAMPLES).astype(np.float32)
        self._chunk = AudioChunk(wave, RATE, 1)
        self._waiting: deque[tuple[OutputQueue, int]] = deque()  # with the number of chunks so far
        threading.Thread(target=self._deliver, daemon=True).start()

    def submit(self, request: TTSRequest, *, streams: bool = True, as_int16: bool = False) -> Output:  # noqa: ARG002
        """Submit a request; its text does not matter."""
        queue = OutputQueue(lambda: None)
        queue.accept()
        self._waiting.append((queue, 0))
        return Output(queue)

    def _deliver(self) -> None:
        while True:
            time.sleep(self.interval_s / GROUPS)
            for _ in range(-(-len(self._waiting) // GROUPS)):
                queue, count = self._waiting.popleft()
                is_last = count + 1 == self.num_chunks
                queue.put(replace(self._chunk, finish_reason="stop", timing=Timing()) if is_last else self._chunk)
                if is_last:
                    queue.end()
                else:
                    self._waiting.append((queue, count + 1))


def serve(port: int, way: str, num_chunks: int, interval_s: float, checkpoint: Path) -> None:
    """Run the server until the process is killed."""
    PacedEngine.num_chunks, PacedEngine.interval_s = num_chunks, interval_s
    config = EngineConfig(checkpoint_path=checkpoint, device="cpu", max_batch_size=512)
    engine: SpeechEngine = PacedEngine(config)
    if way == "process":
        paces = f"benchmark.chunks.work({num_chunks}, {interval_s})"
        engine_process.CHILD = engine_process.CHILD.replace("main()", f"import benchmark.chunks; {paces}")
        engine = EngineProcess(config)
    settings = ServerSettings(fairness="request", max_requests=4096)
    uvicorn.Server(make_config(create_app(engine, settings))).run([socket.create_server(("127.0.0.1", port))])


def work(num_chunks: int, interval_s: float) -> None:
    """Run the engine's process."""
    PacedEngine.num_chunks, PacedEngine.interval_s = num_chunks, interval_s
    engine_worker.ProductionTTSEngine = PacedEngine  # type: ignore[assignment, attr-defined]
    engine_worker.main()


def measure(way: str, streams: int, num_chunks: int, interval_s: float) -> dict[str, Any]:
    """Return the figures of one way: CPU time of the threads of each process, while the streams are read."""
    with tempfile.TemporaryDirectory(prefix="s1-mini-") as name, socket.socket() as free:
        checkpoint = Path(name) / "tiny"
        write_random_checkpoint(checkpoint, RECIPES["tiny"])
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        arguments = (port, way, num_chunks, interval_s, checkpoint)
        server = multiprocessing.get_context("spawn").Process(target=serve, args=arguments)
        server.start()
        try:
            return {"way": way} | asyncio.run(_load(Place("127.0.0.1", port), server, streams, num_chunks))
        finally:
            server.terminate()
            server.join()


async def _load(place: Place, server: BaseProcess, streams: int, num_chunks: int) -> dict[str, Any]:
    await until_ready(place, server.is_alive)
    processes = [psutil.Process(pid) for pid in processes_of(server.pid or 0)]
    await asyncio.gather(*(_read(place) for _ in range(streams)))  # warms up
    before, began = [sum(process.cpu_times()[:2]) for process in processes], time.monotonic()
    sizes = await asyncio.gather(*(_read(place) for _ in range(streams)))
    took_s = time.monotonic() - began
    spent = [sum(process.cpu_times()[:2]) - start for process, start in zip(processes, before, strict=True)]
    assert set(sizes) == {num_chunks * NUM_SAMPLES * 2}, "a stream is not whole"
    each_ms = [round(1000 * seconds / (streams * num_chunks), 3) for seconds in spent]
    figures = {"chunks": streams * num_chunks, "chunks_per_s": round(streams * num_chunks / took_s)}
    return figures | {"server_ms": each_ms[0], "engine_ms": each_ms[1] if len(each_ms) > 1 else None}


async def _read(place: Place) -> int:
    num_bytes = 0
    with await place.ask("POST", "/v1/tts", BODY, Content_Type="application/json") as answer:
        while piece := await answer.chunk():
            num_bytes += len(piece)
    return num_bytes


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure both ways, or those named."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--streams", type=int, default=60, help="concurrent streams [60]")
    parser.add_argument("--chunks", type=int, default=100, help="chunks of each stream [100]")
    parser.add_argument("--interval", type=float, default=0.05, help="seconds between the chunks of a stream [0.05]")
    parser.add_argument("--ways", type=names(WAYS), default=WAYS, help=f"[{','.join(WAYS)}]")
    given = parser.parse_args(arguments)
    rows = [measure(way, given.streams, given.chunks, given.interval) for way in given.ways]
    keys = ["way", "chunks", "chunks_per_s", "server_ms", "engine_ms"]
    report(HEAD, columns(rows, keys), {"machine": describe_machine("cpu"), "rows": rows})


if __name__ == "__main__":
    sys.exit(run_command(main))
