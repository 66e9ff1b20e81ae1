"""Sticky sessions: a client sends a reference once and then uses it by the session's id.

The number of sessions, the total size of their recordings and their lifetime are limited. At a limit, a new session
replaces the least recently used ones of the client that holds the most. SageMaker sends all requests of a session to
one instance, so sessions live only in the memory of this process.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.server.accounts import Accounts, Holding, IdlePool, Resource
from s1_mini.server.errors import BusyError, NotFoundError
from s1_mini.server.schemas import SpeechRequest
from s1_mini.types import Reference, references_of

ID_HEADER = "X-Amzn-SageMaker-Session-Id"
NEW_HEADER = "X-Amzn-SageMaker-New-Session-Id"
CLOSED_HEADER = "X-Amzn-SageMaker-Closed-Session-Id"
NEW = "NEW_SESSION"


class SessionNotFoundError(NotFoundError, code="session_not_found"):
    """The session does not exist or has ended."""


class SessionsFullError(BusyError, code="sessions_full"):
    """The recording exceeds the limit for all sessions together."""


@dataclass(frozen=True)
class Session:
    """A session: the voice for requests that do not name one."""

    id: str
    ends: float  # on the clock of `Sessions`
    voice: str | None
    references: tuple[Reference, ...]

    def complete(self, request: SpeechRequest) -> SpeechRequest:
        """Return `request` with the session's voice, unless `request` has its own voice or reference."""
        if request.speech.voice is not None or request.speech.references:
            return request
        return replace(request, speech=replace(request.speech, voice=self.voice, references=self.references))


class Sessions:
    """All sessions of this process. Used by the event loop's thread only."""

    def __init__(
        self,
        settings: ContainerSettings,
        accounts: Accounts,
        clock: Callable[[], float] = time.monotonic,
        *,
        suffix: str = "",
    ) -> None:
        """`suffix` is the end of every id, by which a proxy finds the replica of a session."""
        self._settings, self._accounts, self._clock, self._suffix = settings, accounts, clock, suffix
        self._sessions: dict[str, tuple[Session, Holding]] = {}
        accounts.limits[Resource.STICKY_SESSIONS] = settings.max_sessions
        accounts.limits[Resource.STICKY_BYTES] = round(settings.max_session_mb * 1e6)
        self._pool: IdlePool[str] = IdlePool(accounts, Resource.STICKY_SESSIONS, self._forget)

    def __len__(self) -> int:
        self._expire()
        return len(self._sessions)

    def open(
        self,
        client: str,
        voice: str | None = None,
        reference_audio: bytes | None = None,
        reference_text: str | None = None,
    ) -> Session:
        """Open a session, closing others to make room.

        Raises `SessionsFullError` for a recording that is too large, and `ParameterError` for a transcript without a
        recording.
        """
        self._expire()
        num_bytes, max_bytes = len(reference_audio or b""), self._accounts.limits[Resource.STICKY_BYTES]
        if num_bytes > max_bytes:
            raise SessionsFullError(
                f"The recording is {num_bytes:,} bytes; the limit for all sessions is {max_bytes:,}. Send a shorter "
                "recording or raise S1_MINI_SERVER_SAGEMAKER_MAX_SESSION_MB."
            )
        while self._accounts.total(Resource.STICKY_BYTES) + num_bytes > max_bytes:
            self._pool.evict_one(Resource.STICKY_BYTES)
        ends = self._clock() + self._settings.session_s
        references = references_of(reference_audio, reference_text)
        session = Session(secrets.token_hex(16) + self._suffix, ends, voice, references)
        holding = self._accounts.hold(client)
        holding.set(Resource.STICKY_BYTES, num_bytes, checked=False)
        self._pool.add(session.id, client)
        self._sessions[session.id] = session, holding
        return session

    def get(self, session_id: str) -> Session:
        """Return an open session and mark it as used. Raises `SessionNotFoundError`."""
        self._expire()
        if session_id not in self._sessions:
            raise SessionNotFoundError(f"session {session_id[:64]!r} does not exist or has expired; open a new one")
        self._pool.mark_busy(session_id)
        self._pool.mark_idle(session_id)
        return self._sessions[session_id][0]

    def close(self, session_id: str) -> None:
        """End a session. Raises `SessionNotFoundError`."""
        self._end(self.get(session_id).id)

    def new_header(self, session: Session) -> str:
        """Return the value of `NEW_HEADER`: the id and the time of expiry."""
        ends = datetime.now(UTC) + timedelta(seconds=session.ends - self._clock())
        return f"{session.id}; Expires={ends:%Y-%m-%dT%H:%M:%SZ}"

    def _expire(self) -> None:
        now = self._clock()
        for session in [each for each, _ in self._sessions.values() if each.ends <= now]:
            self._end(session.id)

    def _end(self, session_id: str) -> None:
        self._pool.remove(session_id)
        self._forget(session_id)

    def _forget(self, session_id: str) -> None:
        _, holding = self._sessions.pop(session_id)
        holding.release()
