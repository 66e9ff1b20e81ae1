"""Any recording is decoded to one mono wave; invalid recordings are refused with a reason."""

import io
import os
import re
import struct
import subprocess
import sys

import numpy as np
import pytest
import soundfile

from s1_mini.audio.reference import MIN_REFERENCE_S, load_reference
from s1_mini.exceptions import ReferenceAudioError

RATE = 44_100
LIMITS = {"sample_rate": RATE, "max_s": 30.0, "max_bytes": 2**22}


def tone(rate, seconds=1.0, hz=440.0):
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(round(rate * seconds)) / rate)


def file_of(wave, rate, container="WAV", coding=None):
    buffer = io.BytesIO()
    soundfile.write(buffer, wave, rate, coding, format=container)
    return buffer.getvalue()


def wav_of(channels, rate, data=b"\1\2" * 50_000):
    """Write a wav header by hand, with values that soundfile would not write."""
    layout = struct.pack("<HHIIHH", 1, channels, rate, (2 * channels * rate) % 2**32, 2 * channels, 16)
    chunks = b"fmt " + struct.pack("<I", 16) + layout + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def flac_that_says(num_frames):
    """Write 3 s of flac whose header declares another length: the low 36 of the 8 bytes at 18."""
    data = bytearray(file_of(tone(8000, 3.0), 8000, "FLAC"))
    (word,) = struct.unpack_from(">Q", data, 18)
    struct.pack_into(">Q", data, 18, (word >> 36 << 36) | num_frames)
    return bytes(data)


def assert_refused(audio, reason, **limits):
    with pytest.raises(ReferenceAudioError, match=reason) as caught:
        load_reference(audio, **{**LIMITS, **limits})
    assert caught.value.field == "reference_audio"


@pytest.mark.parametrize(
    ("container", "coding", "rate"),
    [
        ("WAV", "PCM_16", 44_100),
        ("WAV", "PCM_U8", 8_000),
        ("WAV", "PCM_24", 96_000),
        ("WAV", "FLOAT", 22_050),
        ("WAV", "ULAW", 8_000),
        ("FLAC", "PCM_16", 48_000),
        ("MP3", "MPEG_LAYER_III", 44_100),
        ("OGG", "VORBIS", 44_100),
        ("OGG", "OPUS", 48_000),
        ("AIFF", "PCM_16", 32_000),
        ("RF64", "PCM_16", 16_000),
    ],
)
def test_any_format_and_rate_becomes_a_wave_at_the_requested_rate(tmp_path, container, coding, rate):
    path = tmp_path / "recording"
    path.write_bytes(file_of(tone(rate), rate, container, coding))

    wave = load_reference(path, **LIMITS)

    assert wave.dtype == np.float32
    assert wave.shape == (pytest.approx(RATE, abs=2),)
    assert np.argmax(np.abs(np.fft.rfft(wave))) == pytest.approx(440, abs=1)
    assert np.sqrt(np.mean(wave**2)) == pytest.approx(0.5 / np.sqrt(2), abs=0.01)


def test_a_string_a_path_and_bytes_give_the_same_wave(tmp_path):
    path = tmp_path / "recording.raw"  # a suffix that soundfile would not open on its own
    path.write_bytes(file_of(tone(24_000), 24_000))

    waves = [load_reference(audio, **LIMITS) for audio in (str(path), path, path.read_bytes())]

    assert np.array_equal(waves[0], waves[1])
    assert np.array_equal(waves[1], waves[2])


@pytest.mark.parametrize("num_channels", [2, 8, 64])
def test_channels_are_averaged(num_channels):
    channels = np.zeros((RATE, num_channels))
    channels[:, 0] = tone(RATE)

    wave = load_reference(file_of(channels, RATE, coding="FLOAT"), **{**LIMITS, "max_bytes": 2**25})

    assert wave == pytest.approx(tone(RATE) / num_channels, abs=1e-6)


