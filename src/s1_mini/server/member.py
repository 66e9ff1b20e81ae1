"""Identity of a server that is one of several replicas behind one port (`s1_mini.remote`)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROXY = "proxy"  # name of a peer on a Unix socket, which has no address; X-Forwarded-For has the client's address
TRUSTED = "FORWARDED_ALLOW_IPS"  # uvicorn's variable: peers whose X-Forwarded-For is trusted
LOOPBACK = "127.0.0.1"  # uvicorn's default


@dataclass(frozen=True)
class ReplicaInfo:
    """One replica: its index, the number of replicas, and the Unix socket to which the proxy connects."""

    index: int
    count: int
    socket: Path
    keeps_voices: bool  # whether added voices outlive the server

    @property
    def name(self) -> str:
        """Name in logs and metrics."""
        return str(self.index)

    @property
    def session_suffix(self) -> str:
        """Suffix of the replica's session ids, by which the proxy finds the replica."""
        return f"-r{self.index}"


def trusted_peers() -> str:
    """Return uvicorn's list of trusted peers: the proxy and the peers that the user has set."""
    given = os.environ.get(TRUSTED) or LOOPBACK
    return given if given == "*" else f"{given},{PROXY}"
