"""The Wyoming port with the wyoming package's own client, and with what Home Assistant sends."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wyoming")

from wyoming.audio import AudioStart, AudioStop
from wyoming.client import AsyncTcpClient
from wyoming.error import Error
from wyoming.event import Event
from wyoming.info import Describe, Info
from wyoming.ping import Ping, Pong
from wyoming.tts import Synthesize, SynthesizeChunk, SynthesizeStart, SynthesizeStop, SynthesizeStopped, SynthesizeVoice

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.server import text_input
from s1_mini.server.protocols.wyoming import info_of
from s1_mini.server.settings import ServerSettings
from s1_mini.text.split import cut_arriving
from s1_mini.types import VoiceInfo
from tests.cli.conftest import Call
from tests.cli.conftest import call as call  # noqa: PLC0414 - a fixture of these tests, too
from tests.server.conftest import Door, serving
from waiting import EVENTUALLY_S, wait_until

ENDS = (AudioStop, SynthesizeStopped, Error)


@pytest.fixture(scope="session")
def door(short_door: Door) -> Door:
    return short_door


@contextmanager
def home(engine: ProductionTTSEngine, **settings: object) -> Iterator[tuple[Door, int]]:
    """Serve with a Wyoming port; yield the server and that port."""
    with serving(engine, wyoming_port=0, **settings) as door:
        yield door, door.app.state.wyoming.port


@pytest.fixture
def port(short_engine: ProductionTTSEngine) -> Iterator[int]:
    with home(short_engine) as (_, port):
        yield port


def exchange(port: int, *sent: Any, end: Any = AudioStop) -> list[Event]:
    """Send events, and return those that come, until `end` or the end of the connection."""

    async def run() -> list[Event]:
        received: list[Event] = []
        async with AsyncTcpClient("127.0.0.1", port) as client:
            for each in sent:
                await client.write_event(each.event())
            while (event := await client.read_event()) is not None:
                received.append(event)
                if end.is_type(event.type):
                    break
        return received

    return asyncio.run(run())


def kinds(events: list[Event]) -> list[str]:
    """Return the types of events, without repetitions."""
    types = [event.type for event in events]
    return [kind for number, kind in enumerate(types) if number == 0 or kind != types[number - 1]]


def num_samples(events: list[Event]) -> int:
    return sum(len(event.payload or b"") for event in events) // 2


def test_a_text_is_one_stream_of_audio(port: int) -> None:
    events = exchange(port, Synthesize("Good morning.", voice=SynthesizeVoice(language="en")))

    assert kinds(events) == ["audio-start", "audio-chunk", "audio-stop"]
    start = AudioStart.from_event(events[0])
    assert (start.rate, start.width, start.channels) == (44_100, 2, 1)
    assert num_samples(events) > 1000


def test_the_server_describes_its_voices_and_that_it_streams(port: int, robin: str) -> None:
    events = exchange(port, Describe(), end=Info)
    spoken = exchange(port, Synthesize("Hi.", voice=SynthesizeVoice(name=robin)))

    (program,) = Info.from_event(events[-1]).tts
    assert program.supports_synthesize_streaming
    assert [voice.name for voice in program.voices] == [robin]
    assert num_samples(spoken)


@pytest.mark.parametrize(
    ("path", "signature"),
    [
        ("/v1/voices", ""),
        ("/v1/voices", "AWS4-HMAC-SHA256 Credential=any/20261125/us-east-1/polly/aws4_request"),
        ("/v1/audio/voices", ""),
        (None, ""),
    ],
)
def test_a_list_of_voices_is_made_outside_the_event_loop(
    short_engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch, path: str | None, signature: str
) -> None:
    loops = []

    class Voices(list[VoiceInfo]):
        def __iter__(self) -> Iterator[VoiceInfo]:
            loops.append(asyncio._get_running_loop())
            return super().__iter__()

    with home(short_engine) as (door, port), door.client() as client:
        voices = Voices(short_engine.voices())
        monkeypatch.setattr(short_engine, "voices", lambda: voices)
        if path is None:
            exchange(port, Describe(), end=Info)
        else:
            assert client.get(path, headers={"Authorization": signature}).status_code == 200

    assert set(loops) == {None}


def test_voices_have_the_language_of_their_description_and_the_default_one_is_first() -> None:
    def voice(name: str, description: str, *, is_default: bool = False) -> VoiceInfo:
        return VoiceInfo(name, description, is_default, "checkpoint", 3.0, "")

    (program,) = info_of([voice("alan", "a man, British, calm"), voice("anna", "", is_default=True)]).tts

    assert [(each.name, each.languages) for each in program.voices] == [("anna", ["en_US"]), ("alan", ["en_GB"])]


def test_text_that_arrives_in_pieces_is_spoken_before_its_end_and_once(port: int) -> None:
    async def run() -> tuple[list[Event], list[Event]]:
        before: list[Event] = []
        async with AsyncTcpClient("127.0.0.1", port) as client:
            await client.write_event(SynthesizeStart().event())
            await client.write_event(SynthesizeChunk("Good mor").event())
            await client.write_event(SynthesizeChunk("ning. How are ").event())
            while not before or before[-1].type != "audio-chunk":  # the text has not ended
                before.append(await client.read_event())
            # Home Assistant repeats the whole text for servers that do not stream
            for each in (SynthesizeChunk("you?"), Synthesize("Good morning. How are you?"), SynthesizeStop()):
                await client.write_event(each.event())
            after: list[Event] = []
            while not after or after[-1].type not in ("synthesize-stopped", "error"):
                after.append(await client.read_event())
        return before, after

    before, after = asyncio.run(run())

    assert kinds(before) == ["audio-start", "audio-chunk"]
    assert kinds(after) == ["audio-chunk", "audio-stop", "synthesize-stopped"]


def test_text_that_comes_much_faster_than_audio_waits_instead_of_failing(tiny: Path) -> None:
    config = EngineConfig(checkpoint_path=tiny, device="cpu", max_columns=72, max_text_length=40)
    sent = [SynthesizeStart(), *[SynthesizeChunk("One more sentence. ")] * 12, SynthesizeStop()]
    with ProductionTTSEngine(config) as engine, home(engine) as (_, port):
        events = exchange(port, *sent, end=SynthesizeStopped)

    assert kinds(events) == ["audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"]


def test_streamed_ssml_is_read_as_ssml_by_setting(tiny: Path) -> None:
    config = EngineConfig(checkpoint_path=tiny, device="cpu", accept_ssml=True)
    pieces = ("<speak>One. Two", '.<break time="10s"/><break strength="none"/> ', "Three.</speak>")
    with ProductionTTSEngine(config) as engine, home(engine, start_words=1) as (_, port):
        sent = [SynthesizeStart(), *map(SynthesizeChunk, pieces), SynthesizeStop()]
        events = exchange(port, *sent, end=SynthesizeStopped)

    assert kinds(events) == ["audio-start", "audio-chunk", "audio-stop", "synthesize-stopped"]
    silent = [not any(event.payload or b"") for event in events if event.type == "audio-chunk"]
    assert sum(silent) >= 9, "nine whole seconds of silence"


def test_one_connection_speaks_several_texts_and_answers_a_ping(port: int) -> None:
    texts = [Synthesize("One."), SynthesizeStart(), SynthesizeChunk("Two"), SynthesizeStop(), Ping("alive")]

    events = exchange(port, *texts, end=Pong)

    audio = ["audio-start", "audio-chunk", "audio-stop"]
    assert kinds(events) == [*audio, *audio, "synthesize-stopped", "pong"]


def test_a_ping_with_half_a_surrogate_pair_is_answered(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=EVENTUALLY_S) as plug:
        plug.sendall(b'{"type":"ping","data":{"text":"\\ud800"}}\n')
        assert b'"pong"' in plug.recv(4096)


def test_long_text_is_cut_outside_the_event_loop(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def cut(text: str) -> tuple[str, str]:
        threads.append(threading.current_thread().name)
        return cut_arriving(text)

    monkeypatch.setattr(text_input, "cut_arriving", cut)
    exchange(port, SynthesizeStart(), SynthesizeChunk("... " * 1000), SynthesizeStop(), Ping(), end=Pong)

    assert threads[0].startswith("s1-mini-server")


@pytest.mark.parametrize("pieces", [[], ["", " \n"], ["..."]])
def test_a_stream_without_anything_to_speak_only_stops(port: int, pieces: list[str]) -> None:
    sent = [SynthesizeStart(), *map(SynthesizeChunk, pieces), SynthesizeStop(), Ping("alive")]

    assert kinds(exchange(port, *sent, end=Pong)) == ["synthesize-stopped", "pong"]


@pytest.mark.parametrize(
    ("sent", "code", "message"),
    [
        (Synthesize("..."), "text_invalid", "nothing to speak"),
        (Synthesize("Hi.", voice=SynthesizeVoice(name="nobody")), "voice_not_found", "nobody"),
        (Synthesize("Hi.", text_format="midi"), "request_invalid", "'midi' is not supported"),
        (Synthesize("a" * 20_001), "text_invalid", "20001 characters"),
        (Event("synthesize", {"text": 7}), "request_invalid", "text: is missing or not a string"),
        (Event("x", {"text": "a" * 300_000}), "body_invalid", "data_length"),
    ],
)
def test_an_error_is_an_event_and_ends_the_connection(port: int, sent: Any, code: str, message: str) -> None:
    wrapped = type("Raw", (), {"event": lambda _: sent})() if isinstance(sent, Event) else sent

    error = Error.from_event(exchange(port, wrapped)[-1])

    assert error.code == code
    assert message in error.text


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", b"[]\n", b'{"type":"x","data_length":-1}\n', b"a" * 500_000])
def test_a_malformed_event_is_refused(port: int, line: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=EVENTUALLY_S) as plug:
        plug.sendall(line)
        assert b'"error"' in plug.recv(4096)


def test_several_clients_are_served_at_once(port: int) -> None:
    async def run() -> list[list[Event]]:
        return await asyncio.gather(*(asyncio.to_thread(exchange, port, Synthesize("Good morning.")) for _ in range(4)))

    assert all(kinds(events)[-1] == "audio-stop" for events in asyncio.run(run()))


def test_resources_of_a_client_are_released_when_it_disconnects(engine: ProductionTTSEngine) -> None:
    with home(engine) as (door, port):
        state = door.app.state
        with socket.create_connection(("127.0.0.1", port)) as plug:
            plug.sendall(b'{"type":"synthesize","data":{"text":"' + b"A sentence that goes on. " * 100 + b'"}}\n')
            wait_until(lambda: state.gate.num_inside == 1 and bool(state.accounts.clients))
        wait_until(lambda: state.gate.num_inside == 0 and not state.accounts.clients)


def test_a_silent_client_is_disconnected(short_engine: ProductionTTSEngine) -> None:
    with home(short_engine, websocket_idle_s=0.2) as (_, port):
        (event,) = exchange(port, SynthesizeStart())

    assert Error.from_event(event).code == "session_timeout"


def test_a_full_server_and_one_that_shuts_down_refuse_new_texts(short_engine: ProductionTTSEngine) -> None:
    with home(short_engine) as (door, port):
        door.app.state.gate.is_draining = True
        error = Error.from_event(exchange(port, Synthesize("Hi."))[-1])

    assert error.code == "shutting_down"


def test_an_open_connection_does_not_delay_the_shutdown(short_engine: ProductionTTSEngine) -> None:
    with home(short_engine) as (_, port):
        plug = socket.create_connection(("127.0.0.1", port), timeout=EVENTUALLY_S)
    assert plug.recv(1) == b""
    plug.close()


def test_the_port_is_open_to_this_machine_only_unless_an_address_is_given() -> None:
    assert ServerSettings(wyoming_port=10_200).wyoming_host == "127.0.0.1"


def test_several_replicas_refuse_the_port(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    result = call("serve", "--replicas", "2", "--wyoming", str(port), "--port", "0")

    assert result.code == 1
    assert "--wyoming supports only one replica, not 2" in result.err
