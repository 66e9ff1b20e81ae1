"""Requests and responses as pydantic models.

Unknown fields are refused, except in bodies for clients of other services, which ignore them.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation, create_model, model_validator
from pydantic.config import JsonDict
from pydantic.functional_validators import AfterValidator
from pydantic_core import PydanticCustomError

from s1_mini.audio.container import lack_of
from s1_mini.exceptions import MarkupError
from s1_mini.server.errors import InvalidError
from s1_mini.text.lexicon import read_lines
from s1_mini.text.split import EarlyStart
from s1_mini.types import (
    MAX_LEXICON_LINES_LENGTH,
    MAX_SEED,
    OPTIONS,
    REQUEST_OPTIONS,
    AudioFormat,
    ChunkProfile,
    Normalize,
    OnUnsupported,
    Option,
    PausesOption,
    SpeechOptions,
    SpokenMark,
    TTSRequest,
    VoiceInfo,
    Word,
)

if TYPE_CHECKING:
    from s1_mini.families.base import Description
    from s1_mini.server.settings import ServerSettings

BASE64_WINDOW = 2**18  # characters, a multiple of four


def _as_whole(value: Any) -> Any:
    """Return 3 for 3.0, because JSON does not distinguish them."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _as_entries(value: Any) -> Any:
    """Parse the lines of a form's lexicon."""
    if not isinstance(value, str):
        return value
    if len(value) > MAX_LEXICON_LINES_LENGTH:
        reason = f"has {len(value)} characters; the limit is {MAX_LEXICON_LINES_LENGTH}"
        raise PydanticCustomError("lexicon", "{reason}", {"reason": reason})
    try:
        return read_lines(value)
    except MarkupError as error:
        raise PydanticCustomError("lexicon", "{reason}", {"reason": error.reason}) from None


def _as_mode(value: Any) -> Any:
    return ("auto" if value else "off") if isinstance(value, bool) else value


def encodable(formats: Any) -> AfterValidator:
    """Return a validator of a field with a `Literal` of formats: it refuses one whose encoder is not installed."""

    def check(value: AudioFormat) -> AudioFormat:
        if lack := lack_of(value, get_args(formats)):
            raise PydanticCustomError("format", "{reason}", {"reason": lack})
        return value

    return AfterValidator(check)


Lexicon = Annotated[dict[str, str], BeforeValidator(_as_entries)]  # the engine limits the entries
Pauses = SkipValidation[PausesOption]  # checked by the engine, whose errors name the entry
ChunkLength = Annotated[int, Field(ge=50, le=1000), BeforeValidator(_as_whole)]
# length of texts and names of voices are checked by the engine, with the same messages for all interfaces
_NOT_EMPTY: JsonDict = {"minLength": 1}
Text = Annotated[str, Field(description="Text to speak.", examples=["Good morning."], json_schema_extra=_NOT_EMPTY)]
VoiceName = Annotated[str, Field(description="A voice from GET /v1/voices.")]
Format = Annotated[
    AudioFormat,
    encodable(AudioFormat),
    Field(
        description="Audio format of the response; aac is AAC-LC in ADTS and needs the extra av; opus and ogg are both "
        "Ogg Opus; pcm (s16le), mulaw and alaw (G.711, 8 kHz) are mono without a header."
    ),
]
Base64Audio = Annotated[
    str,
    Field(min_length=1, description="A recording of the voice to clone, as base64: wav, flac, mp3, ogg, opus, aiff."),
]


@dataclass(frozen=True)
class SpeechRequest:
    """A validated request, and the format in which its audio is sent."""

    speech: TTSRequest
    audio_format: AudioFormat = "wav"
    streams: bool = False
    return_spoken_text: bool = False
    warning: str | None = None  # about ignored options

    @property
    def reference(self) -> bytes:
        """The reference recording; empty without one."""
        references = self.speech.references
        return cast("bytes", references[0].audio) if references else b""

    def without_unsupported(self, description: Description) -> SpeechRequest:
        """Return the request without a language or instructions that the checkpoint does not support; set `warning`."""
        reasons = description.unsupported(self.speech)
        if not reasons:
            return self
        warning = "; ".join(f"{name} was ignored: it {reason}" for name, reason in reasons.items())
        defaults: dict[str, Any] = {name: getattr(TTSRequest, name) for name in reasons}
        return replace(self, speech=replace(self.speech, **defaults), warning=warning)


