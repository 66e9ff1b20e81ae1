"""Messages between two processes over two pipes: those of an engine's process, and those of a stage's worker.

A message is any object that can be pickled. All messages that wait are written as one record: the sizes of its parts, a
table with a row for each chunk of audio, a pickle of everything else, the arrays of the pickle, and the samples of the
chunks. Only for processes that trust each other.
"""

from __future__ import annotations

import logging
import os
import pickle
import struct
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from s1_mini.exceptions import S1MiniError
from s1_mini.types import AudioChunk, EngineState, Phases, TTSRequest

if sys.platform == "linux":
    import fcntl

logger = logging.getLogger(__name__)

PIPE_BYTES = 2**20  # capacity of a pipe, so that the audio of one codec call fits (Linux; 64 KiB by default)
BUFFER_BYTES = 2**18  # file buffer at each end of a pipe; larger arrays bypass it
STATUS_S = 0.05  # interval at which the engine's state is sent, if it has changed
HEARTBEAT_S = 1.0  # interval at which the state is sent even if it has not changed
WINDOW_S = 5.0  # unread seconds of audio from which a request is paused; audio that is generated later is held back
_SIZE = struct.Struct("<Q")
_MARK = b"s1m\n"  # begins each record, so that other output of a process is noticed
_HEAD = struct.Struct("<4sQQQ")  # mark, chunks, arrays, bytes of the pickle
_ROW = struct.Struct("<QIII?3x")  # number of the request, samples, Hz, frames, whether the samples are int16
_NO_DETAILS = (None, None, None, None, (), ())


class Speak(NamedTuple):
    """Speak `request`. The answers are `Audio`, or `Failed` if it cannot begin, with the same number."""

    number: int
    request: TTSRequest  # without `stream` and `on_end`
    streams: bool
    as_int16: bool  # whether the samples of the chunks are int16
    has_stream: bool  # whether `Text` with the text of the request follows
    reports_end: bool  # whether `Ended` is also an answer, once the request was accepted


class Text(NamedTuple):
    """The next piece of the text of a request, and whether it is the last one."""

    number: int
    piece: str
    is_last: bool


class Pause(NamedTuple):
    """Stop sending the audio of a request, or continue, because its consumer has not taken, or has taken, the rest."""

    number: int
    is_paused: bool


class Cancel(NamedTuple):
    """Cancel a request or a call; does nothing if it has ended."""

    number: int


class Call(NamedTuple):
    """Call a method of the other process. The answer is `Result` or `Failed`. The first call, `START`, starts it."""

    number: int
    method: str
    args: tuple[Any, ...]
    options: dict[str, Any]


class Facts(NamedTuple):
    """Properties of a started engine: the result of its start."""

    directory: Path  # of the checkpoint
    health: dict[str, Any]
    num_slots: int
    has_word_times: bool


class Audio(NamedTuple):
    """The next chunks of a request, and whether it has ended, maybe with an error."""

    number: int
    chunks: Sequence[AudioChunk]
    has_ended: bool = False
    error: Exception | None = None


class Ended(NamedTuple):
    """The phases of a request that has ended, maybe because it was cancelled."""

    number: int
    phases: Phases


class Held(NamedTuple):
    """Bytes of a request's audio that are not sent yet, because its consumer has not taken earlier audio."""

    number: int
    num_bytes: int


class Status(NamedTuple):
    """The engine's state, and the names of its voices if they have changed."""

    state: EngineState
    voice_names: list[str] | None


class Result(NamedTuple):
    """The result of a call."""

    number: int
    value: Any


class Failed(NamedTuple):
    """The error of a call, or of a request that could not begin."""

    number: int
    error: Exception


class Log(NamedTuple):
    """A log record of the engine's process."""

    record: logging.LogRecord


class Made(NamedTuple):
    """The next tokens of a sequence, and whether it is complete."""

    number: int
    tokens: Sequence[int]
    is_last: bool


START = 0  # number of the first call


class Channel:
    """Sends and receives messages in two threads. `send` never waits.

    Messages arrive in the order of `send`, but audio before all else that is written with it.
    """

    def __init__(
        self,
        source: BinaryIO,
        target: BinaryIO,
        *,
        name: str,
        on_message: Callable[[Any], None],
        on_unsent: Callable[[Any, Exception], None],
        on_end: Callable[[Exception | None], None],
        expand: Callable[[list[Any]], list[Any]] | None = None,
        tick_s: float | None = None,
    ) -> None:
        """`on_message` receives messages, and `on_end` the end of the input, maybe with an error, both in one thread.

        The other thread writes. `expand` turns the objects passed to `send` into the messages to write. It is also
        called, with an empty list, if nothing is sent for `tick_s`. `on_unsent` receives a message that cannot be
        pickled, and the error.
        """
        self._source, self._target = source, target
        self._on_message, self._on_unsent, self._on_end = on_message, on_unsent, on_end
        self._expand, self._tick_s = expand, tick_s
        self._outbox: SimpleQueue[Any] = SimpleQueue()  # its `put` may be called by the garbage collector
        self._writer = threading.Thread(target=self._write, name=f"s1_mini to {name}", daemon=True)
        self._reader = threading.Thread(target=self._read, name=f"s1_mini from {name}", daemon=True)

    def start(self) -> None:
        self._writer.start()
        self._reader.start()

    def send(self, message: object) -> None:
        self._outbox.put(message)

    def close(self) -> None:
        """Write the messages that wait, then end the output; further messages are discarded."""
        self._outbox.put(_END)
        self._writer.join()

    def join(self) -> None:
        """Wait for the end of the input."""
        if self._reader is not threading.current_thread():
            self._reader.join()

    def _write(self) -> None:
        try:
            with self._target:
                is_over = False
                while not is_over:
                    items = self._waiting()
                    is_over = _END in items
                    items = [item for item in items if item is not _END]
                    messages = items if self._expand is None else self._expand(items)
                    if messages:
                        self._write_messages(messages)
        except OSError:  # the other process has ended, which `_read` notices
            pass
        except Exception as error:  # nothing can be sent any more
            traceback.print_exc()
            self._on_end(error)

    def _write_messages(self, messages: list[Any]) -> None:
        try:
            write_messages(self._target, messages)
        except OSError:
            raise
        except Exception as error:  # a message cannot be pickled; pickling comes first, so nothing was written
            if len(messages) == 1:
                self._on_unsent(messages[0], error)
            else:
                for message in messages:
                    self._write_messages([message])

    def _waiting(self) -> list[Any]:
        """Wait for an object to send; return all that wait, none after `tick_s`."""
        items = []
        with suppress(Empty):
            items.append(self._outbox.get(timeout=self._tick_s))
            while True:
                items.append(self._outbox.get_nowait())
        return items

    def _read(self) -> None:
        try:
            with self._source:
                while (messages := read_messages(self._source)) is not None:
                    for message in messages:
                        self._on_message(message)
        except Exception as error:  # nothing can be received any more
            traceback.print_exc()
            self._on_end(error)
        else:
            self._on_end(None)


