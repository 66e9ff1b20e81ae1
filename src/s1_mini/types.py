"""The engine's input and output: requests, and chunks of audio (complete responses are in `responses.py`).

The classes are frozen and checked on construction; this module imports no torch. Items between stages are described in
`core/stage.py`.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    TypeAlias,
    TypedDict,
    Unpack,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from s1_mini.exceptions import ParameterError
from s1_mini.text_stream import TextStream

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

# A recording: a path, the bytes of an audio file, or a float wave [samples] at the engine's rate.
Audio: TypeAlias = "bytes | str | Path | np.ndarray"

# Why audio ended: all text is spoken, a piece of the text was cut off (`max_new_tokens`), or the request was cancelled.
FinishReason = Literal["stop", "length", "cancelled"]

# Chunk sizes: earliest first audio, a compromise, or fewest chunks (`core/stage.py`).
ChunkProfile = Literal["ttfa", "balanced", "throughput"]

# Whether numbers and signs are written as words for the model (`text/reading.py`), or left as they are.
Normalize = Literal["auto", "off"]

# Characters that the voice cannot pronounce: reject the text, or speak the rest and warn (`text/form.py`).
OnUnsupported = Literal["error", "skip"]

# The format of a text: plain, SSML, or text with marks in brackets such as [pause 0.5s] (`text/markup.py`).
TextType = Literal["text", "ssml", "marked"]

# How a part of a text is divided from the part before it (`text/structure.py`), the weakest division first.
Division = Literal["clause", "sentence", "item", "paragraph", "heading", "scene"]

# Where a voice comes from.
VoiceSource = Literal["checkpoint", "added"]

# Audio files (`audio/container.py`): aac needs the extra `av`; ogg also contains Opus; pcm, mulaw and alaw (8 kHz,
# telephony) have no header.
AudioFormat = Literal["wav", "flac", "mp3", "aac", "opus", "ogg", "pcm", "mulaw", "alaw"]

# Upstream's defaults and bounds (ServeTTSRequest at d3df505), plus temperature 0 for greedy sampling.
MAX_TEMPERATURE = 2.0
MAX_TOP_K = 2**17
MAX_REPETITION_PENALTY = 2.0
MAX_SEED = 2**63 - 1

MIN_SPEED, MAX_SPEED = 0.25, 4.0  # OpenAI's bounds
MIN_GAIN_DB, MAX_GAIN_DB = -40.0, 20.0
MIN_RATE, MAX_RATE = 8_000, 48_000  # Hz

JOINT_S = 0.12  # pause between the parts of a sentence, and everywhere if `pauses` is "off"
MAX_PAUSE_S = 10.0
MAX_PAUSES_LENGTH = 500  # characters of pauses given as text
# Silence at the end of a request whose audio goes on in that of another request: within a sentence, and after one.
JOINED_SENTENCE_S, JOINED_END_S = 0.05, 0.1

MAX_LANGUAGE_LENGTH = 64  # characters
MAX_INSTRUCTIONS_LENGTH = 4_000

MAX_LEXICON_ENTRIES = 256  # of one request
MAX_LEXICON_LENGTH = 200  # characters of a word or a respelling
MAX_LEXICON_LINES_LENGTH = MAX_LEXICON_ENTRIES * 2 * MAX_LEXICON_LENGTH  # characters of a request's lexicon as lines


@dataclass(frozen=True)
class Option:
    """The description of an option of requests, which is checked by it; commands and the HTTP API show it."""

    name: str
    kind: Any  # its type, without None
    is_optional: bool  # whether it may be None
    default: Any  # None also for a default that is made for each object
    help: str
    low: float | None = None  # least value
    high: float | None = None  # greatest value; of a text, its length
    excludes_low: bool = False
    without: str = ""  # what applies without a value, unless `default` says it

    def check(self, options: object) -> None:
        """Check the field of `options` and make a number Python's own. Raises `ParameterError`."""
        value = getattr(options, self.name)
        if value is None and self.is_optional:
            return
        if get_origin(self.kind) is Literal:
            check_choice(self.name, value, self.kind)
        elif self.kind is str and self.high is not None:
            check_string(self.name, value, int(self.high))
        elif self.low is not None and self.high is not None:
            if self.kind is int:
                check_integer(options, self.name, int(self.low), int(self.high))
            else:
                check_range(options, self.name, self.low, self.high, open_below=self.excludes_low)


