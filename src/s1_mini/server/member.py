"""What one replica knows of the others: that it is one of several engines behind one port (`s1_mini.replicas`)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

PROXY = "proxy"  # who asks over a Unix socket, which has no address; the proxy names its client in X-Forwarded-For
TRUSTED = "FORWARDED_ALLOW_IPS"  # uvicorn's variable: whose X-Forwarded-For counts
LOOPBACK = "127.0.0.1"  # uvicorn's default for it


@dataclass(frozen=True)
class Member:
    """One replica: its number from 0, how many there are, and the Unix socket on which the proxy asks it."""

    index: int
    count: int
    socket: Path
    keeps_voices: bool  # whether the folder of added voices outlives the server

    @property
    def name(self) -> str:
        """What logs and metrics call it."""
        return str(self.index)

    @property
    def session_suffix(self) -> str:
        """How the ids of its sessions end, by which the proxy finds it again."""
        return f"-r{self.index}"


def trusted_peers() -> str:
    """Give uvicorn's list of who may name another client: the proxy, and whom the proxy may believe."""
    given = os.environ.get(TRUSTED) or LOOPBACK
    return given if given == "*" else f"{given},{PROXY}"
