"""One replica: its handle in the supervisor, and the program of its process, `main`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s1_mini.remote.child import Supervised, bound
from s1_mini.server.member import ReplicaInfo

if TYPE_CHECKING:
    import httpx2

logger = logging.getLogger(__name__)

PROCESS = "s1_mini.remote.replica"
SILENT_S = 15.0  # a replica that does not answer for this long is killed
PROBE = b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
START_S = 1800.0  # timeout until `/ready` first answers 200; kernels may have to be compiled


class Replica(Supervised):
    """Handle of one replica: starts it, checks its health, sends it requests over its Unix socket."""

    def __init__(
        self,
        member: ReplicaInfo,
        options: list[str],
        environment: Mapping[str, str],
        admit: Callable[[Replica], Awaitable[bool]],
        on_end: Callable[[Replica, int | None], Awaitable[None]],
    ) -> None:
        """`admit` routes requests to the replica once it is ready, and returns whether this succeeded."""
        import httpx2  # not at the top, because the replica's process does not need it

        identity = ["--index", member.name, "--count", str(member.count), "--socket", str(member.socket)]
        identity += ["--keeps-voices"] if member.keeps_voices else []
        command = bound([sys.executable, "-m", PROCESS, *identity, *options], os.getpid())
        super().__init__(command, environment, name=f"replica {member.name}", start_s=START_S, silent_s=SILENT_S)
        self.member, self._admit, self._on_end = member, admit, on_end
        self._prober = ThreadPoolExecutor(1, f"s1-mini probe of replica {member.name}")
        # Without keep-alive, because another process may own the socket by the next request.
        transport = httpx2.AsyncHTTPTransport(
            uds=str(member.socket), verify=False, limits=httpx2.Limits(max_keepalive_connections=0)
        )
        self._client = httpx2.AsyncClient(
            transport=transport, base_url="http://localhost", headers={"Accept-Encoding": "identity"}
        )
        self._http_error = httpx2.HTTPError

    def health(self) -> dict[str, Any]:
        """Return the state and the number of starts for `/health`."""
        is_running = self.process is not None and not self.has_exited.is_set()
        state = "ready" if self.is_ready else "starting" if is_running else "waiting to start"
        return {"replica": self.member.name, "state": state, "starts": self.num_starts}

    async def request(
        self, target: str, *, within_s: float, method: str = "GET", headers: Any = None, content: bytes = b""
    ) -> httpx2.Response:
        """Send one HTTP request to the replica. Raises `OSError`, such as `TimeoutError`."""
        try:
            async with asyncio.timeout(within_s):
                return await self._client.request(method, target, headers=headers, content=content, timeout=within_s)
        except self._http_error as error:
            raise ConnectionError(str(error)) from None

    def before_start(self) -> None:
        self.member.socket.unlink(missing_ok=True)
        self.owes_answer = False

    async def check_health(self) -> None:
        """Request `/ready`; admit the replica when it answers with 200."""
        status = await asyncio.get_running_loop().run_in_executor(self._prober, self._probe)
        if status is None:
            return
        self.heard, self.owes_answer = time.monotonic(), True
        if status == b"200" and not self.is_ready:
            self.is_ready = await self._admit(self)

    def _probe(self) -> bytes | None:
        """Return the status of `/ready`, or None if the replica does not answer within `SILENT_S`.

        The system measures this time, in a thread that only waits, so that the time by which this process and its event
        loop are late does not count as the replica's silence.
        """
        if sys.platform != "win32":  # `--replicas` is refused there
            with suppress(OSError, IndexError), socket.socket(socket.AF_UNIX) as plug:
                plug.settimeout(SILENT_S)
                plug.connect(str(self.member.socket))
                plug.sendall(PROBE)
                return plug.recv(4096).split()[1]
        return None

    async def on_end(self, exit_code: int | None) -> None:
        await self._on_end(self, exit_code)

    def kill(self, verdict: str = "") -> None:
        if verdict:
            fields = {"event": "replica_hangs", "replica": self.member.name, "reason": verdict}
            logger.error("killing replica", extra={"fields": fields})
        super().kill(verdict)


def main() -> int:
    """Serve as one replica until a signal, with settings from the environment; return the exit code."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--keeps-voices", action="store_true")
    parser.add_argument("--local-endpoint")
    parser.add_argument("--async-store")
    given = parser.parse_args()

    from s1_mini.config import EngineConfig
    from s1_mini.remote.engine_process import make_engine
    from s1_mini.server.settings import ServerSettings

    settings = ServerSettings()
    engine = make_engine(EngineConfig(), settings.engine_process)
    engine.prepare()

    from s1_mini.sagemaker.app import make_container_app
    from s1_mini.sagemaker.async_store import open_store
    from s1_mini.server.run import run

    member = ReplicaInfo(given.index, given.count, given.socket, given.keeps_voices)
    store = None if given.async_store is None else open_store(given.async_store)
    return run(make_container_app(engine, settings, endpoint=given.local_endpoint, store=store, member=member))


if __name__ == "__main__":
    sys.exit(main())