def option(
    default: Any,
    help: str,  # noqa: A002
    low: float | None = None,
    high: float | None = None,
    *,
    excludes_low: bool = False,
    without: str = "",
    **more: Any,
) -> Any:
    """Return the field of an option, described in `Option`; a `default` that can be called makes the value."""
    own = {"default_factory": default} if callable(default) else {"default": default}
    metadata = {"help": help, "low": low, "high": high, "excludes_low": excludes_low, "without": without}
    return field(**own, **more, metadata=metadata)


def options_of(cls: Any) -> tuple[Option, ...]:
    """Return the options among the fields of a class."""
    hints, found = get_type_hints(cls), []
    for each in fields(cls):
        if each.metadata:
            kinds = get_args(hints[each.name])
            is_optional = type(None) in kinds
            kind = kinds[0] if is_optional else hints[each.name]
            found.append(Option(each.name, kind, is_optional, getattr(cls, each.name, None), **each.metadata))
    return tuple(found)


MODELS = "the model's"


@dataclass(frozen=True)
class SamplingParams:
    """All sampling options of one request. Raises `ParameterError`.

    These defaults apply unless the model family has its own. An option that a checkpoint does not support is rejected
    unless it has the default value.
    """

    temperature: float = option(0.8, "0: always choose the most likely token.", 0, MAX_TEMPERATURE, without=MODELS)
    top_p: float = option(
        0.8, "Sample from the most likely tokens with this total probability.", 0, 1, excludes_low=True, without=MODELS
    )
    repetition_penalty: float = option(
        1.1, "Above 1 penalizes repeated tokens.", 0, MAX_REPETITION_PENALTY, excludes_low=True, without=MODELS
    )
    max_new_tokens: int = option(1024, "Maximum audio frames for each part of the text.", 1, 2**20, without=MODELS)
    seed: int | None = option(
        None, "The same seed gives the same audio on the same setup; on a GPU only with batch invariance.", 0, MAX_SEED
    )
    top_k: int = option(0, "Sample only from the k most likely tokens; 0: from all.", 0, MAX_TOP_K, without=MODELS)

    def __post_init__(self) -> None:
        for each in _SAMPLING:
            each.check(self)


@dataclass(frozen=True)
class Pauses:
    """Seconds of silence in a text of several parts, measured from the end of speech to the next speech."""

    sentence: float = 0.25
    item: float = 0.35  # before and after list items and table rows
    paragraph: float = 0.6
    heading: float = 0.8  # before and after headings
    scene: float = 1.2  # at scene breaks such as ***

    def __post_init__(self) -> None:
        for name in PAUSE_NAMES:
            try:
                check_range(self, name, 0.0, MAX_PAUSE_S)
            except ParameterError as error:
                raise ParameterError(f"pauses.{name}", error.reason) from None

    @classmethod
    def of(cls, given: PausesOption | None) -> Pauses | None:
        """Return the pauses that a request asks for; None if they are off. Raises `ParameterError`."""
        if given == "off":
            return None
        values = _pairs(given) if isinstance(given, str) else {} if given is None else given
        if not isinstance(values, Mapping):
            raise ParameterError("pauses", f"is a {type(given).__name__}; {PAUSES_HELP}")
        if unknown := [name for name in values if name not in PAUSE_NAMES]:
            raise ParameterError("pauses", f"{unknown[0]!r:.40} is not one of {', '.join(PAUSE_NAMES)}; {PAUSES_HELP}")
        return cls(**values)

    def before(self, division: Division) -> float:
        """Return the pause at a division of a text."""
        return JOINT_S if division == "clause" else float(getattr(self, division))


