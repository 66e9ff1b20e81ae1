"""`/models…`: the multi-model container's contract. Parse, one call, shape."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import Field

from s1_mini.sagemaker import invocations
from s1_mini.sagemaker.hosted import Hosted
from s1_mini.server.bodies import read_json
from s1_mini.server.errors import InvalidError
from s1_mini.server.schemas import Strict

router = APIRouter(tags=["sagemaker"], include_in_schema=False)

PAGE = 100


class LoadBody(Strict):
    """Body of `POST /models`."""

    model_name: str = Field(min_length=1, max_length=128)
    url: str = Field(min_length=1, max_length=4096, description="A folder of this machine.")


@router.post("/models")
async def load_model(request: Request) -> dict[str, Any]:
    """Load a model; 409 if it is loaded, 507 if it does not fit."""
    body = await read_json(request, LoadBody)
    return _told(await request.app.state.hosted.load(body.model_name, body.url))


@router.get("/models")
async def list_models(request: Request) -> dict[str, Any]:
    """List the loaded models, `limit` of them from `next_page_token` on."""
    limit = _number(request, "limit", PAGE, 1)
    start = _number(request, "next_page_token", 0, 0)
    hosted = request.app.state.hosted.list()
    page: dict[str, Any] = {"models": [_told(each) for each in hosted[start : start + limit]]}
    if start + limit < len(hosted):
        page["nextPageToken"] = str(start + limit)
    return page


@router.get("/models/{name}")
async def describe_model(name: str, request: Request) -> dict[str, Any]:
    """Tell of one model; 404 if it is not loaded."""
    return _told(request.app.state.hosted.get(name))


@router.delete("/models/{name}")
async def unload_model(name: str, request: Request) -> Response:
    """Unload a model; 404 if it is not loaded."""
    await request.app.state.hosted.unload(name)
    return Response()


@router.post("/models/{name}/invoke")
async def invoke_model(name: str, request: Request) -> Response:
    """Speak with one model; 404 if it is not loaded."""
    return await invocations.answer(request, request.app.state.hosted.find(name).engine)


def _told(hosted: Hosted) -> dict[str, Any]:
    return {"modelName": hosted.name, "modelUrl": hosted.url}


def _number(request: Request, name: str, default: int, least: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 9 and int(given) >= least):
        raise InvalidError(name, f"{given[:40]!r} is not a whole number from {least} on")
    return int(given)
