"""`POST /v1/speech` and `GET /v1/voices` with AWS's own client of Amazon Polly."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import soundfile
from botocore.config import Config
from botocore.exceptions import ClientError

from door_room import listening
from s1_mini import ProductionTTSEngine
from s1_mini.checkpoint.requests import list_voices
from s1_mini.cli.verb import named_checkpoint
from s1_mini.exceptions import ParameterError
from s1_mini.server import lexicons
from s1_mini.server.app import create_app
from s1_mini.server.errors import InvalidError
from s1_mini.server.member import ReplicaInfo
from s1_mini.server.protocols.polly import describe_voices, speech_marks
from s1_mini.server.settings import ServerSettings
from s1_mini.server.speech import Times
from s1_mini.server.voice_names import POLLY_VOICES, assign_voices
from s1_mini.text.split import sentence_spans
from s1_mini.types import SpokenMark, Word
from tests.server.conftest import Door, serving

TEXT = {"Text": "Good morning.", "VoiceId": "Joanna"}


def client_of(door: Door, key: str = "any") -> Any:
    return client_of_url(door.url, key)


def client_of_url(url: str, key: str = "any", **options: object) -> Any:
    return boto3.client(
        "polly",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key="secret",
        config=Config(retries={"max_attempts": 0}, **options),
    )


@pytest.fixture(scope="session")
def door(short_door: Door) -> Door:
    return short_door


@pytest.fixture
def polly(door: Door) -> Any:
    return client_of(door)


def error_of(polly: Any, **fields: object) -> tuple[str, int, str]:
    """Return name, status and message of a refused request."""
    with pytest.raises(ClientError) as caught:
        polly.synthesize_speech(**TEXT | {"OutputFormat": "mp3"} | fields)
    response = caught.value.response
    assert response["ResponseMetadata"]["RequestId"]
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Message"]


@pytest.mark.parametrize(
    ("form", "rate", "content_type"),
    [("mp3", None, "audio/mpeg"), ("mp3", "22050", "audio/mpeg"), ("ogg_opus", "48000", "audio/ogg")],
)
def test_boto3_gets_compressed_audio_at_the_rate_it_requests(
    polly: Any, form: str, rate: str | None, content_type: str
) -> None:
    sample_rate = {} if rate is None else {"SampleRate": rate}

    answer = polly.synthesize_speech(**TEXT, OutputFormat=form, Engine="neural", LanguageCode="en-US", **sample_rate)

    assert (answer["ContentType"], answer["RequestCharacters"]) == (content_type, 13)
    with soundfile.SoundFile(io.BytesIO(answer["AudioStream"].read())) as sound:
        assert sound.samplerate == int(rate or 44_100)


def test_raw_audio_has_the_rates_of_polly(polly: Any) -> None:
    def num_bytes(form: str, **fields: str) -> int:
        return len(polly.synthesize_speech(**TEXT, OutputFormat=form, **fields)["AudioStream"].read())

    size = num_bytes("pcm", SampleRate="8000")

    assert num_bytes("pcm") == pytest.approx(2 * size, abs=100)  # 16 kHz
    assert num_bytes("mulaw") == pytest.approx(size / 2, abs=100)  # 8 kHz, one byte a sample
    assert num_bytes("alaw", SampleRate="8000") == pytest.approx(size / 2, abs=100)


def test_audio_is_streamed_and_the_same_for_each_request(polly: Any) -> None:
    first = polly.synthesize_speech(**TEXT, OutputFormat="pcm")
    second = polly.synthesize_speech(**TEXT, OutputFormat="pcm")["AudioStream"].read()

    assert first["ResponseMetadata"]["HTTPHeaders"]["transfer-encoding"] == "chunked"
    assert first["AudioStream"].read() == second


def test_sentence_marks_are_json_lines_with_byte_offsets_and_need_no_times_of_words(polly: Any) -> None:
    text = "Ünder  the roof.\nHe said “no”. Really?"

    answer = polly.synthesize_speech(Text=text, VoiceId="Amy", OutputFormat="json", SpeechMarkTypes=["sentence"])
    marks = [json.loads(line) for line in answer["AudioStream"].read().splitlines()]

    assert answer["ContentType"] == "application/x-json-stream"
    assert [mark["value"] for mark in marks] == ["Ünder  the roof.", "He said “no”.", "Really?"]
    assert [text.encode()[mark["start"] : mark["end"]].decode() for mark in marks] == [mark["value"] for mark in marks]
    times = [mark["time"] for mark in marks]
    assert times[0] == 0
    assert times == sorted(set(times))


def test_word_marks_of_a_checkpoint_without_times_are_refused(polly: Any) -> None:
    name, status, message = error_of(polly, OutputFormat="json", SpeechMarkTypes=["word"])

    assert (name, status) == ("ValidationException", 400)
    assert "SpeechMarkTypes: is not supported by this model" in message


def test_words_mark_their_times_and_the_start_of_their_sentence() -> None:
    words = [Word("Oh", 0, 2, 0.1, 0.2), Word("Über", 4, 8, 0.75, 1.0)]

    lines = speech_marks("Oh! Über uns.", "text", ["word", "sentence"], Times(words), 1.0).decode().splitlines()

    assert lines == [
        '{"time":100,"type":"sentence","start":0,"end":3,"value":"Oh!"}',
        '{"time":100,"type":"word","start":0,"end":2,"value":"Oh"}',
        '{"time":750,"type":"sentence","start":4,"end":14,"value":"Über uns."}',
        '{"time":750,"type":"word","start":4,"end":9,"value":"Über"}',
    ]
    with pytest.raises(ParameterError, match="request sentence only"):
        speech_marks("Hi.", "text", ["word"], Times(), 1.0)


def test_ssml_has_marks_of_its_elements_and_no_tags_in_its_sentences() -> None:
    text = '<speak><p>Oh, <mark name="é"/>dear</p> <s>My. Word.</s></speak>'
    words = [
        Word(word, text.index(word), text.index(word) + len(word), number, number + 0.5)
        for number, word in enumerate(("Oh", "dear", "My", "Word"))
    ]
    mark = SpokenMark("é", text.index("<mark"), text.index("dear"), 1.0)

    lines = speech_marks(text, "ssml", ["sentence", "ssml"], Times(words, [mark]), 4.0).splitlines()

    marks = [json.loads(line) for line in lines]
    assert [(each["time"], each["type"], each["value"]) for each in marks] == [
        (0, "sentence", "Oh, dear"),
        (1000, "ssml", "é"),
        (2000, "sentence", "My."),
        (3000, "sentence", "Word."),
    ]
    assert text.encode()[marks[1]["start"] : marks[1]["end"]].decode() == '<mark name="é"/>'


def test_boto3_gets_the_times_of_ssml_marks(built_in: Door) -> None:
    text = '<speak>Mary had a little <mark name="animal"/>lamb.</speak>'
    kinds = ["sentence", "word", "ssml"]

    answer = client_of(built_in).synthesize_speech(
        Text=text, TextType="ssml", VoiceId="Joanna", OutputFormat="json", SpeechMarkTypes=kinds
    )
    marks = [json.loads(line) for line in answer["AudioStream"].read().splitlines()]

    *_, mark, last = marks
    expected = ["Mary had a little lamb.", "Mary", "had", "a", "little", "animal", "lamb"]
    assert [each["value"] for each in marks] == expected
    assert (mark["type"], mark["start"], mark["end"]) == ("ssml", 25, 46)  # as in Polly's documentation
    assert mark["time"] == last["time"] > 0


def test_sentences_are_found_in_text_with_any_white_space() -> None:
    text = "  A heading\n\nDr. No \t came.  He left! "

    assert [text[start:stop] for start, stop in sentence_spans(text)] == ["A heading", "Dr. No \t came.", "He left!"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"Text": ""}, ("ValidationException", 400, "Text: is empty")),
        ({"Text": "a" * 20_001}, ("TextLengthExceededException", 400, "Text: has 20001 characters; the limit is")),
        ({"VoiceId": "Nobody"}, ("ValidationException", 400, "VoiceId: ")),
        ({"SampleRate": "12345"}, ("InvalidSampleRateException", 400, "'12345' is not supported for mp3")),
        ({"OutputFormat": "ogg_vorbis"}, ("ValidationException", 400, "ogg_vorbis is not supported; use ogg_opus")),
        ({"OutputFormat": "wav"}, ("ValidationException", 400, "OutputFormat: 'wav'")),
        ({"OutputFormat": "json"}, ("ValidationException", 400, "SpeechMarkTypes: is missing")),
        ({"SpeechMarkTypes": ["word"]}, ("MarksNotSupportedForFormatException", 400, "needs OutputFormat json")),
        (
            {"OutputFormat": "json", "SpeechMarkTypes": ["ssml"]},
            ("SsmlMarksNotSupportedForTextTypeException", 400, "needs TextType ssml"),
        ),
        ({"Text": "<speak>Hi", "TextType": "ssml"}, ("InvalidSsmlException", 400, "Text: line 1")),
        ({"Text": "<speak><sing/></speak>", "TextType": "ssml"}, ("InvalidSsmlException", 400, "Text: line 1")),
        ({"OutputFormat": "json", "SpeechMarkTypes": ["viseme"]}, ("ValidationException", 400, "'viseme' is not")),
        (
            {"LexiconNames": ["w3c"]},
            ("LexiconNotFoundException", 404, "LexiconNames: unknown lexicon 'w3c'; available: "),
        ),
    ],
)
def test_refusals_have_the_names_of_polly_and_our_messages(
    polly: Any, fields: dict[str, Any], expected: tuple[str, int, str]
) -> None:
    kind, status, message = error_of(polly, **fields)

    assert (kind, status) == expected[:2]
    assert expected[2] in message


def test_ssml_may_use_the_names_of_polly_s_voices(short_engine: ProductionTTSEngine, robin: str) -> None:
    ssml = {"Text": '<speak><voice name="Brian">Hi.</voice></speak>', "TextType": "ssml", "VoiceId": "Joanna"}
    with serving(short_engine, voice_names={"Brian": robin}) as door:
        named, own = (
            client_of(door).synthesize_speech(**fields, OutputFormat="pcm")["AudioStream"].read()
            for fields in (ssml, {"Text": "Hi.", "VoiceId": robin})
        )

    assert named == own


def test_the_access_key_id_is_the_api_key(short_engine: ProductionTTSEngine) -> None:
    with serving(short_engine, api_key="opensesame") as door:
        spoken = client_of(door, "opensesame").synthesize_speech(**TEXT, OutputFormat="pcm")["AudioStream"].read()
        refused = error_of(client_of(door, "guess"), OutputFormat="pcm")
        other = "AWS4-HMAC-SHA256 Credential=opensesame/20261125/us-east-1/s3/aws4_request, SignedHeaders=host"
        with door.client() as http:
            assert http.get("/v1/voices", headers={"Authorization": other}).status_code == 401

    assert spoken
    assert refused[:2] == ("UnrecognizedClientException", 403)


def test_voices_have_polly_s_shape_for_its_client_only(polly: Any, door: Door, robin: str) -> None:
    voices = {voice["Id"]: voice for voice in polly.describe_voices()["Voices"]}
    british = polly.describe_voices(LanguageCode="en-GB", Engine="neural")["Voices"]
    with door.client() as http:
        plain = http.get("/v1/voices").json()

    assert robin in voices
    assert voices["Joanna"] | {"Gender": "Female", "LanguageCode": "en-US"} == voices["Joanna"]
    assert {voice["Id"] for voice in british} == {"Amy", "Arthur", "Brian", "Emma"}
    assert [voice["name"] for voice in plain["voices"]] == [robin]


def test_polly_s_names_are_built_in_voices_of_the_same_gender_and_accent_where_there_is_one() -> None:
    voices = list_voices(named_checkpoint(None), None).infos()
    descriptions = {voice.name: voice.description for voice in voices}

    assigned = assign_voices(POLLY_VOICES, voices)
    described = {voice["Id"]: voice for voice in describe_voices(voices, None)["Voices"]}

    assert all(f" {POLLY_VOICES[name][0]}," in descriptions[voice or ""] for name, voice in assigned.items())
    assert "American" in descriptions[assigned["Matthew"] or ""]
    assert "British" in descriptions[assigned["Brian"] or ""]
    assert described["alan"]["Gender"] == "Male"
    assert described["alan"]["LanguageCode"] == "en-GB"


PLS = """<?xml version="1.0"?><lexicon version="1.0" xmlns="http://www.w3.org/2005/01/pronunciation-lexicon"
alphabet="ipa" xml:lang="en-US"><lexeme><grapheme>{}</grapheme><alias>{}</alias></lexeme></lexicon>"""


@pytest.fixture(params=["memory", "folder"])
def storing(request: pytest.FixtureRequest, short_engine: ProductionTTSEngine, tmp_path: Path) -> Iterator[Door]:
    """A server that keeps lexicons in memory or in a folder."""
    with serving(short_engine, lexicons_path=tmp_path / "new" if request.param == "folder" else None) as door:
        yield door


def test_boto3_stores_lists_uses_and_deletes_lexicons(storing: Door) -> None:
    polly = client_of(storing)

    def spoken(text: str, **fields: object) -> bytes:
        fields |= {"Text": text, "VoiceId": "Joanna", "OutputFormat": "pcm"}
        audio: bytes = polly.synthesize_speech(**fields)["AudioStream"].read()
        return audio

    polly.put_lexicon(Name="w3c", Content=PLS.format("W3C", "web"))
    polly.put_lexicon(Name="other", Content=PLS.format("W3C", "wrong"))

    stored = polly.get_lexicon(Name="w3c")
    assert stored["Lexicon"] == {"Name": "w3c", "Content": PLS.format("W3C", "web")}
    attributes = stored["LexiconAttributes"]
    assert (attributes["LanguageCode"], attributes["LexemesCount"]) == ("en-US", 1)
    listed = polly.list_lexicons()["Lexicons"]
    assert [each["Name"] for each in listed] == ["other", "w3c"]
    assert listed[1]["Attributes"] == attributes
    assert spoken("The W3C.", LexiconNames=["w3c", "other"]) == spoken("The web.") != spoken("The W3C.")
    polly.delete_lexicon(Name="w3c")
    with pytest.raises(ClientError, match=r"LexiconNotFoundException.*unknown lexicon 'w3c'; available: other"):
        polly.get_lexicon(Name="w3c")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("w3c", "<lexicon><lexeme></lexicon>", "InvalidLexiconException.*line 1, column 20: not well-formed XML"),
        ("w3c", "<!DOCTYPE a SYSTEM 'b'><lexicon/>", "InvalidLexiconException.*document types"),
        ("w3c", "<lexicon/>", "InvalidLexiconException.*no lexeme with a grapheme and an alias"),
        ("w3c", PLS.format("a", "b" * 201), "InvalidLexiconException.*1 to 200 characters"),
        ("w3c", PLS.format("a", "b" * 40_000), "LexiconSizeExceededException.*the limit is 40000"),
        ("w-3c", PLS.format("a", "b"), "ValidationException.*'w-3c' is not 1 to 20 letters and digits"),
    ],
)
def test_a_lexicon_that_cannot_be_used_is_refused(polly: Any, name: str, content: str, expected: str) -> None:
    unchecked = client_of_url(polly.meta.endpoint_url, parameter_validation=False)

    with pytest.raises(ClientError, match=expected):
        unchecked.put_lexicon(Name=name, Content=content)
    assert polly.list_lexicons()["Lexicons"] == []


def test_the_number_of_lexicons_is_limited(storing: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexicons, "MAX_LEXICONS", 2)
    polly = client_of(storing)
    for name in ("a", "b", "b"):
        polly.put_lexicon(Name=name, Content=PLS.format("a", "b"))

    with pytest.raises(ClientError, match=r"MaxLexiconsNumberExceededException.*the limit of 2 lexicons is reached"):
        polly.put_lexicon(Name="c", Content=PLS.format("a", "b"))


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_name_that_differs_only_in_case_is_refused_because_some_systems_have_one_file_for_both(
    tmp_path: Path, in_folder: bool
) -> None:
    stored = lexicons.Lexicons(tmp_path if in_folder else None)
    stored.put("w3c", PLS.format("a", "b"))
    stored.put("w3c", PLS.format("a", "c"))

    with pytest.raises(InvalidError, match="LexiconName: W3C differs only in case from the stored w3c"):
        stored.put("W3C", PLS.format("a", "d"))
    assert stored.merged(["w3c"]) == {"a": "c"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff", "the file of broken is not UTF-8; upload it again"),
        (b"<lexicon>", "the file of broken: line 1, column 10: "),
        (None, "the file of broken cannot be read: "),
    ],
)
def test_a_damaged_file_affects_no_other_lexicon(
    short_engine: ProductionTTSEngine, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    (tmp_path / "polly-my-lex.pls").write_text(PLS.format("a", "b"))
    if content is None:
        (tmp_path / "polly-broken.pls").mkdir()  # no file, but something that cannot be read
    else:
        (tmp_path / "polly-broken.pls").write_bytes(content)
    with serving(short_engine, lexicons_path=tmp_path) as door:
        polly = client_of(door)
        polly.put_lexicon(Name="w3c", Content=PLS.format("W3C", "web"))
        listed = polly.list_lexicons()["Lexicons"]
        with pytest.raises(ClientError, match=f"InvalidLexiconException.*{reason}"):
            polly.synthesize_speech(OutputFormat="pcm", LexiconNames=["w3c", "broken"], **TEXT)
        if content is not None:
            polly.delete_lexicon(Name="broken")
            with pytest.raises(ClientError, match=r"LexiconNotFoundException.*available: w3c\b"):
                polly.delete_lexicon(Name="broken")

    assert [each["Name"] for each in listed] == ["w3c"]


def test_lexicons_are_only_for_signed_requests(door: Door) -> None:
    with door.client() as http:
        assert http.put("/v1/lexicons/w3c", json={"Content": PLS}).status_code == 404


def test_a_replica_stores_no_lexicon_that_the_others_cannot_see(
    short_engine: ProductionTTSEngine, tmp_path: Path
) -> None:
    settings, reason = ServerSettings(port=0), "set S1_MINI_SERVER_LEXICONS_PATH to a folder that they share"
    member = ReplicaInfo(0, 2, tmp_path / "socket", keeps_voices=False)
    ingress = create_app(short_engine, settings, has_peers=True)

    with listening(ingress, short_engine) as door, pytest.raises(ClientError, match=reason):
        client_of(door).put_lexicon(Name="w3c", Content=PLS.format("W3C", "web"))
    with pytest.raises(InvalidError, match=reason):
        create_app(short_engine, settings, member).state.lexicons.put("w3c", PLS.format("W3C", "web"))