PausesOption: TypeAlias = Mapping[str, float] | str  # seconds by name, also as text "item=0.2, scene=1"; or "off"
PAUSE_NAMES = tuple(each.name for each in fields(Pauses))
PAUSES_HELP = 'give seconds by name, such as {"paragraph": 0.6, "heading": 0.8} or paragraph=0.6,heading=0.8, or "off"'


def _pairs(text: str) -> dict[str, float]:
    """Parse `paragraph=0.6, heading=0.8`, as in a form, a query or a command. Raises `ParameterError`."""
    if len(text) > MAX_PAUSES_LENGTH:
        raise ParameterError("pauses", f"has {len(text)} characters; the limit is {MAX_PAUSES_LENGTH}; {PAUSES_HELP}")
    values = {}
    for pair in filter(str.strip, text.split(",")):
        name, _, seconds = (part.strip() for part in pair.partition("="))
        try:
            values[name] = float(seconds)
        except ValueError:
            reason = f"{pair.strip()!r:.40} is not of the form name=seconds; {PAUSES_HELP}"
            raise ParameterError("pauses", reason) from None
    return values


@dataclass(frozen=True)
class Joined:
    """How the audio of a request continues that of another one: the request's text is a part of a longer text."""

    division: Division | None = None  # how its text is divided from the text before; None: it is the first
    continues: bool = False  # the sentence goes on in the next request, so no full stop is added
    is_last: bool = False  # no text follows, so that the silence at the end is kept


@dataclass(frozen=True)
class Reference:
    """A recording of a voice to clone, and its transcript."""

    audio: Audio  # a path, the bytes of an audio file, or a float wave [samples]
    text: str = ""  # the transcript, word for word


@dataclass(frozen=True)
class Voice:
    """An encoded reference: named tensors, defined by the family, and the transcript."""

    tensors: Mapping[str, Tensor]
    text: str
    warning: str = ""  # about the recording; empty if there is none


@dataclass(frozen=True)
class VoiceInfo:
    """Information about a named voice."""

    name: str  # in lower case
    description: str  # may be empty
    is_default: bool  # used by requests without a voice
    source: VoiceSource  # part of the checkpoint, or added later
    seconds: float  # duration of the recording
    text: str  # transcript of the recording
    warning: str | None = None  # about the recording; set by `add_voice` only


@dataclass(frozen=True)
class Choice:
    """A value that the engine chose, and the reason; logged at start and shown by `health_check`."""

    value: str
    reason: str


@dataclass(frozen=True)
class EngineState:
    """Whether an engine is ready, and how full its queue is."""

    status: Literal["stopped", "ready", "failed"]  # failed: `health_check` has the reason
    num_waiting: int = 0  # requests in the queue, without paused streams
    max_waiting: int = 0  # limit at which new requests are refused
    retry_after_s: float = 1.0  # seconds after which to retry a refused request

    @property
    def is_ready(self) -> bool:
        """Whether the engine accepts requests."""
        return self.status == "ready"


class SamplingOptions(TypedDict, total=False):
    """Sampling options, described in `SamplingParams`; None: the model's default."""

    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    repetition_penalty: float | None
    seed: int | None


class SharedOptions(SamplingOptions, total=False):
    """Options of a request that several texts may share; `TTSRequest` defines the defaults."""

    voice: str | None
    language: str | None
    instructions: str
    chunk_profile: ChunkProfile | None
    normalize: Normalize | None
    on_unsupported: OnUnsupported | None
    speed: float
    gain_db: float
    sample_rate: int | None
    word_times: bool
    text_type: TextType
    lexicon: Mapping[str, str]
    pauses: PausesOption | None


class SpeechOptions(SharedOptions, total=False):
    """All options of a request as keywords, described in `TTSRequest` and `SamplingParams`."""

    reference_audio: Audio | None  # a recording of the voice to clone, instead of `voice`
    reference_text: str | None  # transcript of the recording, word for word


