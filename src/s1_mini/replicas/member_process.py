"""`python -m` of this is one replica, as the supervisor starts it; its settings are in the environment."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from s1_mini.server.member import Member


def command_of(member: Member, local_endpoint: str | None, async_store: str | None) -> list[str]:
    """Give the command that runs a replica."""
    command = [sys.executable, "-m", __name__, "--index", member.name, "--count", str(member.count)]
    command += ["--socket", str(member.socket)] + (["--keeps-voices"] if member.keeps_voices else [])
    command += ["--local-endpoint", local_endpoint] if local_endpoint is not None else []
    return command + (["--async-store", async_store] if async_store is not None else [])


def main() -> int:
    """Serve until a signal; give the exit code."""
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

    member = Member(given.index, given.count, given.socket, given.keeps_voices)
    store = None if given.async_store is None else open_store(given.async_store)
    return run(make_container_app(ProductionTTSEngine(), endpoint=given.local_endpoint, store=store, member=member))


if __name__ == "__main__":
    sys.exit(main())
