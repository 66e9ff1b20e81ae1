"""Speech on its way to a client that may go away: watched while it is made and while it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from s1_mini.server.accounts import Holding, Resource
from s1_mini.server.errors import ClientGoneError
from s1_mini.server.record import record_of
from s1_mini.server.schemas import SpeechRequest
from s1_mini.server.speech import AudioResponse, speak

T = TypeVar("T")


async def answer(request: Request, wanted: SpeechRequest) -> Response:
    """Speak and answer with the sound, whole or streamed; a client that goes away cancels it."""
    state = request.app.state
    work = speak(state.engine, wanted, settings=state.settings, record=record_of(request))
    return respond(await while_listened(request.receive, work))


def respond(speech: AudioResponse) -> Response:
    """Make the HTTP answer of a speech."""
    if speech.content is not None:
        return Response(speech.content, media_type=speech.media_type, headers=speech.headers)
    return StreamedAnswer(speech.body, speech.media_type, speech.headers)


class StreamedAnswer(Response):
    """A body that is sent as it is generated. If it fails, the connection breaks off without the final chunk.

    To an HTTP/1.0 client behind the proxy of several replicas it is sent whole, with its length: the proxy ends a
    broken stream like a complete one.
    """

    def __init__(self, body: AsyncIterator[bytes], media_type: str, headers: dict[str, str]) -> None:
        super().__init__(media_type=media_type, headers=headers)
        del self.headers["content-length"]
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the body. Raises the body's error, or `ClientGoneError` if the client disconnects."""
        if scope["http_version"] == "1.0" and scope["app"].state.member is not None:
            content = await while_listened(receive, self._collect(scope["state"]["record"].holding))
            self.headers["content-length"] = str(len(content))
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": content})
            return
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}

        async def deliver() -> None:
            async with aclosing(self._body) as body:  # type: ignore[type-var]
                await send(start)
                async for piece in body:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await while_listened(receive, deliver())

    async def _collect(self, holding: Holding) -> bytes:
        content = bytearray()
        async with aclosing(self._body) as body:  # type: ignore[type-var]
            async for piece in body:
                holding.add(Resource.AUDIO_BYTES, len(piece))
                content += piece
        return bytes(content)


async def while_listened(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do `work` as long as the client is there. Raises `ClientGoneError` once it is not.

    The request's body must have been read.
    """
    doing, watching = asyncio.ensure_future(work), asyncio.ensure_future(_departure(receive))
    try:
        await asyncio.wait({doing, watching}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        raise ClientGoneError
    finally:
        doing.cancel()
        watching.cancel()
        await asyncio.gather(doing, watching, return_exceptions=True)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
