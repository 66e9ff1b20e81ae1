"""`ProductionTTSEngine`: text and reference in, sound out. A façade; the work is done in the rooms below.

Safe to call from several threads; requests are spoken one after another.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from s1_mini.audio.container import AudioFormat, encode
from s1_mini.config import EngineConfig
from s1_mini.exceptions import EngineNotReadyError, ParameterError, S1MiniError
from s1_mini.runtime.generator import Generator
from s1_mini.runtime.loader import Speaker, load
from s1_mini.text.normalize import normalize
from s1_mini.text.split import split
from s1_mini.types import (
    AudioChunk,
    BatchGenerationResponse,
    GenerationResponse,
    Reference,
    SamplingParams,
    TTSRequest,
    Voice,
)
from s1_mini.voices.reference import encode_reference

if TYPE_CHECKING:
    from types import TracebackType

Audio = bytes | str | Path | np.ndarray


class ProductionTTSEngine:
    """One loaded checkpoint that speaks. `start` it, or use it in a `with` block."""

    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = config or EngineConfig()
        self._speaker: Speaker | None = None
        self._generator: Generator | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        """Load the checkpoint; does nothing if it is loaded. Raises `CheckpointError` or `ConfigurationError`."""
        with self._lock:
            if self._speaker is None:
                speaker = load(self.config)
                self._generator = Generator(speaker)
                self._speaker = speaker

    def stop(self) -> None:
        """Finish the request that is being spoken, then let go of the checkpoint."""
        with self._lock:
            self._speaker = self._generator = None

    def __enter__(self) -> ProductionTTSEngine:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def sample_rate(self) -> int:
        """Samples per second of all sound that this engine gives."""
        return self._ready()[0].codec.sample_rate

    def stream(
        self,
        text: str,
        *,
        voice: str | None = None,
        reference_audio: Audio | None = None,
        reference_text: str | None = None,
        **sampling: Any,
    ) -> Iterator[AudioChunk]:
        """Speak `text` and yield its sound while it is made; `sampling` is that of `SamplingParams`.

        The voice is the named one, or the reference's, or the checkpoint's default if it has one.

        Raises `RequestError` for what the caller got wrong, before any sound, and `EngineError` for what failed.
        """
        self._ready()
        request = make_request(
            text, voice=voice, reference_audio=reference_audio, reference_text=reference_text, **sampling
        )
        return self._speak(request)

    def generate(
        self,
        text: str,
        *,
        voice: str | None = None,
        reference_audio: Audio | None = None,
        reference_text: str | None = None,
        return_bytes: bool = False,
        audio_format: AudioFormat = "wav",
        **sampling: Any,
    ) -> GenerationResponse:
        """Speak `text` and give the whole sound: `audio`, and with `return_bytes` a file's `audio_bytes` too.

        Raises as `stream` does.
        """
        started = time.perf_counter()
        chunks = list(
            self.stream(text, voice=voice, reference_audio=reference_audio, reference_text=reference_text, **sampling)
        )
        wave, rate = np.concatenate([chunk.wave for chunk in chunks]), chunks[-1].sample_rate
        return GenerationResponse(
            success=True,
            audio=wave,
            audio_bytes=encode(wave, rate, audio_format) if return_bytes else None,
            sample_rate=rate,
            frames=sum(chunk.frames for chunk in chunks),
            finish_reason=chunks[-1].finish_reason,
            generation_time=time.perf_counter() - started,
        )

    def generate_batch(
        self,
        texts: Sequence[str],
        reference_audios: Sequence[Audio | None] | None = None,
        reference_texts: Sequence[str | None] | None = None,
        *,
        return_bytes: bool = True,
        audio_format: AudioFormat = "wav",
        **sampling: Any,
    ) -> BatchGenerationResponse:
        """Speak several texts, each with its own reference or none; an item that fails, fails alone.

        Raises `ParameterError` if the lists differ in length.
        """
        self._ready()
        started = time.perf_counter()
        audios = _matched("reference_audios", reference_audios, texts)
        transcripts = _matched("reference_texts", reference_texts, texts)
        results = [
            self._attempt(
                text,
                reference_audio=audio,
                reference_text=transcript,
                return_bytes=return_bytes,
                audio_format=audio_format,
                **sampling,
            )
            for text, audio, transcript in zip(texts, audios, transcripts, strict=True)
        ]
        success = all(result.success for result in results)
        return BatchGenerationResponse(success, results, time.perf_counter() - started)

    async def generate_batch_async(self, texts: Sequence[str], *args: Any, **options: Any) -> BatchGenerationResponse:
        """Do as `generate_batch` without blocking the event loop."""
        return await asyncio.to_thread(self.generate_batch, texts, *args, **options)

    def health_check(self) -> dict[str, Any]:
        """Tell state, placement and memory; never blocks and never raises."""
        speaker = self._speaker
        if speaker is None:
            return {"status": "stopped", "ready": False, "vram": _vram(None)}
        choices = {"device": speaker.device, "precision": speaker.precision, "compile": speaker.compiler.choice}
        return {
            "status": "ready",
            "ready": True,
            "checkpoint": str(speaker.directory),
            **{name: {"value": choice.value, "reason": choice.reason} for name, choice in choices.items()},
            "vram": _vram(speaker.device.value),
        }

    def _attempt(self, text: str, **options: Any) -> GenerationResponse:
        started = time.perf_counter()
        try:
            return self.generate(text, **options)
        except S1MiniError as error:
            elapsed = time.perf_counter() - started
            return GenerationResponse(success=False, error=str(error), error_code=error.code, generation_time=elapsed)

    def _speak(self, request: TTSRequest) -> Iterator[AudioChunk]:
        deadline = time.monotonic() + self.config.request_timeout_s
        with self._lock:
            speaker, generator = self._ready()
            pieces = split(normalize(request.text, self.config.max_text_length), self.config.chunk_length)
            voices = self._voices(speaker, request)
            yield from generator.speak(pieces, voices, request.sampling, deadline=deadline)

    def _voices(self, speaker: Speaker, request: TTSRequest) -> list[Voice]:
        if request.voice is not None:
            return [speaker.voices.describe(request.voice).voice]
        if request.references:
            return [self._encode(speaker, reference) for reference in request.references]
        return [speaker.voices.default] if speaker.voices.default else []

    def _encode(self, speaker: Speaker, reference: Reference) -> Voice:
        codec = speaker.encoding_codec()
        with torch.inference_mode():
            return encode_reference(
                reference,
                encode=codec.encode,
                sample_rate=codec.sample_rate,
                device=torch.device(speaker.device.value),
                max_s=self.config.max_reference_s,
                max_bytes=self.config.max_reference_bytes,
                max_text_length=self.config.max_text_length,
            )

    def _ready(self) -> tuple[Speaker, Generator]:
        if self._speaker is None or self._generator is None:
            raise EngineNotReadyError("the engine is not started; call start() or use it in a with block")
        return self._speaker, self._generator


def make_request(
    text: str,
    *,
    voice: str | None = None,
    reference_audio: Audio | None = None,
    reference_text: str | None = None,
    **sampling: Any,
) -> TTSRequest:
    """Put a request together. Raises `ParameterError` for parameters that are unknown or out of range."""
    unknown = sorted(set(sampling) - set(SamplingParams.__dataclass_fields__))
    if unknown:
        raise ParameterError(unknown[0], f"is no parameter; there are {', '.join(SamplingParams.__dataclass_fields__)}")
    if reference_audio is None and reference_text:
        raise ParameterError("reference_text", "was given without reference_audio; give both or neither")
    if voice is not None and reference_audio is not None:
        raise ParameterError("voice", "was given beside reference_audio; give one of them")
    references = () if reference_audio is None else (Reference(reference_audio, reference_text or ""),)
    return TTSRequest(text, references, voice, SamplingParams(**sampling))


def _matched(name: str, values: Sequence[Any] | None, texts: Sequence[str]) -> Sequence[Any]:
    if values is None:
        return [None] * len(texts)
    if len(values) != len(texts):
        raise ParameterError(name, f"has {len(values)} items for {len(texts)} texts; give one each, None for none")
    return values


def _vram(device: str | None) -> dict[str, float]:
    """Memory of the GPU in GiB; zeros where the engine runs on none."""
    if device is None or not device.startswith("cuda"):
        return {"used_gb": 0.0, "total_gb": 0.0}
    free, total = torch.cuda.mem_get_info(device)
    return {"used_gb": (total - free) / 2**30, "total_gb": total / 2**30}