@dataclass(frozen=True)
class TTSRequest:
    """One text with its options. Raises `ParameterError`, and `TypeError` for an unknown sampling option."""

    text: str  # at most `max_text_length` characters
    references: tuple[Reference, ...] = ()  # recordings of the voice to clone
    voice: str | None = option(None, "Name of a voice, instead of a recording.")  # None: the checkpoint's default
    language: str | None = option(
        None,
        "Language in which the voice speaks and reads numbers, such as english or en. Only for models with a choice.",
        *(None, MAX_LANGUAGE_LENGTH),
    )
    instructions: str = option(
        "", "How to speak, such as 'Whisper.' Only for models that take instructions.", None, MAX_INSTRUCTIONS_LENGTH
    )
    sampling: SamplingOptions = field(default_factory=SamplingOptions, hash=False)  # only options that were given
    chunk_profile: ChunkProfile | None = option(
        None, "ttfa: earliest first audio; throughput: fewest, longest chunks; balanced: in between."
    )
    normalize: Normalize | None = option(
        None,
        "auto: expand numbers and symbols to words if the checkpoint needs words; off: keep the text.",
        without="S1_MINI_NORMALIZE",
    )
    on_unsupported: OnUnsupported | None = option(
        None,
        "Characters that the voice cannot pronounce. error: reject the text; skip: speak the rest and warn.",
        without="S1_MINI_ON_UNSUPPORTED",
    )
    speed: float = option(1.0, "2 is twice as fast, 0.5 half as fast; the pitch is unchanged.", MIN_SPEED, MAX_SPEED)
    gain_db: float = option(
        0.0, "Loudness change in dB; with a positive gain, peaks are limited to -1 dBTP.", MIN_GAIN_DB, MAX_GAIN_DB
    )
    sample_rate: int | None = option(
        None, "Sample rate of the audio in Hz.", MIN_RATE, MAX_RATE, without="the model's own"
    )
    word_times: bool = option(False, "Report when each word is spoken. Not supported by every model.")
    text_type: TextType = option(
        "text", "ssml: the text is SSML; marked: it has marks such as [pause 0.5s] and [name of a voice]."
    )
    lexicon: Mapping[str, str] = option(
        dict,
        "Respellings of words, such as {nginx: engine x}, at most 256; in a form, lines `word = respelling`.",
        hash=False,
    )
    pauses: PausesOption | None = option(
        None,
        "Seconds of silence, such as paragraph=1,scene=2, in JSON {paragraph: 1}; off: as generated.",
        without="sentence=0.25, item=0.35, paragraph=0.6, heading=0.8, scene=1.2",
        hash=False,
    )
    # Further voice names that the markup may use, in lower case; None stands for the voice of the request.
    voice_names: Mapping[str, str | None] = field(default_factory=dict, hash=False)
    stream: TextStream | None = None  # the text, instead of `text`, if it is still being written
    joined: Joined | None = None  # for a part of a longer text, whose other parts are other requests
    # Client and group: clients take turns in the queue, and so do the groups of a client. A request without a group is
    # a group of its own.
    flow: tuple[str, str] = ("", "")
    adapts_chunks: bool = False  # `chunk_profile` is only a default: under load, an engine may choose longer chunks
    # Called once, by any thread, when an accepted request has ended.
    on_end: Callable[[Phases], None] | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        complete = complete_sampling(self.sampling)  # raises for invalid options
        given = {name: value if value is None else getattr(complete, name) for name, value in self.sampling.items()}
        object.__setattr__(self, "sampling", given)
        for each in _REQUEST:
            each.check(self)
        check_lexicon(self.lexicon)
        Pauses.of(self.pauses)
        if self.voice is not None and self.references:
            raise ParameterError("voice", "cannot be combined with reference_audio; give one of them")

    @property
    def outer_pauses(self) -> tuple[float | None, float | None]:
        """The silence before the first and after the last sound, in seconds; None: as it was generated."""
        joined, pauses = self.joined, Pauses.of(self.pauses)
        if joined is None:
            return None, None
        after = None if joined.is_last or (pauses is None and not joined.continues) else _ending_s(joined.continues)
        if pauses is None or joined.division is None:
            return None, after
        before = _ending_s(joined.division == "clause")  # silence at the end of the request before
        return max(0.0, pauses.before(joined.division) - before), after

    @classmethod
    def of(cls, text: str | TextStream, **options: Unpack[SpeechOptions]) -> Self:
        """Build a request from keyword options. Raises `ParameterError`, and `TypeError` for an unknown option."""
        given: dict[str, Any] = {**options}
        if unknown := sorted(given.keys() - set(OPTIONS)):
            raise TypeError(f"unknown option {unknown[0]!r}; available: {', '.join(OPTIONS)}")
        sampling = cast("SamplingOptions", {name: given.pop(name) for name in SAMPLING_OPTIONS if name in given})
        references = references_of(given.pop("reference_audio", None), given.pop("reference_text", None))
        if isinstance(text, TextStream):
            return cls("", references, sampling=sampling, stream=text, **given)
        return cls(text, references, sampling=sampling, **given)