def test_an_array_is_copied_unchanged():
    given = tone(RATE)

    wave = load_reference(given, **LIMITS)
    given[:] = 0

    assert wave.dtype == np.float32
    assert wave == pytest.approx(tone(RATE), abs=1e-6)


@pytest.mark.parametrize("total", [0, 36, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("size", [0, 2**31 - 1, 2**32 - 1])
@pytest.mark.parametrize("before", [b"", b"LIST\x05\0\0\0INFO!\0"], ids=["plain", "after a list"])
def test_a_wav_recorded_as_a_stream_is_read(total, size, before):
    plain = file_of(tone(RATE), RATE)
    head = b"RIFF" + struct.pack("<I", total) + plain[8:36] + before + b"data" + struct.pack("<I", size)

    assert len(load_reference(head + plain[44:], **LIMITS)) == RATE


@pytest.mark.parametrize("size", [0, 2**64 - 1])
def test_a_large_wav_recorded_as_a_stream_is_read(size):
    data = bytearray(file_of(tone(RATE), RATE, "RF64"))
    place = data.index(b"ds64")
    data[place + 8 : place + 24] = struct.pack("<QQ", size, size)

    assert len(load_reference(bytes(data), **LIMITS)) == RATE


@pytest.mark.parametrize("after", [b"", b"LIST\x04\0\0\0INFO"])
def test_a_wav_without_samples_has_no_length(after):
    assert_refused(file_of(np.zeros(0), RATE) + after, "lasts 0.00 s")


@pytest.mark.parametrize("shares", [(1, -1), (1, -0.9), (0.8, -1), (1, -1, 1, -1)])
def test_channels_in_antiphase_do_not_cancel_each_other(shares):
    wave = tone(RATE)
    mixed = load_reference(file_of(np.stack([share * wave for share in shares], 1), RATE, coding="FLOAT"), **LIMITS)

    assert np.abs(mixed) == pytest.approx(np.abs(wave) * np.mean(np.abs(shares)), abs=1e-6)


PIPE = pytest.param("pipe", marks=pytest.mark.skipif(os.name == "nt", reason="makes a pipe"))


@pytest.mark.parametrize("place", ["missing.wav", "missing/a.wav", "folder", PIPE, "nul\0.wav", "n" * 300])
def test_a_path_that_holds_no_file_is_refused(tmp_path, place):
    (tmp_path / "folder").mkdir()
    if place == "pipe":
        os.mkfifo(tmp_path / "pipe")

    assert_refused(str(tmp_path / place), "': cannot be read: ")


def test_a_recording_given_by_its_path_is_named_and_one_given_by_its_bytes_is_not(tmp_path):
    bad, empty = tmp_path / "bad.wav", tmp_path / "empty.wav"
    bad.write_text("no audio")
    empty.touch()

    assert_refused(bad, f"^reference_audio: {re.escape(repr(str(bad)))}: the file is not audio")
    assert_refused(empty, f"^reference_audio: {re.escape(repr(str(empty)))}: the file is empty$")
    assert_refused(b"no audio", "^reference_audio: the file is not audio")


@pytest.mark.parametrize(
    ("audio", "reason"),
    [
        *((audio, "is not a recording; give a path") for audio in (None, 5, ["a.wav"], memoryview(b"RIFF"))),
        (b"", "the file is empty"),
        (b"This is a letter.", r"not audio of a supported format \(it begins with b'This'\); wav, flac, mp3"),
    ],
)
def test_an_invalid_recording_is_refused(audio, reason):
    assert_refused(audio, reason)


def test_a_file_over_the_limit_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "huge.wav"
    with path.open("wb") as file:
        file.truncate(2**40)  # sparse: takes no disk space, but reading it would exhaust memory

    assert_refused(path, "1099511627776 bytes; at most 4194304 are allowed; .*S1_MINI_MAX_REFERENCE_BYTES")
    assert_refused(b"x" * 1025, "1025 bytes; at most 1024", max_bytes=1024)


@pytest.mark.parametrize("container", ["SDS", "AU", "CAF", "W64", "VOC", "PAF", "SVX", "NIST", "IRCAM", "XI"])
@pytest.mark.parametrize("before", [b"", b"ID3\4\0\0\0\0\0\0"], ids=["plain", "after an ID3 tag"])
def test_an_unsupported_container_never_reaches_the_decoder(monkeypatch, container, before):
    data = before + file_of(tone(8000), 8000, container, "DPCM_16" if container == "XI" else None)
    monkeypatch.setattr(soundfile, "SoundFile", None)

    assert_refused(data, "not audio of a supported format|which cannot be read; ")


@pytest.mark.parametrize(
    ("data", "name", "suffix"),
    [
        (b"\0\0\0\x20ftypM4A \0\0", "MPEG-4", "m4a"),
        (b"\0\0\0\x18ftypmp42", "MPEG-4", "m4a"),
        (b"\x1aE\xdf\xa3\x9fB\x86\x81", "WebM or Matroska", "webm"),
        (b"\xff\xf1\x50\x80", "AAC", "aac"),
        (b"\xff\xf9\x50\x80", "AAC", "aac"),
        (b"ID3\4\0\0\0\0\0\0\xff\xf1\x50\x80", "AAC", "aac"),
        (b"0&\xb2u\x8ef\xcf\x11", "Windows Media", "wma"),
        (b"#!AMR\n", "AMR", "amr"),
    ],
)
def test_a_usual_format_that_cannot_be_read_is_named_with_a_command_that_converts_it(data, name, suffix):
    command = f"ffmpeg -i recording.{suffix} -ac 1 recording.wav"

    install = "" if suffix == "wma" else r'pip install "s1-mini\[av\]", or '
    reason = rf"the file is {name} \({suffix}\), which cannot be read; .*; {install}convert it, for example: {command}$"
    assert_refused(data + bytes(100), reason)


def test_a_recording_after_an_id3_tag_is_read():
    tag = b"ID3\4\0\0\0\0\1\0" + bytes(128)

    for container in ("MP3", "FLAC"):
        assert len(load_reference(tag + file_of(tone(RATE), RATE, container), **LIMITS)) == pytest.approx(RATE, abs=2)


@pytest.mark.parametrize("container", ["FLAC", "MP3"])  # truncated wav and ogg look like shorter complete files
def test_a_file_cut_in_half_is_refused(container):
    data = file_of(tone(48_000, 4.0), 48_000, container)

    assert_refused(data[: len(data) // 2], "corrupt or not audio|cut short")


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_file_is_read_or_refused_but_never_crashes(seed):
    rng = np.random.default_rng(seed)
    container = ["WAV", "FLAC", "OGG", "AIFF"][seed % 4]
    data = np.frombuffer(file_of(tone(8000), 8000, container), np.uint8).copy()
    data[rng.integers(0, min(len(data), 400), 5)] = rng.integers(0, 256, 5)

    try:
        wave = load_reference(data.tobytes(), **LIMITS)
    except ReferenceAudioError:
        return

    assert np.isfinite(wave).all()


def test_hours_in_a_small_file_are_refused_from_the_header():
    data = file_of(np.full(660 * 8000, 1e-4), 8000, "FLAC")
    assert len(data) < 2**17

    assert_refused(data, "lasts 660.00 s; at most 30 s are allowed; .*S1_MINI_MAX_REFERENCE_S")


def test_a_header_with_too_large_a_length_is_refused():
    assert_refused(flac_that_says(2**36 - 1), "lasts 8589934.59 s")
    assert_refused(flac_that_says(8000 * 20), "corrupt|cut short")


def test_a_header_with_too_small_a_length_bounds_the_recording():
    assert len(load_reference(flac_that_says(8000), **LIMITS)) == RATE


def test_a_stream_without_a_length_is_refused():
    assert_refused(flac_that_says(0), "does not state its length")


@pytest.mark.parametrize("rate", [8_000, 44_100])
def test_a_recording_as_long_as_the_limit_is_taken_and_no_longer(rate):
    assert load_reference(file_of(tone(rate, 3.0), rate), **{**LIMITS, "max_s": 3.0}).shape == (3 * RATE,)

    assert_refused(file_of(tone(rate, 3.001), rate), "lasts 3.00 s; at most 3 s", max_s=3.0)


def test_a_recording_shorter_than_half_a_second_is_refused():
    assert len(load_reference(file_of(tone(RATE, MIN_REFERENCE_S), RATE), **LIMITS)) == RATE // 2

    assert_refused(file_of(tone(RATE, 0.4), RATE), "lasts 0.40 s; at least 0.5 s")
    assert_refused(file_of(np.zeros(0), RATE), "lasts 0.00 s")


def test_silence_is_refused_and_a_whisper_is_not():
    assert_refused(file_of(0.0019 * tone(RATE), RATE, coding="FLOAT"), "silent: its peak lies below -60 dBFS")

    assert len(load_reference(file_of(0.0021 * tone(RATE), RATE, coding="FLOAT"), **LIMITS)) == RATE


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("as_file", [True, False])
def test_samples_that_are_not_finite_are_refused(broken, as_file):
    wave = tone(RATE)
    wave[100] = broken

    assert_refused(file_of(np.stack([wave, -wave], 1), RATE, coding="FLOAT") if as_file else wave, "NaN or infinite")


@pytest.mark.parametrize(
    ("channels", "rate", "reason"),
    [(0, RATE, "channels; 1 to 64|corrupt"), (65, RATE, "channels; 1 to 64|corrupt")]
    + [(1, rate, "4000 to 384000 Hz|corrupt") for rate in (0, 3_999, 384_001, 2**31)],
)
def test_implausible_channels_and_rates_are_refused(channels, rate, reason):
    assert_refused(wav_of(channels, rate), reason)


@pytest.mark.parametrize(
    ("wave", "reason"),
    [
        *((np.ones(shape, np.float32), "is not one row of samples") for shape in ((), (2, RATE), (RATE, 1))),
        *((np.ones(RATE, dtype), "is not a float wave") for dtype in (np.int16, bool, complex, object)),
        (tone(RATE, 31), "at most 30 s"),
        (tone(RATE, 0.4), "at least 0.5 s"),
        (32768 * tone(RATE), r"peaks at 16384; scale it to \[-1, 1\]"),
    ],
)
def test_an_array_that_is_not_a_recording_is_refused(wave, reason):
    assert_refused(wave, reason)


PROGRAM = """
import io, os, random, sys
import numpy, soundfile
from s1_mini.audio.native_noise import keep_out
from s1_mini.audio.reference import load_reference
from s1_mini.exceptions import ReferenceAudioError

buffer = io.BytesIO()
soundfile.write(buffer, numpy.random.default_rng(0).uniform(-0.4, 0.4, 240_000), 24_000, format="MP3")
broken, chance = bytearray(buffer.getvalue()), random.Random(1)
for _ in range(400):
    broken[chance.randrange(500, len(broken))] = chance.randrange(256)
log = keep_out() if sys.argv[1] == "quiet" else 2

def check():
    os.write(log, b"the log goes on\\n")

try:
    load_reference(bytes(broken), sample_rate=16_000, max_s=60, max_bytes=10**7, check=check)
except ReferenceAudioError:
    pass
os.write(2, b"and so does stderr\\n")
"""


def stderr_of(mode):
    command = [sys.executable, "-c", PROGRAM, mode]
    return subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()


def test_the_messages_of_libmpg123_are_silenced_only_on_request():
    loud, quiet = stderr_of("loud"), stderr_of("quiet")

    assert any("mpg123" in line or "Note:" in line for line in loud)
    assert quiet[-1] == "and so does stderr"
    assert set(quiet[:-1]) == {"the log goes on"}


def test_a_wav_of_countless_chunks_is_copied_at_most_once() -> None:
    chunks = (b"ds64" + struct.pack("<I", 16) + bytes(16)) * 3000

    for head in (b"RIFF", b"RF64"):
        assert_refused(head + bytes(4) + b"WAVE" + chunks + bytes(2**20), "not audio")
