"""A SageMaker stand-in on a local socket: it speaks AWS's JSON protocol, stores resources, and fails on request.

It covers what moto does not: updates, inference components, states that take time, refusals.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = dict[str, Any]
THINGS = {
    "Model": "ModelName",
    "EndpointConfig": "EndpointConfigName",
    "Endpoint": "EndpointName",
    "InferenceComponent": "InferenceComponentName",
    "TransformJob": "TransformJobName",
}
BEGUN = 1_800_000_000


class Refused(Exception):  # noqa: N818 - an answer, not a mistake
    def __init__(self, code: str, message: str, status: int = 400) -> None:
        self.code, self.message, self.status = code, message, status


class SageMakerServer:
    """`kept` has the resources; `course` the next states of an endpoint or a component, the last one permanent.

    `refuse` maps an operation to an error response; after an operation in `drop` the connection is closed.
    """

    def __init__(self) -> None:
        self.kept: dict[str, dict[str, Answer]] = {kind: {} for kind in THINGS}
        self.course: dict[str, list[Answer]] = {"Endpoint": [], "InferenceComponent": []}
        self.refuse: dict[str, Exception] = {}
        self.drop: set[str] = set()
        self.seen: list[tuple[str, Answer]] = []
        self.on: dict[str, Callable[[], None]] = {}
        outer = self

        class Door(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                operation = self.headers["X-Amz-Target"].partition(".")[2]
                given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                try:
                    status, body = 200, outer.answer(operation, given)
                except Refused as refused:
                    status, body = refused.status, {"__type": refused.code, "message": refused.message}
                if operation in outer.drop:
                    self.close_connection = True
                    self.connection.close()
                    return
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/x-amz-json-1.1")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def handle(self) -> None:
                try:
                    super().handle()
                except (OSError, ValueError):  # closed by the `drop` option
                    self.close_connection = True

            def finish(self) -> None:
                try:
                    super().finish()
                except (OSError, ValueError):
                    self.close_connection = True

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def operations(self, *beginnings: str) -> list[str]:
        """Return the received operations with these prefixes, in order."""
        return [operation for operation, _ in self.seen if operation.startswith(beginnings)]

    def names(self) -> dict[str, list[str]]:
        """Return the names of all resources, by kind."""
        return {kind: sorted(things) for kind, things in self.kept.items() if things}

    def answer(self, operation: str, given: Answer) -> Answer:
        self.seen.append((operation, given))
        if operation in self.on:
            self.on[operation]()
        if operation in self.refuse:
            raise self.refuse[operation]
        for verb in ("Create", "Update", "Delete", "Describe", "List", "Stop"):
            if operation.startswith(verb):
                kind = operation.removeprefix(verb)
                if verb == "List":
                    return self._listed(kind.removesuffix("s"), given)
                return getattr(self, f"_{verb.lower()}")(kind, given)
        raise Refused("UnknownOperationException", operation)

    def _create(self, kind: str, given: Answer) -> Answer:
        name = given[THINGS[kind]]
        if name in self.kept[kind]:
            raise Refused("ValidationException", f'Cannot create already existing {kind.lower()} "arn:…/{name}".')
        self.kept[kind][name] = dict(given)
        return {f"{kind}Arn": f"arn:aws:sagemaker:eu-west-1:123456789012:{kind.lower()}/{name}"}

    def _update(self, kind: str, given: Answer) -> Answer:
        thing = self._get(kind, given)
        thing["before"] = {key: thing[key] for key in given if key in thing}
        thing.update(given)
        return {f"{kind}Arn": f"arn:aws:sagemaker:eu-west-1:123456789012:{kind.lower()}/{given[THINGS[kind]]}"}

    def _delete(self, kind: str, given: Answer) -> Answer:
        self._get(kind, given)
        del self.kept[kind][given[THINGS[kind]]]
        self.course.pop(kind, None)
        return {}

    def _stop(self, kind: str, given: Answer) -> Answer:
        self._get(kind, given)["TransformJobStatus"] = "Stopped"
        return {}

    def _describe(self, kind: str, given: Answer) -> Answer:
        thing = self._get(kind, given)
        shown = {key: value for key, value in thing.items() if key not in {"before", "DeploymentConfig", "Tags"}}
        course = self.course.get(kind, [])
        state = dict((course.pop(0) if len(course) > 1 else course[0]) if course else {})
        if state.pop("went back", False):
            shown |= thing["before"]
        if kind == "Endpoint":
            config = self.kept["EndpointConfig"].get(shown["EndpointConfigName"], {})
            count = [
                {"VariantName": it["VariantName"], "CurrentInstanceCount": 1, "DesiredInstanceCount": 1}
                for it in config.get("ProductionVariants", [])
            ]
            shown |= {"EndpointArn": f"arn:{shown['EndpointName']}", "EndpointStatus": "InService"}
            shown |= {"ProductionVariants": count, "CreationTime": BEGUN, "LastModifiedTime": BEGUN}
        if kind == "InferenceComponent":
            shown |= {"InferenceComponentStatus": "InService", "CreationTime": BEGUN, "LastModifiedTime": BEGUN}
        return shown | state

    def _listed(self, kind: str, given: Answer) -> Answer:
        wanted = given.get("NameContains", "")
        names = [name for name in self.kept[kind] if wanted in name]
        items = [{THINGS[kind]: name, "CreationTime": BEGUN, "LastModifiedTime": BEGUN} for name in names]
        return {f"{kind}s": items}

    def _get(self, kind: str, given: Answer) -> Answer:
        name = given[THINGS[kind]]
        if name not in self.kept[kind]:
            raise Refused("ValidationException", f'Could not find {kind.lower()} "arn:aws:sagemaker:…/{name}".')
        return self.kept[kind][name]
