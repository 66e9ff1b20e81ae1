"""The container's application: that of the server, with the routes of SageMaker's container contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

from s1_mini.sagemaker import invocations, local_endpoint, models
from s1_mini.sagemaker.async_store import AsyncStore
from s1_mini.sagemaker.local_endpoint import LocalEndpoint
from s1_mini.sagemaker.models import HostedModels
from s1_mini.sagemaker.sessions import Sessions
from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.sagemaker.state import ContainerState
from s1_mini.server.app import add_routes, create_app
from s1_mini.server.member import ReplicaInfo
from s1_mini.server.settings import ServerSettings
from s1_mini.server.state import state_in

if TYPE_CHECKING:
    from fastapi import FastAPI

    from s1_mini.speech_engine import SpeechEngine


def make_container_app(
    engine: SpeechEngine,
    settings: ServerSettings | None = None,
    container: ContainerSettings | None = None,
    *,
    endpoint: str | None = None,
    store: AsyncStore | None = None,
    member: ReplicaInfo | None = None,
    streams: bool = True,
) -> FastAPI:
    """Build the application around `engine`.

    With `endpoint`, the application also serves the paths of SageMaker's runtime for an endpoint of that name, and
    writes the responses of asynchronous invocations to `store`. `member` identifies this server if it is one of several
    replicas. Without `streams`, every response is complete. Raises `ConfigurationError` for an invalid setting, or an
    endpoint name that SageMaker would reject.
    """
    container = container or ContainerSettings()
    app = create_app(engine, settings, member)
    server = state_in(app)
    known = Sessions(container, server.accounts, suffix=member.session_suffix if member else "")
    hosted = HostedModels(container, engine)
    state = ContainerState(**vars(server), sessions=known, hosted=hosted, streams=streams)
    app.state = state  # type: ignore[assignment]
    add_routes(app, invocations.router, models.router)
    app.add_api_route("/invocations", invocations.invoke, **invocations.ROUTE)
    if endpoint is not None:
        state.endpoint = LocalEndpoint(endpoint, app, container, store)
        add_routes(app, local_endpoint.router)
    live = app.router.lifespan_context

    @asynccontextmanager
    async def closing(app: FastAPI) -> AsyncIterator[Any]:
        async with live(app) as lifespan, AsyncExitStack() as stack:
            stack.push_async_callback(hosted.close)
            stack.callback(asyncio.create_task(hosted.watch()).cancel)
            if state.endpoint is not None:
                stack.push_async_callback(state.endpoint.close)
            yield lifespan

    app.router.lifespan_context = closing
    return app
