"""Encoding to every audio format, whole or streamed, can be decoded again, and files are written atomically."""

import io
import os
import stat
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from s1_mini.audio.aac import AacFile
from s1_mini.audio.container import (
    COMMENT,
    FORMATS,
    RAW,
    SOURCE_TYPE,
    StreamEncoder,
    check_format,
    encode,
    format_of,
    media_type,
    to_int16,
    wav_header,
    write,
    writing,
)
from s1_mini.audio.reference import load_reference
from s1_mini.exceptions import GenerationError, ParameterError
from s1_mini.version import __version__

PIPE = pytest.param("pipe", marks=pytest.mark.skipif(os.name == "nt", reason="makes a pipe"))
AAC = pytest.param(
    "aac", marks=pytest.mark.skipif(find_spec("av") is None, reason="pip install -r requirements-test.lock.txt")
)
ALL = [AAC if name == "aac" else name for name in FORMATS]
FILES = [AAC if name == "aac" else name for name in FORMATS if name not in RAW]


def tone(sample_rate, seconds=0.5, hz=440.0):
    return (0.5 * np.sin(2 * np.pi * hz * np.arange(int(sample_rate * seconds)) / sample_rate)).astype(np.float32)


def decode(data):
    """Return samples and rate; of AAC, without the silent frame at the start."""
    if data.startswith(b"\xff\xf1"):
        import av

        with av.open(io.BytesIO(data), format="aac") as file:
            wave = np.concatenate([frame.to_ndarray()[0] for frame in file.decode(audio=0)])
            return wave[1024:], file.streams[0].rate
    return soundfile.read(io.BytesIO(data), dtype="float32")


def pitch(wave, rate):
    return np.argmax(np.abs(np.fft.rfft(wave))) * rate / len(wave)


@pytest.mark.parametrize("name", ["wav", "flac"])
def test_lossless_formats_keep_every_sample(name):
    wave = tone(44_100)

    samples, rate = soundfile.read(io.BytesIO(encode(wave, 44_100, name)), dtype="int16")

    assert rate == 44_100
    assert np.array_equal(samples, to_int16(wave))


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("rate", [16_000, 24_000, 44_100, 96_000])
def test_every_format_takes_every_rate_and_keeps_length_and_pitch(name, rate):
    wave, read_rate = decode(encode(tone(rate), rate, name))

    assert len(wave) / read_rate == pytest.approx(0.5, abs=1024 / read_rate if name == "aac" else 0.001)
    assert pitch(wave, read_rate) == pytest.approx(440, abs=3)
    assert np.abs(wave).max() == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("name", ALL)
def test_the_same_wave_has_the_same_bytes(name):
    wave = tone(44_100, 3.0)

    assert encode(wave, 44_100, name) == encode(wave, 44_100, name)


def test_streams_of_opus_may_be_joined_because_their_serial_numbers_differ():
    first, second = encode(tone(48_000, 0.5), 48_000, "ogg"), encode(tone(48_000, 0.7), 48_000, "ogg")

    assert first[14:18] != second[14:18]


@pytest.mark.parametrize(
    ("name", "container", "coding", "rate"),
    [("opus", "OGG", "OPUS", 48_000), ("ogg", "OGG", "OPUS", 48_000), ("mp3", "MP3", "MPEG_LAYER_III", 44_100)],
)
def test_a_file_has_its_format_at_a_supported_rate(name, container, coding, rate):
    info = soundfile.info(io.BytesIO(encode(tone(44_100), 44_100, name)))

    assert (info.format, info.subtype, info.channels, info.samplerate) == (container, coding, 1, rate)


def test_pcm_is_bare_samples_and_may_be_empty():
    assert encode(np.array([0.0, 1.0], np.float32), 44_100, "pcm") == b"\x00\x00\xff\x7f"
    assert encode(np.zeros(0, np.float32), 44_100, "pcm") == b""


@pytest.mark.parametrize("name", FILES)
def test_a_single_sample_can_be_encoded(name):
    assert len(decode(encode(np.zeros(1, np.float32), 48_000, name))[0]) == (1024 if name == "aac" else 1)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("wave", "reason"),
    [(np.zeros(0), "no samples"), (np.zeros((100, 2)), r"\(100, 2\).*one channel"), (np.full(1000, np.nan), "NaN")],
    ids=["empty", "two channels", "broken"],
)
def test_an_invalid_wave_is_refused(name, wave, reason):
    if name in RAW and not len(wave):
        return  # bare samples may be empty
    with pytest.raises(GenerationError, match=reason):
        encode(wave.astype(np.float32), 44_100, name)


