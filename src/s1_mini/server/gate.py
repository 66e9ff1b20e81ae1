"""Readiness and admission: whether the engine serves, and how many requests are in the server.

Everything here is cheap and never blocks, so that the event loop can ask before it reads a body. Limits per client and
in total are in `accounts`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from s1_mini.exceptions import EngineNotReadyError, QueueFullError, S1MiniError
from s1_mini.server.accounts import Accounts, Resource
from s1_mini.server.errors import DrainingError

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.server.record import RequestLog
    from s1_mini.server.settings import ServerSettings
    from s1_mini.types import EngineState

FRESH_S = 0.02  # health cache TTL
RETRY_AFTER_S = 1.0


class EngineDied(Exception):  # noqa: N818 - an end, not an error of anybody's
    """The engine was started, and does not speak any more."""


class AdmissionController:
    """Decides whether a request is admitted, and counts those in the server."""

    def __init__(self, engine: ProductionTTSEngine, settings: ServerSettings, accounts: Accounts) -> None:
        self._engine, self._settings, self.accounts = engine, settings, accounts
        self._health: dict[str, Any] = {}
        self._looked = float("-inf")
        self.num_inside = 0  # requests that speak, from their first header to the end of their answer; sessions too
        self.failure: BaseException | None = None  # why the engine could not be started; `EngineDied` if it was
        self.is_draining = False

    def health(self) -> dict[str, Any]:
        """Give the engine's `health_check()`, at most `FRESH_S` old: it asks the driver of the GPU, too."""
        now = time.monotonic()
        if now - self._looked > FRESH_S:
            self._health, self._looked = self._engine.health_check(), now
        return self._health

    def refusal(self, state: EngineState | None = None) -> S1MiniError | None:
        """Return why no request is admitted: starting, failed or shutting down; None if the engine is ready."""
        if self.is_draining:
            return DrainingError("the server is going down; ask another one")
        if self.failure is not None:
            return EngineNotReadyError("the engine could not be started, or has died; the server's log tells why")
        state = state or self._engine.state()
        if not state.is_ready:
            doing = "starting" if state.status == "stopped" else state.status
            return EngineNotReadyError(f"the engine is {doing}; try again later")
        return None

    def admission(self, record: RequestLog) -> S1MiniError | None:
        """Return why a request to speak is refused before its body is read; None if it is admitted."""
        state = self._engine.state()
        record.waiting = state.num_waiting
        if (refused := self.refusal(state)) is not None:
            return refused
        if state.num_waiting >= state.max_waiting:
            return QueueFullError(state.num_waiting, state.max_waiting, RETRY_AFTER_S)
        queue_and_slots = state.max_waiting + self._engine.num_slots
        self.accounts.limits[Resource.REQUESTS] = min(self._settings.max_requests, queue_and_slots)
        return self.accounts.refusal(record.client, Resource.REQUESTS, 1)

    def enter(self) -> None:
        """Count a request in."""
        self.num_inside += 1

    def leave(self) -> None:
        """Count a request out."""
        self.num_inside -= 1
