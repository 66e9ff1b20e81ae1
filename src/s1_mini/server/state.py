"""What the requests of one server share."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fastapi import FastAPI
from starlette.requests import HTTPConnection

if TYPE_CHECKING:
    from s1_mini.server.accounts import Accounts, IdlePool
    from s1_mini.server.app import ServerMetrics
    from s1_mini.server.connections import Connections
    from s1_mini.server.consents import Consents
    from s1_mini.server.lexicons import Lexicons
    from s1_mini.server.limits import AdmissionController
    from s1_mini.server.member import ReplicaInfo
    from s1_mini.server.protocols.wyoming import WyomingServer
    from s1_mini.server.session import Session
    from s1_mini.server.settings import ServerSettings
    from s1_mini.server.tracing import Tracing
    from s1_mini.speech_engine import SpeechEngine


@dataclass
class ServerState:
    """The objects of one server that its routes and connections use; `app.state` of its application."""

    engine: SpeechEngine
    settings: ServerSettings
    member: ReplicaInfo | None  # which replica of several this server is
    accounts: Accounts
    gate: AdmissionController
    meter: ServerMetrics
    consents: Consents
    lexicons: Lexicons
    connections: Connections
    websockets: IdlePool[Session]
    lifecycle: ThreadPoolExecutor  # one thread that starts and stops the engine, so that requests cannot delay it
    large_bodies: asyncio.Semaphore
    wyoming: WyomingServer | None = None
    tracing: Tracing | None = None  # None: requests are not traced


def state_of(connection: HTTPConnection) -> ServerState:
    """Return the state of the server that a request or WebSocket belongs to."""
    return state_in(connection.app)


def state_in(app: object) -> ServerState:
    """Return the state of an application of `create_app`."""
    assert isinstance(app, FastAPI)
    state: ServerState = app.state  # type: ignore[assignment]
    return state
