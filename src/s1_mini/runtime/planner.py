"""Reads the text of a request: its parts, if it has markup, and the spoken form of each. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

from s1_mini.config import EngineConfig
from s1_mini.exceptions import NothingToSpeakError, TextError
from s1_mini.families.base import Description
from s1_mini.text.form import NormalizedText, TextForm, unchecked
from s1_mini.text.lexicon import Lexicon, Lexicons
from s1_mini.text.markup import Mark, Markup, Segment, is_ssml, read_marked, read_ssml, read_text
from s1_mini.text.structure import stronger
from s1_mini.text.tidy import tidied
from s1_mini.text.xml_reader import error_at
from s1_mini.types import (
    MAX_GAIN_DB,
    MAX_SEED,
    MAX_SPEED,
    MIN_GAIN_DB,
    MIN_SPEED,
    Division,
    Pauses,
    TTSRequest,
    Word,
)
from s1_mini.voices.registry import VoiceRegistry


@dataclass(frozen=True)
class Part:
    """A part of a request's text with its own options, its spoken form, and its markup.

    A text without markup is one part without a segment. `pause_s` is the pause before the part; None: the silence stays
    as it is generated.
    """

    request: TTSRequest
    script: NormalizedText
    segment: Segment | None = None
    pause_s: float | None = None

    def place(self, word: Word, origin_s: float) -> Word:
        """Return a word of this part with its position in the request's text and its times in the request's audio."""
        assert self.segment is not None
        return replace(
            word,
            start=self.segment.starts[word.start],
            stop=self.segment.stops[word.stop - 1],
            start_s=origin_s + word.start_s,
            end_s=origin_s + word.end_s,
        )


@dataclass(frozen=True)
class Plan:
    """The checked parts of a request's text, and the pause after them."""

    parts: tuple[Part, ...]
    spoken_text: str
    warnings: tuple[str | None, ...]
    has_markup: bool = False
    end_pause_s: float | None = None
    end_marks: tuple[Mark, ...] = ()


