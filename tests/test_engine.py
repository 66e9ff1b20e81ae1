"""The engine's public behaviour, tested with a random checkpoint."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from held_generation import held_generation
from s1_mini import EngineConfig, EngineState, GenerationResponse, ProductionTTSEngine
from s1_mini.core.output_queue import Output
from s1_mini.exceptions import (
    CheckpointNotFoundError,
    ConfigurationError,
    EngineNotReadyError,
    GenerationError,
    ParameterError,
    ReferenceAudioError,
    RequestError,
    RequestTimeoutError,
    TextError,
)
from s1_mini.families.s1.network import S1Network
from s1_mini.runtime.fair_pool import FairPool
from s1_mini.runtime.running import SHORT_TEXT, EngineRuntime, Preparation, vram
from s1_mini.text.form import NormalizedText, TextForm
from s1_mini.types import TTSRequest
from s1_mini.voices.reference import Check
from waiting import EVENTUALLY_S, wait_until


def test_a_text_becomes_sound_of_whole_frames(engine: ProductionTTSEngine) -> None:
    response = engine.generate("Hello.", seed=1, max_new_tokens=12)

    assert response.success
    assert response.frames == 12
    assert len(response.audio) == 12 * 2048
    assert response.finish_reason == "length"
    assert 0 < np.abs(response.audio).max() <= 1
    assert response.real_time_factor > 0


def test_a_callback_that_fails_is_logged_and_harms_no_request(
    engine: ProductionTTSEngine, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("broken")

    request = TTSRequest("Hello.", sampling={"max_new_tokens": 3}, on_end=fail)
    assert sum(chunk.frames for chunk in engine.submit(request)) == 3
    assert engine.generate("Hello.", max_new_tokens=3).frames == 3
    assert "the callback `on_end` of a request failed" in caplog.text


def test_streamed_sound_is_the_whole_sound(engine: ProductionTTSEngine) -> None:
    text = "One sentence here. " * 5

    chunks = list(engine.stream(text, seed=4, max_new_tokens=15))
    whole = engine.generate(text, seed=4, max_new_tokens=15)

    assert np.array_equal(np.concatenate([chunk.audio for chunk in chunks]), whole.audio)
    assert [chunk.finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert all(chunk.wave is chunk.audio for chunk in chunks)  # its older name
    assert sum(chunk.frames for chunk in chunks) == whole.frames


def test_the_same_seed_speaks_the_same_and_no_seed_does_not(engine: ProductionTTSEngine) -> None:
    first, second = (engine.generate("Hello.", seed=7, max_new_tokens=8).audio for _ in range(2))
    third, fourth = (engine.generate("Hello.", max_new_tokens=8).audio for _ in range(2))

    assert np.array_equal(first, second)
    assert not np.array_equal(third, fourth)


def test_a_reference_changes_the_voice(engine: ProductionTTSEngine, tone: np.ndarray) -> None:
    plain = engine.generate("Hello.", seed=7, max_new_tokens=8).audio
    like_tone = engine.generate("Hello.", seed=7, max_new_tokens=8, reference_audio=tone, reference_text="Ah.").audio

    assert not np.array_equal(plain, like_tone)


@pytest.mark.parametrize("text", ["Hello.", "<speak>Hello.<break/></speak>"])
def test_a_reference_without_the_transcript_that_the_model_needs_gives_a_warning(
    engine: ProductionTTSEngine, tone: np.ndarray, text: str
) -> None:
    asked = {"text_type": "ssml" if "<" in text else "text", "seed": 7, "max_new_tokens": 2, "reference_audio": tone}

    without, with_text = engine.generate(text, **asked), engine.generate(text, **asked, reference_text="Ah.")

    assert without.warning == "The reference has no transcript; this model needs the exact words of the recording."
    assert with_text.warning is None


def test_long_text_is_spoken_in_pieces_with_pauses_and_nothing_is_lost(engine: ProductionTTSEngine) -> None:
    sentences = [f"This is sentence number {i} of a long text." for i in range(12)]

    response = engine.generate(" ".join(sentences), seed=1, max_new_tokens=6)

    pieces = response.frames // 6
    assert pieces >= 3
    assert len(response.audio) == response.frames * 2048 + (pieces - 1) * round(0.25 * 44_100)


def test_a_sound_is_saved_in_the_format_that_the_suffix_names(engine: ProductionTTSEngine, tmp_path: Path) -> None:
    response = engine.generate("Hello.", seed=1, max_new_tokens=12)

    response.save(tmp_path / "a.flac")
    response.save(str(tmp_path / "b.ogg"))

    assert soundfile.info(tmp_path / "a.flac").format == "FLAC"
    assert soundfile.info(tmp_path / "b.ogg").subtype == "OPUS"
    with pytest.raises(ParameterError, match=r"^path: .* ends in .doc, which is not an audio format; use one of .wav"):
        response.save(tmp_path / "c.doc")
    with pytest.raises(ParameterError, match=r"^path: cannot write"):
        response.save(tmp_path / "nowhere" / "d.wav")
    with pytest.raises(ParameterError, match=r"^audio_format: 'm4a' is not known; use one of wav"):
        engine.generate("Hello.", audio_format="m4a")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.flac", "b.ogg"]


def test_bytes_are_the_same_whether_requested_before_or_after(engine: ProductionTTSEngine) -> None:
    asked = {"seed": 1, "max_new_tokens": 6, "audio_format": "flac"}
    responses = [
        *(engine.generate("Hello.", **asked, return_bytes=early) for early in (True, False)),
        *(engine.generate_batch(["Hello."], **asked, return_bytes=early).results[0] for early in (True, False)),
    ]

    assert ["audio_bytes" in vars(response) for response in responses] == [True, False, True, False]
    assert len({response.audio_bytes for response in responses}) == 1


def test_a_batch_gives_one_result_per_text_and_a_bad_item_fails_alone(engine: ProductionTTSEngine) -> None:
    batch = engine.generate_batch(texts=["Hello.", " ", "World."], seed=3, max_new_tokens=6, return_bytes=True)

    assert [result.success for result in batch.results] == [True, False, True]
    assert batch.results[1].error_code == "text_invalid"
    assert batch.results[1].error.startswith("text:")
    assert not batch.success
    assert np.array_equal(batch.results[0].audio, engine.generate("Hello.", seed=3, max_new_tokens=6).audio)
    assert batch.total_time >= max(result.generation_time for result in batch.results)


@pytest.mark.parametrize(
    ("lists", "complaint"),
    [
        *(({"texts": texts}, r"texts: is a .*; give a list") for texts in ("Hello.", None, 3)),
        ({"texts": ["a", "b"], "reference_audios": [None]}, "reference_audios: has 1 items for 2 texts"),
    ],
)
def test_a_batch_that_is_not_a_list_or_has_lists_of_different_lengths_is_refused(
    engine: ProductionTTSEngine, lists: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ParameterError, match=complaint):
        engine.generate_batch(**lists)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"temperature": -0.1}, r"temperature: -0.1 is not a number in \[0, 2\]"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, r"top_p: 0 is not a number in \(0, 1\]"),
        ({"repetition_penalty": 2.5}, "repetition_penalty"),
        ({"max_new_tokens": 0}, "max_new_tokens: 0 is not a whole number"),
        ({"seed": -1}, "seed"),
        ({"audio_format": "m4a", "return_bytes": True}, "format: 'm4a' is not known"),
        ({"reference_text": "Without a recording."}, "reference_text: was given without reference_audio"),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(
    engine: ProductionTTSEngine, options: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ParameterError, match=complaint):
        engine.generate("Hello.", **options)


@pytest.mark.parametrize("text", ["", " \n ", "x" * 100_000, "lone \ud800 surrogate", "bell \x07", "…!?"])
def test_text_that_cannot_be_spoken_is_refused(engine: ProductionTTSEngine, text: str) -> None:
    with pytest.raises(TextError, match=r"^text: "):
        engine.generate(text)


@pytest.mark.parametrize("samples", [0, 4410, 44_100 * 600])
def test_references_too_short_or_too_long_and_bad_transcripts_are_refused(
    engine: ProductionTTSEngine, samples: int
) -> None:
    wave = np.full(samples, 0.1, dtype=np.float32)

    with pytest.raises(ReferenceAudioError, match=r"^reference_audio: "):
        engine.generate("Hello.", reference_audio=wave, reference_text="Ah.")
    with pytest.raises(TextError, match=r"^reference_text: "):
        engine.generate("Hello.", reference_audio=wave, reference_text="\x00")


def test_a_stream_that_is_abandoned_does_not_delay_others(engine: ProductionTTSEngine) -> None:
    expected = engine.generate("World.", seed=2, max_new_tokens=8).audio
    half = engine.stream("Hello. " * 10, seed=1)
    next(half)

    assert np.array_equal(engine.generate("World.", seed=2, max_new_tokens=8).audio, expected)
    assert len(next(half).audio) > 0


def test_stopping_at_once_ends_a_stream_with_an_error(tiny: Path) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu"))
    engine.start()
    stream = engine.stream("Hello. " * 20, seed=1)
    next(stream)

    engine.stop(drain=False)

    with pytest.raises(EngineNotReadyError, match="stopped during this request"):
        list(stream)


def test_running_out_of_memory_is_an_error_of_its_own_and_fails_one_item(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate a lot.")

    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu")) as engine:
        monkeypatch.setattr(S1Network, "sum_and_logits", full)
        batch = engine.generate_batch(["One.", " "], max_new_tokens=4)

    assert [result.error_code for result in batch.results] == ["capacity_exceeded", "text_invalid"]


def test_samples_that_are_not_finite_are_an_error_and_never_sound(tiny: Path) -> None:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu")) as engine:
        codec = engine._running.speaker.loaded.codec
        codec.decoder.model[0].conv.bias.data[0] = float("nan")

        with pytest.raises(GenerationError, match="not finite"):
            engine.generate("Hello.", max_new_tokens=4)


def test_lines_without_speech_are_not_synthesized(engine: ProductionTTSEngine) -> None:
    response = engine.generate("Chapter one\n\n* * *\n\nHe left.", seed=1, max_new_tokens=5)
    plain = engine.generate("Chapter one\n\nHe left.", seed=1, max_new_tokens=5)

    assert response.frames == plain.frames


def test_the_memory_of_a_gpu_is_reported_in_gigabytes_of_a_billion_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1_000_000_000, 24_000_000_000))

    assert vram("cuda") == {"used_gb": 23.0, "total_gb": 24.0}


def test_an_engine_that_is_not_started_raises_and_still_reports_its_health() -> None:
    engine = ProductionTTSEngine(EngineConfig())

    assert engine.health_check() == {"status": "stopped", "ready": False, "vram": {"used_gb": 0.0, "total_gb": 0.0}}
    assert engine.state() == EngineState("stopped")
    with pytest.raises(EngineNotReadyError, match="call start"):
        engine.generate("Hello.")


def test_a_started_engine_reports_its_state_and_its_choices_with_reasons(engine: ProductionTTSEngine) -> None:
    state, health = engine.state(), engine.health_check()

    assert health["ready"]
    assert health["device"] == {"value": "cpu", "reason": "set explicitly"}
    assert health["precision"]["value"] == "float32"
    assert health["compile"]["reason"]
    assert state.is_ready is health["ready"]
    assert state.status == health["status"]
    assert (state.num_waiting, state.max_waiting) == (health["queue"]["waiting"], health["queue"]["max_size"])


def test_a_stopped_engine_starts_again(tiny: Path) -> None:
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu"))
    with pytest.raises(EngineNotReadyError, match="the engine is not started; call start"):
        engine.generate("Hello.")
    engine.start()
    first = engine.generate("Hello.", seed=2, max_new_tokens=6).audio
    engine.stop()
    with pytest.raises(EngineNotReadyError, match="the engine was stopped; start"):
        engine.generate("Hello.")
    engine.start()

    assert np.array_equal(engine.generate("Hello.", seed=2, max_new_tokens=6).audio, first)


def test_a_request_that_takes_too_long_ends_with_an_error(tiny: Path) -> None:
    config = EngineConfig(checkpoint_path=tiny, device="cpu", request_timeout_s=1e-6)

    with ProductionTTSEngine(config) as engine, pytest.raises(RequestTimeoutError, match="timed out"):
        engine.generate("Hello.")


def test_full_heads_and_the_fixed_penalty_speak_too(tiny: Path) -> None:
    config = EngineConfig(checkpoint_path=tiny, device="cpu", heads="full", repetition_mode="fixed")

    with ProductionTTSEngine(config) as engine:
        assert engine.generate("Hello.", seed=12, max_new_tokens=20).success


def test_a_known_reference_is_not_encoded_again(
    engine: ProductionTTSEngine, tone: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    wave = np.roll(tone, 100)
    first = engine.generate("Hello.", seed=7, max_new_tokens=8, reference_audio=wave, reference_text="Ah.").audio
    monkeypatch.setattr(engine._running.synthesizer, "encode", lambda _: pytest.fail("encoded again"))

    second = engine.generate("Hello.", seed=7, max_new_tokens=8, reference_audio=wave, reference_text="Ah.").audio
    other = engine.generate("Hello.", seed=7, max_new_tokens=8, reference_audio=wave, reference_text="Oh.").audio

    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_an_event_loop_streams_what_a_thread_streams(engine: ProductionTTSEngine) -> None:
    async def listen() -> list[np.ndarray]:
        return [chunk.audio async for chunk in engine.stream_async("Hello.", seed=3, max_new_tokens=12)]

    whole = engine.generate("Hello.", seed=3, max_new_tokens=12).audio

    assert np.array_equal(np.concatenate(asyncio.run(listen())), whole)


def test_the_flow_of_an_async_stream_reaches_the_queue(
    engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    core, flows = engine._ready().synthesizer.core, list[tuple[str, str]]()
    plain = core.submit
    monkeypatch.setattr(core, "submit", lambda request: (flows.append(request.flow), plain(request)))

    async def listen(**options: tuple[str, str]) -> None:
        async for _ in engine.stream_async("Hello.", max_new_tokens=2, **options):
            pass

    asyncio.run(listen(flow=("client", "batch")))
    asyncio.run(listen())

    assert flows == [("client", "batch"), ("", "")]


def test_a_consumer_cancelled_during_submission_leaves_nothing_behind(
    engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    plain = EngineRuntime.begin

    def slowly(*given: Any) -> None:
        reached.set()
        go_on.wait()
        plain(*given)

    async def leave() -> Output:
        chunks = engine.stream_async("Hello.", max_new_tokens=400)
        listener = asyncio.ensure_future(anext(chunks))
        await asyncio.to_thread(reached.wait)
        listener.cancel()
        with pytest.raises(asyncio.CancelledError):
            await listener
        go_on.set()
        await asyncio.to_thread(wait_until, lambda: chunks.queue.has_ended)
        return chunks

    monkeypatch.setattr(EngineRuntime, "begin", slowly)
    left = asyncio.run(asyncio.wait_for(leave(), EVENTUALLY_S))

    assert left.unread_bytes == 0
    assert not engine.health_check()["requests"]


def test_clients_take_turns_in_having_long_texts_read_and_reading_ends_when_a_client_leaves(
    engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    finish = threading.Event()

    def script(self: TextForm, text: str, *_: object, check: Callable[[], None], **__: object) -> NormalizedText:
        begun.append(text[0])
        while not finish.wait(0.01):
            check()
        return NormalizedText(text)

    def submit(client: str) -> Output:
        request = TTSRequest.of(client * 2 * SHORT_TEXT, max_new_tokens=1)
        return engine.submit(replace(request, flow=(client, "")))

    monkeypatch.setattr(TextForm, "script", script)
    leaving = [submit(client) for client in "aa"]
    wait_until(lambda: len(begun) == 2)
    staying = [submit(client) for client in "aab"]
    for each in leaving:
        each.close()
    wait_until(lambda: len(begun) == 4)
    finish.set()
    heard = [sum(chunk.frames for chunk in each) for each in staying]

    assert [begun[:2], sorted(begun[2:4]), begun[4:]] == [["a", "a"], ["a", "b"], ["a"]]  # two are read at a time
    assert all(heard)


def test_every_path_may_be_text(tiny: Path, tone: np.ndarray, tmp_path: Path) -> None:
    soundfile.write(tmp_path / "me.wav", tone, 44_100)
    (tmp_path / "voices").mkdir()
    caches = {name: str(tmp_path / name) for name in ("reference_cache_path", "voices_path")}
    config = EngineConfig(checkpoint_path=str(tiny), device="cpu", **caches)

    with ProductionTTSEngine(config) as engine:
        engine.add_voice("me", str(tmp_path / "me.wav"), "Ah.")
        engine.reload(str(tiny))

        assert engine.config.checkpoint_path == tiny
        assert engine.generate("Hi.", voice="me", max_new_tokens=4).success
        with pytest.raises(ConfigurationError, match="checkpoint_path=5: "):
            engine.reload(5)
        with pytest.raises(CheckpointNotFoundError, match="nowhere is not a directory"):
            engine.reload("nowhere")
        assert engine.generate("Hi.", voice="me", max_new_tokens=4).success


def test_an_event_loop_starts_the_engine_and_gets_what_a_thread_gets(engine: ProductionTTSEngine) -> None:
    async def speak() -> tuple[GenerationResponse, ProductionTTSEngine]:
        async with ProductionTTSEngine(engine.config) as own:
            return await own.generate_async("Hello.", seed=3, max_new_tokens=12, return_bytes=True), own

    response, own = asyncio.run(speak())

    assert response.audio_bytes == engine.generate("Hello.", seed=3, max_new_tokens=12).audio_bytes
    assert own.health_check()["status"] == "stopped"


def test_cancelling_in_an_event_loop_frees_the_engine(engine: ProductionTTSEngine) -> None:
    async def leave() -> None:
        spoken = asyncio.ensure_future(engine.generate_async("Hello.", max_new_tokens=40))
        await asyncio.to_thread(wait_until, lambda: engine.health_check()["requests"] == 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(spoken, 0)
        await asyncio.to_thread(wait_until, lambda: not engine.health_check()["requests"])

    with held_generation():
        asyncio.run(asyncio.wait_for(leave(), EVENTUALLY_S))


def test_a_start_that_is_cancelled_leaves_nothing_loaded(
    engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, reached = ProductionTTSEngine(engine.config), threading.Event()
    plain = own._load

    def loudly(*given: object) -> object:
        reached.set()
        return plain(*given)

    async def leave() -> None:
        starting = asyncio.ensure_future(own.__aenter__())
        await asyncio.to_thread(reached.wait)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    monkeypatch.setattr(own, "_load", loudly)
    asyncio.run(leave())

    assert own.health_check()["status"] == "stopped"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_size_of_the_kv_cache_is_a_number_of_voices(count: int, tiny: Path, tone: np.ndarray) -> None:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", kv_cache_size=count)) as engine:
        for shift in range(3):
            voice = {"reference_audio": np.roll(tone, 100 * shift), "reference_text": "Ah."}
            engine.generate("Hi.", max_new_tokens=2, **voice)

        assert engine.health_check()["prefix_cache"]["entries"] == count


def test_a_request_whose_text_is_read_before_its_submission_returns_is_spoken(
    engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = FairPool.submit

    def submit(pool: FairPool, work: Callable[[Check], None], client: str = "", **options: Any) -> Future[None]:
        future = plain(pool, work, client, **options)
        wait([future])
        return future

    monkeypatch.setattr(FairPool, "submit", submit)

    assert engine.generate("Hi.", max_new_tokens=2).frames == 2


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("...", {}),
        ("Hi.", {"voice": "nobody"}),
        ("Hi.", {"reference_audio": np.zeros(44_100, np.float32), "reference_text": "Ah."}),
        ("Hi.", {"reference_audio": b"fLaC" + bytes(5000), "reference_text": "Ah."}),
    ],
    ids=["text", "voice", "silent recording", "broken recording"],
)
def test_a_refused_request_is_freed_without_the_garbage_collector(
    text: str, options: dict[str, Any], engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[weakref.ref[Any]] = []
    plain = Preparation.start

    def start(preparation: Preparation) -> None:
        kept.extend(map(weakref.ref, (preparation, preparation._request, preparation._accepted)))
        plain(preparation)

    monkeypatch.setattr(Preparation, "start", start)
    gc.disable()
    try:
        with suppress(RequestError):
            engine.generate(text, **options)
        wait_until(lambda: not any(each() for each in kept))
    finally:
        gc.enable()
