"""ElevenLabs' WebSockets, with its own client and with the messages that the plugins of LiveKit and Pipecat send."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection

from held_generation import SOUNDS, held_generation
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import EngineNotReadyError, GenerationError
from s1_mini.server import session as server_session
from s1_mini.server import speech_queue, text_input
from s1_mini.server.protocols import elevenlabs
from s1_mini.server.speech import Times
from s1_mini.text.tidy import is_speakable
from s1_mini.types import Word
from tests.server.conftest import Clock, Door, limit_sentences, serving
from tests.server.test_websocket import hear, session
from waiting import EVENTUALLY_S, wait_until

VOICE = "/v1/text-to-speech/default"
SINGLE = f"{VOICE}/stream-input?model_id=eleven_flash_v2_5&output_format=pcm_24000"
MULTI = f"{VOICE}/multi-stream-input?model_id=eleven_flash_v2_5&output_format=pcm_24000"
LIVEKIT = (
    f"{MULTI}&enable_ssml_parsing=false&enable_logging=true&inactivity_timeout=180&apply_text_normalization=auto"
    "&sync_alignment=true&auto_mode=true"
)
PIPECAT = f"{MULTI}&auto_mode=true"
LONG = "A sentence that goes on and on. " * 20


def say(socket: ClientConnection, **content: object) -> None:
    socket.send(json.dumps(content))


def receive(socket: ClientConnection) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(socket.recv(timeout=EVENTUALLY_S))
    return message


def until_final(socket: ClientConnection) -> list[dict[str, Any]]:
    """Return the messages up to the end of the next context."""
    messages = [receive(socket)]
    while not messages[-1].get("isFinal"):
        messages.append(receive(socket))
    return messages


def messages_of(socket: ClientConnection, context: str, count: int) -> list[dict[str, Any]]:
    """Return the next messages of a context; drop those of others."""
    found = list[dict[str, Any]]()
    while len(found) < count:
        message = receive(socket)
        found += [message] * (message["contextId"] == context)
    return found


def seconds(messages: list[dict[str, Any]]) -> float:
    return sum(len(base64.b64decode(message.get("audio") or "")) for message in messages) / 2 / 24_000


def begin_of_livekit(socket: ClientConnection, context: str) -> None:
    say(socket, text=" ", voice_settings={}, context_id=context)


def end_of_livekit(socket: ClientConnection, context: str) -> None:
    say(socket, text="", context_id=context, flush=True)
    say(socket, context_id=context, close_context=True)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_sentences(monkeypatch, elevenlabs)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses whose first audio has two words, as a checkpoint that reports times would."""
    start, send = elevenlabs.SeveralTexts.start, elevenlabs.SeveralTexts.send_audio
    waiting: list[list[Word]] = []

    async def start_timed(protocol: Any, track: Any, request: Any, speech: Any) -> None:
        await start(protocol, track, request, speech)
        waiting.append([Word("Oh,", 0, 3, 0.0, 0.09), Word("dear.", 4, 9, 0.1, 0.2)])

    async def send_timed(protocol: Any, track: Any, piece: bytes, times: Times) -> None:
        await send(protocol, track, piece, Times(waiting.pop()) if waiting else times)

    monkeypatch.setattr(elevenlabs.SeveralTexts, "start", start_timed)
    monkeypatch.setattr(elevenlabs.SeveralTexts, "send_audio", send_timed)


def test_one_text_is_spoken_sentence_by_sentence_until_an_empty_message(door: Door) -> None:
    with session(door, SINGLE) as socket:
        say(socket, text=" ", voice_settings=None, generation_config={"chunk_length_schedule": [50]})
        say(socket, text="Good morning. How ", try_trigger_generation=True)
        first = receive(socket)
        say(socket, text="are you? ", try_trigger_generation=True)
        say(socket, text="")
        messages, _, code = hear(socket)

    assert first["audio"]
    assert (first["isFinal"], first["alignment"]) == (None, None)
    assert messages[-1] == {"audio": None, "isFinal": True}
    assert seconds([first, *messages]) > 1
    assert code == 1000


def test_the_speed_of_the_first_message_applies(door: Door) -> None:
    durations = []
    for speed in (1.0, 2.0):
        with session(door, SINGLE) as socket:
            say(socket, text=" ", voice_settings={"stability": 0.5, "speed": speed})
            say(socket, text="Good morning. ", flush=True)
            say(socket, text="")
            durations.append(seconds(hear(socket)[0]))

    assert durations[1] == pytest.approx(durations[0] / 2, rel=0.1)


