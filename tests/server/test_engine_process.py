"""A server whose engine runs in its own process answers like one whose engine runs in the server's process."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import psutil
import pytest
import soundfile
from websockets.sync.client import connect

from s1_mini import (
    CheckpointError,
    ConfigurationError,
    EngineConfig,
    EngineNotReadyError,
    ParameterError,
    ProductionTTSEngine,
    QueueFullError,
    TextStream,
)
from s1_mini.audio.container import to_int16
from s1_mini.packaging import compile_cache
from s1_mini.packaging.write import lay_out, write_prefix
from s1_mini.remote import channel, engine_process
from s1_mini.remote.channel import WINDOW_S, Audio, Channel, Status
from s1_mini.remote.devices import sees_gpu
from s1_mini.remote.engine_process import EngineProcess, make_engine
from s1_mini.remote.engine_worker import LogSender
from s1_mini.speech_engine import SpeechEngine
from s1_mini.types import AudioChunk, EngineState, Timing, TTSRequest, Word
from tests.families.qwen3_room import LETTERS, config, follow_text, written
from tests.server.conftest import LONG_SPEECH, Door, serving
from waiting import EVENTUALLY_S, has_ended, wait_until

pytestmark = pytest.mark.slow

STOPS = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="Windows has no signals that a process can handle")
Both = tuple[ProductionTTSEngine, EngineProcess]
FEW: dict[str, Any] = {"seed": 1, "max_new_tokens": 8}
RECORDING = {"text": (None, "Hi there."), "seed": (None, "1"), "max_new_tokens": (None, "8")}
REQUESTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "whole": ("POST", "/v1/tts", {"json": {"text": "Hi there.", **FEW}}),
    "streamed": ("POST", "/v1/tts", {"json": {"text": "Hi there. " * 9, "stream": True, "format": "pcm", **FEW}}),
    "effects": ("POST", "/v1/tts", {"json": {"text": "Hi.", "speed": 1.5, "gain_db": 3, "sample_rate": 8000, **FEW}}),
    "ssml": (
        "POST",
        "/v1/tts",
        {"json": {"text": '<speak>Hi <break time="0.3s"/> you.</speak>', "text_type": "ssml", "stream": True, **FEW}},
    ),
    "marked": ("POST", "/v1/tts", {"json": {"text": "Hi [pause 0.2s] you.", "text_type": "marked", **FEW}}),
    "batch": ("POST", "/v1/tts/batch", {"json": {"items": [{"text": "Hi."}, {"text": "?"}], **FEW}}),
    "events": ("POST", "/v1/audio/speech", {"json": {"input": "Hi there.", "stream_format": "sse", **FEW}}),
    "unknown voice": ("POST", "/v1/tts", {"json": {"text": "Hi.", "voice": "nobody"}}),
    "no word times": ("POST", "/v1/tts/batch", {"json": {"items": [{"text": "Hi.", "language": "en"}]}}),
    "empty text": ("POST", "/v1/tts", {"json": {"text": " "}}),
    "wrong markup": ("POST", "/v1/tts", {"json": {"text": "<speak>Hi", "text_type": "ssml"}}),
    "long text": ("POST", "/v1/tts", {"json": {"text": "Hi. " * 9000}}),
    "broken recording": ("POST", "/v1/tts", {"files": {**RECORDING, "reference_audio": ("a.wav", b"noise")}}),
    "voices": ("GET", "/v1/voices", {}),
    "voice": ("GET", "/v1/voices/nobody", {}),
    "ready": ("GET", "/ready", {}),
}


@contextmanager
def running(config: EngineConfig) -> Iterator[EngineProcess]:
    engine = EngineProcess(config)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop(drain=False)


@pytest.fixture(scope="module")
def apart(tiny: Path) -> Iterator[Door]:
    """A server whose engine runs in its own process, with the settings of `door`."""
    with (
        running(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=4)) as engine,
        serving(engine) as served,  # type: ignore[arg-type]
    ):
        yield served


@pytest.fixture(scope="module")
def only_engine(published: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """An engine of a package with a compile cache, whose copy is in `TMPDIR`."""
    folder = tmp_path_factory.mktemp("package")
    for part in ("cache/triton", "temporary"):
        (folder / part).mkdir(parents=True)
    (folder / "cache" / "triton" / "kernel.ptx").write_text("// compiled")
    write_prefix(lay_out(published, compile_cache=folder / "cache"), folder / "package")
    settings = EngineConfig(
        checkpoint_path=folder / "package", device="cpu", max_batch_size=1, max_queue_size=1, compile="false"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder / "temporary"))
        for variable in compile_cache.VARIABLES:
            patch.setenv(variable, "")
        with running(settings) as engine:
            yield engine


@pytest.fixture
def single(only_engine: EngineProcess) -> EngineProcess:
    """A running engine with one slot and room for one waiting request, which tests may stop."""
    if not only_engine.state().is_ready:
        only_engine.stop()
        only_engine.start()
    return only_engine


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    """A model that reads texts while they are written, and reports word times, in this process and in its own."""
    directory = written(tmp_path_factory.mktemp("custom") / "checkpoint", "custom_voice")
    follow_text(directory, {"layer": 1, "head": 2, "shift_ms": 0})
    settings = config(directory, device="cpu", text_layout="step", chunk_length=1000)
    with ProductionTTSEngine(settings) as inside, running(settings) as outside:
        yield inside, outside


def content_of(answer: httpx2.Response) -> tuple[int, str | None, Any]:
    """Return what must not depend on the process: status, type and body, without the request's id and times."""
    kind = answer.headers.get("content-type")
    if kind != "application/json":
        return answer.status_code, kind, answer.content
    text = re.sub(r'"(generation|total)_time": [\d.]+', "", json.dumps(answer.json(), sort_keys=True))
    return answer.status_code, kind, text.replace(answer.headers["x-request-id"], "ID")


