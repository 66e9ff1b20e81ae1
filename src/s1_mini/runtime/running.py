"""The parts of a running engine: the loaded checkpoint, its synthesizer, its voices and its references."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from s1_mini.alignment.words import WordTimes
from s1_mini.audio.effects import Effects
from s1_mini.config import EngineConfig
from s1_mini.core.output_queue import OutputQueue
from s1_mini.exceptions import ParameterError
from s1_mini.runtime.composition import Plan, Planner
from s1_mini.runtime.loader import LoadedCheckpoint
from s1_mini.runtime.recordings import Prepared, Recordings, Script
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.runtime.voice_service import VoiceService
from s1_mini.text.form import NormalizedText, unchecked
from s1_mini.text.reading import spoken_certain
from s1_mini.text.split import Piece, split_pieces
from s1_mini.text.structure import DIVISIONS, stronger
from s1_mini.text.tags import blank_tags
from s1_mini.text.tidy import is_speakable
from s1_mini.types import EngineState, Pauses, Reference, TTSRequest, Voice
from s1_mini.voices.reference import ReferenceEncoder
from s1_mini.voices.registry import VoiceRegistry
from s1_mini.weights.directory import DEFAULT_MODEL

SHORT_TEXT = 500  # characters; reading them takes some ms
TEXT_THREADS = 2  # so that one slow text does not block the others; more would only share the interpreter's lock


@dataclass(frozen=True)
class EngineRuntime:
    """Everything that an engine has between `start` and `stop`. `reload` replaces the whole object."""

    config: EngineConfig
    speaker: LoadedCheckpoint
    synthesizer: Synthesizer
    voices: VoiceService
    recordings: Recordings
    references: ReferenceEncoder
    planner: Planner
    texts: Recordings  # long texts are read here, in turns of the clients

    def close(self, *, drains: bool, timeout_s: float | None) -> None:
        started = time.monotonic()
        self.voices.preloader.stop()
        self.texts.close(drains=drains, timeout_s=timeout_s)
        self.recordings.close(drains=drains, timeout_s=timeout_s)
        left_s = None if timeout_s is None else max(0.0, started + timeout_s - time.monotonic())
        self.synthesizer.close(drains=drains, timeout_s=left_s)
        self.voices.preloader.join()

    def encode(self, reference: Reference, client: str = "") -> Future[Voice]:
        """Return a future with the voice of a reference, which is encoded in a thread unless the voice is cached.

        Both this method and the future may raise `RequestError` and `EngineError`; the future, also `CheckpointError`.
        """
        known = self.references.find(reference)
        if known is None:
            return self.recordings.submit(partial(self.references.encode, reference), client)
        done: Future[Voice] = Future()
        done.set_result(known)
        return done

    async def read_async(self, request: TTSRequest) -> Plan | Script:
        """Read the text of a request in a thread; cancelling the task ends the work. Raises `RequestError`.

        Long texts of several clients are read in turns, and never wait in the threads that other work shares.
        """
        if not isinstance(request.text, str) or len(request.text) <= SHORT_TEXT:
            return await asyncio.to_thread(self.read, request)
        reading = self.texts.submit(partial(self.read, request), request.flow[0] or request.flow[1])
        return await asyncio.wrap_future(reading)

    def read(self, request: TTSRequest, check: Callable[[], None] = unchecked) -> Plan | Script:
        """Return the parts of a text with markup, or the spoken form of another text. Raises `RequestError`."""
        return self.planner.plan(request, check) or self.script(request, check)

    def script(self, request: TTSRequest, check: Callable[[], None] = unchecked) -> Script:
        """Return the spoken form of a text without markup, in pieces. Raises `RequestError`."""
        if request.stream is not None:
            self._check_stream(request)
            return Script(NormalizedText(""), [])
        text = self.planner.script(request, check)
        return Script(text, self._pieces(text, request))

    def prepare(self, request: TTSRequest, script: Script) -> Prepared:
        """Begin to encode the references of a request. Raises `RequestError` or `EngineError`."""
        prepared = Prepared(*script, [])
        with ExitStack() as cleanup:
            cleanup.callback(prepared.close)
            for reference in request.references:
                prepared.references.append(self.encode(reference, request.flow[0] or request.flow[1]))
            cleanup.pop_all()
        return prepared

    def begin_if_encoded(
        self, request: TTSRequest, script: Script, deadline: float, *, streams: bool
    ) -> OutputQueue | Prepared:
        """Prepare a request, and submit it unless one of its references is still being encoded.

        Raises the errors of `prepare`, `begin` and `Prepared.voices`.
        """
        prepared = self.prepare(request, script)
        if not all(reference.done() for reference in prepared.references):
            return prepared
        return self.begin(request, prepared, prepared.voices(deadline), deadline, streams=streams)

    def begin(
        self, request: TTSRequest, prepared: Prepared, voices: list[Voice], deadline: float, *, streams: bool
    ) -> OutputQueue:
        """Submit a request with its named voice, with `voices` (those of its references), or with the default voice.

        Raises `RequestError` or `EngineError`.
        """
        description = self.speaker.description
        sampling, options = description.sampling_of(request), description.prompt_options(request)
        prompts = self._prompts(request, prepared.pieces)
        words = self._words(request, prepared.pieces, prompts, is_live=streams) if request.word_times else None
        if request.voice is not None:
            voices = [self.voices.registry.find(request.voice).voice]
        elif not voices and (default := self.speaker.voices.default):
            voices = [default]
        elif not voices:
            description.check_voice(sorted(self.voices.registry.names))
        queue = self.synthesizer.speak(
            prompts,
            voices,
            sampling,
            deadline=deadline,
            profile=request.chunk_profile or "balanced",
            streams=streams,
            flow=request.flow,
            word_times=request.word_times,
            options=options,
            stream=request.stream,
            read=self.planner.form_in(request.language).reader(request.normalize or self.config.normalize),
            pauses=_pauses(request, prepared.pieces),
        )
        queue.words = words
        queue.effects = self._effects(request)
        transcripts = (reference.text for reference in request.references)
        warnings = [prepared.script.warning, description.voice.transcript_warning(transcripts)]
        warnings += [voice.warning for voice in voices]
        warning = " ".join(dict.fromkeys(filter(None, warnings))) or None
        queue.tell(spoken_text=prepared.script.text if request.stream is None else None, warning=warning)
        return queue

    def _check_stream(self, request: TTSRequest) -> None:
        """Raise `ParameterError` unless a text can be spoken while it is being written."""
        self.speaker.description.check_text_stream()
        if request.word_times:
            raise ParameterError("word_times", "is not supported for a TextStream, because it needs the whole text")
        if self.planner.form_in(request.language).alphabet is not None:
            raise ParameterError("text", "cannot be a TextStream, because config.json has an alphabet; pass a str")

    @property
    def has_word_times(self) -> bool:
        return self.speaker.description.word_times and self.synthesizer.aligner is not None

    def _words(
        self, request: TTSRequest, pieces: Sequence[Piece], prompts: Sequence[str], *, is_live: bool
    ) -> WordTimes:
        self.speaker.description.check_word_times()
        aligner, form = self.synthesizer.aligner, self.planner.form_in(request.language)
        if aligner is None:
            raise ParameterError("word_times", "is not supported while stages run in other processes; omit it")
        reads = (request.normalize or self.config.normalize) != "off"
        return WordTimes(
            aligner,
            request.text,
            [piece.text for piece in pieces],
            form.part_reader(request.text) if reads else lambda text: text,
            self.speaker.description.sample_rate,
            prompts=prompts,
            is_live=is_live,
            speed=request.speed,
            shown=blank_tags(request.text) if reads else None,
        )

    def _effects(self, request: TTSRequest) -> Effects | None:
        rate = self.speaker.description.sample_rate
        is_plain = request.speed == 1 and not request.gain_db
        if is_plain and request.sample_rate in (None, rate):
            return None
        return Effects(
            rate,
            speed=request.speed,
            gain_db=request.gain_db,
            output_rate=request.sample_rate,
        )

    def count_tokens(self, request: TTSRequest) -> int:
        config = self.config.model_copy(update={"max_text_length": sys.maxsize})
        pieces = self._pieces(replace(self.planner, config=config).script(request), request)
        prompts = [self.speaker.loaded.prompt(text, ()) for text in self._prompts(request, pieces)]
        return sum(len(prompt.items) - prompt.num_shared for prompt in prompts)

    def state(self) -> EngineState:
        core, line = self.synthesizer.core, self.synthesizer.core.line
        return EngineState("ready" if core.is_alive else "failed", len(line), line.max_size, line.retry_after_s)

    def health(self) -> dict[str, Any]:
        """Return state, placement and memory; never waits for the stages."""
        speaker, synthesizer, state = self.speaker, self.synthesizer, self.state()
        description = speaker.description
        return {
            "status": state.status,
            "ready": state.is_ready,
            "checkpoint": str(speaker.directory),
            "origin": None if speaker.origin is None else speaker.origin.data(),
            "model": {
                "family": speaker.family,
                "built_in": speaker.directory == DEFAULT_MODEL,
                "sampling": list(description.sampling),
                "defaults": {name: getattr(description.defaults, name) for name in description.sampling},
                "languages": list(description.languages),
                "instructions": description.instructions,
                "clones": description.voice.clones,
                "sample_rate": description.sample_rate,
            },
            "voices": self.voices.health(),
            "recordings": self.recordings.health(),
            **{name: asdict(choice) for name, choice in speaker.choices.items()},
            "placement": {stage: choice.value for stage, choice in speaker.devices.items()},
            **synthesizer.describe(),
            "vram": vram(speaker.device.value),
        }

    def _pieces(self, script: NormalizedText, request: TTSRequest) -> list[Piece]:
        description = self.speaker.description
        if not description.splits:
            return [Piece(script.text, "clause")]
        most = min(self.config.chunk_length or self.speaker.text.piece_bytes, description.max_piece_bytes)
        joins_sentences = Pauses.of(request.pauses) is None
        pieces: list[Piece] = []
        division = DIVISIONS[0]
        for piece in split_pieces(script.structured, most, joins_sentences=joins_sentences):
            division = stronger(division, piece.division)
            if is_speakable(piece.text):
                pieces.append(piece._replace(division=division))
                division = DIVISIONS[0]
        return pieces

    def _prompts(self, request: TTSRequest, pieces: Sequence[Piece]) -> list[str]:
        choice = request.normalize or self.config.normalize
        following = [*(piece.division for piece in pieces[1:]), None]  # a text stream has no pieces yet
        both = zip(pieces, following, strict=False)
        return [self.speaker.text.prompt(piece.text, choice, continues=after == "clause") for piece, after in both]


def run(
    speaker: LoadedCheckpoint, synthesizer: Synthesizer, config: EngineConfig, before: VoiceService | None
) -> EngineRuntime:
    """Return a runtime, which keeps in-memory voices and pins of `before`, if given. Raises `ConfigurationError`."""
    for tag in speaker.description.languages.values():
        spoken_certain("1", tag)  # load the rules now, not at the first request
    references = ReferenceEncoder(
        encode_wave=synthesizer.encode,
        cache=synthesizer.references,
        form=speaker.description.voice,
        max_s=config.max_reference_s,
        max_bytes=config.max_reference_bytes,
        max_text_length=config.max_text_length,
        say=speaker.text.transcript,
    )
    with ExitStack() as cleanup:
        cleanup.callback(synthesizer.close, drains=False)
        registry = VoiceRegistry.open(speaker.voices, speaker.description.voice, config.voices_path)
        registry.warn_of_faults()
        planner = Planner(config, speaker.text, speaker.description, registry, registry.lexicons(config.lexicon_path))
        voices = VoiceService(registry, synthesizer, references, config)
        if before is not None:
            voices.take_over(before)
        cleanup.pop_all()
    recordings = Recordings(max_waiting=config.max_waiting_references)
    texts = Recordings(max_waiting=sys.maxsize, threads=TEXT_THREADS, what="texts")  # the server limits requests
    return EngineRuntime(config, speaker, synthesizer, voices, recordings, references, planner, texts)


def _pauses(request: TTSRequest, pieces: Sequence[Piece]) -> list[float | None]:
    """Return the pauses before each piece and at the end of a request's audio, as `Joiner` takes them."""
    pauses, (before, after) = Pauses.of(request.pauses), request.outer_pauses
    between = [None if pauses is None else pauses.before(piece.division) for piece in pieces[1:]]
    return [before, *between, after]


def vram(device: str | None) -> dict[str, float]:
    """Return used and total memory of a GPU in GB; zeros for other devices."""
    if device is None or not device.startswith("cuda"):
        return {"used_gb": 0.0, "total_gb": 0.0}
    free, total = torch.cuda.mem_get_info(device)
    return {"used_gb": (total - free) / 1e9, "total_gb": total / 1e9}
