"""Child processes: start, messages, log, silence, death, stop. `Supervised` also restarts its process when it ends.

The process of an engine, workers of stages, the compiler, decoders of recordings, replicas and HAProxy are subclasses
of `Child`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import inf
from typing import Any, BinaryIO, cast

from s1_mini.remote.channel import BUFFER_BYTES, Channel, enlarge_pipe

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 2**16  # of a line of the log, which may be of an untrusted file's decoder; longer ones are split
LAST_LINES = 20  # lines of the log that are kept for the message about the end of a process
EXIT_S = 10.0  # time for a process to exit after its input has ended; then it is killed
UNSEEN_S = 5.0  # without a check for so long, this process was suspended, and the silence of the other means nothing
STARTING_S, STEADY_S = 0.25, 1.0  # health check interval before and after a supervised process is ready
BACKOFFS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # delay of a start, by the number of consecutive failed starts

# The beginning of programs that import the same modules as this process, and none from the working directory.
SAME_MODULES = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
"""

# Program that runs a command so that the kernel sends it SIGTERM when its parent exits (prctl, PR_SET_PDEATHSIG).
BOUND = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def python(program: str, *args: str) -> list[str]:
    """Return a command that runs a program after `SAME_MODULES`."""
    return [sys.executable, "-P", "-c", SAME_MODULES + program, json.dumps(list(map(str, sys.path))), *args]


def bound(command: Sequence[str], parent: int) -> list[str]:
    """Return a command that runs `command` and, on Linux, terminates it when the process `parent` ends."""
    return [sys.executable, "-SEc", BOUND, str(parent), *command] if sys.platform == "linux" else list(command)


