"""A worker process that generates the tokens of one stage.

Its messages are those of `channel.py`. The first call opens the worker; then each sequence is a call `begin`, answered
by `Made` with its tokens or by `Failed`, until `Cancel` ends it. The stage and its worker define the arguments of both
calls. The other end of the pipes is `token_server.py`. The worker exits when its input ends, so it never outlives this
process.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from s1_mini.exceptions import EngineNotReadyError, GenerationError, S1MiniError
from s1_mini.remote.channel import START, Call, Cancel, Failed, Made
from s1_mini.remote.child import Child

logger = logging.getLogger(__name__)

CHECK_S = 0.25  # interval at which a worker that starts is checked


class Next(NamedTuple):
    """The next token of a sequence."""

    token: int | None  # None if there is none yet
    is_last: bool = False


@dataclass
class _Sequence:
    tokens: deque[int] = field(default_factory=deque)
    is_over: bool = False
    error: Exception | None = None

    @property
    def has_ended(self) -> bool:
        return self.is_over or self.error is not None

    def take(self) -> Next:
        token = self.tokens.popleft() if self.tokens else None
        return Next(token, self.is_over and not self.tokens)


class TokenWorker(Child):
    """A worker process that is restarted when it ends. Public methods are thread-safe.

    When the process ends, its sequences fail. After a failed start, the next `begin` starts the process again.
    """

    talks = logs = True

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
        """Start the process in the background. `start_s` limits the seconds until it is ready.

        `silent_s` limits the seconds without messages while a sequence waits.
        """
        super().__init__(command, dict(environment), name=name)
        self.start_s, self.silent_s = start_s, silent_s
        self._opening = opening
        self._sequences: dict[int, _Sequence] = {}
        self._numbers = itertools.count(START + 1)
        self._changed = threading.Condition()
        self._failure: Exception | None = None  # error of the last start, until the next start
        with self._changed:
            self._start()

    @property
    def num_sequences(self) -> int:
        return sum(not each.has_ended for each in list(self._sequences.values()))

    def wait_until_ready(self) -> None:
        """Wait until sequences can begin.

        Raises `ConfigurationError` if the worker refuses the configuration, and `EngineNotReadyError` with the last
        lines of its log if it ends.
        """
        with self._changed:
            while not self._changed.wait_for(lambda: self._failure or self.is_ready, CHECK_S):
                self._check()
            if self._failure is not None:
                raise self._failure

    def begin(self, message: Mapping[str, Any]) -> int:
        """Begin a sequence; return its number."""
        with self._changed:
            number = next(self._numbers)
            self._sequences[number] = _Sequence()
            if self.process is None:
                self._start()
            self.send(Call(number, "begin", (message,), {}))
            self.heard = time.monotonic()  # the silence of an idle worker does not count
        return number

    def drop(self, number: int) -> None:
        """Cancel a sequence; does nothing if it has ended."""
        with self._changed:
            sequence = self._sequences.pop(number, None)
            if sequence is not None and not sequence.has_ended:
                self.send(Cancel(number))

    def take(self, numbers: Collection[int], wait_s: float) -> list[Next]:
        """Take the next token of each sequence; if there is none, wait at most `wait_s` for one.

        Raises the error of the first failed sequence, or `GenerationError` for one that ended without a last token.
        Then nothing is taken.
        """
        with self._changed:
            sequences = [self._sequences[number] for number in numbers]
            self._changed.wait_for(lambda: any(each.tokens or each.has_ended for each in sequences), wait_s)
            self._check()
            for each in sequences:
                if each.error is not None:
                    raise each.error
                if each.is_over and not each.tokens:
                    raise GenerationError(f"the worker of stage {self.name} ended the request too early")
            return [each.take() for each in sequences]

    def close(self) -> None:
        """End the process; its sequences fail."""
        with self._changed:
            self.is_ending = True
        self.stop()
        with self._changed:
            self._fail_all("was stopped")

    def receive(self, message: Any) -> None:
        with self._changed:
            sequence = self._sequences.get(message.number)
            if message.number == START:
                if isinstance(message, Failed):
                    self._failure = message.error
                else:
                    self.is_ready = True
                    logger.info("the worker of stage %s is ready: %s", self.name, message.value)
            elif sequence is not None and isinstance(message, Made):
                sequence.tokens.extend(message.tokens)
                sequence.is_over = message.is_last
            elif sequence is not None:
                sequence.error = message.error
            self._changed.notify_all()

    def on_line(self, line: str) -> None:
        logger.debug("worker of stage %s: %s", self.name, line)

    def on_exit(self, exit_code: int) -> None:
        """Fail all sequences, and restart the process if it had been ready."""
        with self._changed:
            if not self.is_ending:
                self._lose_process(f"exited ({self.verdict or f'exit code {exit_code}'})")

    # ---- with the lock held ---------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._failure = None
        try:
            self.launch()
        except OSError:
            self._lose_process(self.verdict)
        else:
            self.send(Call(START, "open", (self._opening,), {}))

    def _check(self) -> None:
        waits = any(not each.tokens and not each.has_ended for each in self._sequences.values())
        self.check(self.silent_s, start_s=self.start_s, is_due=self.is_ready and waits)

    def _lose_process(self, how: str) -> None:
        lines, was_ready, self.process = "\n".join(self.lines), self.is_ready, None
        logger.error("the worker of stage %s %s; last lines of its log:\n%s", self.name, how, lines)
        if was_ready:
            self._fail_all(f"{how} during this request; it is restarting")
            self._start()
        else:
            error = self._fail_all(f"{how} before it was ready; see the log")
            reason = str(error).removesuffix("; see the log") + (f". Last lines of its log:\n{lines}" if lines else "")
            self._failure = self._failure or EngineNotReadyError(reason)

    def _fail_all(self, how: str) -> S1MiniError:
        error = EngineNotReadyError(f"the worker of stage {self.name} {how}")
        for sequence in self._sequences.values():
            if not sequence.has_ended:
                sequence.error = error
        self._changed.notify_all()
        return error