def _ending_s(continues: bool) -> float:
    return JOINED_SENTENCE_S if continues else JOINED_END_S


def references_of(audio: Audio | None, text: str | None) -> tuple[Reference, ...]:
    """Return the references of a request. Raises `ParameterError` for a transcript without a recording."""
    if audio is None:
        if text:
            raise ParameterError("reference_text", "was given without reference_audio; add the recording")
        return ()
    return (Reference(audio, text or ""),)


@dataclass(frozen=True)
class Timing:
    """Latency of the first phases of a request; None for phases that it has not reached."""

    queue_s: float | None = None  # from arrival to the first slot
    prefill_s: float | None = None  # from the slot until the first prompt is prefilled
    first_chunk_s: float | None = None  # from arrival to the first audio


@dataclass(frozen=True)
class Phases:
    """When the phases of a request began: seconds of `time.monotonic`, which all processes of a machine share."""

    begins: Mapping[str, float]  # text, reference, queue, prefill, generation: those that were reached, in order
    first_audio: float | None
    ended: float
    reason: str  # finish reason, or the code of the error
    slot: int | None  # of its first utterance
    tokens: int  # frames that the model generated
    audio_s: float

    def tell(self, on_end: Callable[[Phases], None]) -> None:
        """Call `on_end`; an error of it is only logged, because the caller also serves other requests."""
        try:
            on_end(self)
        except Exception:
            logger.exception("the callback `on_end` of a request failed")


@dataclass(frozen=True)
class Word:
    """A word of a request's text, and when it is spoken."""

    text: str  # as it is written
    start: int  # position of the word's first character in the request's text
    stop: int  # position after its last character
    start_s: float  # seconds from the start of the request's audio
    end_s: float  # the same for the end of the word


@dataclass(frozen=True)
class SpokenMark:
    """A `<mark>` of a request's SSML, and when it is reached."""

    name: str  # attribute `name` of the element
    start: int  # position of the element's first character in the request's text
    stop: int  # position after its last character
    time_s: float  # seconds from the start of the request's audio


@dataclass(frozen=True)
class AudioChunk:
    """One chunk of a request's audio, in order: float wave [samples] in [-1, 1] at `sample_rate` in Hz.

    Between a server and its engine, the samples may be int16 (`ProductionTTSEngine.submit`).
    """

    audio: np.ndarray  # float32 [samples]
    sample_rate: int  # Hz
    frames: int  # frames that the model generated for this chunk
    finish_reason: FinishReason | None = None  # set on the last chunk only
    timing: Timing | None = None  # set on the last chunk only
    spoken_text: str | None = None  # normalized text of the whole request; set on the first chunk only
    warning: str | None = None  # skipped characters, another language, or a bad reference; set on the first chunk only
    words: tuple[Word, ...] = ()  # words whose times became known after the previous chunk; only with `word_times`
    marks: tuple[SpokenMark, ...] = ()  # marks that were reached after the previous chunk; only with `word_times`

    @property
    def wave(self) -> np.ndarray:
        """Former name of `audio`."""
        return self.audio


