"""The compatibility table of docs/compatibility.md, which tests/server/test_compatibility.py checks line by line.

`python tests/compatibility.py` writes the page.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "compatibility.md"
CLIENTS = ("openai", "elevenlabs", "botocore")
LOCKS = ("requirements.lock.txt", "requirements-test.lock.txt")  # their versions


class Field(NamedTuple):
    """A field of a request, and values for it, each of which is sent in addition to `given`."""

    name: str  # `outer.inner` for the field of an object, `?name` for a parameter of the query
    acts: tuple[Any, ...] = ()  # the response changes
    ignored: tuple[Any, ...] = ()  # the response stays the same
    refused: tuple[Any, ...] = ()  # an error that names the field or the value
    note: str = ""
    given: dict[str, Any] = {}  # noqa: RUF012 - never changed


class Route(NamedTuple):
    """What a client sends to one route."""

    key: str
    title: str
    fields: tuple[Field, ...]


class Operation(NamedTuple):
    """A method of a client library, and whether this server has its route."""

    name: str
    route: str
    is_present: bool = False
    note: str = ""


SSML = {"Text": "<speak>Hi.<break/></speak>"}
SSML_MARK = {"Text": "<speak>Hi <mark name='here'/> there.</speak>", "TextType": "ssml"}
MARKS = SSML_MARK | {"OutputFormat": "json", "SpeechMarkTypes": ["sentence"]}
LOCATORS = [{"pronunciation_dictionary_id": "names", "version_id": "1"}]
MODEL = "acts if the model supports it; otherwise the header `X-Warning` says so"
AAC = "`aac` needs the extra `av`"
FIVE = [120, 160, 250, 290]

_ELEVENLABS = (
    Field("text", acts=("Hello.",), refused=("",)),
    Field("voice_id", acts=("alan",), refused=("zoe",), note="`S1_MINI_SERVER_VOICE_NAMES` maps other ids"),
    Field("output_format", acts=("pcm_8000", "mp3_22050_32", "opus_48000_64", "ulaw_8000"), refused=("aac_44100",)),
    Field("seed", acts=(2,)),
    Field("voice_settings.speed", acts=(1.2, 4), refused=(5,)),
    Field("voice_settings.stability", ignored=(0.1,)),
    Field("voice_settings.similarity_boost", ignored=(0.1,)),
    Field("voice_settings.style", ignored=(0.9,)),
    Field("voice_settings.use_speaker_boost", ignored=(False,)),
    Field("voice_settings.clone_strength", ignored=(0.5,)),
    Field("model_id", ignored=("eleven_flash_v2_5",)),
    Field("language_code", ignored=("de",), note=MODEL),
    Field("previous_text", ignored=("Is it?",)),
    Field("next_text", ignored=("It is.",)),
    Field("previous_request_ids", ignored=(["1"],)),
    Field("next_request_ids", ignored=(["2"],)),
    Field("pronunciation_dictionary_locators", ignored=(LOCATORS,), note="see [lexicons](markup.md#lexicons)"),
    Field("apply_text_normalization", ignored=("off",), note="`normalize` in the body acts"),
    Field("apply_language_text_normalization", ignored=(True,)),
    Field("optimize_streaming_latency", ignored=(4,)),
    Field("enable_logging", ignored=(False,)),
    Field("use_pvc_as_ivc", ignored=(True,)),
    Field("audio_effects", ignored=({"reverb": 0.5},)),
)

_SOCKET = (
    Field("text", acts=("Hello. ",)),
    Field("voice_settings.speed", acts=(1.2,), refused=(5,)),
    Field("voice_settings.stability", ignored=(0.1,)),
    Field("voice_settings.similarity_boost", ignored=(0.1,)),
    Field("voice_settings.style", ignored=(0.9,)),
    Field("voice_settings.use_speaker_boost", ignored=(False,)),
    Field("flush", acts=(True,)),
    Field("generation_config", ignored=({"chunk_length_schedule": FIVE},)),
    Field("pronunciation_dictionary_locators", ignored=(LOCATORS,)),
    Field("xi_api_key", ignored=("key",), note="the key is read from the header"),
    Field("authorization", ignored=("Bearer key",), note="the key is read from the header"),
    Field("?output_format", acts=("pcm_8000", "ulaw_8000"), refused=("aac_44100",)),
    Field("?seed", acts=(2,), refused=(-1,)),
    Field("?auto_mode", acts=("true",)),
    Field("?sync_alignment", acts=("true",)),
    Field("?enable_ssml_parsing", acts=("true",), given={"text": "One <break time='1s'/> two. "}),
    Field("?inactivity_timeout", refused=(0,), note="shortens `S1_MINI_SERVER_WEBSOCKET_IDLE_S`"),
    Field("?language_code", ignored=("de",), note="acts if the model supports it"),
    Field("?model_id", ignored=("eleven_flash_v2_5",)),
    Field("?enable_logging", ignored=("false",)),
    Field("?apply_text_normalization", ignored=("off",)),
)

_KOKORO = (
    Field("input", acts=("Hello.",), refused=("",)),
    Field("model", ignored=("kokoro",)),
    Field("voice", acts=("alan", "am_michael"), refused=("af_unknown", "clara+alan"), note="voices cannot be mixed"),
    Field("response_format", acts=("mp3", "opus", "aac", "flac", "wav"), refused=("m4a",), note=AAC),
    Field("speed", acts=(1.2, 4), refused=(5,)),
    Field("return_download_link", ignored=(True,)),
    Field("lang_code", ignored=("a",), note="`language` acts if the model supports it"),
    Field("volume_multiplier", ignored=(0.5,), note="`gain_db` acts"),
    Field("normalization_options", ignored=({"normalize": False},), note="`normalize` acts"),
    Field("allow_voice_tags", ignored=(True,), note="`text_type` acts"),
    Field("ssml", ignored=(True,), note="`text_type` acts"),
    Field("voice_aliases", ignored=({"narrator": "clara"},), note="see `S1_MINI_SERVER_VOICE_NAMES`"),
)

ROUTES = (
    Route(
        "openai",
        "OpenAI: `POST /v1/audio/speech`",
        (
            Field("input", acts=("Hello.",), refused=("",)),
            Field("model", ignored=("tts-1-hd",)),
            Field("voice", acts=("alan", {"id": "alan"}, "onyx"), refused=("zoe",)),
            Field("response_format", acts=("mp3", "opus", "aac", "flac", "wav"), refused=("m4a",), note=AAC),
            Field("speed", acts=(1.2, 4), refused=(5,)),
            Field("stream_format", acts=("sse",), refused=("ws",)),
            Field("instructions", ignored=("Whisper.",), note=MODEL),
        ),
    ),
    Route("elevenlabs", "ElevenLabs: `POST /v1/text-to-speech/{voice_id}`", _ELEVENLABS),
    Route("elevenlabs_stream", "ElevenLabs: `POST /v1/text-to-speech/{voice_id}/stream`", _ELEVENLABS),
    Route("elevenlabs_timed", "ElevenLabs: `POST /v1/text-to-speech/{voice_id}/with-timestamps`", _ELEVENLABS),
    Route(
        "elevenlabs_stream_timed",
        "ElevenLabs: `POST /v1/text-to-speech/{voice_id}/stream/with-timestamps`",
        _ELEVENLABS,
    ),
    Route(
        "stream_input",
        "ElevenLabs: messages and query (`?`) of the WebSocket `/v1/text-to-speech/{voice_id}/stream-input`",
        (*_SOCKET, Field("try_trigger_generation", ignored=(True,)), Field("generator_config", ignored=({},))),
    ),
    Route(
        "multi_stream_input",
        "ElevenLabs: messages and query (`?`) of the WebSocket `/v1/text-to-speech/{voice_id}/multi-stream-input`",
        (
            *_SOCKET,
            Field("context_id", acts=("second",), refused=("x" * 300,)),
            Field("close_context", acts=(True,)),
            Field("close_socket", acts=(True,)),
        ),
    ),
    Route(
        "polly",
        "Amazon Polly: `SynthesizeSpeech`",
        (
            Field("Text", acts=("Hello.",), refused=("",)),
            Field("VoiceId", acts=("Matthew", "alan"), refused=("Hans",)),
            Field("OutputFormat", acts=("mp3", "ogg_opus", "mulaw", "alaw"), refused=("ogg_vorbis",)),
            Field("SampleRate", acts=("8000", "24000"), refused=("11025",)),
            Field("SpeechMarkTypes", acts=(["word"], ["ssml"]), refused=(["viseme"],), given=MARKS),
            Field("TextType", acts=("ssml",), refused=("markdown",), given=SSML),
            Field("LexiconNames", acts=(["names"],), refused=(["unknown"],)),
            Field("Engine", ignored=("neural",)),
            Field("LanguageCode", ignored=("en-GB",)),
        ),
    ),
    Route(
        "kokoro",
        "Kokoro-FastAPI: `POST /v1/audio/speech`",
        (
            *_KOKORO,
            Field("stream", ignored=(False,), note="the same audio; the response then has its length"),
            Field("download_format", ignored=("wav",)),
            Field("return_timing", ignored=(True,)),
        ),
    ),
    Route(
        "captions",
        "Kokoro-FastAPI: `POST /dev/captioned_speech`",
        (
            *_KOKORO,
            Field("stream", acts=(True,), note="true, the default: JSON lines"),
            Field("return_timestamps", acts=(False,)),
        ),
    ),
)

OPERATIONS = {
    "OpenAI": (
        Operation("audio.speech.create", "POST /v1/audio/speech", is_present=True),
        Operation("audio.voices.create", "POST /v1/audio/voices", is_present=True),
        Operation("audio.voices.delete", "DELETE /v1/audio/voices/{id}", is_present=True),
        Operation("audio.voice_consents.create", "POST /v1/audio/voice_consents", is_present=True),
        Operation("audio.voice_consents.delete", "DELETE /v1/audio/voice_consents/{id}", is_present=True),
        Operation("audio.voice_consents.list", "GET /v1/audio/voice_consents", is_present=True),
        Operation("audio.voice_consents.retrieve", "GET /v1/audio/voice_consents/{id}", is_present=True),
        Operation("audio.voice_consents.update", "POST /v1/audio/voice_consents/{id}", is_present=True),
        Operation("models.list", "GET /v1/models", is_present=True),
        Operation("models.retrieve", "GET /v1/models/{id}", is_present=True),
        Operation("models.delete", "DELETE /v1/models/{id}"),
    ),
    "ElevenLabs": (
        Operation("text_to_speech.convert", "POST /v1/text-to-speech/{id}", is_present=True),
        Operation("text_to_speech.stream", "POST /v1/text-to-speech/{id}/stream", is_present=True),
        Operation(
            "text_to_speech.convert_with_timestamps", "POST /v1/text-to-speech/{id}/with-timestamps", is_present=True
        ),
        Operation(
            "text_to_speech.stream_with_timestamps",
            "POST /v1/text-to-speech/{id}/stream/with-timestamps",
            is_present=True,
        ),
        Operation("text_to_speech.convert_realtime", "WebSocket …/stream-input", is_present=True, note="needs TLS"),
        Operation("text_to_dialogue.convert", "POST /v1/text-to-dialogue", note="see [markup](markup.md)"),
        Operation("text_to_dialogue.stream", "POST /v1/text-to-dialogue/stream"),
        Operation("text_to_dialogue.convert_with_timestamps", "POST /v1/text-to-dialogue/with-timestamps"),
        Operation("text_to_dialogue.stream_with_timestamps", "POST /v1/text-to-dialogue/stream/with-timestamps"),
        Operation("voices.get_all", "GET /v1/voices", is_present=True),
        Operation("voices.get", "GET /v1/voices/{id}", is_present=True),
        Operation("voices.delete", "DELETE /v1/voices/{id}", is_present=True),
        Operation(
            "voices.search",
            "GET /v2/voices",
            is_present=True,
            note="pages, `search`, `category`, `voice_ids` and `sort_direction` act; other parameters are ignored",
        ),
        Operation("voices.update", "POST /v1/voices/{id}/edit"),
        Operation("voices.share", "POST /v1/voices/add/{user}/{id}"),
        Operation("voices.get_shared", "GET /v1/shared-voices"),
        Operation("voices.find_similar_voices", "POST /v1/similar-voices"),
        Operation("voices.replicate_to_isolated_environment", "POST /v1/voices/{id}/replicate-to-isolated-environment"),
        Operation("models.list", "GET /v1/models", is_present=True, note="in OpenAI's format"),
    ),
    "Amazon Polly": (
        Operation("SynthesizeSpeech", "POST /v1/speech", is_present=True),
        Operation("DescribeVoices", "GET /v1/voices", is_present=True),
        Operation("PutLexicon", "PUT /v1/lexicons/{name}", is_present=True),
        Operation("GetLexicon", "GET /v1/lexicons/{name}", is_present=True),
        Operation("ListLexicons", "GET /v1/lexicons", is_present=True),
        Operation("DeleteLexicon", "DELETE /v1/lexicons/{name}", is_present=True),
        Operation("StartSpeechSynthesisStream", "POST /v1/synthesisStream"),
        Operation("StartSpeechSynthesisTask", "POST /v1/synthesisTasks"),
        Operation("GetSpeechSynthesisTask", "GET /v1/synthesisTasks/{id}"),
        Operation("ListSpeechSynthesisTasks", "GET /v1/synthesisTasks"),
        Operation("ListTagsForResource", "GET /v1/listTagsForResource/"),
        Operation("TagResource", "POST /v1/tagResource"),
        Operation("UntagResource", "POST /v1/untagResource"),
    ),
    "Kokoro-FastAPI": (
        Operation("create_speech", "POST /v1/audio/speech", is_present=True),
        Operation("list_voices", "GET /v1/audio/voices", is_present=True),
        Operation("list_models", "GET /v1/models", is_present=True),
        Operation("retrieve_model", "GET /v1/models/{id}", is_present=True),
        Operation("combine_voices", "POST /v1/audio/voices/combine"),
        Operation("download_audio_file", "GET /v1/download/{filename}"),
        Operation("create_captioned_speech", "POST /dev/captioned_speech", is_present=True),
        Operation("create_dialogue", "POST /dev/dialogue"),
        Operation("phonemize_text", "POST /dev/phonemize"),
        Operation("generate_from_phonemes", "POST /dev/generate_from_phonemes"),
        Operation("unload_model", "POST /dev/unload"),
    ),
}

HEAD = """# Compatibility, field by field

