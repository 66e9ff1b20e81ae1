"""Who may come in: the engine's state and queue, and how many requests are being answered.

Everything here is cheap and never waits, so that the event loop can ask it before a body is read.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import EngineNotReadyError, QueueFullError, S1MiniError
from s1_mini.server.errors import BusyError, DrainingError, TooManyRequestsError

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.server.settings import ServerSettings

FRESH_S = 0.02  # so long what is told of the engine is good for all who ask
RETRY_AFTER_S = 1.0


class EngineDied(Exception):  # noqa: N818 - an end, not an error of anybody's
    """The engine was started, and does not speak any more."""


class HeldBytes:
    """The bytes that one request or connection holds of its client's, counted among those of all."""

    def __init__(self, gate: Gate, max_bytes: int) -> None:
        self._gate, self._max_bytes = gate, max_bytes
        self.num_bytes = 0

    def set(self, num_bytes: int) -> None:
        """Say how many there are now. Raises `BusyError` if they have become more, and with those of all too many."""
        grows = num_bytes > self.num_bytes
        self._gate.body_bytes += num_bytes - self.num_bytes
        self.num_bytes = num_bytes
        if grows and self._gate.body_bytes > self._max_bytes:
            raise BusyError("the bodies of all requests are too many bytes at this moment; try again in a second")


class Gate:
    """Tells whether a request may come in, and counts those that are in."""

    def __init__(self, engine: ProductionTTSEngine, settings: ServerSettings) -> None:
        self._engine, self._settings = engine, settings
        self._health: dict[str, Any] = {}
        self._looked = float("-inf")
        self._clients: Counter[str] = Counter()
        self.num_inside = 0
        self.body_bytes = 0  # of the bodies of all requests that are being answered
        self.failure: BaseException | None = None  # why the engine could not be started; `EngineDied` if it was
        self.is_draining = False

    def health(self) -> dict[str, Any]:
        """Give the engine's `health_check()`, at most `FRESH_S` old: it asks the driver of the GPU, too."""
        now = time.monotonic()
        if now - self._looked > FRESH_S:
            self._health, self._looked = self._engine.health_check(), now
        return self._health

    @property
    def num_waiting(self) -> int:
        """Pieces in the engine's queue."""
        return self._engine.state().num_waiting

    def refusal(self) -> S1MiniError | None:
        """Why nothing is spoken now: starting, failed or going down; None if all is well."""
        if self.is_draining:
            return DrainingError("the server is going down; ask another one")
        if self.failure is not None:
            return EngineNotReadyError("the engine could not be started, or has died; the server's log tells why")
        state = self._engine.state()
        if not state.is_ready:
            doing = "starting" if state.status == "stopped" else state.status
            return EngineNotReadyError(f"the engine is {doing}; try again later")
        return None

    def admission(self, client: str) -> S1MiniError | None:
        """Why a request to speak is refused before its body is read; None if it may come in."""
        if (refused := self.refusal()) is not None:
            return refused
        state = self._engine.state()
        if state.num_waiting >= state.max_waiting:
            return QueueFullError(state.num_waiting, state.max_waiting, RETRY_AFTER_S)
        if self.num_inside >= self._settings.max_requests:
            return BusyError(f"{self.num_inside} requests are being answered and no more may; try again in a second")
        allowed = self._settings.max_requests_per_client
        if allowed and self._clients[client] >= allowed:
            return TooManyRequestsError(f"{allowed} requests of yours are being answered; wait for one of them")
        return None

    def hold(self) -> HeldBytes:
        """Begin to count the bytes of a request or connection; none so far."""
        return HeldBytes(self, self._settings.max_bodies_bytes)

    def enter(self, client: str) -> None:
        """Count a request in."""
        self.num_inside += 1
        self._clients[client] += 1

    def leave(self, client: str) -> None:
        """Count a request out."""
        self.num_inside -= 1
        self._clients[client] -= 1
        if not self._clients[client]:
            del self._clients[client]
