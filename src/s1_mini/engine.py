"""`ProductionTTSEngine`, the Python API: text and reference in, audio out.

Safe to call from several threads. Requests are generated in a batch, which they may join and leave at any frame.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, cast

import torch

from s1_mini.audio.container import check_format
from s1_mini.config import EngineConfig
from s1_mini.core.output_queue import Output
from s1_mini.exceptions import (
    CapacityError,
    EngineNotReadyError,
    ParameterError,
    RequestTimeoutError,
    S1MiniError,
)
from s1_mini.packaging.compile_cache import keep_cache, use_cache
from s1_mini.packaging.verify import is_packaged, open_checkpoint
from s1_mini.responses import BatchGenerationResponse, GenerationResponse, collect, whole
from s1_mini.runtime.loader import LoadedCheckpoint, load
from s1_mini.runtime.process import refuse_fork
from s1_mini.runtime.running import EngineRuntime, run
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.runtime.voice_service import VoiceService
from s1_mini.speech_engine import SpeechEngine
from s1_mini.text_stream import TextStream
from s1_mini.types import (
    Audio,
    AudioChunk,
    AudioFormat,
    Normalize,
    OnUnsupported,
    Reference,
    SharedOptions,
    SpeechOptions,
    TTSRequest,
    VoiceInfo,
    references_of,
)

if TYPE_CHECKING:
    from s1_mini.voices.reference import Check


class ProductionTTSEngine(SpeechEngine):
    """A text-to-speech engine with one checkpoint. Call `start`, or use a `with` or an `async with` block.

    Its settings are an `EngineConfig`, or the fields of `EngineConfig` as keywords, such as `checkpoint_path`.

    The keyword options of all methods that generate audio are those of `SpeechOptions`, described in `TTSRequest` and
    `SamplingParams`; an unknown option raises `TypeError`. Without `voice` and `reference_audio`, the checkpoint's
    default voice is used, if it has one.

    Methods and properties that need the loaded checkpoint raise `EngineNotReadyError` before `start` and after `stop`.
    In a forked child of a process that has started an engine, all of them do.
    """

    _running: EngineRuntime | None

    def stream(self, text: str | TextStream, **options: Unpack[SpeechOptions]) -> Iterator[AudioChunk]:
        """Yield the audio of `text` as it is generated; the last chunk has the finish reason.

        The first chunk has the spoken text and warnings, unless `text` is a `TextStream`. The call raises
        `RequestError` for an invalid request, `EngineError` if the request cannot begin, for example because the queue
        is full, and `CheckpointError` if a recording was given and the checkpoint's encoder is missing or invalid. The
        iterator raises `EngineError`, and also `RequestError` for the text of a `TextStream`, which may still be
        written.
        """
        return self.speak(TTSRequest.of(text, **options))

    def speak(self, request: TTSRequest, *, streams: bool = True) -> Iterator[AudioChunk]:
        """Stream a request as `stream` does.

        `streams=False` means that the audio is needed only as a whole, so that streams are scheduled first.
        """
        return self.submit(request, streams=streams).accepted()

    def stream_async(
        self, text: str | TextStream, *, flow: tuple[str, str] = ("", ""), **options: Unpack[SpeechOptions]
    ) -> Output:
        """Stream as `stream` does, without blocking the event loop.

        Raises the errors of `submit`; the iterator raises all other errors. `flow` names a
        client and a group of its requests, such as a batch: clients take turns in the queue, and so do the groups of a
        client. A request without a group is its own group.
        """
        return self.submit(replace(TTSRequest.of(text, **options), flow=flow))

    def generate(
        self,
        text: str,
        *,
        return_bytes: bool = False,
        audio_format: AudioFormat = "wav",
        **options: Unpack[SpeechOptions],
    ) -> GenerationResponse:
        """Return the whole audio of `text`.

        The response's `audio_bytes` are a file in `audio_format`. They are encoded when they are first read or, with
        `return_bytes`, before this method returns. Raises the errors of `stream` and of its iterator, and
        `ParameterError` for an unknown format.
        """
        request = TTSRequest.of(text, **options)
        chosen, started = check_format(audio_format), time.perf_counter()
        form = {"return_bytes": return_bytes, "is_labelled": self.config.label_audio}
        return whole(self.submit(request, streams=False), started, chosen, **form)

    async def generate_async(
        self,
        text: str,
        *,
        return_bytes: bool = False,
        audio_format: AudioFormat = "wav",
        **options: Unpack[SpeechOptions],
    ) -> GenerationResponse:
        """Generate as `generate` does, without blocking the event loop; cancelling the task cancels the request."""
        request = TTSRequest.of(text, **options)
        chosen, started = check_format(audio_format), time.perf_counter()
        async with aclosing(self.submit(request, streams=False)) as output:
            heard = [chunk async for chunk in output]
        form = {"return_bytes": return_bytes, "is_labelled": self.config.label_audio}
        return await asyncio.to_thread(whole, heard, started, chosen, **form)

    def generate_batch(
        self,
        texts: Sequence[str],
        reference_audios: Sequence[Audio | None] | None = None,
        reference_texts: Sequence[str | None] | None = None,
        *,
        return_bytes: bool = False,
        audio_format: AudioFormat = "wav",
        **options: Unpack[SharedOptions],
    ) -> BatchGenerationResponse:
        """Generate several texts, each with its own reference or none; a failed item does not affect the others.

        `return_bytes` and `audio_format` are those of `generate`. Raises `ParameterError` for an invalid option, and if
        the lists differ in length, and `EngineNotReadyError` if the engine is not started.
        """
        self._ready()
        started = time.perf_counter()
        shared, chosen = TTSRequest.of("", **options), check_format(audio_format)
        texts = _listed("texts", texts)
        audios = _matched("reference_audios", reference_audios, len(texts))
        transcripts = _matched("reference_texts", reference_texts, len(texts))
        items = [self._begin_item(shared, *item) for item in zip(texts, audios, transcripts, strict=True)]
        form = {"return_bytes": return_bytes, "is_labelled": self.config.label_audio}
        results = [collect(item, started, chosen, **form) for item in items]
        success = all(result.success for result in results)
        return BatchGenerationResponse(success, results, time.perf_counter() - started)

    async def generate_batch_async(
        self,
        texts: Sequence[str],
        reference_audios: Sequence[Audio | None] | None = None,
        reference_texts: Sequence[str | None] | None = None,
        *,
        return_bytes: bool = False,
        audio_format: AudioFormat = "wav",
        **options: Unpack[SharedOptions],
    ) -> BatchGenerationResponse:
        """Generate several texts as `generate_batch` does, without blocking the event loop."""
        refuse_fork()
        begin = partial(self.generate_batch, return_bytes=return_bytes, audio_format=audio_format, **options)
        return await asyncio.to_thread(begin, texts, reference_audios, reference_texts)

    def _begin_item(self, shared: TTSRequest, text: str, audio: Audio | None, said: str | None) -> Output | S1MiniError:
        try:
            voice = shared.voice if audio is None else None
            request = replace(shared, text=text, voice=voice, references=references_of(audio, said))
            return self.submit(request, streams=False)
        except S1MiniError as error:
            return error

    def reload(self, checkpoint_path: str | Path | None = None, *, timeout_s: float | None = None) -> None:
        """Load `checkpoint_path`, or the built-in checkpoint if it is None, while requests continue.

        The old checkpoint finishes its accepted requests; the new checkpoint gets all later requests. Meanwhile, both
        are in memory (`kv_cache_gb` limits the KV cache of each). If the new checkpoint cannot be loaded, the old one
        stays loaded and the method raises `CheckpointError`, `ConfigurationError` or `EngineError`, such as
        `CapacityError` if both do not fit in memory. After `timeout_s`, the remaining requests of the old checkpoint
        end with `EngineNotReadyError`. Voices that were added in memory are kept if the codec is the same.
        """
        refuse_fork()
        with self._lifecycle:
            old = self._ready()
            config = self.config.model_copy(update={"checkpoint_path": checkpoint_path})
            try:
                new = self._load(config, old.voices)
            except torch.OutOfMemoryError as error:
                reason = str(error).partition(".")[0]
                raise CapacityError(
                    f"not enough memory to load the new checkpoint while the current one is active: {reason}"
                ) from None
            self.config, self._running = config, new
        old.close(drains=True, timeout_s=timeout_s)

    def _load(self, config: EngineConfig, before: VoiceService | None = None) -> EngineRuntime:
        directory = open_checkpoint(config).directory  # before the device is touched
        if config.compile_cache_path is not None:
            keep_cache(config.compile_cache_path)
        if is_packaged(directory):
            use_cache(directory)
        config = config.model_copy(update={"checkpoint_path": directory})
        speaker, synthesizer = self._open(config)
        return run(speaker, synthesizer, config, before)

    def _open(self, config: EngineConfig) -> tuple[LoadedCheckpoint, Synthesizer]:
        speaker = load(config)
        return speaker, Synthesizer(speaker, config, self.metrics)

    @property
    def sample_rate(self) -> int:
        """Samples per second of the engine's audio."""
        return self._ready().speaker.description.sample_rate

    @property
    def directory(self) -> Path:
        """Directory of the loaded checkpoint."""
        return self._ready().speaker.directory

    def _ready(self) -> EngineRuntime:
        return cast("EngineRuntime", super()._ready())

    def voice_names(self) -> list[str]:
        return self._ready().voices.registry.names

    def has_voice(self, name: str) -> bool:
        return name in self._ready().voices.registry

    @property
    def voice_changes(self) -> int:
        """A number that grows when `voice_names` changes."""
        return self._ready().voices.registry.added.num_changes

    def voices(self) -> list[VoiceInfo]:
        return self._ready().voices.registry.infos()

    def describe_voice(self, name: str) -> VoiceInfo:
        return self._ready().voices.registry.info(name)

    def add_voice(
        self,
        name: str,
        reference_audio: Audio,
        reference_text: str = "",
        *,
        description: str = "",
        replace: bool = False,
    ) -> VoiceInfo:
        """Add a named voice from a recording and its transcript, which some models do not need.

        Raises `RequestError` for an invalid argument, such as `VoiceExistsError` or `VoiceReadOnlyError` for a name in
        use; `EngineError`, such as `CapacityError` if the voice does not fit; and `CheckpointError` if the checkpoint's
        encoder is missing or invalid.
        """
        return self._add_voice(name, Reference(reference_audio, reference_text), description, replace=replace).result()

    async def add_voice_async(
        self,
        name: str,
        reference_audio: Audio,
        reference_text: str = "",
        *,
        description: str = "",
        replace: bool = False,
        client: str = "",
    ) -> VoiceInfo:
        reference = Reference(reference_audio, reference_text)
        adding = self._add_voice(name, reference, description, replace=replace, client=client)
        return await asyncio.wrap_future(adding)

    def _add_voice(
        self, name: str, reference: Reference, description: str, *, replace: bool, client: str = ""
    ) -> Future[VoiceInfo]:
        running = self._ready()

        def add(check: Check) -> VoiceInfo:
            return running.voices.add(name, reference, description=description, replace=replace, check=check)

        return running.recordings([reference]).submit(add, client)

    async def prepare_reference_async(
        self, reference_audio: Audio, reference_text: str = "", *, client: str = ""
    ) -> None:
        running, reference = self._ready(), Reference(reference_audio, reference_text)
        if await asyncio.to_thread(running.references.find, reference) is not None:
            return
        encoding = running.recordings([reference]).submit(partial(running.references.encode, reference), client)
        try:
            async with asyncio.timeout(self.config.request_timeout_s) as limit:
                await asyncio.wrap_future(encoding)
        except TimeoutError:
            if not limit.expired():  # the encoding itself raised this error
                raise
            raise RequestTimeoutError("the reference was not encoded in time") from None

    def delete_voice(self, name: str) -> None:
        self._ready().voices.delete(name)

    def submit(self, request: TTSRequest, *, streams: bool = True, as_int16: bool = False) -> Output:  # noqa: ARG002
        deadline = time.monotonic() + self.config.request_timeout_s
        while True:
            running = self._ready()
            try:
                return running.submit(request, deadline, streams=streams)
            except EngineNotReadyError:
                if self._running is running:  # otherwise `reload` has replaced `running`, so try again
                    raise

    def count_tokens(
        self, text: str, *, normalize: Normalize | None = None, on_unsupported: OnUnsupported | None = None
    ) -> int:
        return self._ready().count_tokens(TTSRequest(text, normalize=normalize, on_unsupported=on_unsupported))


def _listed(name: str, values: Any) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ParameterError(name, f"is a {type(values).__name__}; give a list")
    return list(values)


def _matched(name: str, values: Any, count: int) -> list[Any]:
    if values is None:
        return [None] * count
    listed = _listed(name, values)
    if len(listed) != count:
        raise ParameterError(
            name, f"has {len(listed)} items for {count} texts; give one item per text, None for a text without one"
        )
    return listed