What this server does with each field and method of other services' clients. `python tests/compatibility.py` writes this
page from the table that [`test_compatibility.py`](../tests/server/test_compatibility.py) checks: it sends each value
below to a server with the built-in voice, through the service's own client library, and compares the response with that
to the same request without it. A field of several routes is sent to the first of them, and ignored fields to all.

- **acts**: the response changes.
- **ignored**: the field is accepted, and the response stays the same.
- **refused**: the response is an error that names the field or the value.

The fields and methods are those of openai {openai}, elevenlabs {elevenlabs} (text to speech, dialogue, voices, models)
and botocore {botocore}. Parameters of the query were copied from ElevenLabs' API reference, and Kokoro-FastAPI's fields
from `api/src/structures/schemas.py` and `api/src/routers` of
[its repository](https://github.com/remsky/Kokoro-FastAPI) at 26eec06 (0.8.0). A test fails when a client gets another
field. This server's own fields, such as `language` and `start_at`, are not listed. [clients.md](clients.md) and
[clients_more.md](clients_more.md) explain how to use them.
"""


def page() -> str:
    """Return the page as Markdown."""
    locks = "".join((ROOT / name).read_text(encoding="utf-8") for name in LOCKS)
    versions = {name: re.findall(rf"^{name}==([\d.]+)", locks, re.MULTILINE)[0] for name in CLIENTS}
    return "\n".join([HEAD.format(**versions), *_tables()])


def _tables() -> Iterator[str]:
    titles: dict[int, list[str]] = {}  # routes with the same fields share a table
    for route in ROUTES:
        titles.setdefault(id(route.fields), []).append(route.title)
    for route in ROUTES:
        first, *more = titles.pop(id(route.fields), [""])
        if first:
            yield f"## {first}\n"
            if more:
                yield f"Also {', '.join(title.removeprefix('ElevenLabs: ') for title in more)}.\n"
            yield from _table(route.fields)
    yield "## Methods\n"
    for api, operations in OPERATIONS.items():
        yield f"| {api} | route | |"
        yield "|---|---|---|"
        for each in sorted(operations, key=lambda each: not each.is_present):
            state = "**yes**" if each.is_present else "missing"
            yield f"| `{each.name}` | `{each.route}` | {'; '.join(filter(None, (state, each.note)))} |"
        yield ""


def _table(fields: Sequence[Field]) -> Iterator[str]:
    yield "| field | effect | |"
    yield "|---|---|---|"
    is_plain = {field.name: bool(field.ignored) and not field.note for field in fields}
    for field in sorted(fields, key=lambda field: bool(field.ignored)):
        if not is_plain[field.name]:
            yield f"| `{field.name}` | {_effect(field)} | {field.note} |"
    yield f"| {', '.join(f'`{name}`' for name, plain in is_plain.items() if plain)} | ignored | |"
    yield ""


def _effect(field: Field) -> str:
    kinds = {"**acts**": field.acts, "ignored": field.ignored, "refused": field.refused}
    shown = (f"{kind}: {', '.join(map(_shown, values))}" for kind, values in kinds.items() if values)
    return "; ".join(shown)


def _shown(value: Any) -> str:
    if value == "":
        return "empty"
    if isinstance(value, str):
        return f"`{value}`" if len(value) < 60 else f"{len(value)} characters"
    return f"`{json.dumps(value)}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
