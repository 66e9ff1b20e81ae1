"""The program of one replica, which the supervisor starts with `python -m`; its settings are in the environment."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from s1_mini.server.member import ReplicaInfo


def main() -> int:
    """Serve until a signal; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--keeps-voices", action="store_true")
    parser.add_argument("--local-endpoint")
    parser.add_argument("--async-store")
    given = parser.parse_args()

    from s1_mini.engine import ProductionTTSEngine
    from s1_mini.sagemaker.app import make_container_app
    from s1_mini.sagemaker.async_store import open_store
    from s1_mini.server.run import run

    member = ReplicaInfo(given.index, given.count, given.socket, given.keeps_voices)
    store = None if given.async_store is None else open_store(given.async_store)
    return run(make_container_app(ProductionTTSEngine(), endpoint=given.local_endpoint, store=store, member=member))


if __name__ == "__main__":
    sys.exit(main())