@pytest.mark.parametrize("name", FILES)
def test_samples_out_of_range_are_clipped(name):
    loud = 4 * tone(24_000)

    wave, _ = decode(encode(loud, 24_000, name))

    assert np.array_equal(wave, decode(encode(np.clip(loud, -1, 1), 24_000, name))[0])


def test_a_wav_file_is_byte_for_byte_the_one_that_libsndfile_writes():
    wave, buffer = tone(24_000), io.BytesIO()
    with soundfile.SoundFile(buffer, "w", 24_000, 1, "PCM_16", format="WAV") as sound:
        sound.write(to_int16(wave))
        sound.comment = COMMENT

    assert encode(wave, 24_000, "wav") == buffer.getvalue()


def test_a_wav_over_the_size_limit_declares_no_length():
    assert wav_header(44_100, 2**31) == wav_header(44_100)


def test_a_stream_header_and_samples_are_a_wav_of_unknown_length():
    samples = to_int16(tone(44_100))

    wave, rate = soundfile.read(io.BytesIO(wav_header(44_100) + samples.tobytes()), dtype="int16")

    assert rate == 44_100
    assert np.array_equal(wave, samples)


@pytest.mark.parametrize("name", ALL)
def test_a_suffix_names_the_format_in_any_case(name):
    assert format_of(f"folder.d/sound.{name.upper()}") == check_format(name.upper()) == name
    assert media_type(name).startswith("audio/")


@pytest.mark.parametrize("path", ["sound.m4a", "sound.", "sound", ".wav"])
def test_an_unknown_suffix_is_refused_with_the_allowed_ones(path):
    with pytest.raises(ParameterError, match=r"path: .*wav.*flac.*mp3.*opus.*ogg.*pcm"):
        format_of(path)


def test_an_unknown_format_name_is_refused():
    with pytest.raises(ParameterError, match="'m4a' is not known"):
        check_format("m4a")


@pytest.mark.parametrize("name", ALL)
def test_a_written_file_is_what_was_encoded_and_stands_alone(tmp_path, name):
    wave = tone(24_000)

    write(tmp_path / f"a.{name}", wave, 24_000, name)

    assert os.listdir(tmp_path) == [f"a.{name}"]
    assert (tmp_path / f"a.{name}").stat().st_size == pytest.approx(len(encode(wave, 24_000, name)), abs=64)


def test_an_existing_file_is_replaced_by_one_with_the_usual_permissions(tmp_path):
    path, other = tmp_path / "a.wav", tmp_path / "other"
    path.write_text("old")
    other.write_text("made the usual way")

    write(str(path), tone(24_000), 24_000, "wav")

    assert soundfile.info(path).samplerate == 24_000
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(other.stat().st_mode)


@pytest.mark.skipif(os.name == "nt", reason="Windows lets few users make links")
def test_a_link_is_followed_and_stays_a_link(tmp_path):
    target, link = tmp_path / "target.wav", tmp_path / "link.wav"
    link.symlink_to(target)

    write(link, tone(24_000), 24_000, "wav")

    assert link.is_symlink()
    assert soundfile.info(target).samplerate == 24_000


@pytest.mark.parametrize("place", ["missing/a.wav", "file/a.wav", "folder", PIPE, "nul\0.wav", "n" * 300])
def test_an_unwritable_path_is_refused_by_name(tmp_path, place):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "folder").mkdir()
    if place == "pipe":
        os.mkfifo(tmp_path / "pipe")
    before = sorted(os.listdir(tmp_path))

    with pytest.raises(ParameterError, match="path: cannot write") as caught:
        write(tmp_path / place, tone(24_000), 24_000, "wav")

    assert repr(str(tmp_path / place)) in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("audio_format", ["wav", "mp3", AAC])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(audio_format, tmp_path):
    path = tmp_path / f"a.{audio_format}"
    path.write_text("old")
    resource = pytest.importorskip("resource", reason="Windows does not limit the size of files")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))  # writing byte 4097 of any file fails
    try:
        with pytest.raises(ParameterError, match="File too large"):
            write(path, np.random.default_rng(0).uniform(-1, 1, 48_000), 24_000, audio_format)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    assert os.listdir(tmp_path) == [path.name]
    assert path.read_text() == "old"


def test_a_broken_wave_leaves_no_file(tmp_path):
    with pytest.raises(GenerationError):
        write(tmp_path / "a.wav", np.full(10, np.nan), 24_000, "wav")

    assert os.listdir(tmp_path) == []


# Labels


def made(way, name, folder, *, is_labelled):
    """Encode two waves as a whole, as a stream or to a file."""
    waves = [tone(24_000), tone(24_000, hz=600)]
    if way == "whole":
        return encode(np.concatenate(waves), 24_000, name, is_labelled=is_labelled)
    if way == "streamed":
        encoder = StreamEncoder(name, 24_000, is_labelled=is_labelled)
        return b"".join(map(encoder.feed, waves)) + encoder.finish()
    path = folder / f"a.{name}"
    with writing(path, 24_000, name, is_labelled=is_labelled) as add:
        for wave in waves:
            add(wave)
    return path.read_bytes()


