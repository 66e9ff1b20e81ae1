"""The parts of a running engine: the loaded checkpoint, its synthesizer, its voices and its references."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from s1_mini.alignment.words import WordTimes
from s1_mini.audio.effects import Effects
from s1_mini.config import EngineConfig
from s1_mini.core.output_queue import Output
from s1_mini.core.request import Request
from s1_mini.core.scheduler import Scheduler
from s1_mini.exceptions import ParameterError
from s1_mini.families.base import Description
from s1_mini.metrics import MetricFamily, gpu_memory
from s1_mini.runtime.fair_pool import FairPool
from s1_mini.runtime.finishing import Finishing, MarkupFinishing, PartFinish
from s1_mini.runtime.loader import LoadedCheckpoint
from s1_mini.runtime.planner import Plan, Planner
from s1_mini.runtime.synthesizer import SpokenPart, Synthesizer, seed_of
from s1_mini.runtime.voice_service import VoiceService
from s1_mini.text.form import NormalizedText
from s1_mini.text.reading import spoken_certain
from s1_mini.text.split import Piece, split_pieces
from s1_mini.text.structure import DIVISIONS, stronger
from s1_mini.text.tags import blank_tags
from s1_mini.text.tidy import is_speakable
from s1_mini.types import EngineState, Pauses, Reference, TTSRequest, Voice
from s1_mini.voices.reference import Check, ReferenceEncoder
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
    references: ReferenceEncoder
    planner: Planner
    plain_recordings: FairPool  # encodes recordings
    converted_recordings: FairPool  # encodes those that a process decodes first, for up to 15 s
    texts: FairPool  # reads long texts
    short_texts: FairPool  # reads texts of at most `SHORT_TEXT` characters, which wait for no long one

    def close(self, *, drains: bool, timeout_s: float | None) -> None:
        ends = None if timeout_s is None else time.monotonic() + timeout_s
        self.voices.importer.stop()
        pools = self.short_texts, self.texts, self.plain_recordings, self.converted_recordings
        for each in (*pools, self.synthesizer):
            each.close(drains=drains, timeout_s=None if ends is None else max(0.0, ends - time.monotonic()))
        self.voices.importer.join()

    def recordings(self, references: Sequence[Reference]) -> FairPool:
        """Return the threads that encode these recordings: plain ones wait for no decoder process."""
        return self.converted_recordings if any(map(self.references.converts, references)) else self.plain_recordings

    def submit(self, request: TTSRequest, deadline: float, *, streams: bool) -> Output:
        """Accept a request and return its audio; its text and recordings are read in threads of the engine.

        Never waits. `deadline` is a time of `time.monotonic`. Raises `ParameterError` for an invalid option, and
        `EngineNotReadyError` after `close`; the output raises all other errors.
        """
        sampling = self.speaker.description.sampling_of(request)
        accepted = self.synthesizer.accept(request, sampling, deadline=deadline, streams=streams)
        preparation = Preparation(self, request, accepted)
        try:
            preparation.start()
        except BaseException as error:
            self.synthesizer.core.scheduler.refuse(accepted, error)
            raise
        return Output(accepted.speech.queue, preparation.cancel)

    def begin(self, request: TTSRequest, accepted: Request, plan: Plan, encoded: Sequence[Voice]) -> None:
        """Queue an accepted request; `encoded` are the voices of its references.

        Raises `RequestError`, `EngineError` or `CheckpointError`.
        """
        queue, description = accepted.speech.queue, self.speaker.description
        parts = [self._part(part.request, part.script, encoded, accepted) for part in plan.parts]
        warning = self._warning(request, plan.warnings, [voice for spoken, _ in parts for voice in spoken.voices])
        finishes = [finish for _, finish in parts]
        if plan.has_markup:
            rate = request.sample_rate or description.sample_rate
            queue.finish = MarkupFinishing(plan, finishes, rate, warning)
        else:
            queue.finish = Finishing(finishes[0], plan.spoken_text, warning)
        self.synthesizer.begin(accepted, [spoken for spoken, _ in parts], description.prompt_options(request))

    def begin_stream(self, request: TTSRequest, accepted: Request, encoded: Sequence[Voice]) -> None:
        """Begin an accepted request whose text is still being written. Raises the errors of `begin`."""
        assert request.stream is not None
        voices, form = self._voices(request, encoded), self.planner.form_in(request.language)
        warning = self._warning(request, (), voices)
        accepted.speech.queue.finish = Finishing(PartFinish(effects=self._effects(request)), None, warning)
        self.synthesizer.begin_stream(
            accepted,
            request.stream,
            voices,
            self.speaker.description.prompt_options(request),
            seed=seed_of(accepted.sampling),
            read=form.reader(request.normalize or self.config.normalize),
        )

    def _part(
        self, request: TTSRequest, script: NormalizedText, encoded: Sequence[Voice], accepted: Request
    ) -> tuple[SpokenPart, PartFinish]:
        pieces = self._pieces(script, request)
        prompts = self._prompts(request, pieces)
        is_live = accepted.speech.is_streamed
        words = self._words(request, pieces, prompts, is_live=is_live) if request.word_times else None
        seed = seed_of(self.speaker.description.sampling_of(request))
        spoken = SpokenPart(prompts, self._voices(request, encoded), seed, _pauses(request, pieces))
        return spoken, PartFinish(words, self._effects(request))

    def _voices(self, request: TTSRequest, encoded: Sequence[Voice]) -> Sequence[Voice]:
        """Return the named voice, those of the references, or the default voice. Raises `VoiceError`."""
        if request.references:
            return encoded
        if not (voices := self.voices.registry.chosen(request.voice)):
            self.speaker.description.check_voice(self.voices.registry.names)
        return voices

    def _warning(self, request: TTSRequest, said: Sequence[str | None], voices: Sequence[Voice]) -> str | None:
        transcripts = (reference.text for reference in request.references)
        warnings = [*said, self.speaker.description.voice.transcript_warning(transcripts)]
        warnings += [voice.warning for voice in voices]
        return " ".join(dict.fromkeys(filter(None, warnings))) or None

    def check_stream(self, request: TTSRequest) -> None:
        """Raise `ParameterError` unless a text can be spoken while it is being written."""
        if not self.planner.is_plain(request):
            raise ParameterError("text", "is a TextStream, which cannot have markup or a lexicon; give a str")
        self.speaker.description.check_text_stream()
        if request.word_times:
            raise ParameterError("word_times", "is not supported for a TextStream, because it needs the whole text")
        if self.planner.form_in(request.language).alphabet is not None:
            raise ParameterError("text", "cannot be a TextStream, because config.json has an alphabet; pass a str")

    @property
    def description(self) -> Description:
        return self.speaker.description

    @property
    def num_slots(self) -> int:
        return self.synthesizer.num_slots

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
        pools = self.plain_recordings.health(), self.converted_recordings.health()
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
                "max_text_length": self.config.max_text_length,
            },
            "voices": self.voices.health(),
            "recordings": {name: value + pools[1][name] for name, value in pools[0].items()},
            **{name: asdict(choice) for name, choice in speaker.choices.items()},
            "placement": {stage: choice.value for stage, choice in speaker.devices.items()},
            **synthesizer.describe(),
            "vram": vram(speaker.device.value),
        }

    def families(self) -> list[MetricFamily]:
        metrics, memory = self.synthesizer.core.ledger.metrics, gpu_memory(vram(self.speaker.device.value))
        return [*metrics.families(), memory, *self.synthesizer.families()]

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
        both = zip(pieces, [*(piece.division for piece in pieces[1:]), None], strict=True)
        return [self.speaker.text.prompt(piece.text, choice, continues=after == "clause") for piece, after in both]


class Preparation:
    """Reads the text and the recordings of an accepted request in threads of the engine, and then queues it."""

    def __init__(self, running: EngineRuntime, request: TTSRequest, accepted: Request) -> None:
        self._running, self._request, self._accepted = running, request, accepted
        self._works: list[Future[None]] = []
        self._is_cancelled = False

    def start(self) -> None:
        """Begin. Raises `EngineNotReadyError`."""
        running, text = self._running, self._request.text
        is_long = isinstance(text, str) and len(text) > SHORT_TEXT
        self._submit(running.texts if is_long else running.short_texts, self._read)

    def cancel(self) -> None:
        """End the work at once, because the consumer has left."""
        self._is_cancelled = True
        for work in self._works:
            work.cancel()

    def _submit(self, pool: FairPool, work: Callable[[Check], None], subject: Hashable = None) -> None:
        report = partial(_report, self._running.synthesizer.core.scheduler, self._accepted)
        future = pool.submit(work, self._request.flow[0] or self._request.flow[1], subject=subject)
        future.add_done_callback(report)  # the work may be done by now, and `_begin` has deleted what it needed
        self._works.append(future)
        if self._is_cancelled:
            future.cancel()

    def _read(self, check: Check) -> None:
        """Read the text; recordings that were not encoded before wait for their turn."""
        running, request = self._running, self._request
        plan = None
        if request.stream is None:
            plan = running.planner.plan(request, check)
        else:
            running.check_stream(request)
        keys = tuple(running.references.key(each) for each in request.references)
        encoded = list(map(running.references.find, request.references, keys))
        known = [voice for voice in encoded if voice is not None]
        if len(known) == len(encoded):
            self._begin(plan, known)
        else:
            self._accepted.encoding = time.monotonic()
            self._submit(running.recordings(request.references), partial(self._encode, plan), keys)

    def _encode(self, plan: Plan | None, check: Check) -> None:
        if self._accepted.has_ended:  # such as at its deadline
            return
        self._begin(plan, [self._running.references.encode(each, check) for each in self._request.references])

    def _begin(self, plan: Plan | None, encoded: Sequence[Voice]) -> None:
        if plan is None:
            self._running.begin_stream(self._request, self._accepted, encoded)
        else:
            self._running.begin(self._request, self._accepted, plan, encoded)
        del self._request, self._running  # the consumer's output keeps this object


def _report(scheduler: Scheduler, accepted: Request, work: Future[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        scheduler.refuse(accepted, error)


def run(
    speaker: LoadedCheckpoint, synthesizer: Synthesizer, config: EngineConfig, before: VoiceService | None
) -> EngineRuntime:
    """Return a runtime, which keeps in-memory voices of `before`, if given. Raises `ConfigurationError`."""
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
    plain, converted = (FairPool(max_waiting=config.max_waiting_references, what="recordings") for _ in range(2))
    texts, short_texts = (FairPool(max_waiting=sys.maxsize, threads=TEXT_THREADS, what="texts") for _ in range(2))
    voices.importer.start()
    pools = plain, converted, texts, short_texts
    return EngineRuntime(config, speaker, synthesizer, voices, references, planner, *pools)


def _pauses(request: TTSRequest, pieces: Sequence[Piece]) -> list[float | None]:
    """Return the pauses before each piece and at the end of a request's audio, as `Joiner` takes them."""
    pauses, (before, after) = Pauses.of(request.pauses), request.outer_pauses
    between = [None if pauses is None else pauses.before(piece.division) for piece in pieces[1:]]
    return [before, *between, after]


def vram(device: str) -> dict[str, float]:
    """Return used and total memory of a GPU in GB; zeros for other devices."""
    if not device.startswith("cuda"):
        return {"used_gb": 0.0, "total_gb": 0.0}
    free, total = torch.cuda.mem_get_info(device)
    return {"used_gb": (total - free) / 1e9, "total_gb": total / 1e9}