def test_a_turn_of_livekit_is_finished_although_its_context_is_closed_at_once(door: Door) -> None:
    with session(door, LIVEKIT) as socket:
        begin_of_livekit(socket, "a")
        for sentence in ("Good morning. ", "How are you? "):
            say(socket, text=sentence, context_id="a", flush=True)
        end_of_livekit(socket, "a")
        messages = until_final(socket)

    assert {message["contextId"] for message in messages} == {"a"}
    assert messages[-1] == {"isFinal": True, "contextId": "a"}
    assert seconds(messages) > 1  # one sentence has at most 0.93 s


def test_the_next_context_of_livekit_stops_one_that_was_interrupted(door: Door) -> None:
    before = door.engine.metrics.ends["cancelled"]
    with session(door, LIVEKIT) as socket:
        with held_generation(SOUNDS):
            begin_of_livekit(socket, "a")
            say(socket, text=LONG, context_id="a", flush=True)
            assert receive(socket)["audio"]
            say(socket, context_id="a", close_context=True)
            begin_of_livekit(socket, "b")
            interrupted = until_final(socket)
            wait_until(lambda: door.engine.metrics.ends["cancelled"] == before + 1)
        say(socket, text="Yes? ", context_id="b", flush=True)
        end_of_livekit(socket, "b")
        messages = until_final(socket)

    assert interrupted[-1]["contextId"] == "a"
    assert {message["contextId"] for message in messages} == {"b"}
    assert seconds(messages) > 0.5


def test_a_turn_of_pipecat_is_finished_and_its_messages_that_keep_alive_end_nothing(door: Door) -> None:
    with session(door, PIPECAT) as socket:
        say(socket, text="")
        say(socket, text=" ", context_id="a", voice_settings={"speed": 1.0})
        say(socket, text="Good morning.", context_id="a")
        first = receive(socket)  # before more text: with auto_mode each message is a sentence
        say(socket, text="", context_id="a")
        say(socket, text="How are you?", context_id="a")
        say(socket, context_id="a", flush=True)
        say(socket, context_id="a", close_context=True)
        messages = [first, *until_final(socket)]
        say(socket, context_id="a", close_context=True)
        say(socket, close_socket=True)
        rest, _, code = hear(socket)

    assert seconds(messages) > 1  # one sentence has at most 0.93 s
    assert "audio" not in messages[-1]
    assert (rest, code) == ([], 1000)


@pytest.mark.parametrize("is_flushed", [False, True])
def test_an_interruption_of_pipecat_stops_the_audio_at_once(door: Door, is_flushed: bool) -> None:
    before = door.engine.metrics.ends["cancelled"]
    with session(door, PIPECAT) as socket, held_generation(SOUNDS):
        say(socket, text=" ", context_id="a")
        say(socket, text=LONG, context_id="a")
        first = receive(socket)
        assert first["audio"]
        if is_flushed:  # then the normal end of the turn came before, and the second one is the interruption
            say(socket, context_id="a", flush=True)
            say(socket, context_id="a", close_context=True)
        say(socket, context_id="a", close_context=True)
        messages = until_final(socket)
        wait_until(lambda: door.engine.metrics.ends["cancelled"] == before + 1)
        wait_until(lambda: door.engine.health_check()["requests"] == 0)

    sent_s = seconds([first, *messages])
    assert sent_s < 1
    assert messages[-1] == {"isFinal": True, "contextId": "a", "seconds": pytest.approx(sent_s, abs=1e-3)}


@pytest.mark.usefixtures("timed")
@pytest.mark.parametrize(("path", "is_absolute"), [(LIVEKIT, True), (PIPECAT, False)])
def test_times_count_from_the_start_of_the_context_or_from_the_previous_message(
    door: Door, path: str, is_absolute: bool
) -> None:
    with session(door, path) as socket:
        for _ in range(2):
            say(socket, text="Oh, dear.", context_id="a")
        say(socket, context_id="a", flush=True)
        say(socket, context_id="a", close_context=True)
        messages = until_final(socket)

    timed = [message["alignment"] for message in messages if message.get("alignment")]
    assert [message["normalizedAlignment"] for message in messages if message.get("alignment")] == timed
    starts = [start for times in timed for start in times["charStartTimesMs"]]
    if not is_absolute:
        bases = np.cumsum([0, *(times["charStartTimesMs"][-1] + times["charDurationsMs"][-1] for times in timed)])
        assert all(times["charStartTimesMs"][0] >= 0 for times in timed)
        starts = [
            base + start for base, times in zip(bases, timed, strict=False) for start in times["charStartTimesMs"]
        ]
    assert "".join(char for times in timed for char in times["chars"]) == "Oh, dear. " * 2
    assert starts[:5] == [0, 30, 60, 90, 100]
    second_s = seconds(messages) / 2  # both sentences have the same audio
    assert starts[10] == pytest.approx(second_s * 1000, abs=2)
    assert starts == sorted(starts)