class Strict(BaseModel):
    """Base of models that refuse unknown fields. A field that is null was not given."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_null(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if value is not None or name not in cls.model_fields}


def _field(option: Option) -> tuple[Any, Any]:
    """Return the type and the default of an option in a body."""
    kind: Any = {"lexicon": Lexicon, "pauses": Pauses}.get(option.name, option.kind)
    if option.low is not None and option.high is not None:
        # an exclusive bound for seeds, because a double can represent 2^63, but not MAX_SEED
        bounds: dict[str, Any] = {"lt": option.high + 1} if option.high == MAX_SEED else {"le": option.high}
        bounds["gt" if option.excludes_low else "ge"] = option.low
        kind = Annotated[kind, Field(**bounds)]
    if option.kind is int:  # after the bounds; otherwise pydantic omits them from the JSON schema
        kind = Annotated[kind, BeforeValidator(_as_whole)]
    described = f"{option.help} Default: {option.without}." if option.without else option.help
    default: dict[str, Any] = {"default_factory": dict} if option.name == "lexicon" else {"default": option.default}
    return kind | None if option.is_optional else kind, Field(**default, description=described)


_HELP = {each.name: each.help for each in REQUEST_OPTIONS}

if TYPE_CHECKING:
    OptionsBody: Any
else:
    elsewhere = ("voice", "chunk_profile", "word_times")  # not in every body
    fields = {each.name: _field(each) for each in REQUEST_OPTIONS if each.name not in elsewhere}
    OptionsBody = create_model("OptionsBody", __base__=Strict, **fields)


class Sampling(OptionsBody):
    """Options of every request."""

    return_spoken_text: bool = Field(False, description="Return the normalized text in JSON responses.")

    def build(self, text: str, audio_format: AudioFormat, *, streams: bool = False, **options: object) -> SpeechRequest:
        """Return the request for `text` with this body's options; `options` replace some. Raises `ParameterError`."""
        own = {name: value for name in OPTIONS if (value := getattr(self, name, None)) is not None}
        speech = TTSRequest.of(text, **cast("SpeechOptions", own | options))
        return SpeechRequest(speech, audio_format, streams, self.return_spoken_text)


# for clients that send a language model's output and would lose all of it over one character
SKIP_BY_DEFAULT: Any = Field(
    "skip",
    description="Characters that the voice cannot pronounce. skip: speak the rest and warn; error: reject the text.",
)


IGNORED_CHUNK_LENGTH: Any = Field(
    None, description="Accepted for compatibility and ignored; the server's S1_MINI_CHUNK_LENGTH applies."
)
WORD_TIMES: Any = Field(
    False,
    description="Return JSON with the audio as base64, the times of its words, and those of <mark> elements. /v1/tts "
    "sends one object or, with stream, one per line. Only for models that report word times; see /health.",
)


class FishSpeechReference(Strict):
    """A recording in Fish-Speech's field `references`."""

    audio: Base64Audio
    text: str = Field("", description="Transcript of the recording, word for word.")


class FishAudioProsody(Strict):
    """Fish Audio's field `prosody`, with Fish Audio's bounds."""

    speed: float | None = Field(None, ge=0.5, le=2, description="Fish Audio's name of `speed`.")
    volume: float | None = Field(None, ge=-20, le=20, description="Fish Audio's name of `gain_db`.")


