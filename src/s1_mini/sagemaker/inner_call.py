"""One request to `/invocations` that comes from inside: what SageMaker's runtime does between client and container.

Only the headers that SageMaker passes on go in; status, headers and body come out, or the failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from starlette.types import Message, Receive, Scope

from s1_mini.exceptions import S1MiniError
from s1_mini.server.accounts import Resource
from s1_mini.server.errors import error_response

if TYPE_CHECKING:
    from fastapi import FastAPI

PATH = "/invocations"
PASSED = "x-amzn-sagemaker-"
PLAIN = ("content-type", "content-length", "accept")

OnPiece = Callable[[bytes], Awaitable[None]]


@dataclass
class Answer:
    """What the container said."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)

    @property
    def is_good(self) -> bool:
        """Whether the container was content."""
        return 200 <= self.status < 300


class InnerCall:
    """A call of the application's `/invocations`, past the layers around them, which the outer request has passed."""

    def __init__(self, app: FastAPI, scope: Scope, headers: Iterable[tuple[str, str]]) -> None:
        self._app = app
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers if _is_passed(name)]
        self._scope: dict[str, Any] = {
            **scope,
            "method": "POST",
            "path": PATH,
            "raw_path": PATH.encode(),
            "query_string": b"",
            "headers": raw,
        }
        self.answer = Answer()

    async def run(
        self, receive: Receive, on_start: Callable[[], Awaitable[None]] | None = None, on_piece: OnPiece | None = None
    ) -> None:
        """Call; a good answer's pieces go to `on_piece` as they come, everything else into `answer.body`.

        What fails before the answer begins becomes an answer with its status; what fails later is raised.
        """

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.answer.status = message["status"]
                pairs = message.get("headers", [])
                self.answer.headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in pairs}
                if on_start is not None and self.answer.is_good:
                    await on_start()
            elif on_piece is not None and self.answer.is_good:
                if piece := message.get("body", b""):
                    await on_piece(piece)
            else:
                content = message.get("body", b"")
                record.holding.add(Resource.AUDIO_BYTES, len(content))
                self.answer.body += content

        record = self._scope["state"]["record"]
        try:
            async with AsyncExitStack() as stack:
                self._scope["fastapi_middleware_astack"] = stack  # what FastAPI's own layer would put there
                await self._app.router(self._scope, receive, send)
        except S1MiniError as error:
            if self.answer.status:
                raise
            record.code = error.code
            await error_response(error, record.id)(self._scope, receive, send)


def of_bytes(body: bytes) -> Receive:
    """Make the receiving half of a request whose body is known, and whose client never goes away."""
    is_given = False

    async def receive() -> Message:
        nonlocal is_given
        if is_given:
            await asyncio.Event().wait()
        is_given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive


def _is_passed(name: str) -> bool:
    return name.lower() in PLAIN or name.lower().startswith(PASSED)