def test_contexts_have_a_limit(door: Door) -> None:
    with session(door, PIPECAT) as socket:
        for number in range(elevenlabs.MAX_CONTEXTS + 1):
            say(socket, text=" ", context_id=str(number))
        refused = receive(socket)
        say(socket, text="Yes.", flush=True, context_id="0")
        assert receive(socket)["audio"]

    assert (refused["error"], refused["contextId"]) == ("request_invalid", str(elevenlabs.MAX_CONTEXTS))
    assert f"the limit of {elevenlabs.MAX_CONTEXTS} contexts that are open" in refused["message"]


def test_a_text_that_is_too_long_ends_only_its_context(door: Door) -> None:
    with held_generation() as held, session(door, PIPECAT) as socket:
        say(socket, text="Yes.", context_id="b")
        say(socket, text=LONG, context_id="a")
        say(socket, text="a" * 20_001, context_id="a")
        messages = until_final(socket)
        held.release()
        end_of_livekit(socket, "b")
        others = until_final(socket)

    assert messages[-1]["contextId"] == messages[-2]["contextId"] == "a"
    assert messages[-2]["error"] == "text_invalid"
    assert "characters ahead of the audio" in messages[-2]["message"]
    assert {message["contextId"] for message in others} == {"b"}
    assert seconds(others) > 0


def fail_no(monkeypatch: pytest.MonkeyPatch, until: threading.Event | None = None) -> list[str]:
    """Fail texts that begin with "No", once `until` is set; return the texts so far, which grow."""
    spoken, plain = list[str](), speech_queue.speak

    async def speak(engine: Any, request: Any, **options: Any) -> Any:
        spoken.append(request.speech.text)
        if request.speech.text.startswith("No"):
            if until is not None:
                await asyncio.to_thread(until.wait, EVENTUALLY_S)
            raise GenerationError("broken")
        return await plain(engine, request, **options)

    monkeypatch.setattr(speech_queue, "speak", speak)
    return spoken