def check_range(options: object, name: str, low: float, high: float, *, open_below: bool = False) -> None:
    """Make a frozen object's field a Python number. Raises `ParameterError` unless it is in [low, high].

    With `open_below`, `low` itself is also refused. Any real number is taken, such as numpy's, except `bool`.
    """
    value = getattr(options, name)
    number: float | None = _whole(value)
    if number is None and not isinstance(value, bool) and isinstance(value, Real):
        number = float(value)
    if number is None or not (low < number <= high or (number == low and not open_below)):
        bracket = "(" if open_below else "["
        raise ParameterError(name, f"{value!r} is not a number in {bracket}{low:g}, {high:g}]")
    object.__setattr__(options, name, number)


def check_choice(name: str, value: str | None, choices: Any) -> None:
    """Raise `ParameterError` unless `value` is None or one of the values of a `Literal`."""
    if value is not None and value not in get_args(choices):
        raise ParameterError(name, f"must be one of {', '.join(get_args(choices))}, not {value!r}")


def check_integer(options: object, name: str, low: int, high: int) -> None:
    """Make a frozen object's field an `int`. Raises `ParameterError` unless it is a whole number in [low, high].

    Everything that can be an index is taken, such as numpy's integers, except `bool`.
    """
    value = getattr(options, name)
    number = _whole(value)
    if number is None or not low <= number <= high:
        raise ParameterError(name, f"{value!r} is not a whole number in [{low}, {high}]")
    object.__setattr__(options, name, number)


def _whole(value: Any) -> int | None:
    """Return a value that can be an index as an `int`, or None."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_string(name: str, value: str, max_length: int) -> None:
    """Raise `ParameterError` unless `value` is a string of at most `max_length` characters."""
    if not isinstance(value, str):
        raise ParameterError(name, f"must be a str, not {type(value).__name__}")
    if len(value) > max_length:
        raise ParameterError(name, f"has {len(value)} characters; the limit is {max_length}")


def check_lexicon(lexicon: Mapping[str, str]) -> None:
    """Raise `ParameterError` unless the entries are words with respellings, and not too many or too long."""
    if not isinstance(lexicon, Mapping):
        raise ParameterError("lexicon", f"is a {type(lexicon).__name__}; give a mapping from words to respellings")
    if len(lexicon) > MAX_LEXICON_ENTRIES:
        raise ParameterError("lexicon", f"has {len(lexicon)} entries; the limit is {MAX_LEXICON_ENTRIES}")
    for entry in lexicon.items():
        if not all(isinstance(each, str) and each.strip() and len(each) <= MAX_LEXICON_LENGTH for each in entry):
            shown = " = ".join(str(each)[:40] for each in entry)
            raise ParameterError(
                "lexicon", f"{shown!r}: give a word and a respelling of 1 to {MAX_LEXICON_LENGTH} characters each"
            )


_SAMPLING, _REQUEST = options_of(SamplingParams), options_of(TTSRequest)
# all options of a request; the model has the defaults of sampling options
REQUEST_OPTIONS = (*_REQUEST, *(replace(each, is_optional=True, default=None) for each in _SAMPLING))

DEFAULT_SAMPLING = SamplingParams()
SAMPLING_OPTIONS = tuple(each.name for each in fields(SamplingParams))
OPTIONS = (*SharedOptions.__annotations__, "reference_audio", "reference_text")


def complete_sampling(options: SamplingOptions, defaults: SamplingParams = DEFAULT_SAMPLING) -> SamplingParams:
    """Return the options of a request, with `defaults` for those that it does not give.

    Raises `ParameterError`, and `TypeError` for an unknown option.
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    return replace(defaults, **given)
