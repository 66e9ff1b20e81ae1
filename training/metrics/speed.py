"""How fast it speaks on two CPU cores: batch 1, streamed, voice encoded before, warmed up.

Measures the engine's own threads (`runtime.synthesizer`), so nothing of the engine is left out but the reading of the
reference. Run it while the machine has nothing else to do. `evaluate.py` calls it, in its own process.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from s1_mini.config import EngineConfig
from s1_mini.families.s1.loaded import as_s1
from s1_mini.runtime.loader import load
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import Reference, SamplingParams, Voice
from s1_mini.voices.reference import ReferenceEncoder
from s1_mini.voices.reference_cache import ReferenceCache

NUM_THREADS = 2
WARM_UP = 2  # texts
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Speed:
    """What a listener waits for; medians over the texts, and the ninth decile of the first sound."""

    real_time_factor: float  # seconds of work per second of sound
    first_audio_ms: float  # from the request to the first samples
    first_audio_p90_ms: float
    encoding_ms: float  # the reference, once; not part of the above
    texts: int


def measure_speed(
    checkpoint: Path, texts: Sequence[str], reference: Reference, *, seed: int, max_new_tokens: int
) -> Speed:
    """Speak `texts` one after another with the voice of `reference` on `NUM_THREADS` CPU threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(NUM_THREADS)
    try:
        return _measure(checkpoint, texts, reference, SamplingParams(seed=seed, max_new_tokens=max_new_tokens))
    finally:
        torch.set_num_threads(before)


def _measure(checkpoint: Path, texts: Sequence[str], reference: Reference, sampling: SamplingParams) -> Speed:
    config = EngineConfig(checkpoint_path=checkpoint, device="cpu", max_batch_size=1)
    speaker = load(config)
    codec = as_s1(speaker.loaded).encoding_codec()
    encoder = ReferenceEncoder(
        encode_wave=lambda wave, _: {"codes": codec.encode(wave)},
        cache=ReferenceCache(speaker.description.voice, max_bytes=0),
        form=speaker.description.voice,
        max_s=config.max_reference_s,
        max_bytes=config.max_reference_bytes,
        max_text_length=config.max_text_length,
    )

    def encode() -> Voice:
        with torch.inference_mode():
            return encoder.encode(reference)

    encode()
    started = time.perf_counter()
    voice = encode()
    encoding_ms = 1000 * (time.perf_counter() - started)

    synthesizer = Synthesizer(speaker, config)
    try:
        for text in (*texts, *texts)[:WARM_UP]:
            _speak(synthesizer, text, voice, sampling)
        times = np.array([_speak(synthesizer, text, voice, sampling) for text in texts])
    finally:
        synthesizer.close(drains=False)
    first_ms, factors = 1000 * times[:, 0], times[:, 1] / times[:, 2]
    p90_ms = float(np.percentile(first_ms, 90))
    return Speed(float(np.median(factors)), float(np.median(first_ms)), p90_ms, encoding_ms, len(texts))


def _speak(synthesizer: Synthesizer, text: str, voice: Voice, sampling: SamplingParams) -> tuple[float, float, float]:
    """Seconds until the first samples, seconds in all, seconds of sound."""
    first_s, num_samples, rate = float("nan"), 0, 1
    started = time.perf_counter()
    for chunk in synthesizer.speak([text], [voice], sampling, deadline=time.monotonic() + TIMEOUT_S):
        if num_samples == 0 and len(chunk.audio):
            first_s = time.perf_counter() - started
        num_samples, rate = num_samples + len(chunk.audio), chunk.sample_rate
    return first_s, time.perf_counter() - started, num_samples / rate