def test_a_text_whose_generation_fails_ends_only_its_context(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = fail_no(monkeypatch)
    with held_generation(), session(door, MULTI) as socket:
        say(socket, text="Yes.", flush=True, context_id="b")
        wait_until(lambda: spoken)
        say(socket, text="No. Nor", context_id="a")
        (failed, final) = messages_of(socket, "a", 2)
        say(socket, text="Again.", flush=True, context_id="a")
        wait_until(lambda: "Again." in spoken)

    assert (failed["error"], failed["message"]) == ("generation_failed", "broken")
    assert final == {"isFinal": True, "contextId": "a", "seconds": 0.0}
    assert spoken == ["Yes.", "No.", "Again."]


def test_an_error_of_the_session_names_no_context_that_has_failed_before(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_no(monkeypatch)
    with session(door, MULTI) as socket:
        say(socket, text="No. ", flush=True, context_id="a")
        messages_of(socket, "a", 2)
        socket.send("{broken")
        (last,), _, code = hear(socket)

    assert (last["error"], code) == ("body_invalid", 1008)
    assert "contextId" not in last


def test_text_that_is_cut_while_its_context_fails_is_not_spoken(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end, cut_arriving = threading.Event(), threading.Event(), text_input.cut_arriving

    def cut(text: str) -> tuple[str, str]:
        if len(text) > text_input.SMALL_TEXT:  # in a thread
            begun.set()
            may_end.wait(EVENTUALLY_S)
        return cut_arriving(text)

    monkeypatch.setattr(text_input, "cut_arriving", cut)
    spoken = fail_no(monkeypatch, begun)
    with session(door, MULTI) as socket:
        say(socket, text="No. ", flush=True, context_id="a")
        say(socket, text="Yes, yes. " * 210, flush=True, context_id="a")
        messages = messages_of(socket, "a", 2)
        may_end.set()
        say(socket, close_socket=True)
        rest, _, code = hear(socket)

    assert [message.get("isFinal") for message in messages] == [None, True]
    assert (rest, code, spoken) == ([], 1000, ["No."])


def test_the_log_has_the_most_serious_error_of_a_session(
    door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "s1_mini.server.access")
    fail_no(monkeypatch)
    with session(door, MULTI) as socket:
        for text, error in (("No. ", "generation_failed"), ("a" * 20_001, "text_invalid")):
            say(socket, text=text, flush=True, context_id="a")
            assert messages_of(socket, "a", 2)[0]["error"] == error
        say(socket, close_socket=True)
        hear(socket)
        wait_until(lambda: caplog.records)

    assert [record.fields["code"] for record in caplog.records] == ["generation_failed"]  # type: ignore[attr-defined]


@pytest.mark.parametrize("first", [[{"close_context": True, "context_id": "a"}], []], ids=str)
def test_a_context_whose_end_finds_no_room_in_the_queue_is_stopped(
    door: Door, monkeypatch: pytest.MonkeyPatch, first: list[dict[str, Any]]
) -> None:
    with session(door, MULTI) as socket, held_generation(SOUNDS):
        say(socket, text=LONG, context_id="a", flush=True)
        assert receive(socket)["audio"]
        monkeypatch.setattr(speech_queue, "MAX_ITEMS", 1)
        for message in (*first, {"close_socket": True}):
            say(socket, **message)
        (*_, failed, final), _, code = hear(socket)

    assert (failed["error"], failed["contextId"]) == ("text_invalid", "a")
    assert (final["isFinal"], final["contextId"], code) == (True, "a", 1000)


def test_an_engine_that_has_stopped_ends_all_contexts(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any, **__: Any) -> None:
        raise EngineNotReadyError("stopped")

    monkeypatch.setattr(speech_queue, "speak", stopped)
    with session(door, PIPECAT) as socket:
        say(socket, text="Yes.", context_id="a")
        messages, _, code = hear(socket)

    assert (messages[-1]["error"], messages[-1]["contextId"], code) == ("engine_not_ready", "a", 1013)


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        (MULTI.replace("default", "hpp4J3VqNfWAUOO0d1Us"), 404, "hpp4J3VqNfWAUOO0d1Us"),
        (MULTI.replace("pcm_24000", "wav_24000"), 422, "'mp3_44100_128'"),
        (f"{SINGLE}&inactivity_timeout=never", 422, "inactivity_timeout"),
    ],
)
def test_a_wrong_address_is_refused_before_the_session(door: Door, path: str, status: int, message: str) -> None:
    with pytest.raises(InvalidStatus) as refused, session(door, path):
        pass

    assert refused.value.response.status_code == status
    assert message in json.loads(refused.value.response.body)["detail"]["message"]


def test_a_known_voice_that_another_process_has_deleted_is_refused_before_the_session(
    tiny: Path, tmp_path: Path, tone: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_session, "KNOWN_S", EVENTUALLY_S)
    engine = ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", voices_path=tmp_path))
    with serving(engine) as door:
        engine.add_voice("robin", tone, "Ah.")
        (tmp_path / "robin.safetensors").unlink()
        assert engine.has_voice("robin")
        with pytest.raises(InvalidStatus) as refused, session(door, MULTI.replace("default", "Robin")):
            pass

    assert refused.value.response.status_code == 404


@pytest.fixture
def robin(door: Door, monkeypatch: pytest.MonkeyPatch) -> str:
    """The path of a session with a voice that the engine knows."""
    monkeypatch.setattr(door.engine, "has_voice", lambda _: True)
    return MULTI.replace("default", "robin")


def test_a_session_with_a_known_voice_opens_although_the_voice_cannot_be_read_in_time(
    door: Door, robin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_over = threading.Event()
    monkeypatch.setattr(server_session, "KNOWN_S", 0.0)
    monkeypatch.setattr(door.engine, "describe_voice", lambda _: is_over.wait(EVENTUALLY_S))
    with session(door, robin) as socket:
        assert not is_over.is_set()
        is_over.set()
        say(socket, close_socket=True)
        assert hear(socket)[2] == 1000


def test_a_session_is_refused_if_reading_its_known_voice_fails_with_a_timeout(
    door: Door, robin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def describe(_: str) -> None:
        raise TimeoutError

    monkeypatch.setattr(server_session, "KNOWN_S", EVENTUALLY_S)
    monkeypatch.setattr(door.engine, "describe_voice", describe)
    with pytest.raises(InvalidStatus) as refused, session(door, robin):
        pass

    assert refused.value.response.status_code == 500


def test_an_idle_session_ends_after_the_clients_timeout(small_engine: ProductionTTSEngine, clock: Clock) -> None:
    with serving(small_engine, websocket_idle_s=600) as door, session(door, f"{MULTI}&inactivity_timeout=20") as socket:
        say(socket, text="")
        wait_until(lambda: len(door.app.state.websockets) == 1)
        wait_until(lambda: clock.advance(door, 21) or not door.app.state.websockets)  # the message restarts the timer
        messages, _, code = hear(socket)

    assert (messages[0]["error"], code) == ("session_timeout", 1008)
    assert "20 s" in messages[0]["message"]


@pytest.mark.filterwarnings("ignore:ConnectionClosed.code is deprecated:DeprecationWarning")  # which the client reads
def test_elevenlabs_client_streams_text(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytest.importorskip("elevenlabs", reason="pip install -r requirements-test.lock.txt")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    speech = package.ElevenLabs(base_url=door.url, api_key="none").text_to_speech
    speech._ws_base_url = door.url.replace("http", "ws")  # the client would use TLS

    pieces = list(
        speech.convert_realtime("default", text=iter(["Good morning. How ", "are you?"]), output_format="pcm_24000")
    )

    assert len(b"".join(pieces)) / 2 / 24_000 > 1


def test_the_work_on_pieces_with_nothing_to_speak_is_in_proportion_to_their_length(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at = 0

    def look(text: str) -> bool:
        nonlocal looked_at
        looked_at += len(text)
        return is_speakable(text)

    monkeypatch.setattr("s1_mini.server.text_input.is_speakable", look)
    with session(door, f"{SINGLE}&start_at=word") as socket:
        say(socket, text=" ")
        for _ in range(400):
            say(socket, text=".")
        say(socket, text="")
        hear(socket)

    assert 0 < looked_at < 20 * 400


def test_a_finished_sentence_is_spoken_although_another_context_gets_the_next_text(door: Door) -> None:
    with session(door, MULTI) as socket:
        say(socket, text="The rain has stopped, and the streets are full. ", context_id="a")
        say(socket, text="I", context_id="a")
        say(socket, text="A", context_id="b")

        assert receive(socket)["contextId"] == "a"


def test_a_context_is_spoken_while_an_earlier_one_is_not_finished(door: Door) -> None:
    with session(door, PIPECAT) as socket:
        with held_generation(SOUNDS) as held:
            say(socket, text=LONG, context_id="a", flush=True)
            assert receive(socket)["contextId"] == "a"
            for name in ("b", "c"):
                say(socket, text="Yes. ", context_id=name, flush=True)
            seen: set[str] = set()
            while not {"b", "c"} <= seen:
                seen.add(receive(socket)["contextId"])
            say(socket, context_id="b", close_context=True)
            say(socket, context_id="a", close_context=True)
            say(socket, context_id="a", close_context=True)
            assert [message["contextId"] for message in until_final(socket)][-1] == "a"
            held.release()
        assert until_final(socket)[-1] == {"isFinal": True, "contextId": "b"}
        say(socket, close_socket=True)
        *_, last = hear(socket)[0]

    assert last["contextId"] == "c"


def test_the_sentences_of_each_context_are_spoken_in_order(door: Door) -> None:
    names = ("a", "b", "c")
    with session(door, f"{PIPECAT}&sync_alignment=true") as socket:
        for _ in range(3):
            for name in names:
                say(socket, text="Oh, dear. ", context_id=name)
        for name in names:
            say(socket, context_id=name, flush=True)
        say(socket, close_socket=True)
        messages = hear(socket)[0]

    durations = {name: seconds([each for each in messages if each["contextId"] == name]) for name in names}
    assert durations["a"] == durations["b"] == durations["c"] > 1
    finals = [message["contextId"] for message in messages if message.get("isFinal")]
    assert sorted(finals) == ["a", "b", "c"]


def test_contexts_wait_for_each_other_if_the_client_may_have_one_text_in_progress(
    small_engine: ProductionTTSEngine,
) -> None:
    names = [str(number) for number in range(6)]
    with serving(small_engine, max_requests_per_client=1) as door, session(door, PIPECAT) as socket:
        for _ in range(2):
            for name in names:
                say(socket, text="Yes. ", context_id=name, flush=True)
        say(socket, close_socket=True)
        messages, _, code = hear(socket)

    assert code == 1000
    audio = [message["contextId"] for message in messages if message.get("audio")]
    assert sorted(message["contextId"] for message in messages if message.get("isFinal")) == names
    assert list(dict.fromkeys(audio)) == names  # each has its first sentence before the second one of another
    assert audio.index("5") < len(audio) - 1 - audio[::-1].index("0")


@pytest.mark.parametrize("named", [{}, {"context_id": "a"}], ids=str)
def test_text_for_a_context_that_is_still_spoken_is_a_new_context_spoken_after_it(
    door: Door, named: dict[str, str]
) -> None:
    def turn(socket: ClientConnection, text: str) -> None:
        say(socket, text=text, **named)
        say(socket, text="", flush=True, **named)
        say(socket, close_context=True, **named)

    texts = ["Good morning. How are you? ", "Goodbye. "]
    with session(door, MULTI) as socket:
        expected = []
        for text in texts:
            turn(socket, text)
            expected.append(until_final(socket))
    with session(door, MULTI) as socket, held_generation(SOUNDS) as held:
        for text in texts:
            turn(socket, text)
        first = receive(socket)
        assert door.engine.health_check()["requests"] == 1
        held.release()
        heard = [[first, *until_final(socket)], until_final(socket)]

    sounds = [[base64.b64decode(each.get("audio") or "") for each in messages] for messages in (*heard, *expected)]
    assert [b"".join(sound) for sound in sounds[:2]] == [b"".join(sound) for sound in sounds[2:]]
    assert heard[0][-1] == heard[1][-1] == expected[0][-1]


def test_an_interruption_stops_all_contexts_with_its_id(door: Door) -> None:
    with session(door, MULTI) as socket, held_generation(SOUNDS):
        say(socket, text=LONG, context_id="a")
        say(socket, text="", context_id="a", flush=True)
        say(socket, context_id="a", close_context=True)
        assert receive(socket)["audio"]
        say(socket, text=LONG, context_id="a")
        say(socket, context_id="a", close_context=True)
        finals = [until_final(socket)[-1] for _ in range(2)]
        wait_until(lambda: door.engine.health_check()["requests"] == 0)

    assert [final["contextId"] for final in finals] == ["a", "a"]
    assert finals[0]["seconds"] > finals[1]["seconds"] == 0


def test_contexts_that_are_closed_and_still_spoken_count_towards_the_limit(door: Door) -> None:
    with session(door, MULTI) as socket, held_generation(SOUNDS):
        for _ in range(elevenlabs.MAX_CONTEXTS + 1):
            say(socket, text="Good morning. ")
            say(socket, text="", flush=True)
            say(socket, close_context=True)
        while not (message := receive(socket)).get("error"):
            pass

    assert message["message"].endswith("wait until one of them has ended")


def test_a_session_speaks_a_limited_number_of_contexts_at_the_same_time(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speech_queue, "MAX_AT_ONCE", 2)
    names = ["a", "b", "c", "d"]
    with session(door, MULTI) as socket:
        with held_generation(SOUNDS) as held:
            for name in names:
                say(socket, text="Good morning. ", context_id=name, flush=True)
            seen: set[str] = set()
            while not {"a", "b"} <= seen:
                seen.add(receive(socket)["contextId"])
            say(socket, context_id="a", close_context=True)
            say(socket, context_id="a", close_context=True)
            assert until_final(socket)[-1]["contextId"] == "a"
            while "c" not in seen:
                seen.add(receive(socket)["contextId"])
            assert door.engine.health_check()["requests"] == 2
            held.release()
        say(socket, close_socket=True)
        messages = hear(socket)[0]

    assert seen == {"a", "b", "c"}
    assert sorted(each["contextId"] for each in messages if each.get("isFinal")) == ["b", "c", "d"]


def test_a_context_without_room_is_spoken_once_another_connection_leaves_it(small_engine: ProductionTTSEngine) -> None:
    with (
        serving(small_engine, max_requests_per_client=2) as door,
        session(door, MULTI) as socket,
        held_generation(SOUNDS),
    ):
        with session(door, MULTI) as other:
            for each in (other, socket):
                say(each, text=LONG, context_id="a", flush=True)
                assert receive(each)["audio"]
            for name in ("b", "c"):
                say(socket, text=LONG, context_id=name, flush=True)
            wait_until(lambda: any(each.queue._is_full for each in door.app.state.websockets.busy))
        heard = receive(socket)
        while heard["contextId"] == "a":
            heard = receive(socket)

    assert heard["contextId"] == "b"
