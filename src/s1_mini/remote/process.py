"""Supervised child processes: start, readiness, health, restart with back-off, kill.

Replicas, HAProxy and the workers of stages are subclasses of `Supervised`.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

STARTING_S, STEADY_S = 0.25, 1.0  # health check interval before and after the process is ready
BACKOFFS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # delay of a start, by the number of consecutive failed starts

# Program that runs a command so that the kernel sends it SIGTERM when its parent exits (prctl, PR_SET_PDEATHSIG).
BOUND = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def bound(command: Sequence[str], parent: int) -> list[str]:
    """Return a command that runs `command` and, on Linux, terminates it when the process `parent` ends."""
    return [sys.executable, "-SEc", BOUND, str(parent), *command] if sys.platform == "linux" else list(command)


class Supervised:
    """A child process that is restarted when it ends. Belongs to one event loop.

    Subclasses override the hooks: `may_start`, `before_start`, `on_start`, `check`, `on_end`.
    """

    starting_s = STARTING_S
    pipes: Mapping[str, Any] = {}  # options of `create_subprocess_exec`

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str] | None, *, start_s: float, silent_s: float
    ) -> None:
        """`start_s` limits the seconds until the process is ready, `silent_s` the wait for a due answer."""
        self.command, self.environment = list(command), environment
        self.start_s, self.silent_s = start_s, silent_s
        self.process: asyncio.subprocess.Process | None = None
        self.is_ready = self.is_ending = False
        self.num_starts = self.num_failed = 0  # all starts; consecutive failed starts
        self.verdict = ""  # why the process was killed or not started
        self.began = self.heard = time.monotonic()

    async def keep(self) -> None:
        """Run the process, and restart it until `is_ending`."""
        while not self.is_ending and await self.may_start() and not self.is_ending:
            await self._run_once()

    async def may_start(self) -> bool:
        """Wait until the next start is due; return False if the process must not start."""
        await asyncio.sleep(BACKOFFS_S[min(self.num_failed, len(BACKOFFS_S) - 1)])
        return True

    def before_start(self) -> None:
        """Prepare files for the process."""

    async def on_start(self, process: asyncio.subprocess.Process) -> None:
        """Serve the pipes of the process until they are closed."""

    async def check(self) -> None:
        """Check the health of the process; set `heard` and `is_ready`."""

    async def on_end(self, exit_code: int | None) -> None:
        """Clean up after the process; `exit_code` is None if it could not be started."""

    @property
    def owes_answer(self) -> bool:
        """Whether an answer of the process is due, so that its silence means that it hangs."""
        return False

    @property
    def has_failed(self) -> bool:
        """Whether the last run of the process counts as a failed start."""
        return not self.is_ready

    def end(self, number: int) -> None:
        """Send the process a signal, if it runs."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def kill(self, verdict: str = "") -> None:
        """Kill the process for the reason `verdict`, if it runs."""
        if self.process is not None and self.process.returncode is None:
            self.verdict = verdict
            with suppress(ProcessLookupError):
                self.process.kill()

    async def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the process has ended, at most `timeout_s`."""
        if self.process is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self.process.wait()

    async def _run_once(self) -> None:
        self.before_start()
        self.verdict, self.is_ready, code = "", False, None
        self.num_starts += 1
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, env=self.environment, **{"stdin": asyncio.subprocess.DEVNULL, **self.pipes}
            )
        except OSError as error:
            self.process, self.verdict = None, f"could not be started: {self.command[0]}: {error.strerror}"
        else:
            self.began = self.heard = time.monotonic()
            code = await self._watch(self.process)
        self.num_failed = self.num_failed + 1 if self.has_failed else 0
        self.is_ready = False
        await self.on_end(code)

    async def _watch(self, process: asyncio.subprocess.Process) -> int:
        serving = asyncio.create_task(self.on_start(process))
        ended = asyncio.create_task(process.wait())
        while not ended.done():
            await self.check()
            self._judge()
            interval_s, since = STEADY_S if self.is_ready else self.starting_s, time.monotonic()
            await asyncio.wait([ended], timeout=interval_s)
            # The time by which this process is late does not count as the child's silence.
            self.heard += max(0.0, time.monotonic() - since - interval_s)
        await serving
        return ended.result()

    def _judge(self) -> None:
        """Kill a process that takes too long to start or to answer."""
        if self.verdict:
            return  # it was killed, but has not ended yet
        now = time.monotonic()
        if self.owes_answer and now - self.heard > self.silent_s:
            self.kill(f"no response for {self.silent_s:.4g} s")
        elif not self.is_ready and now - self.began > self.start_s:
            self.kill(f"not ready after {self.start_s:.4g} s")
