"""Recordings of phones and browsers are decoded in a process of their own, with limits."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pytest

from s1_mini import ProductionTTSEngine
from s1_mini.audio.container import encode
from s1_mini.audio.reference import load_reference
from s1_mini.exceptions import ReferenceAudioError
from s1_mini.remote.child import Child
from s1_mini.runtime.fair_pool import MAX_THREADS
from s1_mini.voices import conversion
from s1_mini.voices.conversion import find_converter
from waiting import EVENTUALLY_S, wait_until

av = pytest.importorskip("av", reason="pip install -r requirements-test.lock.txt")

LIMITS = {"sample_rate": 24_000, "max_bytes": 2**22}
RATE, HZ = 48_000, 440
FORMATS = {  # container, codec and rate by suffix
    "m4a": ("ipod", "aac", 44_100),
    "alac.m4a": ("ipod", "alac", 44_100),
    "webm": ("webm", "libopus", 48_000),
    "aac": ("adts", "aac", 48_000),
    "amr": ("amr", "libopencore_amrnb", 8_000),
    "3gp": ("3gp", "libopencore_amrnb", 8_000),
    "mov": ("mov", "pcm_s16le", 48_000),
}


def recorded(suffix: str, seconds: float = 2.0, *, sides: tuple[float, ...] = (0.5,)) -> bytes:
    """Return a recording of a tone, with a level for each channel."""
    container, codec, rate = FORMATS[suffix]
    tone = np.sin(2 * np.pi * HZ * np.arange(int(seconds * RATE)) / RATE)
    samples = (np.outer(tone, sides) * 32767).astype(np.int16).reshape(1, -1)
    layout = "stereo" if len(sides) == 2 else "mono"
    output = io.BytesIO()
    with av.open(output, "w", format=container) as file:
        stream = file.add_stream(codec, rate=rate, layout=layout)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout=layout)
        frame.sample_rate = RATE
        context = stream.codec_context
        resampler = av.AudioResampler(context.format, layout, rate, frame_size=context.frame_size or None)
        for part in [*resampler.resample(frame), *resampler.resample(None), None]:
            if part is not None:
                part.pts = None
            file.mux(stream.encode(part))
    return output.getvalue()


def load(recording: bytes, max_s: float = 60.0) -> np.ndarray:
    return load_reference(recording, max_s=max_s, convert=find_converter(max_s), **LIMITS)


@pytest.mark.parametrize("suffix", FORMATS)
def test_a_recording_keeps_its_length_pitch_and_level(suffix: str) -> None:
    wave = load(recorded(suffix))

    middle = wave[12_000:36_000]
    assert len(wave) / 24_000 == pytest.approx(2.0, abs=0.05)
    assert np.argmax(np.abs(np.fft.rfft(middle))) == pytest.approx(HZ, abs=1)
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.07)


def test_channels_in_antiphase_do_not_cancel_each_other() -> None:
    wave = load(recorded("m4a", sides=(0.5, -0.5)))

    assert np.abs(wave[12_000:36_000]).max() == pytest.approx(0.5, abs=0.02)


def test_an_engine_clones_a_voice_from_a_phone_recording(engine: ProductionTTSEngine) -> None:
    response = engine.generate("Yes.", reference_audio=recorded("m4a"), reference_text="Ah.", seed=1, max_new_tokens=6)

    assert response.audio_seconds > 0


def broken() -> Iterator[tuple[bytes, float, str]]:
    """Yield recordings, the maximum seconds, and the reason of the refusal."""
    m4a, webm = recorded("m4a"), recorded("webm")
    yield m4a[:200], 60.0, "the file cannot be decoded: "
    yield webm[:60] + bytes(2000), 60.0, "the file cannot be decoded: "
    yield b"\0\0\0\x20ftypM4A " + bytes(5000), 60.0, "the file cannot be decoded: "
    yield m4a, 1.0, "the file cannot be decoded: it lasts more than 1 s; cut it or raise S1_MINI_MAX_REFERENCE_S"
    yield recorded("webm", 0.2), 60.0, "at least 0.5 s are needed"
    yield b"#EXTM3U\n/etc/passwd\n" + bytes(100), 60.0, "not audio of a supported format"


def test_a_recording_that_cannot_be_decoded_is_refused_with_the_reason() -> None:
    for recording, max_s, reason in broken():
        with pytest.raises(ReferenceAudioError, match=reason):
            load(recording, max_s)


def test_a_recording_of_the_longest_duration_may_be_padded_by_its_encoder() -> None:
    assert len(load(recorded("m4a", 2.0), max_s=2.0)) <= 2 * LIMITS["sample_rate"]


def test_no_other_decoder_than_those_of_recordings_sees_a_file() -> None:
    """FFmpeg decodes some of each stream when it opens a file, also of a picture."""
    pictures = io.BytesIO()
    with av.open(pictures, "w", format="matroska") as file:
        stream = file.add_stream("mjpeg", rate=1, options={"strict": "unofficial"})
        stream.width = stream.height = 64
        stream.pix_fmt = "yuvj420p"
        for part in (av.VideoFrame(64, 64, "yuvj420p"), None):
            file.mux(stream.encode(part))
    program = "import av; av.logging.set_level(av.logging.VERBOSE); from s1_mini.voices.conversion_child import main"
    command = [sys.executable, "-c", f"{program}; main()", "matroska", "60", "48000"]

    process = subprocess.run(command, input=pictures.getvalue(), capture_output=True, check=False)

    assert process.stderr.decode().splitlines()[-1] == "it has no audio"
    assert "Codec (mjpeg) not on whitelist" in process.stderr.decode()


def test_damaged_files_are_read_or_refused_and_never_raise_another_error() -> None:
    random = np.random.default_rng(1)
    for suffix in FORMATS:
        recording = np.frombuffer(recorded(suffix), np.uint8).copy()
        places = random.integers(8, len(recording), 50)
        recording[places] = random.integers(0, 256, len(places))
        with suppress(ReferenceAudioError):
            load(recording.tobytes())


@pytest.fixture
def decoders(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """All decoders of a test."""
    found: list[Child] = []
    launch = Child.launch
    monkeypatch.setattr(Child, "launch", lambda self: (found.append(self), launch(self)))
    return found


def test_a_decoder_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch, decoders: list[Child]) -> None:
    monkeypatch.setattr(conversion, "LIMIT_S", 0.0)

    with pytest.raises(ReferenceAudioError, match="decoding it took longer than 0 s"):
        load(recorded("m4a"))

    assert decoders[0].returncode not in (0, None)


def test_a_request_that_is_cancelled_kills_its_decoder(decoders: list[Child]) -> None:
    def cancel() -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        load_reference(recorded("m4a"), max_s=60.0, convert=find_converter(60.0), check=cancel, **LIMITS)

    assert decoders[0].has_exited.wait(EVENTUALLY_S)


def test_other_recordings_do_not_wait_for_decoders(
    engine: ProductionTTSEngine, monkeypatch: pytest.MonkeyPatch, tone: np.ndarray
) -> None:
    released, plain = threading.Event(), conversion._convert

    def held(*arguments: Any) -> bytes:
        assert released.wait(EVENTUALLY_S)
        return plain(*arguments)

    def speak(recording: bytes) -> Any:
        options = {"reference_audio": recording, "reference_text": "Ah.", "seed": 1, "max_new_tokens": 6}
        return engine.generate("Yes.", **options)

    monkeypatch.setattr(conversion, "_convert", held)
    with ThreadPoolExecutor(MAX_THREADS) as pool, ExitStack() as cleanup:
        phones = [pool.submit(speak, recorded("m4a", 1.0 + number / 10)) for number in range(MAX_THREADS)]
        cleanup.callback(released.set)
        wait_until(lambda: engine.health_check()["recordings"]["running"] > 0)
        assert speak(encode(tone * 0.63, 44_100, "wav")).audio.size > 0
        assert not any(each.done() for each in phones)
        released.set()
        assert all(each.result().audio.size > 0 for each in phones)


def test_an_answer_of_more_than_the_allowed_bytes_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    endless = "import sys, os\nwhile True: os.write(1, bytes(2**16))"
    monkeypatch.setattr(conversion, "_PROGRAM", endless)

    with pytest.raises(ReferenceAudioError, match="cannot be decoded: BrokenPipeError"):
        load(recorded("amr"), 1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems lack some of the limits")
def test_the_process_cannot_open_files_or_connections_nor_take_much_memory() -> None:
    program = """
import socket
from s1_mini.voices.conversion_child import limit

limit()
for attempt in (lambda: open("/etc/passwd"), socket.socket, lambda: bytearray(2**31)):
    try:
        attempt()
    except (OSError, MemoryError) as error:
        print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["OSError", "OSError", "MemoryError"]


def test_without_the_extra_there_is_no_converter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "find_spec", lambda _: None)

    with pytest.raises(ReferenceAudioError, match=r'pip install "s1-mini\[av\]", or convert it'):
        load(recorded("m4a"))