def chunks_of(engine: SpeechEngine, request: TTSRequest) -> list[AudioChunk]:
    async def collect() -> list[AudioChunk]:
        return [chunk async for chunk in engine.submit(request)]

    return asyncio.run(collect())


def join(chunks: list[AudioChunk]) -> np.ndarray:
    return np.concatenate([chunk.audio for chunk in chunks])


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_gets_the_same_response_from_both(door: Door, apart: Door, name: str) -> None:
    method, path, options = REQUESTS[name]
    with door.client() as inside, apart.client() as outside:
        expected, answer = inside.request(method, path, **options), outside.request(method, path, **options)

    assert content_of(answer) == content_of(expected)


def test_an_uploaded_reference_is_spoken_and_becomes_a_voice_that_is_known_at_once(
    door: Door, apart: Door, tone: np.ndarray
) -> None:
    buffer = io.BytesIO()
    soundfile.write(buffer, tone, 44_100, format="WAV")
    file, answers = ("me.wav", buffer.getvalue()), []
    for served in (door, apart):
        with served.client() as client:
            spoken = client.post(
                "/v1/tts", files={**RECORDING, "reference_audio": file, "reference_text": (None, "Ah.")}
            )
            added = client.post("/v1/voices", data={"name": "carl", "text": "Ah."}, files={"audio": file})
            named = client.post("/v1/audio/speech", json={"input": "Hi there.", "voice": "carl", **FEW})
            deleted = client.delete("/v1/voices/carl")
            unknown = client.post("/v1/tts", json={"text": "Hi.", "voice": "carl"})
            answers.append([content_of(answer) for answer in (spoken, added, named, deleted, unknown)])

    assert [status for status, *_ in answers[0]] == [200, 201, 200, 204, 404]
    assert answers[0] == answers[1]


def test_health_and_metrics_have_the_same_fields(door: Door, apart: Door) -> None:
    with door.client() as inside, apart.client() as outside:
        expected, health = inside.get("/health").json(), outside.get("/health").json()
        pages = [client.get("/metrics").text for client in (inside, outside)]

    assert health.keys() == expected.keys()
    assert health["status"] == "ready"
    assert health["slots"]["total"] == expected["slots"]["total"]
    names = [set(re.findall("^# TYPE (s1_mini_.*) ", page, re.MULTILINE)) for page in pages]
    own = "s1_mini_engine_process_"
    assert {name for name in names[1] if not name.startswith(own)} == names[0]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")
