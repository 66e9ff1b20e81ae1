"""What the requests of one container share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from starlette.requests import HTTPConnection

from s1_mini.server.state import ServerState, state_of

if TYPE_CHECKING:
    from s1_mini.sagemaker.local_endpoint import LocalEndpoint
    from s1_mini.sagemaker.models import HostedModels
    from s1_mini.sagemaker.sessions import Sessions


@dataclass
class ContainerState(ServerState):
    """The objects of a server that answers SageMaker."""

    sessions: Sessions = field(kw_only=True)
    hosted: HostedModels = field(kw_only=True)
    streams: bool = field(kw_only=True)  # whether responses may be streamed
    endpoint: LocalEndpoint | None = None


def container_of(connection: HTTPConnection) -> ContainerState:
    """Return the state of the container that a request belongs to."""
    return cast("ContainerState", state_of(connection))
