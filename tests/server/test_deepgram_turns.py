"""Deepgram's turn-based messages, as its client and its tests of SageMaker endpoints send them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from held_generation import SOUNDS, held_generation
from own_folder import path_with
from s1_mini.server.protocols import deepgram, deepgram_turns
from s1_mini.server.speech import Times
from s1_mini.types import Word
from tests.server.conftest import Door, limit_sentences
from tests.server.test_deepgram import LONG, say, until
from tests.server.test_websocket import hear, session
from waiting import EVENTUALLY_S, wait_until

PATH = "/v2/speak?model=default&encoding=linear16&sample_rate=24000"
SECONDS = 24_000 * 2  # bytes of a second


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_sentences(monkeypatch, deepgram)


def kinds(messages: list[dict[str, Any]]) -> list[str]:
    return [message["type"] for message in messages]


def test_each_turn_has_its_own_start_metadata_and_id_and_the_session_has_their_sums(door: Door) -> None:
    turns, sound = [], b""
    with session(door, PATH) as socket:
        (connected,), _ = until(socket, "Connected")
        for text in (["Good ", "morning. ", "How are you?"], ["Goodbye."]):
            for piece in text:
                say(socket, "Speak", text=piece)
            say(socket, "Flush")
            messages, heard = until(socket, "SpeechMetadata")
            assert kinds(messages) == ["SpeechStarted", "Flushed", "SpeechMetadata"]
            assert len({message["speech_id"] for message in messages}) == 1
            assert messages[-1]["input_character_count"] == len("".join(text))
            assert messages[-1]["audio_duration_ms"] == pytest.approx(1000 * len(heard) / SECONDS, abs=1)
            turns.append(messages[-1])
            sound += heard
        say(socket, "Close")
        rest, _, code = hear(socket)

    assert connected.keys() == {"type", "request_id", "model_name", "model_version", "model_uuids"}
    assert len({turn["speech_id"] for turn in turns}) == 2
    (totals,) = rest
    assert (totals["type"], code) == ("SessionMetadata", 1000)
    assert totals["total_input_character_count"] == sum(turn["input_character_count"] for turn in turns)
    assert totals["total_audio_duration_ms"] == pytest.approx(1000 * len(sound) / SECONDS, abs=2)


def test_turns_that_come_early_wait_for_the_active_one_and_close_ends_them_all(door: Door) -> None:
    with session(door, PATH) as socket:
        for text in ("Good morning.", "How are you?", "Goodbye."):
            say(socket, "Speak", text=text)
            if text != "Goodbye.":
                say(socket, "Flush")
        say(socket, "Close")
        messages, sound, code = hear(socket)

    ids = [message["speech_id"] for message in messages if message["type"] == "SpeechMetadata"]
    assert kinds(messages) == ["Connected", *["SpeechStarted", "Flushed", "SpeechMetadata"] * 3, "SessionMetadata"]
    assert ids == [message["speech_id"] for message in messages if message["type"] == "SpeechStarted"]
    assert (len(sound) / SECONDS > 2, code) == (True, 1000)


def test_an_interruption_ends_the_active_turn_and_tells_what_was_heard(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = deepgram_turns.DeepgramTurns.send_audio

    async def send_timed(protocol: Any, track: Any, piece: bytes, times: Times) -> None:
        words = [] if track.spoken else [Word("A", 0, 1, 0.0, 0.02), Word("sentence", 2, 10, 0.02, 0.06)]
        await send(protocol, track, piece, Times(words, audio_s=times.audio_s))

    monkeypatch.setattr(deepgram_turns.DeepgramTurns, "send_audio", send_timed)
    with session(door, PATH) as socket:
        with held_generation(SOUNDS):
            say(socket, "Interrupt")
            say(socket, "Speak", text=LONG)
            say(socket, "Interrupt")
            warnings, _ = until(socket, "SpeechStarted")
            say(socket, "Flush")
            say(socket, "Speak", text="Yes? ")
            say(socket, "Flush")
            messages, _ = until(socket, "Flushed")
            heard = socket.recv(timeout=EVENTUALLY_S)
            assert isinstance(heard, bytes)
            say(socket, "Interrupt", playback_offset={"type": "time_ms", "value": 60})
            interrupted, _ = until(socket, "SpeechInterrupted")
            say(socket, "Interrupt", playback_offset={"type": "time_ms", "value": 50})
        messages, _ = until(socket, "SpeechMetadata")
        say(socket, "Close")
        rest, _, _ = hear(socket)

    assert [each.get("code") for each in warnings] == [None, "NO_ACTIVE_SPEECH", None]
    told = interrupted[-1]
    assert (told["audio_played_ms"], told["text_spoken"]) == (60, "A sentence")
    assert told["text_spoken"] + told["text_remaining"] == LONG
    assert told["metadata"]["input_character_count"] == len(LONG)
    codes = [message["code"] for message in messages if message["type"] == "Warning"]
    assert codes in (["NO_AUDIO_GENERATED", "INVALID_INTERRUPT_OFFSET"], ["INVALID_INTERRUPT_OFFSET"])
    assert messages[-1]["input_character_count"] == len("Yes? ")
    assert rest[-1]["total_input_character_count"] == len(LONG) + len("Yes? ")
    assert rest[-1]["total_audio_duration_ms"] == 60 + messages[-1]["audio_duration_ms"]


def test_configure_sets_the_speed_of_later_turns(door: Door) -> None:
    durations = []
    with session(door, f"{PATH}&speed=2") as socket:
        for speed in (None, 1, 9):
            if speed:
                say(socket, "Configure", speed=speed)
            say(socket, "Speak", text="Good morning.")
            say(socket, "Flush")
            messages, _ = until(socket, "SpeechMetadata")
            answer = [message for message in messages if message["type"].startswith("Configure")]
            durations.append((messages[-1]["audio_duration_ms"], answer))

    (fast_ms, none), (slow_ms, done), (again_ms, refused) = durations
    assert (none, done) == ([], [{"type": "ConfigureSuccess", "applied": {"speed": 1}}])
    assert fast_ms == pytest.approx(slow_ms / 2, rel=0.1)
    assert again_ms == slow_ms
    assert (refused[0]["type"], refused[0]["code"]) == ("ConfigureFailure", "SPEED_OUT_OF_RANGE")


def test_a_turn_without_speech_has_no_audio_and_a_flush_without_text_a_warning(door: Door) -> None:
    with session(door, PATH) as socket:
        say(socket, "Flush")
        say(socket, "Speak", text=" ... ")
        say(socket, "Flush")
        messages, sound = until(socket, "SpeechMetadata")

    codes = [message["code"] for message in messages if message["type"] == "Warning"]
    assert (codes, sound) == (["NO_ACTIVE_SPEECH", "NO_SYNTHESIZABLE_TEXT"], b"")
    assert messages[-1]["audio_duration_ms"] == 0


@pytest.mark.parametrize("query", ["pitch=1", "speed=9", "encoding=opus", "sample_rate=1", "model=nobody"])
def test_a_wrong_parameter_is_refused_before_the_session(door: Door, query: str) -> None:
    with pytest.raises(InvalidStatus) as refused, session(door, f"/v2/speak?{query}"):
        pass

    answer = json.loads(refused.value.response.body)
    assert refused.value.response.status_code == (404 if "nobody" in query else 400)
    assert query.split("=")[0 if "nobody" not in query else 1] in answer["err_msg"]


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"type": "Interrupt", "speech_id": "dg_sp_1"}, "MESSAGE-0000"),
        ({"type": "Shout"}, "MESSAGE-0000"),
        ({"type": "Speak", "text": "a" * 20_001}, "DATA-0000"),
        ({"type": "Interrupt", "playback_offset": {"type": "time_ms", "value": 10**400}}, "MESSAGE-0000"),
        ({"type": "Configure", "speed": float("nan")}, "MESSAGE-0000"),
    ],
)
def test_a_wrong_message_ends_the_session(door: Door, message: dict[str, object], code: str) -> None:
    with session(door, PATH) as socket:
        socket.send(json.dumps(message))
        messages, _, closed = hear(socket)

    assert (messages[-1]["type"], messages[-1]["code"], closed) == ("Error", code, 1008)


def offset(milliseconds: int) -> dict[str, object]:
    return {"type": "time_ms", "value": milliseconds}


def test_a_turn_can_be_interrupted_before_any_of_it_was_played_or_made(door: Door) -> None:
    told = []
    with session(door, PATH) as socket, held_generation(SOUNDS):
        say(socket, "Speak", text=LONG)
        until(socket, "SpeechStarted")
        assert isinstance(socket.recv(timeout=EVENTUALLY_S), bytes)
        for text, playback_offset in ((LONG, offset(0)), ("Yes", None), ("No", offset(10**8))):
            if text != LONG:
                say(socket, "Speak", text=text)
            say(socket, "Interrupt", **({"playback_offset": playback_offset} if playback_offset else {}))
            told.append(until(socket, "SpeechInterrupted")[0][-1])

    assert [each["audio_played_ms"] for each in told] == [0, 0, 0]
    assert [each.get("text_remaining") for each in told] == [LONG, None, "No"]


def test_an_interruption_after_the_last_audio_tells_where_the_next_turn_begins(door: Door) -> None:
    with session(door, PATH) as socket:
        say(socket, "Speak", text="Good morning.")
        say(socket, "Flush")
        until(socket, "SpeechMetadata")
        say(socket, "Interrupt", playback_offset=offset(100))
        warnings, _ = until(socket, "Warning")
        say(socket, "Speak", text="Yes?")
        say(socket, "Close")
        messages, _, _ = hear(socket)

    (made_ms,) = (each["audio_duration_ms"] for each in messages if each["type"] == "SpeechMetadata")
    assert warnings[-1]["code"] == "NO_ACTIVE_SPEECH"
    assert messages[-1]["total_audio_duration_ms"] == 100 + made_ms


def test_the_limit_of_characters_counts_only_text_that_is_not_spoken_yet(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = door.engine.config.model_copy(update={"max_text_length": 40})
    monkeypatch.setattr(door.engine, "config", limited)
    with session(door, PATH) as socket:
        say(socket, "Speak", text="Good morning to all of you. I")
        (here,) = door.app.state.websockets._holdings
        wait_until(lambda: here.queue.num_spoken and not here.queue)
        with held_generation(SOUNDS):
            say(socket, "Speak", text=" see. ")
            say(socket, "Flush")
            say(socket, "Speak", text="Then we meet tomorrow. ")
            say(socket, "Flush")
            until(socket, "Flushed")
            say(socket, "Speak", text="Goodbye, and good night.")
            messages, _ = until(socket, "Error")

    assert messages[-1]["code"] == "DATA-0000"
    assert "is not spoken yet has 53 characters; the limit is 40" in messages[-1]["description"]


def test_turns_that_wait_have_a_limit_and_empty_ones_do_not_exist(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepgram_turns, "MAX_ITEMS", 3)
    with session(door, PATH) as socket, held_generation(SOUNDS):
        say(socket, "Speak", text=LONG)
        for text in ("", "", "", "Yes?", "No.", "Oh!"):
            say(socket, "Flush")
            say(socket, "Speak", text=text)
        messages, _ = until(socket, "Error")

    codes = [message.get("code") for message in messages if message["type"] in {"Warning", "Error"}]
    assert codes == ["NO_ACTIVE_SPEECH"] * 3 + ["DATA-0000"]
    assert "comes after 3 turns that are not spoken yet" in messages[-1]["description"]


def test_the_handshake_lists_no_voices(door: Door, robin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(door.engine), "voice_names", NotImplemented)
    with session(door, f"/v2/speak?model={robin}") as socket:
        (connected,), _ = until(socket, "Connected")

    assert connected["model_name"] == robin


@pytest.mark.clients
def test_deepgram_s_own_client_speaks_turns(door: Door, tmp_path: Path) -> None:
    path = path_with("deepgram", tmp_path, "deepgram-sdk>=7.17,<8")
    environment = os.environ | {"PYTHONPATH": path, "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, str(Path(__file__).with_name("deepgram_sdk.py")), str(door.port)]

    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=EVENTUALLY_S, check=False)

    assert result.returncode == 0, result.stderr[-4000:]
    told = json.loads(result.stdout.splitlines()[-1])
    turn = ["SpeechStarted", "Flushed", "SpeechMetadata"]
    assert told["kinds"][:4] == ["Connected", *turn]
    assert sorted(told["kinds"][4:-2]) == ["ConfigureSuccess", "SpeechStarted"]
    assert told["kinds"][-2:] == ["SpeechInterrupted", "SessionMetadata"]
    assert (told["turn"], told["interrupted"]) == ([13, True], [10, 3200])
    assert told["totals"] == [10, 13 + 3200]
