"""The container's application: the server's own, and what SageMaker asks of a container on top. Only composes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from s1_mini.sagemaker import invocations, local_endpoint, models
from s1_mini.sagemaker.async_store import AsyncStore
from s1_mini.sagemaker.hosted import HostedModels
from s1_mini.sagemaker.local_endpoint import LocalEndpoint
from s1_mini.sagemaker.sessions import Sessions
from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.server.app import create_app
from s1_mini.server.member import Member
from s1_mini.server.settings import ServerSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from s1_mini.engine import ProductionTTSEngine


def make_container_app(
    engine: ProductionTTSEngine,
    settings: ServerSettings | None = None,
    container: ContainerSettings | None = None,
    *,
    endpoint: str | None = None,
    store: AsyncStore | None = None,
    member: Member | None = None,
    streams: bool = True,
) -> FastAPI:
    """Build the application around `engine`.

    With `endpoint` it also answers the runtime's paths for an endpoint of that name, and keeps the answers of
    asynchronous invocations in `store`. `member` says which of several replicas it is; None if it is alone. Without
    `streams` no audio is streamed. Raises `ConfigurationError` for a name that SageMaker would not take.
    """
    container = container or ContainerSettings()
    app = create_app(engine, settings, member)
    app.state.sessions = Sessions(container, app.state.accounts, suffix=member.session_suffix if member else "")
    app.state.hosted = HostedModels(container, engine.config)
    app.include_router(invocations.router)
    app.include_router(models.router)
    app.state.streams = streams
    app.state.endpoint = None
    if endpoint is not None:
        app.state.endpoint = LocalEndpoint(endpoint, app, container, store)
        app.include_router(local_endpoint.router)
    app.router.lifespan_context = _with_care(app.router.lifespan_context)
    return app


def _with_care(live: Any) -> Any:
    """Extend the application's life by the end of what this room keeps."""

    @asynccontextmanager
    async def cared(app: FastAPI) -> AsyncIterator[Any]:
        async with live(app) as state:
            try:
                yield state
            finally:
                if app.state.endpoint is not None:
                    await app.state.endpoint.close()
                await app.state.hosted.close()

    return cared
