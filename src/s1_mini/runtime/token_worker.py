"""A process that makes a stage's tokens, and the pipes to it: messages in JSON, one a line.

| to its standard input | from its standard output |
|---|---|
| `{"open": …}`, first | `{"ready": …}`, once it can begin |
| `{"begin": number, …}` | `{"made": [[number, [token, …], whether that was all], …]}` |
| `{"drop": number}` | `{"failed": number, "error": sentence}` |
| | `{"refused": sentence}`, instead of `ready`: it cannot work as it is set up |

Numbers name sequences; what `open` and `begin` say beside them is for the stage and its worker to agree on. The other
side of the pipes is `token_server.py`. The process ends when its input does, so it never outlives this one.
"""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, NamedTuple

from s1_mini.exceptions import ConfigurationError, EngineNotReadyError, GenerationError, S1MiniError

logger = logging.getLogger(__name__)

LAST_LINES = 20  # of what a worker wrote to its standard error, that are told when it ends
STOP_S = 10.0  # for a worker to end once its input has; then it is killed


class Made(NamedTuple):
    """What has come of a sequence and was not taken yet."""

    token: int | None  # the next; None if there is none yet
    is_last: bool = False


@dataclass
class _Sequence:
    tokens: deque[int] = field(default_factory=deque)
    is_over: bool = False
    error: S1MiniError | None = None


class _Process:
    """One run of the worker; threads of its own write to it and keep the last lines that it complains."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], messages: SimpleQueue[Any]) -> None:
        """Start it. Raises `OSError`."""
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603 - the command is the family's
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=dict(environment)
        )
        self.is_ready = False
        self.verdict = self.refusal = ""  # why it was killed, if it was; why it said that it cannot begin
        self.heard = time.monotonic()
        self._messages, self._lines = messages, deque[str](maxlen=LAST_LINES)
        self._listener = self._spawn(self._listen)
        self._spawn(self._write)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def kill(self, verdict: str) -> None:
        """End it at once; `verdict` says why."""
        if self._process.poll() is None:
            self.verdict = verdict
            self._process.kill()

    def read(self, take: Callable[[dict[str, Any]], None]) -> None:
        """Hand its messages to `take` until it ends; kills it for what is none."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                self.heard = time.monotonic()
                try:
                    take(json.loads(line))
                except (ValueError, KeyError, TypeError):
                    self.kill(f"it wrote {line[:80]!r}, which is no message")
                    return

    def end(self) -> str:
        """Wait for its end; say how it ended."""
        self._messages.put(None)
        code = self._process.wait()
        self._listener.join(STOP_S)
        return self.verdict or f"exit code {code}"

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; tell whether it came."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
            return True
        return False

    @property
    def last_lines(self) -> str:
        """What it complained of last."""
        return "\n".join(self._lines)

    def _write(self) -> None:
        """Send messages until the one that is None: then its input ends."""
        assert self._process.stdin is not None
        with suppress(OSError), self._process.stdin as pipe:
            while (message := self._messages.get()) is not None:
                pipe.write(json.dumps(message).encode() + b"\n")
                pipe.flush()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as errors:
            for line in errors:
                self._lines.append(line.decode(errors="replace").rstrip())
                logger.debug("worker %d: %s", self._process.pid, self._lines[-1])

    def _spawn(self, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work, name=f"s1_mini worker {self._process.pid}", daemon=True)
        thread.start()
        return thread