def test_metrics_have_memory_and_cpu_time_of_the_engines_process(apart: Door) -> None:
    assert isinstance(apart.engine, EngineProcess)
    engine = psutil.Process(apart.engine.process_id)
    with apart.client() as client:
        values = dict(re.findall(r"^s1_mini_engine_process_(\w+) (\S+)$", client.get("/metrics").text, re.MULTILINE))

    assert engine.parent() == psutil.Process()
    assert float(values["start_time_seconds"]) == pytest.approx(engine.create_time(), abs=1)
    assert float(values["resident_memory_bytes"]) > 50e6  # torch alone needs more
    assert 0 < float(values["cpu_seconds_total"]) <= sum(engine.cpu_times()[:2])


def test_a_session_speaks_and_a_client_that_disconnects_frees_its_slot(apart: Door) -> None:
    with connect(f"ws://127.0.0.1:{apart.port}/v1/audio/speech/stream", proxy=None) as socket:
        socket.send(json.dumps({"type": "session.config", "seed": 1}))
        socket.send(json.dumps({"type": "input.text", "text": LONG_SPEECH["text"]}))
        while not isinstance(socket.recv(timeout=EVENTUALLY_S), bytes):
            pass

    def is_free() -> bool:
        health = apart.engine.health_check()
        return bool(health["requests"] == 0 and health["slots"]["free"] == health["slots"]["total"])

    wait_until(is_free)


def test_a_stream_that_nobody_reads_is_paused_and_its_audio_is_counted(apart: Door, door: Door) -> None:
    request = TTSRequest.of(LONG_SPEECH["text"], seed=1, max_new_tokens=40)
    expected = join(chunks_of(door.engine, request))

    async def read_late() -> np.ndarray:
        stream = apart.engine.submit(request)
        heard = [await anext(stream)]
        window = WINDOW_S * heard[0].sample_rate * heard[0].audio.itemsize
        while stream.unread_bytes < min(2 * window, 0.9 * expected.nbytes):
            await asyncio.sleep(0.01)
        return join(heard + [chunk async for chunk in stream])

    np.testing.assert_array_equal(asyncio.run(read_late()), expected)


def test_a_full_queue_refuses_with_the_engines_retry_time(single: EngineProcess) -> None:
    async def fill() -> QueueFullError:
        speaking = single.submit(TTSRequest.of(LONG_SPEECH["text"], seed=0))
        await anext(speaking)
        streams = [single.submit(TTSRequest.of(LONG_SPEECH["text"], seed=seed)) for seed in range(1, 4)]
        firsts = [asyncio.ensure_future(anext(stream)) for stream in streams]
        ended, _ = await asyncio.wait(firsts, return_when=asyncio.FIRST_COMPLETED)
        for first in firsts:
            first.cancel()
        await asyncio.gather(*firsts, return_exceptions=True)
        await speaking.aclose()
        error = ended.pop().exception()
        assert isinstance(error, QueueFullError)
        return error

    assert asyncio.run(fill()).retry_after_s > 0


def test_words_are_the_same(both: Both) -> None:
    request = TTSRequest.of(LETTERS, voice="ryan", word_times=True, seed=3, max_new_tokens=30)

    expected, output = (chunks_of(engine, request) for engine in both)

    assert both[1].has_word_times
    np.testing.assert_array_equal(join(output), join(expected))
    words = [word for chunk in output for word in chunk.words]
    assert words == [word for chunk in expected for word in chunk.words]
    assert words


@pytest.mark.parametrize("is_complete", [False, True], ids=["still being written", "complete at once"])
def test_a_text_stream_is_the_same(both: Both, *, is_complete: bool) -> None:
    def write(engine: SpeechEngine) -> list[AudioChunk]:
        stream = TextStream()
        request = TTSRequest.of(stream, voice="ryan", seed=3, max_new_tokens=30, normalize="off")

        async def speak() -> list[AudioChunk]:
            reading = None if is_complete else asyncio.ensure_future(_all(engine, request))
            for piece in ("Goo", "d mor", "ning. So ", "mu", "ch. "):
                stream.write(piece)
                await asyncio.sleep(0 if is_complete else 0.01)
            stream.close()
            return await (reading or _all(engine, request))

        return asyncio.run(speak())

    expected, output = (write(engine) for engine in both)

    np.testing.assert_array_equal(join(output), join(expected))


