"""Asks the engine to speak and listens, so that a listener who goes away at any moment leaves nothing behind.

It does what `ProductionTTSEngine.stream_async` does, and closes what was begun in a thread while its caller was
cancelled (2026-11: `stream_async` lets such a request run to its end). Once the engine does so too, this room is empty.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

from s1_mini.engine import make_request
from s1_mini.types import SamplingParams

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.runtime.outbox import Outbox
    from s1_mini.server.schemas import SpeechRequest
    from s1_mini.types import AudioChunk


async def listen(engine: ProductionTTSEngine, wanted: SpeechRequest) -> AsyncIterator[AudioChunk]:
    """Give the chunks of one request; raises the engine's errors. Closing or cancelling it cancels the request."""
    request = make_request(
        wanted.text,
        SamplingParams(wanted.temperature, wanted.top_p, wanted.repetition_penalty, wanted.max_new_tokens, wanted.seed),
        wanted.voice,
        wanted.reference_audio,
        wanted.reference_text,
        chunk_profile=wanted.chunk_profile or ("ttfa" if wanted.streams else "throughput"),
    )
    asking = asyncio.ensure_future(asyncio.to_thread(engine._speak, request, streams=True))
    try:
        outbox = await asyncio.shield(asking)
    except asyncio.CancelledError:
        asking.add_done_callback(_close)
        raise
    async with aclosing(cast("Any", outbox.__aiter__())) as chunks:
        async for chunk in chunks:
            yield chunk


def _close(asking: asyncio.Future[Outbox]) -> None:
    if not asking.cancelled() and asking.exception() is None:
        asking.result().close()
