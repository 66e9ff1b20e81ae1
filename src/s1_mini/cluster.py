"""Entry point of Ray Serve: `serve run s1_mini.cluster:app` (docs/cluster.md).

It deploys the stages of a family, each with replicas and machines of its own, and an ingress, which is the server of
`s1-mini serve`.
"""

from s1_mini.remote.ray_serve import app

__all__ = ["app"]
