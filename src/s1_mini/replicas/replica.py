"""One replica as the supervisor sees it: its process, whether it takes requests in, and whether it still answers."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from s1_mini.replicas.asking import ask
from s1_mini.server.member import Member

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 0.25  # while it starts; later a second
STEADY_S = 1.0
LOOK_S = 2.0
HANGS_AFTER_S = 15.0  # without an answer from its event loop
START_S = 1800.0  # to its first answer of any kind, and to the first 200: kernels may have to be compiled
BACKOFFS_S = (0.0, 1.0, 2.0, 5.0, 10.0, 30.0)  # after so many starts that came to nothing, one after the other

# A process that ends when its parent does, whatever ended that: the kernel sends it SIGTERM (prctl, PR_SET_PDEATHSIG).
BOUND = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def bound(command: Sequence[str], parent: int) -> list[str]:
    """Give the command that runs `command` and lets it end with the process `parent`, where the system can."""
    return [sys.executable, "-SEc", BOUND, str(parent), *command] if sys.platform == "linux" else list(command)


class Replica:
    """One replica."""

    def __init__(self, member: Member, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.member = member
        self._command, self._environment = command, environment
        self.process: asyncio.subprocess.Process | None = None
        self.is_ready = False
        self.num_starts = self.num_failed = 0  # starts, and those one after the other that came to nothing
        self._began = self._heard = time.monotonic()
        self._answers = False

    @property
    def wait_s(self) -> float:
        """How long to wait before the next start."""
        return BACKOFFS_S[min(self.num_failed, len(BACKOFFS_S) - 1)]

    def health(self) -> dict[str, Any]:
        """Tell of it what it cannot tell itself."""
        state = "ready" if self.is_ready else "starting" if self.process is not None else "waiting to start"
        return {"replica": self.member.name, "state": state, "starts": self.num_starts}

    async def start(self) -> None:
        """Start its process."""
        self.member.socket.unlink(missing_ok=True)
        self.process = await asyncio.create_subprocess_exec(
            *self._command, env=self._environment, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
        )
        self.num_starts += 1
        self._began = self._heard = time.monotonic()
        self._answers = False

    async def look(self) -> bool:
        """Ask it whether it takes requests in; tell. Kills it if it has not answered for too long."""
        try:
            answer = await ask(self.member.socket, "/ready", within_s=LOOK_S)
        except OSError:
            self._judge()
            return False
        self._heard, self._answers = time.monotonic(), True
        if answer.status != 200:
            self._judge()
        return answer.status == 200

    def end(self, number: signal.Signals) -> None:
        """Send its process a signal, if there is one."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)

    def _judge(self) -> None:
        now = time.monotonic()
        hangs = self._answers and now - self._heard > HANGS_AFTER_S
        if hangs or (not self.is_ready and now - self._began > START_S):
            told = f"has not answered for {now - self._heard:.0f} s" if hangs else "does not become ready"
            fields = {"event": "replica_hangs", "replica": self.member.name, "reason": told}
            logger.error("replica is killed", extra={"fields": fields})
            self.end(signal.SIGKILL)  # type: ignore[attr-defined,unused-ignore] # Windows has none