class FishSpeechBody(Sampling):
    """Fields of Fish-Speech's server and Fish Audio's clients besides those that have the same name here."""

    normalize: Annotated[Normalize | None, BeforeValidator(_as_mode)] = Field(
        None, description=f"{_HELP['normalize']} In JSON, true stands for auto, and false for off."
    )
    streaming: bool | None = Field(None, description="Fish-Speech's name of `stream`.")
    reference_id: VoiceName | None = Field(None, description="Fish-Speech's name of `voice`.")
    references: list[FishSpeechReference] | None = Field(
        None, max_length=1, description="Fish-Speech's name of `reference_audio` and `reference_text`."
    )
    prosody: FishAudioProsody | None = Field(None, description="Fish Audio's name of `speed` and `gain_db`.")
    chunk_length: ChunkLength | None = IGNORED_CHUNK_LENGTH
    min_chunk_length: int | None = Field(None, description="Ignored.")
    condition_on_previous_chunks: bool | None = Field(None, description="Ignored.")
    early_stop_threshold: float | None = Field(None, description="Ignored.")
    mp3_bitrate: int | None = Field(None, description="Ignored.")
    opus_bitrate: int | None = Field(None, description="Ignored.")
    latency: Literal["normal", "balanced"] | None = Field(None, description="Ignored.")
    use_memory_cache: Literal["on", "off"] | None = Field(None, description="Ignored.")

    @model_validator(mode="after")
    def _translate(self) -> Self:
        """Set our fields. Raises `InvalidError` if the body has a field by both names."""
        named: list[tuple[str, str, Any]] = [("streaming", "stream", self.streaming)]
        named.append(("reference_id", "voice", self.reference_id))
        if self.references:
            named.append(("references", "reference_audio", self.references[0].audio))
            named.append(("references", "reference_text", self.references[0].text))
        if self.prosody:
            named.append(("prosody", "speed", self.prosody.speed))
            named.append(("prosody", "gain_db", self.prosody.volume))
        for theirs, ours, value in named:
            if value is not None and ours in self.model_fields_set:
                raise InvalidError(theirs, f"cannot be combined with {ours}, which has the same meaning")
        for _, ours, value in named:
            if value is not None:
                setattr(self, ours, value)
        return self


class SpeechBody(FishSpeechBody):
    """Body of `POST /v1/tts`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"text": "Good morning."},
                {"text": "Good morning.", "voice": "clara", "format": "mp3", "stream": True, "seed": 1},
            ]
        }
    )

    text: Text
    voice: VoiceName | None = None
    reference_audio: Base64Audio | None = None
    reference_text: str | None = Field(None, description="Transcript of the recording, word for word.")
    format: Format = "wav"
    stream: bool = Field(False, description="Send audio while it is generated.")
    word_times: bool = WORD_TIMES
    chunk_profile: ChunkProfile | None = Field(None, description=_HELP["chunk_profile"])

    def to_request(self, recording: bytes | None = None) -> SpeechRequest:
        """Return the request; `recording` is the decoded reference, if any. Raises `InvalidError`, `ParameterError`."""
        if recording is None and self.reference_audio is not None:
            recording = decode_base64(self.reference_audio)
        return self.build(self.text, self.format, streams=self.stream, reference_audio=recording)


class BatchItem(Strict):
    """One text of a batch."""

    text: Text
    voice: VoiceName | None = None
    reference_audio: Base64Audio | None = None
    reference_text: str | None = None


class BatchBody(Sampling):
    """Body of `POST /v1/tts/batch`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"items": [{"text": "Hello world"}, {"text": "Goodbye world"}], "temperature": 0.7}]
        }
    )

    # Items are validated one by one.
    items: list[Any] = Field(min_length=1, json_schema_extra={"items": BatchItem.model_json_schema()})
    chunk_length: ChunkLength | None = IGNORED_CHUNK_LENGTH
    format: Format = "wav"
    word_times: bool = WORD_TIMES


class BatchResult(BaseModel):
    """The result of one text of a batch."""

    success: bool
    audio_base64: str | None = None
    generation_time: float
    error: str | None = None
    error_code: str | None = None
    spoken_text: str | None = Field(None, description="Only with return_spoken_text.")
    words: list[Word] | None = Field(None, description="Only with word_times.")
    marks: list[SpokenMark] | None = Field(None, description="Only with word_times.")
    warning: str | None = Field(
        None, description="Skipped characters, or a text in another language. Absent if neither applies."
    )

    def content(self) -> bytes:
        """Return the result as JSON, without optional fields that are None."""
        optional = ("spoken_text", "words", "marks", "warning")
        left_out = {name for name in optional if getattr(self, name) is None}
        return self.model_dump_json(exclude=left_out).encode()


class BatchAnswer(BaseModel):
    """Answer of `POST /v1/tts/batch`: one result per item, in order."""

    success: bool
    results: list[BatchResult]
    total_time: float


