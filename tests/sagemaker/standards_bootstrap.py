"""Serve the container's application with AWS's model-hosting-container-standards; print what a client gets as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import model_hosting_container_standards.sagemaker as standards
from websockets.sync.client import connect

from container_room import SHORT
from door_room import listening
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.sagemaker.app import make_container_app
from s1_mini.server.settings import ServerSettings

SESSION = "X-Amzn-SageMaker-Session-Id"


def main(checkpoint: Path) -> dict[str, Any]:
    """Return statuses and bodies."""
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu", max_batch_size=2)) as engine:
        app = standards.bootstrap(make_container_app(engine, ServerSettings(host="127.0.0.1", port=0)))
        with listening(app, engine) as door, door.http() as http:
            ping = http.get("/ping")
            whole, streamed = (http.post("/invocations", json=SHORT | {"stream": each}) for each in (False, True))
            opened = http.post("/invocations", json={}, headers={SESSION: "NEW_SESSION"})
            session = {SESSION: opened.headers["X-Amzn-SageMaker-New-Session-Id"].partition(";")[0]}
            spoken = http.post("/invocations", json=SHORT, headers=session)
            closed = http.post("/invocations", json={"requestType": "CLOSE"}, headers=session)
            wrong = http.post("/invocations", json={"text": 1})
            with connect(f"ws://127.0.0.1:{door.port}/invocations-bidirectional-stream", proxy=None) as socket:
                socket.send(json.dumps({"type": "Speak", "text": "Hi."}))
                first = json.loads(socket.recv())["type"]
    return {
        "ping": (ping.status_code, ping.text),
        "throttled": (whole.headers.get("X-Throttled"), ping.headers.get("X-Throttled")),
        "whole": (whole.status_code, whole.content[:4].decode()),
        "streams": streamed.headers.get("transfer-encoding"),
        "sessions": [spoken.status_code, spoken.content == whole.content, closed.status_code],
        "wrong": (wrong.status_code, wrong.json()["error"]["field"]),
        "bidirectional": first,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]))) + "\n")