_END = object()


def portable(error: BaseException) -> Exception:
    """Return an error that another process can unpickle, without its traceback. Log an error of another package."""
    if not isinstance(error, S1MiniError):
        logger.error("a call of the engine failed", exc_info=error)
        return RuntimeError(f"{type(error).__name__}: {error}; the log has the traceback")
    return error.with_traceback(None)  # the frames of a traceback refer to the error


def own_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Reserve standard input and output for messages, and return them as files.

    Libraries, and processes that they start, then read nothing, and what they print goes to standard error.
    """
    source, target, nothing = os.dup(0), os.dup(1), os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    return os.fdopen(source, "rb", BUFFER_BYTES), os.fdopen(target, "wb", BUFFER_BYTES)


def enlarge_pipe(end: BinaryIO) -> None:
    """Set a pipe's capacity to `PIPE_BYTES`, if the system allows it; Linux limits the sum of a user's pipes."""
    if sys.platform == "linux":
        with suppress(OSError):
            fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, PIPE_BYTES)


def write_messages(target: BinaryIO, messages: list[Any]) -> None:
    """Write messages as one record. Raises `OSError`."""
    rows: list[bytes] = []
    samples: list[np.ndarray] = []
    details: dict[int, tuple[Any, ...]] = {}  # by row; most chunks have none
    others: list[Any] = []
    for message in messages:
        if not isinstance(message, Audio):
            others.append(message)
            continue
        for chunk in message.chunks:
            detail = (chunk.finish_reason, chunk.timing, chunk.spoken_text, chunk.warning, chunk.words, chunk.marks)
            if detail != _NO_DETAILS:
                details[len(rows)] = detail
            is_int16 = chunk.audio.dtype == np.int16
            audio = np.ascontiguousarray(chunk.audio, np.int16 if is_int16 else np.float32)
            rows.append(_ROW.pack(message.number, len(audio), chunk.sample_rate, chunk.frames, is_int16))
            samples.append(audio)
        if message.has_ended:
            others.append(message._replace(chunks=()))
    arrays: list[pickle.PickleBuffer] = []
    content = pickle.dumps((details, others), 5, buffer_callback=arrays.append)
    views = [array.raw() for array in arrays]
    head = _HEAD.pack(_MARK, len(rows), len(views), len(content))
    target.write(b"".join([head, *rows, *(_SIZE.pack(view.nbytes) for view in views), content]))
    for view in views:
        target.write(view)
    for audio in samples:
        target.write(audio.data)
    target.flush()


def read_messages(source: BinaryIO) -> list[Any] | None:
    """Read one record; return None at the end of the input, even within a record. Raises `ValueError` for no record."""
    try:
        head = _read_exactly(source, _HEAD.size)
        mark, num_rows, num_arrays, content_size = _HEAD.unpack(head)
        if mark != _MARK:
            raise ValueError(bytes(head))
        rows = list(_ROW.iter_unpack(_read_exactly(source, num_rows * _ROW.size)))
        sizes = [size for (size,) in _SIZE.iter_unpack(_read_exactly(source, num_arrays * _SIZE.size))]
        content, *arrays = [_read_exactly(source, size) for size in (content_size, *sizes)]
        waves = [_read_wave(source, size, is_int16=is_int16) for _, size, _, _, is_int16 in rows]
    except (EOFError, OSError):
        return None
    details, others = pickle.loads(content, buffers=arrays)  # noqa: S301 - from our own process
    messages: list[Any] = []
    for index, (number, _, rate, frames, _) in enumerate(rows):
        chunk = AudioChunk(waves[index], rate, frames, *details.get(index, ()))
        if messages and messages[-1].number == number:
            messages[-1].chunks.append(chunk)
        else:
            messages.append(Audio(number, [chunk]))
    return messages + others


def _read_wave(source: BinaryIO, size: int, *, is_int16: bool) -> np.ndarray:
    wave = np.empty(size, np.int16 if is_int16 else np.float32)
    _fill(source, wave.view(np.uint8).data)
    return wave


def _read_exactly(source: BinaryIO, size: int) -> memoryview:
    content = np.empty(size, np.uint8).data  # not initialized, unlike a bytearray
    _fill(source, content)
    return content


def _fill(source: BinaryIO, content: memoryview) -> None:
    done = 0
    while done < len(content):
        count = source.readinto(content[done:])  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        done += count