async def _all(engine: SpeechEngine, request: TTSRequest) -> list[AudioChunk]:
    return [chunk async for chunk in engine.submit(request)]


def test_an_engine_that_is_stopped_continues_its_metrics_when_it_starts_again(single: EngineProcess) -> None:
    """The process that ends deletes its copy of a compile cache."""
    assert single.config.checkpoint_path is not None
    temporary = single.config.checkpoint_path.parent / "temporary"
    assert len(list(temporary.glob("s1-mini-compiled-*"))) == 1
    request = TTSRequest.of("Hi.", seed=1, max_new_tokens=4)

    def num_spoken() -> float:
        (ends,) = (family.value for family in single.families() if family.name == "requests_total")
        assert isinstance(ends, dict)
        return ends.get("spoken", 0)

    before = num_spoken()
    chunks_of(single, request)
    single.stop()
    assert single.state().status == "stopped"
    assert not list(temporary.glob("s1-mini-compiled-*"))
    assert num_spoken() == before + 1
    with pytest.raises(EngineNotReadyError, match="was stopped"):
        chunks_of(single, request)

    single.start()
    chunks_of(single, request)
    assert num_spoken() == before + 2


def test_a_message_that_cannot_be_pickled_fails_only_its_own_request(single: EngineProcess) -> None:
    class Unknown(str):
        __slots__ = ()

    assert single._running is not None
    process = single._running.process
    with pytest.raises(RuntimeError, match=r"Can't (get|pickle) local object.*the log has the traceback"):
        chunks_of(single, TTSRequest.of(Unknown("Hi.")))
    with pytest.raises(RuntimeError, match="the log has the traceback"):
        single._running.call("count_tokens", Unknown("Hi.")).result(EVENTUALLY_S)
    with pytest.raises(RuntimeError, match=r"pickle.*the log has the traceback"):  # its result is an iterator
        single._running.call("stream", "Hi.").result(EVENTUALLY_S)

    assert chunks_of(single, TTSRequest.of("Hi.", seed=1, max_new_tokens=4))
    assert single._running.process is process
    wait_until(lambda: single.health_check()["requests"] == 0)


def test_messages_are_sent_although_one_between_them_cannot_be_pickled() -> None:
    source, target = os.pipe()
    unsent: list[Any] = []
    lock = threading.Lock()
    with os.fdopen(source, "rb") as reader, open(os.devnull, "rb") as nothing:
        sender = Channel(
            nothing,
            os.fdopen(target, "wb"),
            name="test",
            on_message=unsent.append,
            on_unsent=lambda message, error: unsent.append((message, type(error))),
            on_end=lambda _: None,
        )
        for message in ("Hi.", lock, "Bye."):
            sender.send(message)
        sender.start()
        sender.close()

        assert [channel.read_messages(reader) for _ in range(3)] == [["Hi."], ["Bye."], None]
    assert unsent == [(lock, TypeError)]


def test_chunks_keep_all_their_fields_and_their_order_on_the_way() -> None:
    waves = [np.arange(5, dtype=np.float32), np.arange(3, dtype=np.int16), np.zeros(0, np.float32)]
    chunks = [
        AudioChunk(waves[0], 44_100, 1, spoken_text="Hi.", warning="quiet"),
        AudioChunk(waves[1], 24_000, 0),
        AudioChunk(waves[2], 8_000, 2, "stop", Timing(), words=(Word("Hi", 0, 2, 0.0, 0.5),)),
    ]
    sent = [Status(EngineState("ready"), None), Audio(1, chunks[:2]), Audio(2, chunks[1:2]), Audio(1, chunks[2:], True)]
    record = io.BytesIO()
    channel.write_messages(record, [*sent, "Bye."])
    record.seek(0)

    received = channel.read_messages(record)

    assert received is not None
    audio = [message for message in received if isinstance(message, Audio)]
    assert [message.number for message in audio] == [1, 2, 1, 1]
    assert audio[3] == Audio(1, (), has_ended=True)
    assert [message for message in received if message not in audio] == [sent[0], "Bye."]
    for expected, given in zip(chunks, [*audio[0].chunks, *audio[2].chunks], strict=True):
        np.testing.assert_array_equal(given.audio, expected.audio, strict=True)
        assert replace(given, audio=waves[0]) == replace(expected, audio=waves[0])
    assert channel.read_messages(record) is None