class TokenWorker:
    """A worker process, which is started anew if it ends. Safe to use from several threads.

    Sequences that it was at when it ended have an error each. One whose start failed is started again by the next
    sequence that begins.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        opening: Mapping[str, Any],
        *,
        environment: Mapping[str, str],
        start_s: float,
        silent_s: float,
    ) -> None:
        """Begin to start it. `start_s` bounds a start, `silent_s` the time without a word while it has work."""
        self.name, self._command, self._opening, self._environment = name, command, opening, environment
        self._start_s, self._silent_s = start_s, silent_s
        self.num_starts = 0
        self._sequences: dict[int, _Sequence] = {}
        self._next_number = 0
        self._changed = threading.Condition()
        self._messages = self._opened()  # of this run, or of the next
        self._process: _Process | None = None
        self._failure: S1MiniError | None = None  # of the last start, until somebody asks again
        self._is_wanted, self._is_closing = True, False
        self._keeper = threading.Thread(target=self._keep, name=f"s1_mini worker of {name}", daemon=True)
        self._keeper.start()

    @property
    def num_sequences(self) -> int:
        """Sequences that were begun and neither dropped nor taken to their end."""
        return sum(not each.is_over and each.error is None for each in self._sequences.values())

    @property
    def pid(self) -> int:
        """Of the process; 0 where there is none."""
        process = self._process
        return 0 if process is None else process.pid

    def wait(self) -> None:
        """Wait until it can begin.

        Raises `ConfigurationError` if it refuses, or `EngineNotReadyError`, with its last lines.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or (self._process is not None and self._process.is_ready))
            if self._failure is not None:
                raise self._failure

    def begin(self, asked: Mapping[str, Any]) -> int:
        """Have a sequence made; give its number."""
        with self._changed:
            number, self._next_number = self._next_number, self._next_number + 1
            self._sequences[number] = _Sequence()
            self._messages.put({"begin": number, **asked})
            self._is_wanted = True
            if self._process is not None:
                self._process.heard = time.monotonic()  # it had nothing to say before
            self._changed.notify_all()
            return number

    def drop(self, number: int) -> None:
        """Have a sequence made no further; does nothing if it is over."""
        with self._changed:
            sequence = self._sequences.pop(number, None)
            if sequence is not None and not sequence.is_over and sequence.error is None:
                self._messages.put({"drop": number})

    def take(self, numbers: Collection[int], wait_s: float) -> list[Made]:
        """Take the next token of each sequence; if none has one, wait for it, up to so many seconds.

        Raises the error of the first that has one; then nothing is taken.
        """
        with self._changed:
            sequences = [self._sequences[number] for number in numbers]
            self._changed.wait_for(lambda: any(each.tokens or each.is_over or each.error for each in sequences), wait_s)
            for each in sequences:
                if each.error is not None:
                    raise each.error
                if each.is_over and not each.tokens:
                    raise GenerationError(f"the worker of the stage {self.name} ended this too soon")
            self._check_silence(any(not each.tokens and not each.is_over for each in sequences))
            return [_take(each) for each in sequences]

    def close(self) -> None:
        """End it; what it was at has an error."""
        with self._changed:
            self._is_closing = True
            self._messages.put(None)
            process = self._process
            self._changed.notify_all()
        if process is not None and not process.wait(STOP_S):
            process.kill("it was told to end and did not")
        self._keeper.join()

    def _check_silence(self, someone_waits: bool) -> None:
        process = self._process
        if not someone_waits or process is None or not process.is_ready:
            return
        if time.monotonic() - process.heard > self._silent_s:
            process.kill(f"it had work and has not said a word for {self._silent_s:.4g} s")

    # ---- the keeper's thread --------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Start it, listen to it, and so on until it is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_wanted or self._is_closing)
                if self._is_closing:
                    self._end_all(f"the worker of the stage {self.name} was stopped")
                    return
                self._failure = None
            self._run_once()

    def _run_once(self) -> None:
        """Run it from its start to its end."""
        self.num_starts += 1
        try:
            process = _Process(self._command, self._environment, self._messages)
        except OSError as error:
            self._note_end(None, f"cannot be started: {self._command[0]}: {error.strerror}")
            return
        with self._changed:
            self._process = process
        verdict = f"it was not ready after {self._start_s:.4g} s"
        limit = threading.Timer(self._start_s, lambda: None if process.is_ready else process.kill(verdict))
        limit.daemon = True
        limit.start()
        process.read(lambda message: self._hear(process, message))
        how = process.end()
        limit.cancel()
        self._note_end(process, f"ended ({how})")

    def _hear(self, process: _Process, message: dict[str, Any]) -> None:
        """Take a message. Raises `KeyError`, `TypeError` or `ValueError` for one of another form."""
        with self._changed:
            if "ready" in message:
                process.is_ready = True
                logger.info("the worker of the stage %s is ready: %s", self.name, message["ready"])
            elif "refused" in message:
                process.refusal = str(message["refused"])
            elif "failed" in message:
                if message["failed"] in self._sequences:
                    self._sequences[message["failed"]].error = GenerationError(message["error"])
            else:
                for number, tokens, is_over in message["made"]:
                    sequence = self._sequences.get(number)
                    if sequence is not None:
                        sequence.tokens.extend(tokens)
                        sequence.is_over = is_over
            self._changed.notify_all()

    def _note_end(self, process: _Process | None, how: str) -> None:
        """Tell all that wait for it, and have it started again if it was ready."""
        told = f"the worker of the stage {self.name} {how}"
        with self._changed:
            was_ready = process is not None and process.is_ready
            lines = process.last_lines if process is not None else ""
            if was_ready:
                self._end_all(f"{told} while this was being spoken; it is being started again")
            else:
                self._end_all(f"{told} before it could begin; the log says why")
                self._failure = EngineNotReadyError(
                    f"{told} before it could begin" + (f". Its last lines:\n{lines}" if lines else "")
                )
            if process is not None and process.refusal:
                self._failure = ConfigurationError(process.refusal)
            self._messages, self._process = self._opened(), None
            self._is_wanted = was_ready
            is_expected = self._is_closing
            self._changed.notify_all()
        if not is_expected:
            logger.error("%s; its last lines:\n%s", told, lines)

    def _end_all(self, reason: str) -> None:
        for sequence in self._sequences.values():
            if not sequence.is_over and sequence.error is None:
                sequence.error = EngineNotReadyError(reason)

    def _opened(self) -> SimpleQueue[Any]:
        """Give the messages of a run that has not begun: the first opens it."""
        messages: SimpleQueue[Any] = SimpleQueue()
        messages.put({"open": self._opening})
        return messages


def _take(sequence: _Sequence) -> Made:
    token = sequence.tokens.popleft() if sequence.tokens else None
    return Made(token, sequence.is_over and not sequence.tokens)
