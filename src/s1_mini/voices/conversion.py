"""Convert recordings of phones and browsers to wav with FFmpeg's libraries (extra `av`), in a process for each file.

FFmpeg is large, and its input comes from clients. The process gets the file over a pipe and has no secrets in its
environment. Except on Windows, its processor time is limited, and it cannot open files or connections. On Linux, its
memory is also limited.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, BinaryIO

from s1_mini.audio.reference import CONVERTIBLE
from s1_mini.exceptions import ReferenceAudioError
from s1_mini.remote.channel import Channel
from s1_mini.remote.child import Child, python

LIMIT_S = 15.0  # of wall-clock time, with the start of the process
POLL_S = 0.02
MAX_RATE, MAX_CHANNELS = 48_000, 2  # of the converted audio; recordings with more are resampled and mixed
HEAD_BYTES = 1024  # more than the header of a wav file
_PROGRAM = "from s1_mini.voices.conversion_child import main; main()"
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT")


def find_converter(max_s: float) -> Callable[[bytes, str, Callable[[], None]], bytes] | None:
    """Return `convert` of `load_reference` for recordings of at most `max_s` seconds; None without the extra."""
    if find_spec("av") is None:
        return None
    return lambda recording, suffix, check: _convert(recording, CONVERTIBLE[suffix], max_s, check)


def _convert(recording: bytes, demuxer: str, max_s: float, check: Callable[[], None]) -> bytes:
    max_bytes = HEAD_BYTES + int((max_s + 1) * MAX_RATE) * MAX_CHANNELS * 2
    decoder = _Decoder(recording, max_bytes, python(_PROGRAM, demuxer, str(max_s), str(MAX_RATE)))
    try:
        decoder.launch()
    except OSError:
        raise _error(decoder.verdict) from None
    try:
        while not decoder.has_exited.wait(POLL_S):
            check()
            if time.monotonic() - decoder.began > LIMIT_S:
                decoder.kill(f"decoding it took longer than {LIMIT_S:g} s")
    finally:
        decoder.kill()
    decoder.exchange.join()
    if decoder.returncode != 0 or len(decoder.exchange.content) > max_bytes:
        ended = f"the decoder ended with exit code {decoder.returncode}"
        raise _error(decoder.verdict or next(filter(None, reversed(decoder.lines)), ended))
    return decoder.exchange.content


def _error(reason: str) -> ReferenceAudioError:
    return ReferenceAudioError("reference_audio", f"the file cannot be decoded: {reason[:200]}")


class _Exchange(Channel):
    """Writes a file to the process and reads one from it. Messages would be pickles, which the process could forge."""

    def __init__(self, recording: bytes, max_bytes: int, *pipes: BinaryIO, **hooks: Any) -> None:
        super().__init__(*pipes, **hooks)
        self._recording, self._max_bytes = recording, max_bytes
        self.content = b""

    def _write(self) -> None:
        with suppress(OSError), self._target:  # the process may have ended
            self._target.write(self._recording)

    def _read(self) -> None:
        with suppress(OSError), self._source:
            self.content = self._source.read(self._max_bytes + 1)
        self._on_end(None)


class _Decoder(Child):
    talks = logs = True

    def __init__(self, recording: bytes, max_bytes: int, command: list[str]) -> None:
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        super().__init__(command, environment, name="decoder")
        self._recording, self._max_bytes = recording, max_bytes

    def connect(self, *pipes: BinaryIO, **hooks: Any) -> Channel:
        self.exchange = _Exchange(self._recording, self._max_bytes, *pipes, **hooks)
        return self.exchange