class StartOptions(BaseModel):
    """When the audio of text that is still arriving starts. Default: the server's settings."""

    start_at: Literal["sentence", "clause", "word"] | None = Field(
        None,
        description="sentence or clause: start once one is complete; word: start with the first words and continue as "
        "more text arrives (only Qwen3-TTS).",
    )
    start_words: int | None = Field(None, ge=0, le=100, description="Start after this many words; 0: off.")
    start_pause_s: float | None = Field(
        None, ge=0, le=60, description="Start when no text arrives for this many seconds; 0: off."
    )

    def streams_text(self, settings: ServerSettings) -> bool:
        """Return whether a text is spoken as one utterance, which continues while text arrives."""
        return (self.start_at or settings.start_at) == "word"

    def early_start(self, settings: ServerSettings) -> EarlyStart:
        """Return these options; the server's settings replace those that are None. Off if `streams_text`."""
        if self.streams_text(settings):
            return EarlyStart()
        values = {name: getattr(self, name) for name in StartOptions.model_fields}
        at, words, pause_s = (getattr(settings, name) if value is None else value for name, value in values.items())
        return EarlyStart(at_clause=at == "clause", num_words=words, pause_s=pause_s)


class SessionConfig(Sampling, StartOptions):
    """First message of a WebSocket session, or a later one between two sentences."""

    type: Literal["session.config"]
    on_unsupported: OnUnsupported | None = SKIP_BY_DEFAULT
    voice: VoiceName | None = None
    response_format: Format = "pcm"
    chunk_profile: ChunkProfile = "ttfa"
    word_times: bool = Field(False, description="Send audio.words (when words are spoken) and audio.marks.")
    reference_audio: Base64Audio | None = None
    reference_text: str | None = None


class InputText(Strict):
    """A piece of text, which may end anywhere."""

    type: Literal["input.text"]
    text: str


class InputClear(Strict):
    """Drop the text that is not spoken yet, and stop the audio."""

    type: Literal["input.clear"]
    played_s: float | None = Field(
        None,
        ge=0,
        description="Seconds of audio that the client has played; `input.cleared` has this value, or the seconds of "
        "audio that were sent, whichever is less.",
    )


class InputDone(Strict):
    """The end of the text."""

    type: Literal["input.done"]


class VoiceAnswer(BaseModel):
    """One named voice, with the fields that clients of ElevenLabs' API read."""

    name: str
    voice_id: str = Field(description="The name.")
    category: Literal["premade", "cloned"] = Field(description="cloned: an added voice.")
    description: str
    is_default: bool
    source: Literal["checkpoint", "added"]
    seconds: float

    @classmethod
    def of(cls, voice: VoiceInfo) -> VoiceAnswer:
        return cls(
            name=voice.name,
            voice_id=voice.name,
            category="premade" if voice.source == "checkpoint" else "cloned",
            description=voice.description,
            is_default=voice.is_default,
            source=voice.source,
            seconds=round(voice.seconds, 3),
        )


class VoicesAnswer(BaseModel):
    """All named voices."""

    voices: list[VoiceAnswer]
    keeps_added: bool = Field(
        description="Whether added voices survive a restart of the server (requires S1_MINI_VOICES_PATH)."
    )


class VoiceForm(Strict):
    """The fields of `POST /v1/voices` besides the file `audio`."""

    name: str = Field(examples=["grandmother"], json_schema_extra={"pattern": r"^[a-z0-9][a-z0-9_-]{0,63}$"})
    text: str = Field("", description="Transcript of the recording, word for word; not needed for a voice file.")
    description: str = Field("", max_length=500)
    replace: bool = Field(False, description="Replace an added voice of this name.")


class ErrorDetail(BaseModel):
    """Code and message of an error."""

    code: str = Field(description="Stable code for programs.")
    message: str
    field: str | None = Field(description="The invalid field of the request.")
    request_id: str | None


class ErrorAnswer(BaseModel):
    """The shape of every error."""

    error: ErrorDetail


def encode_base64(data: bytes) -> str:
    """Encode in pieces, like `decode_base64`."""
    size = BASE64_WINDOW // 4 * 3
    return "".join(base64.b64encode(data[start : start + size]).decode() for start in range(0, len(data), size))


def decode_base64(text: str) -> bytes:
    """Decode a recording's base64, with or without a data: prefix. Raises `InvalidError`."""
    if text.startswith("data:"):
        text = text.partition(",")[2]
    if len(text) % 4 or "=" in text[:-2]:
        raise InvalidError("reference_audio", "is not base64: it is truncated or has trailing characters")
    try:
        # Decode in pieces, because one call holds the GIL: 40 ms and more for 16 MB.
        parts = (text[start : start + BASE64_WINDOW] for start in range(0, len(text), BASE64_WINDOW))
        return b"".join(base64.b64decode(part, validate=True) for part in parts)
    except (binascii.Error, ValueError) as error:
        raise InvalidError("reference_audio", f"is not base64: {error}") from None
