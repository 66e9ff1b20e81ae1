"""The outermost layer of every request: its id, its record, errors made into answers, and one log line.

`except Exception` lives here and nowhere else in the server.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from s1_mini.exceptions import S1MiniError
from s1_mini.server.errors import ClientGoneError, code_of, error_response
from s1_mini.server.meter import ServerMetrics
from s1_mini.server.record import RequestLog, sane_id

logger = logging.getLogger("s1_mini.server.access")

GONE_STATUS = 499  # as nginx says it: the client closed the connection
# Asked every few seconds, also while the answer is "not yet", or with every look at the page; logged only if they fail.
QUIET = ("/ping", "/health", "/ready", "/metrics", "/static/")
UNITS = {  # of the metrics in log lines
    "queue_ms": "Milliseconds",
    "prefill_ms": "Milliseconds",
    "first_chunk_ms": "Milliseconds",
    "total_ms": "Milliseconds",
    "audio_s": "Seconds",
    "frames": "Count",
    "waiting": "Count",
    "real_time_factor": "None",
    "failed": "Count",
}


class AccessLogMiddleware:
    """ASGI middleware around everything else."""

    def __init__(self, app: ASGIApp, *, meter: ServerMetrics, namespace: str = "") -> None:
        self.app, self.meter, self.namespace = app, meter, namespace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one connection."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        record = RequestLog(sane_id(headers.get("x-request-id")), scope.get("method", "WEBSOCKET"), scope["path"])
        scope.setdefault("state", {})["record"] = record

        async def note(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                record.status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = record.id
            elif message["type"] == "websocket.accept":
                record.status = 101
            elif message["type"] == "websocket.close" and not record.status:
                record.status = 403
            await send(message)

        try:
            await self.app(scope, receive, note)
        except ClientGoneError:
            record.status, record.code = record.status or GONE_STATUS, "client_gone"
        except Exception as error:  # any error is answered, counted and logged here
            await self._fail(error, record, scope, receive, note)
        finally:
            record.route = getattr(scope.get("route"), "path", None)
            self.meter.count(record, time.perf_counter() - record.started)
            self._log(record)

    async def _fail(self, error: Exception, record: RequestLog, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the error; where an answer has begun, break it off, which is all that is left to tell it."""
        if not isinstance(error, S1MiniError):
            logger.error("request failed", exc_info=error, extra={"fields": {"request_id": record.id}})
        record.code = code_of(error)
        if record.status == 0 and scope["type"] == "http":
            await error_response(error, record.id)(scope, receive, send)

    def _log(self, record: RequestLog) -> None:
        if record.path.startswith(QUIET) and (record.status < 400 or record.status == 503):
            return
        level = logging.WARNING if record.status >= 500 else logging.INFO
        fields = record.fields()
        if self.namespace and record.route is not None:
            fields |= _metrics(self.namespace, fields)
        logger.log(level, "request", extra={"fields": fields})


def _metrics(namespace: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that make a log line metrics in the embedded metric format, by route and in total.

    `fields["route"]` must be a declared route and no text of a client: each is a metric, which costs.
    """
    told = {"failed": int(fields["status"] >= 500)}
    metrics = [{"Name": name, "Unit": unit} for name, unit in UNITS.items() if {**told, **fields}.get(name) is not None]
    directive = {"Namespace": namespace, "Dimensions": [[], ["route"]], "Metrics": metrics}
    return told | {"_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}}
