"""The cascade and `transformers` on one machine: the same random weights, the same lengths, in one run.

Measures time to first audio and throughput: of the engine at several concurrencies, and of `transformers` with single
texts and with a batch of eight. Also measures the time of each stage of the engine. Because weights are random, lengths
are set by the number of semantic tokens.

python -m benchmark.cascade --size small --device cuda
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmark.command import make_parser, numbers, report, run
from s1_mini.bench.profile import measure_sections
from s1_mini.bench.report import describe_engine, table
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.families.registry import get_family
from s1_mini.runtime.loader import load

FAMILY, RATE = "cascade", 24_000  # Hz
TOKENS_A_SECOND = 49.9  # semantic
TEXT = "The morning train was late again, and nobody at the station knew why it had stopped."
IDLE = 5  # requests, one after the other
BATCH = 8  # texts in a batch of `transformers`


@dataclass(frozen=True)
class Way:
    """The figures of one way to generate."""

    name: str
    requests: int
    seconds: float
    audio_s: float
    first_ms: float | None  # median time to first audio of the requests

    @property
    def audio_per_s(self) -> float:
        """Seconds of audio per second."""
        return self.audio_s / self.seconds


def measure_engine(engine: ProductionTTSEngine, counts: Sequence[int], tokens: int) -> Iterator[Way]:
    """Measure each number of concurrent requests; every request has `tokens` semantic tokens."""

    def request(seed: int) -> tuple[float, int]:
        """Return the time to first audio and the number of samples."""
        begun, samples, first = time.perf_counter(), 0, 0.0
        for chunk in engine.stream(TEXT, seed=seed, max_new_tokens=tokens, temperature=0.7, top_p=1.0):
            samples += len(chunk.audio)
            first = first or (time.perf_counter() - begun if samples else 0.0)
        return first, samples

    request(0)
    for count in counts:
        requests = IDLE * count if count == 1 else count
        begun = time.perf_counter()
        with ThreadPoolExecutor(count) as pool:
            firsts, samples = zip(*pool.map(request, range(1, 1 + requests)), strict=True)
        seconds = time.perf_counter() - begun
        first_ms = 1000 * statistics.median(firsts)
        yield Way(f"engine, {count} at once", requests, seconds, sum(samples) / RATE, first_ms)


def measure_original(directory: Path, device: str, dtype: torch.dtype, tokens: int, rounds: int) -> Iterator[Way]:
    """Measure `transformers`' own class, one text at a time and in a batch, after a short warm-up."""
    from transformers import BarkModel

    model: Any = BarkModel.from_pretrained(directory, dtype=dtype)
    model = model.to(device).eval()
    words = torch.randint(0, 60_000, (1, 256), generator=torch.Generator().manual_seed(0)).to(device)
    mask = (torch.arange(256, device=device) < 30).long()[None]

    def generate(count: int, length: int) -> int:
        with torch.inference_mode():
            wave = model.generate(
                input_ids=words.expand(count, -1).contiguous(),
                attention_mask=mask.expand(count, -1).contiguous(),
                do_sample=True,
                temperature=0.7,
                semantic_max_new_tokens=length,
                semantic_min_new_tokens=length,
            )
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return int(wave.numel())

    generate(1, min(8, tokens))
    for count in (1, BATCH):
        begun = time.perf_counter()
        samples = sum(generate(count, tokens) for _ in range(rounds))
        seconds = time.perf_counter() - begun
        first_ms = 1000 * seconds / rounds  # all audio arrives together
        yield Way(f"transformers, {count} at once", rounds * count, seconds, samples / RATE, first_ms)


@contextmanager
def random_checkpoint(size: str) -> Iterator[Path]:
    """Yield a temporary checkpoint with random weights, in the published form."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / size
        get_family(FAMILY).write_random(directory, size=size, form="published", seed=0)
        yield directory


def main() -> None:
    """Measure, and print tables and a line of JSON."""
    parser = make_parser(__doc__, opens=False)
    parser.add_argument("--size", default="small", help="size of the random model: tiny, small, large")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--requests", type=numbers, default=(1, 8, 64), help="concurrent requests to measure [1,8,64]")
    parser.add_argument(
        "--tokens", type=int, default=250, help="semantic tokens per request, 49.9 per second of audio [250]"
    )
    parser.add_argument("--original-rounds", type=int, default=1, help="number of runs of transformers; 0: none [1]")
    parser.add_argument("--no-stages", action="store_true", help="skip the table of stages")
    options = parser.parse_args()
    size, tokens = options.size, options.tokens
    stages: dict[str, float] = {}
    with random_checkpoint(size) as directory:
        config = EngineConfig(
            checkpoint_path=directory, device=options.device, max_batch_size=max(options.requests), max_queue_size=4096
        )
        with ProductionTTSEngine(config) as engine:
            facts = describe_engine(engine)
            device = engine.health_check()["device"]["value"]
            ways = list(measure_engine(engine, options.requests, tokens))
        if options.original_rounds:
            dtype = getattr(torch, facts["precision"])
            ways += measure_original(directory, device, dtype, tokens, options.original_rounds)
        if not options.no_stages:  # all stages in one thread
            sections, _ = measure_sections(load(config), TEXT, repeats=1, max_frames=tokens)
            stages = {section.name: section.total_ms / 1000 for section in sections}
    print(
        f"{facts['machine']}, torch {facts['torch']}, commit {facts['commit']}, {facts['precision']}; the cascade, "
        f"{size}, random weights, {tokens} semantic tokens per request ({tokens / TOKENS_A_SECOND:.1f} s)"
    )
    if stages:
        print(table(["stage of one request", "seconds"], list(stages.items())))
    rows = [[way.name, way.requests, way.seconds, way.audio_per_s, way.first_ms] for way in ways]
    found = [asdict(way) | {"audio_per_s": way.audio_per_s} for way in ways]
    result = facts | {"size": size, "tokens": tokens, "ways": found, "stages": stages}
    report(["way", "requests", "seconds", "audio s/s", "first audio ms"], rows, result)


if __name__ == "__main__":
    sys.exit(run(main))