@dataclass(frozen=True)
class Planner:
    """Checks the texts of requests, and divides those with markup into parts."""

    config: EngineConfig
    form: TextForm  # of the checkpoint
    description: Description
    voices: VoiceRegistry
    lexicons: Lexicons

    def is_plain(self, request: TTSRequest) -> bool:
        """Return whether a request, whose text may be a `TextStream`, cannot have markup or words of a lexicon."""
        is_text = request.text_type == "text" and not request.lexicon and not self.lexicons.of(self._voice(request))
        return is_text and not (self.config.accept_ssml and isinstance(request.text, str) and is_ssml(request.text))

    def form_in(self, language: str | None) -> TextForm:
        """Return the form of a request's text. Raises `ParameterError` for an unknown language."""
        return self.description.text_form(self.form, language)

    def script(self, request: TTSRequest, check: Callable[[], None] = unchecked) -> NormalizedText:
        """Return the spoken form of a text without markup; `check` and errors are those of `TextForm.script`."""
        config = self.config
        return self.form_in(request.language).script(
            request.text,
            config.max_text_length,
            choice=request.normalize or config.normalize,
            on_unsupported=request.on_unsupported or config.on_unsupported,
            continues=request.joined is not None and request.joined.continues,
            check=check,
        )

    def check_voice(self, request: TTSRequest) -> None:
        """Raise `VoiceError` if a request has no voice, and the checkpoint needs a voice but has no default voice."""
        is_without = request.voice is None and not request.references
        if self.description.needs_voice and is_without and not self.voices.library.default:
            self.description.check_voice(self.voices.names)

    def plan(self, request: TTSRequest, check: Callable[[], None] = unchecked) -> Plan:
        """Check the texts and voices of a request and return its parts. `check` is that of `script`.

        Raises `RequestError`.
        """
        if not self.is_plain(request) and (marked := self._plan(request, check)) is not None:
            return marked
        script = self.script(request, check)
        return Plan((Part(request, script),), script.text, (script.warning,))

    def _plan(self, request: TTSRequest, check: Callable[[], None]) -> Plan | None:
        """Return the parts of a text with markup; None if it has none."""
        max_length, description = self.config.max_text_length, self.description
        tidied(request.text, max_length)  # refuses a text that is too long before parsing it
        segments, ignored = self._read(request, self.form_in(request.language).language)
        if request.text_type == "text" and [segment.text for segment in segments] == [request.text]:
            return None
        if (length := sum(len(segment.text) for segment in segments)) > max_length:
            reason = f"has {length} characters after all replacements; the limit is {max_length}"
            raise TextError("text", f"{reason}. Split the text or raise S1_MINI_MAX_TEXT_LENGTH.")
        for name in dict.fromkeys((request.voice, *(segment.voice for segment in segments))):
            if name is not None:
                self.voices.info(name)  # raises an error for an unknown voice
        parts: list[Part] = []
        spoken: list[Segment] = []
        warnings, pause_s = [ignored], None
        division: Division = "clause"
        marks: list[Mark] = []  # marks of segments that are only pauses
        for segment in segments:
            division, pause_s = stronger(division, segment.division), _sum(pause_s, segment.pause_before_s)
            more_s = segment.pause_before_s or 0.0
            marks = [mark._replace(position=0, pause_s=mark.pause_s + more_s) for mark in marks]
            marks += segment.marks
            script = self._script_of(segment, request, check)
            warnings.append(script.warning)
            if script.text:
                part_request = _request_for(request, segment, len(parts))
                before_s = _pause_before(request, pause_s, division, is_first=not parts)
                parts.append(Part(part_request, script, replace(segment, marks=tuple(marks)), before_s))
                spoken.append(segment)
                pause_s, division, marks = None, "clause", []
        for part in parts:
            self.check_voice(part.request)
        if len(parts) > 1 and not description.splits:
            reason = "another part begins here, and this model would speak it in another voice; remove the pauses, "
            reason += "paragraphs and changes of speed or loudness"
            raise error_at(request.text, spoken[1].starts[0], reason)
        if not parts and not pause_s:
            raise NothingToSpeakError("text", "contains nothing to speak; send at least one letter, number or symbol")
        end_marks = tuple(marks) if request.word_times else ()
        end_s = request.outer_pauses[1] if pause_s is None else pause_s
        spoken_text = " ".join(part.script.text for part in parts)
        return Plan(tuple(parts), spoken_text, tuple(warnings), has_markup=True, end_pause_s=end_s, end_marks=end_marks)

    def _script_of(self, segment: Segment, request: TTSRequest, check: Callable[[], None]) -> NormalizedText:
        """Return the spoken form of a segment; empty if it is only a pause. Raises `TextError`."""
        if not segment.text:
            return NormalizedText("")
        try:
            # The lexicon was already applied to the segment.
            return self.script(replace(request, text=segment.text, lexicon={}), check)
        except NothingToSpeakError as error:
            return NormalizedText("", error.warning)
        except TextError as error:
            if request.text_type == "text":
                raise
            reason = f"in the part that begins here, {error.reason}"
            raise error_at(request.text, segment.starts[0], reason) from None

    def _read(self, request: TTSRequest, language: str | None) -> Markup:
        """Return the segments of a text. Names of voices in it are replaced by the engine's names (`voice_names`)."""

        def name_of(voice: str | None) -> str | None:
            return voice and request.voice_names.get(voice.lower(), voice)

        @cache
        def lexicon_of(voice: str | None) -> Lexicon:
            own = name_of(voice)
            return self.lexicons.of(self._voice(request) if own is None else self.voices.spelling(own)).merged(
                request.lexicon
            )

        if request.text_type == "marked":
            markup = read_marked(request.text, lexicon_of, {*self.voices.names, *request.voice_names})
        elif request.text_type == "ssml" or (self.config.accept_ssml and is_ssml(request.text)):
            markup = read_ssml(request.text, lexicon_of, language)
        else:
            markup = read_text(request.text, lexicon_of)
        segments = tuple(replace(segment, voice=name_of(segment.voice)) for segment in markup.segments)
        return markup._replace(segments=segments)

    def _voice(self, request: TTSRequest) -> str | None:
        """Return the voice whose lexicon applies: the stored name, None for the default, empty for a recording."""
        if request.references:
            return ""
        return request.voice and self.voices.spelling(request.voice)


def _sum(one: float | None, other: float | None) -> float | None:
    return one if other is None else (one or 0.0) + other


def _pause_before(request: TTSRequest, marked_s: float | None, division: Division, *, is_first: bool) -> float | None:
    """Return the pause before a part: what the markup asks for, or else what is usual."""
    if marked_s is not None:
        return marked_s
    if is_first:
        return request.outer_pauses[0]
    pauses = Pauses.of(request.pauses)
    return None if pauses is None else pauses.before(division)


def _request_for(request: TTSRequest, segment: Segment, number: int) -> TTSRequest:
    """Return the request for a segment. The first segment has the request's own seed, like a text without markup."""
    speed, gain_db = request.speed * segment.speed, request.gain_db + segment.gain_db
    place = partial(error_at, request.text, segment.starts[0])
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise place(f"the speed is {speed:g} here; use {MIN_SPEED:g} to {MAX_SPEED:g}")
    if not MIN_GAIN_DB <= gain_db <= MAX_GAIN_DB:
        raise place(f"the gain is {gain_db:g} dB here; use {MIN_GAIN_DB:g} to {MAX_GAIN_DB:g}")
    sampling = request.sampling
    if (seed := sampling.get("seed")) is not None:
        sampling = {**sampling, "seed": (seed + number * 0x9E3779B97F4A7C15) % (MAX_SEED + 1)}
    return replace(
        request,
        text=segment.text,
        text_type="text",
        lexicon={},
        sampling=sampling,
        speed=speed,
        gain_db=gain_db,
        joined=None if request.joined is None else replace(request.joined, division=None, is_last=True),
        voice=segment.voice or request.voice,
        references=() if segment.voice else request.references,
    )
