"""Requests with markup: their parts are spoken in order, with pauses of exact length, and end together."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from held_generation import SOUNDS, held_generation
from s1_mini import AudioChunk, EngineConfig, ProductionTTSEngine, TTSRequest
from s1_mini.exceptions import (
    MarkupError,
    NothingToSpeakError,
    ParameterError,
    TextError,
    VoiceNotFoundError,
)
from s1_mini.families.base import Description
from s1_mini.runtime.finishing import MarkupFinishing, PartFinish
from s1_mini.runtime.planner import Plan, Planner, _request_for
from s1_mini.text.form import TextForm
from s1_mini.text.lexicon import Lexicons
from s1_mini.types import SharedOptions, Timing, Word
from s1_mini.voices.format import VoiceFormat
from s1_mini.voices.registry import VoiceRegistry
from waiting import wait_until

RATE = 44_100
FRAME = 2048
FEW = {"seed": 3, "max_new_tokens": 4}
JOINT = round(0.12 * RATE)


@pytest.fixture(scope="module")
def speaking(tiny: Path, tone: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProductionTTSEngine]:
    """An engine with the voices low and high."""
    words, voices = tmp_path_factory.mktemp("lexicon") / "words.txt", tmp_path_factory.mktemp("voices")
    words.write_text("nginx = engine x\n")
    (voices / "high.lexicon").write_text("apache = a patchy\n")
    files = {"lexicon_path": words, "voices_path": voices}
    config = EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=2, accept_ssml=True, **files)
    with ProductionTTSEngine(config) as engine:
        engine.add_voice("low", tone, "Ah.")
        engine.add_voice("high", tone[::2].copy(), "Ah.")
        yield engine


def spoken(engine: ProductionTTSEngine, text: str, **options: object) -> np.ndarray:
    return engine.generate(text, **{**FEW, **options}).audio  # type: ignore[arg-type]


def test_a_pause_is_all_silence_between_two_sounds(speaking: ProductionTTSEngine) -> None:
    ssml = '<speak><break time="250ms"/>One.<break time="1.5s"/>Two.<break time="100ms"/></speak>'
    audio = spoken(speaking, ssml, text_type="ssml")

    loud = np.flatnonzero(np.abs(audio) > np.abs(audio).max() / 50)
    gaps = np.concatenate(([loud[0]], np.diff(loud), [len(audio) - loud[-1]])) / RATE
    assert gaps[gaps > 0.08] == pytest.approx([0.25, 1.5, 0.1], abs=0.015)


def test_streamed_audio_is_the_whole_audio(speaking: ProductionTTSEngine) -> None:
    text = "One. [pause 1.2s] Two, [low] three. [high] Four. " * 3
    chunks = list(speaking.stream(text, text_type="marked", **FEW))
    whole = speaking.generate(text, text_type="marked", **FEW)

    async def stream() -> list[AudioChunk]:
        return [chunk async for chunk in speaking.stream_async(text, text_type="marked", **FEW)]

    streamed = asyncio.run(stream())
    for each in (chunks, streamed):
        assert np.array_equal(np.concatenate([chunk.audio for chunk in each]), whole.audio)
        assert [chunk.finish_reason for chunk in each if chunk.finish_reason] == ["length"]
        assert each[-1].timing is not None
        assert each[-1].timing.first_chunk_s is not None
        assert each[0].spoken_text == whole.spoken_text == "One. Two, three. Four. " * 2 + "One. Two, three. Four."
        assert not any(chunk.spoken_text for chunk in each[1:])
    assert sum(chunk.frames for chunk in chunks) == whole.frames == 12 * 4


def test_each_voice_speaks_its_part(speaking: ProductionTTSEngine) -> None:
    audio = spoken(speaking, "[low] Hello.[pause 0s][high] Hello.", text_type="marked", temperature=0)

    low, high = (spoken(speaking, " Hello.", voice=name, temperature=0) for name in ("low", "high"))
    assert not np.array_equal(low, high)
    assert np.array_equal(audio, np.concatenate([low, high]))


def test_a_part_without_a_voice_has_that_of_the_request(speaking: ProductionTTSEngine, tone: np.ndarray) -> None:
    ssml = '<speak>Hi.<break time="0s"/><voice name="high">Hi.</voice></speak>'
    options = {"text_type": "ssml", "temperature": 0}
    high = spoken(speaking, "Hi.", voice="high", temperature=0)

    like_tone = spoken(speaking, ssml, reference_audio=tone, reference_text="Ah.", **options)
    assert np.array_equal(like_tone, np.concatenate([spoken(speaking, "Hi.", voice="low", temperature=0), high]))
    assert np.array_equal(like_tone, spoken(speaking, ssml, voice="low", **options))


def test_the_lexicon_of_a_voice_respells_what_that_voice_speaks(
    speaking: ProductionTTSEngine, tone: np.ndarray
) -> None:
    def spoken_text(text: str, **options: object) -> str:
        return speaking.generate(text, **{**FEW, **options}).spoken_text  # type: ignore[arg-type]

    assert spoken_text("Apache, nginx", voice="high") == "a patchy, engine x"
    assert spoken_text("Apache", voice="high", lexicon={"apache": "a helicopter"}) == "a helicopter"
    assert spoken_text("Apache", voice="low") == "Apache"
    assert spoken_text("Apache", reference_audio=tone, reference_text="Ah.") == "Apache"
    assert spoken_text("[high] Apache. [low] Apache.", text_type="marked").split() == ["a", "patchy.", "Apache."]


def test_the_lexicon_of_a_deleted_voice_is_not_used_for_a_new_voice_of_its_name(
    tiny: Path, tone: np.ndarray, tmp_path: Path
) -> None:
    (tmp_path / "robin.lexicon").write_text("apache = a patchy\n")
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", voices_path=tmp_path)) as engine:
        engine.add_voice("robin", tone, "Ah.")
        before = engine.generate("Apache", voice="robin", **FEW).spoken_text
        engine.delete_voice("robin")
        engine.add_voice("robin", tone, "Ah.")
        after = engine.generate("Apache", voice="robin", **FEW).spoken_text

    assert (before, after) == ("a patchy", "Apache")


def test_markup_may_use_other_names_of_voices(speaking: ProductionTTSEngine) -> None:
    names = {"joanna": "high", "default": None}
    request = TTSRequest.of('<speak><voice name="Joanna">Apache.</voice></speak>', text_type="ssml", **FEW)

    async def speak() -> np.ndarray:
        stream = speaking.submit(replace(request, voice_names=names))
        return np.concatenate([chunk.audio async for chunk in stream])

    assert np.array_equal(asyncio.run(speak()), spoken(speaking, "Apache.", voice="high"))
    with pytest.raises(VoiceNotFoundError, match="'Joanna'"):
        speaking.generate(request.text, text_type="ssml")


def test_speed_and_gain_add_to_those_of_the_request(speaking: ProductionTTSEngine) -> None:
    ssml = '<speak><prosody rate="200%" volume="-6dB">Hi.</prosody></speak>'

    expected = spoken(speaking, "Hi.", speed=1.5, gain_db=-4.0)
    assert np.array_equal(spoken(speaking, ssml, text_type="ssml", speed=0.75, gain_db=2.0), expected)
    with pytest.raises(MarkupError, match=r"line 1, column 43: the speed is 8 here; use 0.25 to 4"):
        spoken(speaking, ssml, text_type="ssml", speed=4.0)
    with pytest.raises(MarkupError, match="the gain is -46 dB here; use -40 to 20"):
        spoken(speaking, ssml, text_type="ssml", gain_db=-40.0)


def test_the_output_rate_applies_to_speech_and_pauses(speaking: ProductionTTSEngine) -> None:
    response = speaking.generate("Hi. [pause 1s]", text_type="marked", sample_rate=8000, **FEW)

    assert response.sample_rate == 8000
    assert len(response.audio) == round(4 * FRAME * 8000 / RATE) + 8000


def test_only_a_pause_is_silence(speaking: ProductionTTSEngine) -> None:
    response = speaking.generate("<speak><break time='2s'/></speak>", text_type="ssml")

    assert len(response.audio) == 2 * RATE
    assert not response.audio.any()
    assert response.finish_reason == "stop"


def test_words_of_the_servers_and_the_requests_lexicon_are_respelt(speaking: ProductionTTSEngine) -> None:
    plain = speaking.generate("nginx and SQL", lexicon={"SQL": "sequel"}, **FEW)
    marked = speaking.generate("<speak>nginx</speak>", text_type="ssml", lexicon={"nginx": "other"}, **FEW)

    assert plain.spoken_text == "engine x and sequel"
    assert np.array_equal(plain.audio, spoken(speaking, "engine x and sequel"))
    assert marked.spoken_text == "other"


def test_a_setting_reads_whole_ssml_without_text_type(speaking: ProductionTTSEngine, tiny: Path) -> None:
    assert speaking.generate("<speak>a <s>b</s></speak>", **FEW).spoken_text == "a\n\nb"
    assert speaking.generate("say <speak>a</speak>", **FEW).spoken_text == "say <speak>a</speak>"
    assert not EngineConfig(checkpoint_path=tiny).accept_ssml


def test_markup_in_a_plain_text_stays_text(engine: ProductionTTSEngine) -> None:
    text = "<speak>[pause 1s] [low]</speak>"

    assert engine.generate(text, **FEW).spoken_text == text


@pytest.mark.parametrize(
    ("text", "options", "error", "reason"),
    [
        ("<speak>One.<voice name='nobody'>Two.</voice></speak>", {}, VoiceNotFoundError, "nobody"),
        ("<speak>One.</speak>", {"voice": "nobody"}, VoiceNotFoundError, "nobody"),
        ("<speak>One.", {}, MarkupError, "line 1, column 12"),
        ("<speak> ... </speak>", {}, NothingToSpeakError, "nothing to speak"),
        ("<speak>" + "x" * 20_000 + "</speak>", {}, TextError, "20015 characters"),
        ("<speak>" + "a " * 200 + "</speak>", {"lexicon": {"a": "b" * 200}}, TextError, "40200 characters after all"),
        ("<speak>a</speak>", {"text_type": "xml"}, ParameterError, "text_type: must be one of text, ssml, marked"),
        ("a", {"lexicon": {"a": ""}}, ParameterError, "lexicon: 'a = '"),
        ("a", {"lexicon": {str(n): "b" for n in range(257)}}, ParameterError, "has 257 entries; the limit is 256"),
    ],
)
def test_everything_is_checked_before_any_part_is_submitted(
    text: str, options: dict[str, object], error: type[Exception], reason: str, speaking: ProductionTTSEngine
) -> None:
    accepted = speaking.health_check()["queue"]["accepted"]

    with pytest.raises(error, match=reason):
        speaking.stream(text, **{"text_type": "ssml", **options})  # type: ignore[arg-type]

    assert speaking.health_check()["queue"]["accepted"] == accepted


def test_an_unsupported_character_is_reported_with_the_place_of_its_part() -> None:
    request = TTSRequest.of("<speak>One.<break/>两</speak>", text_type="ssml")

    with pytest.raises(MarkupError, match=r"line 1, column 20: in the part that begins here, .* cannot pronounce"):
        plan(request)

    skipping = plan(replace(request, on_unsupported="skip"))
    assert [part.request.text for part in skipping.parts] == ["One."]
    assert skipping.end_pause_s == 0.25
    assert "Skipped characters that this voice cannot pronounce: '两'." in skipping.warnings


def plan(request: TTSRequest) -> Plan:
    form = TextForm("en", frozenset("abcdefghijklmnopqrstuvwxyzO ."))
    return Planner(EngineConfig(), form, Description(RATE, NO_FORM), NO_VOICES, Lexicons()).plan(request)


class _NoVoices(VoiceRegistry):
    def __init__(self) -> None:
        pass


NO_VOICES = _NoVoices()
NO_FORM = VoiceFormat({}, "", RATE, lambda _: 0.0)


# A value other than the default for each option of a request.
OPTIONS_OF_A_PART = {
    "max_new_tokens": 7,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 5,
    "repetition_penalty": 1.5,
    "seed": 3,
    "voice": "high",
    "language": "en",
    "instructions": "Whisper.",
    "chunk_profile": "ttfa",
    "normalize": "off",
    "on_unsupported": "skip",
    "speed": 1.5,
    "gain_db": -3.0,
    "sample_rate": 8000,
    "word_times": True,
    "pauses": {"paragraph": 1.0},
}
OF_THE_WHOLE = {"text_type", "lexicon"}  # applied to the whole text before it is divided


def test_each_part_of_a_marked_text_gets_each_option() -> None:
    assert OPTIONS_OF_A_PART.keys() | OF_THE_WHOLE == SharedOptions.__annotations__.keys()
    ssml = "<speak>One.<break/>One.</speak>"
    given, expected = (TTSRequest.of(text, **OPTIONS_OF_A_PART) for text in (ssml, "One."))

    parts = plan(TTSRequest.of(ssml, text_type="ssml")).parts
    first, second = (_request_for(given, part.segment, number) for number, part in enumerate(parts))

    for request in (first, second):
        assert replace(request, sampling={}) == replace(expected, sampling={})
        assert {**request.sampling, "seed": 3} == expected.sampling
    assert first.sampling["seed"] != second.sampling["seed"]


def test_words_are_placed_in_the_source_and_in_the_whole_audio() -> None:
    made = plan(TTSRequest.of("<speak>ab<break time='10ms'/>cd</speak>", text_type="ssml", seed=1))
    finishing = MarkupFinishing(made, [PartFinish()] * 2, RATE, None)
    word, wave = Word("x", 0, 2, 0.01, 0.05), np.ones(100, np.float32)
    given = [AudioChunk(wave, RATE, 1, words=(word,)), AudioChunk(wave, RATE, 0, "stop", Timing(1.0, 2.0, 3.0))] * 2

    chunks = [finished for chunk in given for finished in finishing.feed(chunk, None)]

    assert [(word.start, word.stop, word.start_s, word.end_s) for chunk in chunks for word in chunk.words] == [
        (7, 9, 0.01, 0.05),
        (29, 31, pytest.approx(0.01 + 641 / RATE), pytest.approx(0.05 + 641 / RATE)),
    ]
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["stop"]


def test_a_consumer_that_stops_cancels_all_parts_in_the_engine(speaking: ProductionTTSEngine) -> None:
    async def leave() -> None:
        chunks = speaking.stream_async("One. [pause 0s] Two. [pause 0s] Three.", text_type="marked", seed=1)
        await anext(chunks)
        await chunks.aclose()

    with held_generation(SOUNDS) as held:
        asyncio.run(leave())
        wait_until(lambda: not speaking.health_check()["requests"])
        held.release()


def test_other_requests_are_not_affected(speaking: ProductionTTSEngine) -> None:
    expected = spoken(speaking, "Alone.")
    chunks = speaking.stream("One. [pause 0s] Two. [pause 0s] Three. [pause 0s] Four.", text_type="marked", **FEW)
    next(chunks)

    assert np.array_equal(spoken(speaking, "Alone."), expected)
    assert list(chunks)[-1].finish_reason == "length"


def test_a_marked_text_takes_one_place_in_the_queue_and_survives_a_reload(tiny: Path, tmp_path: Path) -> None:
    other = shutil.copytree(tiny, tmp_path / "other")
    config = EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=1, max_queue_size=1)
    with ProductionTTSEngine(config) as engine:
        text = " [pause 0s] ".join(["One."] * 6)
        expected = spoken(engine, text, text_type="marked")
        chunks = engine.stream(text, text_type="marked", **FEW)
        engine.reload(other)

        assert np.array_equal(np.concatenate([chunk.audio for chunk in chunks]), expected)


def test_parts_without_a_voice_are_spoken_in_the_voice_of_the_first(engine: ProductionTTSEngine) -> None:
    both = spoken(engine, "One.[pause 0s]One.", text_type="marked", temperature=0)
    alone = spoken(engine, "One.", temperature=0)

    assert np.array_equal(both[: len(alone)], alone)
    assert not np.array_equal(both[len(alone) :], alone)  # the second part continues the first