@pytest.mark.parametrize("way", ["whole", "streamed", "written"])
@pytest.mark.parametrize("name", ALL)
def test_every_file_with_a_header_and_a_length_states_that_it_is_synthetic_and_keeps_its_samples(name, way, tmp_path):
    labelled, bare = (made(way, name, tmp_path, is_labelled=each) for each in (True, False))

    if name in (*RAW, "aac") or (name, way) == ("wav", "streamed"):
        assert labelled == bare
        return
    with soundfile.SoundFile(io.BytesIO(labelled)) as sound, soundfile.SoundFile(io.BytesIO(bare)) as other:
        assert (sound.comment, other.comment) == (COMMENT, "")
        assert np.array_equal(sound.read(), other.read())
    assert COMMENT.split(": ") == [f"Synthetic speech, generated by s1_mini {__version__}", SOURCE_TYPE]


@pytest.mark.parametrize("way", ["whole", "streamed", "written"])
@pytest.mark.parametrize("name", FILES)
def test_ffmpeg_reads_the_label_and_the_same_samples(name, way, tmp_path):
    av = pytest.importorskip("av", reason="pip install -r requirements-test.lock.txt")

    def read(content):
        with av.open(io.BytesIO(content)) as file:
            tags = file.metadata | file.streams.audio[0].metadata  # Ogg has the tags of a file in its stream
            wave = np.concatenate([frame.to_ndarray().ravel() for frame in file.decode(audio=0)])
        return {name.lower(): text for name, text in tags.items()}.get("comment"), wave

    (label, wave), (none, other) = (read(made(way, name, tmp_path, is_labelled=each)) for each in (True, False))

    assert (label, none) == (None if name == "aac" or (name, way) == ("wav", "streamed") else COMMENT, None)
    assert np.array_equal(wave, other)


def test_a_labelled_wav_has_its_samples_after_44_bytes_and_can_be_a_reference():
    wave = tone(24_000, 1.0)

    content = encode(wave, 24_000, "wav")

    assert content[44:].startswith(to_int16(wave).tobytes())
    assert len(load_reference(content, sample_rate=24_000, max_s=10.0, max_bytes=2**20)) == len(wave)


# 16-bit samples


@pytest.mark.parametrize(
    ("wave", "samples"),
    [
        ([1.0, 0.0, -1.0], [32767, 0, -32767]),  # symmetric
        ([1.5, 1e30, -1.00001, -1e30], [32767, 32767, -32767, -32767]),  # clipped, not wrapped round
        ([0.6 / 32767, 0.4 / 32767, -0.6 / 32767], [1, 0, -1]),  # rounded to nearest
    ],
)
def test_float_waves_become_16_bit_samples_and_stay_as_they_are(wave, samples):
    given_wave = np.array(wave, np.float32)

    assert to_int16(given_wave).tolist() == samples
    assert given_wave.tolist() == np.array(wave, np.float32).tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_any_float_gives_little_endian_samples_of_the_same_shape(dtype):
    samples = to_int16(np.full((3, 2), 0.5, dtype))

    assert samples.dtype == np.dtype("<i2")
    assert samples.tobytes() == b"\x00\x40" * 6


@given(hnp.arrays(np.float32, st.integers(0, 50), elements=st.floats(-1, 1, width=32)))
def test_no_sample_moves_by_more_than_half_a_step(wave):
    assert np.all(np.abs(to_int16(wave) / 32767 - wave) <= 0.501 / 32767)


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_a_sample_that_is_not_finite_is_refused_with_its_position(broken):
    with pytest.raises(GenerationError, match="1 of 4 samples are NaN or infinite, the first at 2"):
        to_int16(np.array([0, 0, broken, 0], np.float32))


# Streams


def decoded(content, form):
    if form in RAW:
        return np.frombuffer(content, "<i2" if form == "pcm" else np.uint8)
    return decode(content)[0]


@pytest.mark.parametrize("size", [100, 8192, 44_100])
@pytest.mark.parametrize("rate", [16_000, 44_100])
@pytest.mark.parametrize("form", ALL)
def test_pieces_decode_to_the_samples_of_the_whole(form, rate, size):
    encoder, wave = StreamEncoder(form, rate), tone(44_100, 1.0)

    content = b"".join(encoder.feed(wave[start : start + size]) for start in range(0, len(wave), size))
    content += encoder.finish()

    got, expected = decoded(content, form), decoded(encode(wave, rate, form), form)
    if form == "mp3":  # at another bit rate, and with the encoder's padding
        assert 0 <= len(got) - len(expected) < 4000
    else:
        assert np.array_equal(got, expected)