def test_samples_are_rounded_in_the_engines_process_for_a_caller_that_takes_them(single: EngineProcess) -> None:
    request = TTSRequest.of("Hi.", seed=1, max_new_tokens=4)
    expected = join(chunks_of(single, request))

    async def collect() -> list[AudioChunk]:
        return [chunk async for chunk in single.submit(request, as_int16=True)]

    np.testing.assert_array_equal(join(asyncio.run(collect())), to_int16(expected), strict=True)


@STOPS
def test_metrics_of_a_process_that_does_not_answer_are_the_last_known_ones(
    single: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert single._running is not None
    chunks_of(single, TTSRequest.of("Hi.", seed=1, max_new_tokens=4))
    expected = single.families()
    single._running.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(engine_process, "PROBE_S", 0.1)

    assert single.families() == expected
    single._running.process.send_signal(signal.SIGCONT)


PARENT = """
from s1_mini import EngineConfig
from s1_mini.remote import engine_process
hang = "import os, time; print(os.getpid(), file=sys.stderr, flush=True); time.sleep(1e6)"
engine_process.CHILD = engine_process.CHILD.replace("from s1_mini.remote.engine_worker import main", hang)
engine_process.EngineProcess(EngineConfig(device="cpu")).start()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell a process that its parent has ended")
def test_a_process_that_hangs_ends_with_the_server() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stderr=subprocess.PIPE, text=True) as parent:
        assert parent.stderr is not None
        engine = psutil.Process(int(parent.stderr.readline()))
        engine.suspend()

        parent.kill()

    wait_until(lambda: has_ended(engine))


def test_silence_during_a_suspension_of_the_server_does_not_count(single: EngineProcess) -> None:
    assert single._running is not None
    process = single._running.process
    single._running.heard -= 1e6
    single._running._checked -= 1e6

    assert single.state().is_ready
    assert process.poll() is None


def test_a_text_stream_in_use_begins_no_request(single: EngineProcess) -> None:
    stream = TextStream()
    stream.attach(lambda *_: None)

    with pytest.raises(ParameterError, match="another request"):
        chunks_of(single, TTSRequest.of(stream))
    wait_until(lambda: single.health_check()["requests"] == 0)
    assert single._running is not None
    assert not single._running._outputs


@STOPS
def test_a_process_that_hangs_is_killed_ends_its_requests_and_fails_the_engine(
    single: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert single._running is not None
    process = single._running.process

    async def speak() -> None:
        async for _ in single.submit(TTSRequest.of(LONG_SPEECH["text"], seed=1)):
            process.send_signal(signal.SIGSTOP)
            monkeypatch.setattr(single, "config", single.config.model_copy(update={"stuck_after_s": 1.5}))
            await asyncio.to_thread(wait_until, lambda: single.state().status == "failed")

    with pytest.raises(EngineNotReadyError, match="process has ended"):
        asyncio.run(speak())
    assert single.health_check()["status"] == "failed"
    with pytest.raises(EngineNotReadyError, match="process has ended"):
        chunks_of(single, TTSRequest.of("Hi."))
    with pytest.raises(EngineNotReadyError):
        single.voices()


@STOPS
def test_a_process_that_hangs_is_killed_by_a_stop_without_draining(
    single: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_process, "STOP_S", 0.1)
    assert single._running is not None
    process = single._running.process
    process.send_signal(signal.SIGSTOP)
    for _ in range(3):
        single._running.call("count_tokens", "Hi. " * 2**20)  # more than the pipe holds

    single.stop(drain=False)
    assert process.returncode == -signal.SIGKILL


@STOPS
def test_signals_to_the_group_leave_the_end_of_the_engine_to_the_server(apart: Door) -> None:
    assert isinstance(apart.engine, EngineProcess)
    assert apart.engine._running is not None
    process = apart.engine._running.process
    for number in (signal.SIGINT, signal.SIGTERM):
        process.send_signal(number)

    assert join(chunks_of(apart.engine, TTSRequest.of("Hi.", seed=1, max_new_tokens=4))).size
    assert process.poll() is None


def test_an_engine_that_cannot_start_says_why_and_imports_nothing_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    engine = EngineProcess(EngineConfig(checkpoint_path=tmp_path / "nothing", device="cpu"))

    with pytest.raises(CheckpointError, match="nothing"):
        engine.start()
    assert engine.state().status == "stopped"


def test_an_engine_starts_in_the_process_that_it_has_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "CHILD", f"open({str(tmp_path / 'launched')!r}, 'a').write('x')")
    engine = EngineProcess(EngineConfig(device="cpu"))
    engine.prepare()

    for launched in ("x", "xx"):  # once it has ended, the next start launches another
        with pytest.raises(EngineNotReadyError):
            engine.start()
        assert (tmp_path / "launched").read_text() == launched


@pytest.mark.parametrize(("choice", "kind"), [("on", EngineProcess), ("off", ProductionTTSEngine)])
def test_the_setting_chooses_the_process(choice: Any, kind: type) -> None:
    assert isinstance(make_engine(EngineConfig(device="cpu"), choice), kind)
    assert isinstance(make_engine(EngineConfig(device="cpu"), "auto"), ProductionTTSEngine)
    assert isinstance(make_engine(EngineConfig(device="cuda"), "auto"), EngineProcess)


def test_a_program_without_an_interpreter_keeps_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)

    assert isinstance(make_engine(EngineConfig(device="cuda"), "auto"), ProductionTTSEngine)
    with pytest.raises(ConfigurationError, match="S1_MINI_SERVER_ENGINE_PROCESS"):
        make_engine(EngineConfig(device="cpu"), "on")


def test_log_records_of_other_packages_can_be_sent() -> None:
    sent: list[Any] = []
    handler = LogSender(sent.append)
    extra = {"fields": {"path": Path("a"), "lock": threading.Lock()}, "owner": threading.Lock()}
    handler.emit(logging.makeLogRecord({"name": "other", "msg": "%d of %s", "args": (1, Path("b"))} | extra))

    record = pickle.loads(pickle.dumps(sent[0])).record
    assert (record.name, record.getMessage(), record.fields["path"]) == ("other", "1 of b", "a")


def test_a_log_call_with_wrong_arguments_does_not_raise(capsys: pytest.CaptureFixture[str]) -> None:
    LogSender(lambda _: None).emit(logging.makeLogRecord({"msg": "%d", "args": ("x",)}))

    assert "Logging error" in capsys.readouterr().err


def test_a_pipe_that_cannot_be_enlarged_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PIPE_BYTES", 2**30 + 2**29)
    source, target = os.pipe()
    with os.fdopen(source, "rb") as reader, os.fdopen(target, "wb") as writer:
        channel.enlarge_pipe(writer)
        channel.write_messages(writer, ["Hi."])
        assert channel.read_messages(reader) == ["Hi."]


@pytest.mark.gpu
@pytest.mark.skipif(not sees_gpu(), reason="needs an NVIDIA GPU")
def test_an_engine_on_a_gpu_has_its_own_process_and_generates_the_same_audio(tiny: Path) -> None:
    settings = EngineConfig(checkpoint_path=tiny, max_batch_size=1)
    request = TTSRequest.of("Hi there.", seed=1, max_new_tokens=8)
    engine = make_engine(settings, "auto")
    assert isinstance(engine, EngineProcess)
    with ProductionTTSEngine(settings) as inside, running(settings) as outside:
        assert outside.health_check()["device"]["value"].startswith("cuda")
        np.testing.assert_array_equal(join(chunks_of(outside, request)), join(chunks_of(inside, request)))
