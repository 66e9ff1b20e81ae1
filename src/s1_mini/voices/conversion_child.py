"""The process of `conversion.py`: reads a file from stdin, and writes its audio to stdout as a wav file of 16 bits."""

from __future__ import annotations

import io
import sys
import traceback
import wave
from contextlib import suppress
from typing import Any

MAX_MEMORY = 2**30  # bytes of address space, of which the libraries take a third
MAX_CPU_S = 10
PADDING_S = 0.1  # encoders lengthen a recording by up to two of their frames
# Native decoders of FFmpeg for what phones and browsers record
CODECS = frozenset(
    ("aac", "alac", "amrnb", "amrwb", "flac", "mp3", "mp3float", "opus", "libopus", "pcm_f32le", "pcm_s16le", "vorbis")
)


def main() -> None:
    demuxer, max_s, max_rate = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    recording = sys.stdin.buffer.read()
    import av
    import av.subtitles.stream  # otherwise, av imports it with the first file, which the limits prevent

    limit()
    try:
        sound = _decoded(av, recording, demuxer, max_s, max_rate)
    except (av.FFmpegError, ValueError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error) or "it needs too much memory"
        sys.exit(reason)  # as the last line of the log
    except Exception:
        traceback.print_exc()
        sys.exit("the decoder failed")
    sys.stdout.buffer.write(sound)


def limit() -> None:
    """Limit memory and processor time, and open no more files and connections, where the system allows it."""
    if sys.platform != "win32":
        import resource

        limits = {"RLIMIT_AS": MAX_MEMORY, "RLIMIT_CPU": MAX_CPU_S, "RLIMIT_CORE": 0, "RLIMIT_NOFILE": 0}
        for name, most in limits.items():
            with suppress(ValueError, OSError):
                resource.setrlimit(getattr(resource, name), (most, most))


def _decoded(av: Any, recording: bytes, demuxer: str, max_s: float, max_rate: int) -> bytes:
    """Return the first audio stream as a wav file. Raises `FFmpegError`, or `ValueError` with the reason."""
    output = io.BytesIO()
    # No protocol: the file cannot refer to others. Opening a file already runs the decoders of all its streams.
    options = {"protocol_whitelist": "", "codec_whitelist": ",".join(sorted(CODECS))}
    with av.open(io.BytesIO(recording), format=demuxer, options=options) as file:
        if not file.streams.audio:
            raise ValueError("it has no audio")
        stream = file.streams.audio[0]
        if (codec := stream.codec_context.name if stream.codec_context else "without a name") not in CODECS:
            raise ValueError(f"its codec {codec} is not supported; convert it to wav")
        sound: wave.Wave_write | None = None
        resampler: Any = None
        num_frames = 0
        for frame in file.decode(stream):
            if sound is None:
                rate, channels = min(frame.sample_rate, max_rate), min(len(frame.layout.channels), 2)
                resampler = av.AudioResampler("s16", "stereo" if channels == 2 else "mono", rate)
                sound = wave.open(output, "wb")  # noqa: SIM115 - its parameters are those of the first frame
                sound.setparams((channels, 2, rate, 0, "NONE", ""))
            num_frames += _add(sound, resampler.resample(frame), max_s)
            if num_frames > (max_s + PADDING_S) * sound.getframerate():
                raise ValueError(f"it lasts more than {max_s:g} s; cut it or raise S1_MINI_MAX_REFERENCE_S")
        if sound is None:
            raise ValueError("it has no audio")
        _add(sound, resampler.resample(None), max_s)
        sound.close()
    return output.getvalue()


def _add(sound: wave.Wave_write, frames: list[Any], max_s: float) -> int:
    """Append frames, cut after `max_s` seconds of the file; return their number of samples per channel."""
    for frame in frames:
        num_samples = min(frame.samples, int(max_s * sound.getframerate()) - sound.tell())
        num_bytes = num_samples * sound.getnchannels() * sound.getsampwidth()
        sound.writeframesraw(bytes(frame.planes[0])[:num_bytes])
    return sum(frame.samples for frame in frames)
