"""The stages of a family as Ray Serve deployments, each with replicas and machines of its own (docs/cluster.md).

`serve run s1_mini.cluster:app` deploys them and an ingress, which is the server of `s1-mini serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ray.serve import Application


def app(args: dict[str, Any]) -> Application:
    """Describe the deployments, by `S1_MINI_*` variables and `args`, whose keys are settings; Ray Serve calls it.

    Raises `ConfigurationError` where Ray is not installed or settings cannot work, and `CheckpointError`.
    """
    from s1_mini.remote.ray_serve import describe

    return describe(args)
