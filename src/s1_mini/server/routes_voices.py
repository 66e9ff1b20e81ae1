"""`/v1/voices`: what voices there are, and keeping one's own."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from s1_mini.server import voices
from s1_mini.server.answers import while_listened
from s1_mini.server.bodies import FORM, content_type, read_form, said
from s1_mini.server.errors import ContentTypeError, InvalidError
from s1_mini.server.openapi import body_of, failures
from s1_mini.server.record import record_of
from s1_mini.server.schemas import VoiceAnswer, VoiceForm, VoicesAnswer

if TYPE_CHECKING:
    from s1_mini.engine import ProductionTTSEngine

router = APIRouter(tags=["voices"])


@router.get("/v1/voices", summary="All voices", responses=failures(503, has_body=False))
async def list_voices(request: Request) -> VoicesAnswer:
    """List the checkpoint's voices and those that were added."""
    return await asyncio.to_thread(voices.describe_all, _engine(request), request.app.state.member)


@router.get("/v1/voices/{name}", summary="One voice", responses=failures(404, 500, 503, has_body=False))
async def describe_voice(request: Request, name: str) -> VoiceAnswer:
    """Tell of one voice."""
    return await asyncio.to_thread(voices.describe, _engine(request), name)


@router.post(
    "/v1/voices",
    status_code=201,
    summary="Add a voice",
    responses=failures(409, 500),
    openapi_extra=body_of(VoiceForm, form_files=("audio",), is_json=False),
)
async def add_voice(request: Request) -> VoiceAnswer:
    """Keep a recording as a voice, to be used by its name."""
    if content_type(request) != FORM:
        raise ContentTypeError(
            f"{said(request)} is not read here; send {FORM} with the fields name, text and file audio"
        )
    form, recording = await read_form(request, VoiceForm, "audio")
    if recording is None:
        raise InvalidError("audio", "is missing; send the recording as a file")
    return await while_listened(
        request.receive, voices.add(_engine(request), form, recording, record_of(request).client)
    )


@router.delete(
    "/v1/voices/{name}", status_code=204, summary="Delete a voice", responses=failures(404, 409, 503, has_body=False)
)
async def delete_voice(request: Request, name: str) -> Response:
    """Forget an added voice; those of the checkpoint stay."""
    await asyncio.to_thread(_engine(request).delete_voice, name)
    return Response(status_code=204)


def _engine(request: Request) -> ProductionTTSEngine:
    state = request.app.state
    if (refused := state.gate.refusal()) is not None:
        raise refused
    engine: ProductionTTSEngine = state.engine
    return engine