# 16-bit samples and their codes by the formulas of ITU-T G.711
@pytest.mark.parametrize(
    ("form", "samples", "codes"),
    [
        ("mulaw", [0, 8, -8, 1000, -1000, 32767, -32767], [0xFF, 0xFE, 0x7E, 0xCE, 0x4E, 0x80, 0x00]),
        ("alaw", [8, -8, 1000, -1000, 32767, -32767], [0xD5, 0x55, 0xFA, 0x7A, 0xAA, 0x2A]),
    ],
)
def test_telephone_audio_is_g711(form, samples, codes):
    wave = np.array(samples, np.float32) / 32767

    assert list(encode(wave, 8_000, form)) == codes


@pytest.mark.parametrize("form", ["pcm", "wav", "mp3", "ogg", AAC])
def test_audio_is_encoded_before_the_end_of_the_stream(form):
    encoder = StreamEncoder(form, 44_100)

    sent = sum(len(encoder.feed(tone(44_100, 1.0))) for _ in range(5))

    assert sent > 3 * len(encoder.finish())


@pytest.mark.parametrize("audio_format", ["wav", "opus"])
def test_every_second_sample_of_an_array_can_be_encoded(audio_format):
    wave = np.arange(4800, dtype=np.int16)

    assert encode(wave[::2], 24_000, audio_format) == encode(wave[::2].copy(), 24_000, audio_format)


def test_nan_is_not_encoded():
    with pytest.raises(GenerationError, match="NaN"):
        StreamEncoder("wav", 44_100).feed(np.full(10, np.nan, np.float32))


@pytest.mark.parametrize("form", ALL)
def test_an_empty_wave_still_gives_a_file(form):
    assert isinstance(StreamEncoder(form, 44_100).finish(), bytes)


# AAC


@pytest.mark.parametrize("rate", [8_000, 24_000, 44_100])
def test_aac_is_a_silent_frame_and_whole_frames_of_the_audio(rate):
    av = pytest.importorskip("av", reason="pip install -r requirements-test.lock.txt")
    wave = tone(rate, 0.7)

    content = encode(wave, rate, "aac")

    with av.open(io.BytesIO(content), format="aac") as file:
        sound = file.streams.audio[0]
        frames = [frame.to_ndarray()[0] for frame in file.decode(sound)]
        assert (sound.profile, sound.channels, sound.rate) == ("LC", 1, rate)
    assert [len(frame) for frame in frames] == [1024] * (2 + len(wave) // 1024)
    assert np.abs(frames[0]).max() < 0.3  # before its end, only what the encoder smears of the first sample
    heard = np.concatenate(frames[1:])[: len(wave)]
    assert 10 * np.log10(np.mean(wave**2) / np.mean((heard - wave) ** 2)) > 25


@pytest.mark.parametrize("way", ["whole", "streamed", "written"])
@pytest.mark.usefixtures("without_av")
def test_aac_without_its_package_is_refused_by_name_and_leaves_no_file(way, tmp_path):
    with pytest.raises(ParameterError) as caught:
        made(way, "aac", tmp_path, is_labelled=True)

    assert str(caught.value) == (
        "audio_format: 'aac': its encoder needs av, which is not installed: "
        'pip install "s1-mini[av]", or in a checkout pip install -e ".[av]"; '
        "or use one of wav, flac, mp3, opus, ogg, pcm, mulaw, alaw"
    )
    assert os.listdir(tmp_path) == []
    assert format_of("a.aac") == check_format("AAC", encodes=False) == "aac"  # for a server that may have it


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the processors of a thread")
def test_an_aac_encoder_starts_no_threads_and_leaves_the_processors_to_its_own():
    pytest.importorskip("av", reason="pip install -r requirements-test.lock.txt")
    before, processors = len(os.listdir("/proc/self/task")), os.sched_getaffinity(0)

    encoders = [StreamEncoder("aac", 24_000) for _ in range(5)]
    for encoder in encoders:
        encoder.feed(tone(24_000))

    assert len(os.listdir("/proc/self/task")) < before + len(encoders)
    assert os.sched_getaffinity(0) == processors


def test_an_error_of_the_aac_encoder_is_one_of_ours():
    pytest.importorskip("av", reason="pip install -r requirements-test.lock.txt")
    file = AacFile(io.BytesIO(), 24_000)
    file.write(to_int16(tone(24_000)))
    file._encoder.encode(None)  # ends its stream

    with pytest.raises(GenerationError, match=r"cannot be encoded as AAC: .*End of file"):
        file.write(to_int16(tone(24_000)))