class Child:
    """A child process, which can be started again after its end. It has its own session, and opens no window.

    Subclasses override the hooks, which threads of this class call: `receive`, `on_unsent`, `on_line`, `on_exit`.
    """

    talks = False  # whether messages are exchanged over its standard input and output; otherwise it has no input
    logs = False  # whether `on_line` receives its standard error and, without messages, its standard output
    flags = 0  # for Windows
    pass_fds: Sequence[int] = ()

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None, *, name: str) -> None:
        self.command, self.environment, self.name = list(command), environment, name
        self.process: subprocess.Popen[bytes] | None = None
        self.is_ready = self.is_ending = False
        self.num_starts = 0
        self.verdict = ""  # why the process was killed or not started
        self.lines = deque[str](maxlen=LAST_LINES)
        self.began = self.heard = self._checked = time.monotonic()
        self.has_exited = threading.Event()

    def launch(self) -> None:
        """Start the process. Raises `OSError`, with the reason in `verdict`."""
        self.verdict, self.is_ready = "", False
        self.num_starts += 1
        self.lines.clear()
        self.has_exited = threading.Event()
        try:
            self.process = process = subprocess.Popen(  # noqa: S603 - the caller's command
                self.command,
                env=self.environment,
                stdin=subprocess.PIPE if self.talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if self.talks or self.logs else None,
                stderr=None if not self.logs else subprocess.PIPE if self.talks else subprocess.STDOUT,
                bufsize=BUFFER_BYTES,
                pass_fds=self.pass_fds,
                creationflags=self.flags | getattr(subprocess, "CREATE_NO_WINDOW", 0),
                start_new_session=True,  # a Ctrl-C is meant for this process
            )
        except OSError as error:
            self.process, self.verdict = None, f"could not be started: {self.command[0]}: {error.strerror}"
            raise
        self.began = self.heard = self._checked = time.monotonic()
        channel = None
        if self.talks:
            source, target = cast("BinaryIO", process.stdout), cast("BinaryIO", process.stdin)
            enlarge_pipe(source)
            enlarge_pipe(target)
            hooks = {"on_message": self._receive, "on_unsent": self.on_unsent, "on_end": self._lose}
            channel = self._channel = self.connect(source, target, name=self.name, **hooks)
            channel.start()
        watch = threading.Thread(target=self._watch, args=(process, channel), name=f"s1_mini child {self.name}")
        watch.daemon = True
        watch.start()
        self._watching = watch

    def connect(self, *pipes: BinaryIO, **hooks: Any) -> Channel:
        """Return what exchanges messages with the process."""
        return Channel(*pipes, **hooks)

    def receive(self, message: Any) -> None:
        """Handle a message of the process."""

    def on_unsent(self, message: Any, error: Exception) -> None:  # noqa: ARG002
        """Handle a message that cannot be pickled."""
        self.kill(str(error))

    def on_line(self, line: str) -> None:
        """Handle a line of the log."""

    def on_exit(self, exit_code: int) -> None:
        """Clean up after the process, whose messages and log have all been handled."""

    @property
    def pid(self) -> int:
        """Process id; 0 if the process was not started."""
        return 0 if self.process is None else self.process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None before the end, and if the process was not started."""
        return None if self.process is None else self.process.returncode

    def send(self, message: object) -> None:
        """Send a message, if the process runs. Never waits."""
        self._channel.send(message)

    def end(self, number: int) -> None:
        """Send the process a signal, if it runs."""
        if self.process is not None:
            self.process.send_signal(number)

    def kill(self, verdict: str = "") -> None:
        """Kill the process for the reason `verdict`, if it runs."""
        if self.process is not None and not self.has_exited.is_set():
            self.verdict = self.verdict or verdict
            self.process.kill()

    def stop(self) -> None:
        """End the input of the process, and wait until it has exited; kill it after `EXIT_S`."""
        self.is_ending = True
        if self.process is None:
            return
        killer = threading.Timer(EXIT_S, self.kill, ["it did not exit after the end of its input"])
        killer.start()
        self._channel.close()  # waits while the pipe is full
        self._watching.join()
        killer.cancel()

    def check(self, silent_s: float, *, start_s: float = inf, is_due: bool = True) -> None:
        """Call `judge`, unless this process was suspended since the last check."""
        now = time.monotonic()
        if now - self._checked > UNSEEN_S:
            self.heard = now
        self._checked = now
        self.judge(silent_s, start_s=start_s, is_due=is_due)

    def judge(self, silent_s: float, *, start_s: float, is_due: bool) -> None:
        """Kill a process that is not ready after `start_s` or, if an answer is due, is silent for `silent_s`."""
        if self.verdict:
            return  # it was killed, but has not ended yet
        now = time.monotonic()
        if is_due and now - self.heard > silent_s:
            self.kill(f"no response for {silent_s:.4g} s")
        elif not self.is_ready and now - self.began > start_s:
            self.kill(f"not ready after {start_s:.4g} s")

    def _receive(self, message: Any) -> None:
        if not self.verdict:
            self.heard = time.monotonic()
            self.receive(message)

    def _lose(self, error: Exception | None) -> None:
        """Kill a process whose messages have ended, if it does not exit by itself."""
        if error is not None:
            self.kill(f"it sent an invalid message: {error}")
        elif not self.has_exited.wait(EXIT_S):
            self.kill("it closed its output")

    def _watch(self, process: subprocess.Popen[bytes], channel: Channel | None) -> None:
        log = (process.stderr if self.talks else process.stdout) if self.logs else None
        if log is not None:
            with log:
                for line in iter(lambda: log.readline(MAX_LINE_BYTES), b""):
                    self.lines.append(line.decode(errors="replace").rstrip())
                    try:
                        self.on_line(self.lines[-1])
                    except Exception:  # the end of the process must still be noticed
                        logger.exception("a line of the log of a process cannot be read")
        exit_code = process.wait()
        self.has_exited.set()
        if channel is not None:
            channel.join()
        self.on_exit(exit_code)


class Supervised(Child):
    """A child process that is restarted when it ends. Belongs to one event loop.

    Subclasses override the hooks: `before_start`, `check_health`, `on_end`, and those of `Child`.
    """

    starting_s = STARTING_S
    owes_answer = False  # whether an answer of the process is due, so that its silence means that it hangs

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        *,
        name: str,
        start_s: float,
        silent_s: float,
    ) -> None:
        """`start_s` limits the seconds until the process is ready, `silent_s` the wait for a due answer."""
        super().__init__(command, environment, name=name)
        self.start_s, self.silent_s = start_s, silent_s
        self.num_failed = 0  # consecutive failed starts

    async def keep(self) -> None:
        """Run the process, and restart it until `is_ending`."""
        while not self.is_ending:
            await asyncio.sleep(BACKOFFS_S[min(self.num_failed, len(BACKOFFS_S) - 1)])
            if not self.is_ending:
                await self._run_once()

    def before_start(self) -> None:
        """Prepare files for the process."""

    async def check_health(self) -> None:
        """Check the health of the process; set `heard` and `is_ready`."""

    async def on_end(self, exit_code: int | None) -> None:
        """Clean up after the process; `exit_code` is None if it could not be started."""

    @property
    def has_failed(self) -> bool:
        """Whether the last run of the process counts as a failed start."""
        return not self.is_ready

    def on_exit(self, exit_code: int) -> None:  # noqa: ARG002
        """Wake the event loop."""
        with suppress(RuntimeError):  # it is closed
            self._loop.call_soon_threadsafe(self._ended.set)

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the process has ended, at most `timeout_s`."""
        if self.process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._ended.wait()

    async def _run_once(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self.before_start()
        try:
            self.launch()
        except OSError:  # `verdict` has the reason
            pass
        else:
            await self._watch_over()
        self.num_failed = self.num_failed + 1 if self.has_failed else 0
        self.is_ready = False
        await self.on_end(self.returncode)

    async def _watch_over(self) -> None:
        ended = asyncio.create_task(self._ended.wait())
        while not ended.done():
            await self.check_health()
            self.judge(self.silent_s, start_s=self.start_s, is_due=self.owes_answer)
            interval_s, since = STEADY_S if self.is_ready else self.starting_s, time.monotonic()
            await asyncio.wait([ended], timeout=interval_s)
            # The time by which this process is late does not count as the child's silence.
            self.heard += max(0.0, time.monotonic() - since - interval_s)
