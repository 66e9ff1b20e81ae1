"""A worker process that generates the tokens of one stage, and its pipes: JSON messages, one per line.

| to its standard input | from its standard output |
|---|---|
| `{"open": …}`, first | `{"ready": …}`, once sequences can begin |
| `{"begin": number, …}` | `{"made": [[number, [token, …], whether it is complete], …]}` |
| `{"drop": number}` | `{"failed": number, "error": sentence}` |
| | `{"refused": sentence}`, instead of `ready`: the configuration is not supported |

Numbers identify sequences; the other fields of `open` and `begin` are defined by the stage and its worker. The other
end of the pipes is `token_server.py`. The worker exits when its input ends, so it never outlives this process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from asyncio.subprocess import PIPE
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from s1_mini.exceptions import ConfigurationError, EngineNotReadyError, GenerationError, S1MiniError
from s1_mini.remote.process import Supervised

logger = logging.getLogger(__name__)

LAST_LINES = 20  # lines of standard error in the error message when the worker ends
STOP_S = 10.0  # time for a worker to end after its input has ended; then it is killed
MAX_LINE_BYTES = 2**26


class Made(NamedTuple):
    """The next token of a sequence."""

    token: int | None  # None if there is none yet
    is_last: bool = False


@dataclass
class _Sequence:
    tokens: deque[int] = field(default_factory=deque)
    is_over: bool = False
    error: S1MiniError | None = None

    @property
    def has_ended(self) -> bool:
        return self.is_over or self.error is not None


class TokenWorker(Supervised):
    """A worker process that is restarted when it ends. Public methods are thread-safe; the event loop runs in a thread.

    When the process ends, its sequences fail. After a failed start, the next `begin` starts the process again.
    """

    pipes: Mapping[str, Any] = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, "limit": MAX_LINE_BYTES}

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
        """Start the process in the background; `silent_s` limits the seconds without output while a sequence waits."""
        super().__init__(command, dict(environment), start_s=start_s, silent_s=silent_s)
        self.name, self._opening = name, opening
        self._sequences: dict[int, _Sequence] = {}
        self._next_number = 0
        self._changed = threading.Condition()
        self._messages: deque[Mapping[str, Any]] = deque()  # not written yet
        self._refusal = ""
        self._failure: S1MiniError | None = None  # error of the last start, until the next start
        self._lines = deque[str](maxlen=LAST_LINES)
        self._loop, self._needed = asyncio.new_event_loop(), asyncio.Event()
        self._needed.set()
        self._thread = threading.Thread(target=self._run, name=f"s1_mini worker of {name}", daemon=True)
        self._thread.start()

    # ---- for other threads ----------------------------------------------------------------------------------------

    @property
    def num_sequences(self) -> int:
        return sum(not each.has_ended for each in list(self._sequences.values()))

    @property
    def pid(self) -> int:
        """Process id; 0 if there is no process."""
        process = self.process
        return 0 if process is None else process.pid

    def wait_until_ready(self) -> None:
        """Wait until sequences can begin.

        Raises `ConfigurationError` if the worker refuses the configuration, and `EngineNotReadyError` with the last
        lines of its log if it ends.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self.is_ready)
            if self._failure is not None:
                raise self._failure

    def begin(self, message: Mapping[str, Any]) -> int:
        """Begin a sequence; return its number."""
        with self._changed:
            number, self._next_number = self._next_number, self._next_number + 1
            self._sequences[number] = _Sequence()
            self._messages.append({"begin": number, **message})
            self.heard = time.monotonic()  # the silence of an idle worker does not count
        self._soon(self._needed.set, self._write)
        return number

    def drop(self, number: int) -> None:
        """Cancel a sequence; does nothing if it has ended."""
        with self._changed:
            sequence = self._sequences.pop(number, None)
            if sequence is None or sequence.has_ended:
                return
            self._messages.append({"drop": number})
        self._soon(self._write)

    def take(self, numbers: Collection[int], wait_s: float) -> list[Made]:
        """Take the next token of each sequence; if there is none, wait at most `wait_s` for one.

        Raises the error of the first failed sequence, or `GenerationError` for one that ended without a last token.
        Then nothing is taken.
        """
        with self._changed:
            sequences = [self._sequences[number] for number in numbers]
            self._changed.wait_for(lambda: any(each.tokens or each.has_ended for each in sequences), wait_s)
            for each in sequences:
                if each.error is not None:
                    raise each.error
                if each.is_over and not each.tokens:
                    raise GenerationError(f"the worker of stage {self.name} ended the request too early")
            return [_take(each) for each in sequences]

    def close(self) -> None:
        """End the process; its sequences fail."""
        self._soon(self._close)
        self._thread.join(STOP_S)
        if self._thread.is_alive():
            self._soon(lambda: self.kill("it did not exit after the end of its input"))
            self._thread.join()

    def _soon(self, *calls: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # closed
            for call in calls:
                self._loop.call_soon_threadsafe(call)

    # ---- in the thread of the event loop --------------------------------------------------------------------------

    def _run(self) -> None:
        reason = f"the worker of stage {self.name} was stopped"
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self.keep())
        finally:
            with self._changed:
                self._failure = self._failure or EngineNotReadyError(reason)
                _fail_all(self._sequences, reason)
                self._changed.notify_all()

    def _close(self) -> None:
        self.is_ending = True
        self._needed.set()
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def _write(self) -> None:
        if self.process is None or self.process.stdin is None:
            return
        with self._changed:
            lines = b"".join(json.dumps(message).encode() + b"\n" for message in self._messages)
            self._messages.clear()
        self.process.stdin.write(lines)

    async def may_start(self) -> bool:
        """Wait until a sequence needs the process."""
        await self._needed.wait()
        return True

    def before_start(self) -> None:
        """Forget the failure of the last start."""
        with self._changed:
            self._failure, self._refusal = None, ""
            self._messages.appendleft({"open": self._opening})

    async def on_start(self, process: asyncio.subprocess.Process) -> None:
        """Send the pending messages, and read the output of the process."""
        self._write()
        if self.is_ending:
            self._close()
        self._lines.clear()
        await asyncio.gather(self._read(process), _keep_lines(process, self._lines))

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if self.verdict:
                continue  # killed
            self.heard = time.monotonic()
            try:
                self._receive(json.loads(line))
            except (ValueError, KeyError, TypeError):
                self.kill(f"it wrote an invalid message: {line[:80]!r}")

    def _receive(self, message: dict[str, Any]) -> None:
        """Handle a message. Raises `KeyError`, `TypeError` or `ValueError` for one that is malformed."""
        with self._changed:
            if "ready" in message:
                self.is_ready = True
                logger.info("the worker of stage %s is ready: %s", self.name, message["ready"])
            elif "refused" in message:
                self._refusal = str(message["refused"])
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

    @property
    def owes_answer(self) -> bool:
        """Whether a sequence waits for its next token."""
        with self._changed:
            return self.is_ready and any(not each.tokens and not each.has_ended for each in self._sequences.values())

    async def on_end(self, exit_code: int | None) -> None:
        """Fail all sequences; plan a restart if the process had been ready."""
        how = self.verdict if exit_code is None else f"exited ({self.verdict or f'exit code {exit_code}'})"
        reason, lines = f"the worker of stage {self.name} {how}", "\n".join(self._lines)
        with self._changed:
            self._messages.clear()
            if self.num_failed:
                _fail_all(self._sequences, f"{reason} before it was ready; see the log")
                self._failure = EngineNotReadyError(
                    f"{reason} before it was ready" + (f". Last lines of its log:\n{lines}" if lines else "")
                )
                self._needed.clear()
            else:
                _fail_all(self._sequences, f"{reason} during this request; it is restarting")
            if self._refusal:
                self._failure = ConfigurationError(self._refusal)
            self.process = None
            self._changed.notify_all()
        if not self.is_ending:
            logger.error("%s; last lines of its log:\n%s", reason, lines)


async def _keep_lines(process: asyncio.subprocess.Process, lines: deque[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        lines.append(line.decode(errors="replace").rstrip())
        logger.debug("worker %d: %s", process.pid, lines[-1])


def _fail_all(sequences: Mapping[int, _Sequence], reason: str) -> None:
    for sequence in sequences.values():
        if not sequence.has_ended:
            sequence.error = EngineNotReadyError(reason)


def _take(sequence: _Sequence) -> Made:
    token = sequence.tokens.popleft() if sequence.tokens else None
    return Made(token, sequence.is_over and not sequence.tokens)
