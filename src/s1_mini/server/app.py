"""The application: one engine, its routes, and the middleware around them.

`AccessLogMiddleware` is the outermost layer, except for CORS: it assigns an id and a record to each request, turns
errors into responses, counts the request in `ServerMetrics` and writes one log line. `ServerState` has the
objects that routes need.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, Counter, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client import Histogram as ClientHistogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from s1_mini.exceptions import EngineNotReadyError, S1MiniError
from s1_mini.extras import require
from s1_mini.metrics import Histogram, MetricFamily
from s1_mini.server import routes, routes_public, session
from s1_mini.server.accounts import Accounts, IdlePool, Resource
from s1_mini.server.connections import Connections
from s1_mini.server.consents import Consents
from s1_mini.server.errors import (
    BodyError,
    ClientGoneError,
    NotFoundError,
    detail_kind,
    error_response,
    from_validation,
    misaddressed,
)
from s1_mini.server.lexicons import Lexicons
from s1_mini.server.limits import AdmissionController, AdmissionMiddleware, EngineDied
from s1_mini.server.member import ReplicaInfo
from s1_mini.server.openapi import DescribedApp
from s1_mini.server.protocols import (
    deepgram,
    deepgram_turns,
    elevenlabs,
    kokoro,
    openai,
    polly,
    websocket,
)
from s1_mini.server.record import RequestLog, sane_id
from s1_mini.server.settings import ServerSettings
from s1_mini.server.state import ServerState, state_in
from s1_mini.server.tracing import open_tracing
from s1_mini.version import __version__

if TYPE_CHECKING:
    from s1_mini.speech_engine import SpeechEngine

logger = logging.getLogger(__name__)

access_logger = logging.getLogger("s1_mini.server.access")

WATCH_S = 0.5  # interval of checks of the engine's state
GONE_STATUS, GONE_CODE = 499, "client_gone"  # nginx's status for a connection that the client closed
KEY_NAME = "X-Key-Name"  # header of responses
KEY_METRICS = {
    "requests": "Requests answered",
    "characters": "Characters of texts",
    "audio_seconds": "Seconds of generated audio",
    "refusals": "Requests with an error",
}
# Paths that are polled or loaded with the page; they are logged only if they fail with a status other than 503.
QUIET = ("/ping", "/health", "/ready", "/metrics", "/static/")
LATENCY_S = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3, 6, 12, 25, 60, 300)
PREFIX = "s1_mini_"
UNKNOWN_ROUTE = "none"  # metrics label of unknown paths, because clients can send any path
UNITS = {  # units of the metrics in log lines
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


def create_app(
    engine: SpeechEngine,
    settings: ServerSettings | None = None,
    member: ReplicaInfo | None = None,
    *,
    has_peers: bool = False,
) -> FastAPI:
    """Build the application around `engine`, which it starts and stops unless the engine is already running.

    `member` identifies this server if it is one of several replicas of `s1-mini serve`. `has_peers`: whether servers
    on other machines serve the same clients. Raises `ConfigurationError` for a certificate that cannot sign.
    """
    settings = settings or ServerSettings()
    settings.signer()
    app = DescribedApp(
        title="s1_mini",
        version=__version__,
        summary="Text to speech with codec language models.",
        lifespan=_live,
        docs_url=None,  # `routes_public` serves Swagger UI from this host; FastAPI's default loads it from a CDN
        redoc_url=None,
        redirect_slashes=False,  # a redirect would lead to whatever Host the request names
    )
    accounts = _accounts(settings)
    gate = AdmissionController(engine, settings, accounts)
    state = ServerState(
        engine,
        settings,
        member,
        accounts,
        gate,
        ServerMetrics(engine, gate),
        Consents(engine.config.voices_path),
        Lexicons(settings.lexicons_path, has_peers=has_peers or member is not None),
        Connections(settings, accounts),
        IdlePool(accounts, Resource.SESSIONS, session.Session.evict),
        ThreadPoolExecutor(1, thread_name_prefix="s1-mini-lifecycle"),
        asyncio.Semaphore(1),
    )
    app.state = state  # type: ignore[assignment]
    add_routes(app, *polly.routers, *routes.routers, openai.router, elevenlabs.router, kokoro.router)
    add_routes(app, *routes_public.routers, websocket.router, deepgram.router, deepgram_turns.router)
    # SageMaker's paths are routes of the application itself, so that AWS's container standards can replace them.
    app.add_api_route("/ping", routes_public.ping, **routes_public.PING)
    app.add_exception_handler(HTTPException, _translate_http)
    app.add_exception_handler(RequestValidationError, _translate_validation)
    _add_middleware(app, state)
    return app


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """Add routes as they are; `include_router` would build them again during the first request."""
    app.router.routes += [route for router in routers for route in router.routes]


def _accounts(settings: ServerSettings) -> Accounts:
    limits = {
        Resource.CONNECTIONS: settings.max_connections,
        Resource.SESSIONS: settings.max_websockets,
        Resource.REQUESTS: settings.max_requests,
        Resource.BODY_BYTES: settings.max_bodies_bytes,
        Resource.AUDIO_BYTES: settings.max_audio_bytes,
    }
    by_client = settings.fairness == "client"
    return Accounts(limits, by_client=by_client, max_requests_per_client=settings.max_requests_per_client)


def _add_middleware(app: FastAPI, state: ServerState) -> None:
    settings = state.settings
    app.add_middleware(AdmissionMiddleware, gate=state.gate, settings=settings)
    app.add_middleware(AccessLogMiddleware, meter=state.meter, namespace=settings.cloudwatch_namespace)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["*"],  # the libraries of OpenAI, ElevenLabs and AWS add headers of their own
            expose_headers=[
                "X-Request-Id",
                "X-Sample-Rate",
                "X-Audio-Seconds",
                "X-Characters",
                KEY_NAME,
                "X-Generation-Seconds",
                "X-Warning",
                "X-Digital-Source-Type",
                "Retry-After",
            ],
        )


@asynccontextmanager
async def _live(app: FastAPI) -> AsyncIterator[None]:
    """Start the engine in a thread, so that `/ping` answers immediately; stop the engine at the end."""
    state = state_in(app)
    threads = ThreadPoolExecutor(state.settings.threads, thread_name_prefix="s1-mini-server")
    asyncio.get_running_loop().set_default_executor(threads)
    state.connections.open()
    if (signer := state.settings.signer()) is not None:
        fields = {"event": "signing", "certificate_ends": signer.ends.isoformat()}
        logger.info("complete responses are signed", extra={"fields": fields})
        signer.warn()
    state.tracing = open_tracing()
    is_ours = state.engine.state().status == "stopped"
    watching = asyncio.ensure_future(_start_and_watch(state, is_ours=is_ours))
    try:
        async with _wyoming(state):
            yield
    finally:
        state.gate.is_draining = True
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
        if is_ours:
            await end_all(state)
        if state.tracing is not None:
            await state.tracing.close()
        state.lifecycle.shutdown(wait=False)


@asynccontextmanager
async def _wyoming(state: ServerState) -> AsyncIterator[None]:
    if state.settings.wyoming_port is None:
        yield
        return
    require("wyoming", "S1_MINI_SERVER_WYOMING_PORT")
    from s1_mini.server.protocols.wyoming import WyomingServer

    state.wyoming = WyomingServer(state)
    await state.wyoming.start()
    try:
        yield
    finally:
        await state.wyoming.close()


async def end_all(state: ServerState) -> None:
    """Stop the engine; unfinished requests end with an error."""
    await asyncio.get_running_loop().run_in_executor(state.lifecycle, partial(state.engine.stop, drain=False))


async def _start_and_watch(state: ServerState, *, is_ours: bool) -> None:
    """Start the engine, unload it while it is idle, and store its failure in `gate.failure`."""
    engine, gate = state.engine, state.gate
    try:
        if is_ours:
            path = engine.config.checkpoint_path
            fields = {"event": "loading", "checkpoint": "the built-in voice" if path is None else str(path)}
            logger.info("loading", extra={"fields": fields})
            await asyncio.get_running_loop().run_in_executor(state.lifecycle, engine.start)
        names = engine.voice_names()
    except S1MiniError as error:
        fields = {"event": "start_failed", "code": error.code, "reason": str(error)}
        logger.error("engine could not be started", extra={"fields": fields})  # noqa: TRY400 - the message suffices
        gate.failure = error
        return
    except Exception as error:  # `/health` and every request report the failure
        logger.exception("engine could not be started")
        gate.failure = error
        return
    has_warned = False
    while gate.is_draining or gate.is_unloaded or engine.state().is_ready:
        await asyncio.sleep(WATCH_S)
        if not 0 < state.settings.unload_after_s < gate.idle_s or gate.refusal() is not None or gate.is_unloaded:
            continue
        with suppress(EngineNotReadyError):  # it has just ended
            if engine.config.voices_path is None and engine.voice_names() != names:
                if not has_warned:
                    reason = "added voices would be lost; set S1_MINI_VOICES_PATH to a folder"
                    logger.warning("not unloading, because %s", reason)
                has_warned = True
                continue
        logger.info("unloading", extra={"fields": {"event": "unloading", "idle_s": round(gate.idle_s)}})
        await gate.unload(state.lifecycle)
    gate.failure = EngineDied()
    logger.error("engine died", extra={"fields": {"event": "engine_died"}})


def _translate_http(request: Request, error: Exception) -> Response:
    """Raise the server's own error in place of the framework's; `AccessLogMiddleware` responds with it."""
    assert isinstance(error, HTTPException)
    if error.status_code == 400:
        raise BodyError(str(error.detail))
    if error.status_code not in (404, 405):
        raise error
    scope = {**request.scope, "type": "websocket"}
    if request.method in ("GET", "POST") and any(each.matches(scope)[0] is Match.FULL for each in request.app.routes):
        reason = "is a WebSocket, but the request is not a handshake; does a proxy remove the header Upgrade?"
        raise NotFoundError(f"{request.url.path[:100]!r} {reason}")
    allowed = _allowed_methods(request) if error.status_code == 405 else ""
    raise misaddressed(request.method, request.url.path, allowed)


def _allowed_methods(request: Request) -> str:
    scopes = {method: {**request.scope, "method": method} for method in ("DELETE", "GET", "POST", "PUT")}
    every = request.app.routes
    allowed = [
        method for method, scope in scopes.items() if any(each.matches(scope)[0] is Match.FULL for each in every)
    ]
    return ", ".join([*allowed, "HEAD"] if "GET" in allowed else allowed)


def _translate_validation(request: Request, error: Exception) -> Response:  # noqa: ARG001 - the framework's signature
    assert isinstance(error, RequestValidationError)
    problems = [{**problem, "loc": problem["loc"][1:]} for problem in error.errors()]  # without "query" or "path"
    raise from_validation(problems)


class AccessLogMiddleware:
    """The outermost ASGI middleware, except for CORS."""

    def __init__(self, app: ASGIApp, *, meter: ServerMetrics, namespace: str = "") -> None:
        self.app, self.meter, self.namespace = app, meter, namespace

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_head = scope.get("method") == "HEAD"  # every GET route answers it; uvicorn leaves the body out
        inner = {**scope, "method": "GET"} if is_head else scope
        record = _begin(scope, headers)
        inner.setdefault("state", {})["record"] = record

        async def note(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start", "websocket.accept"):
                record.status = message.get("status", 101)
                message.setdefault("headers", [])
                named = {KEY_NAME: record.key} if record.key else {}
                MutableHeaders(scope=message).update({"X-Request-Id": record.id} | named)
            elif message["type"] == "websocket.close" and not record.status:
                raise NotFoundError(f"no WebSocket has the path {record.path[:100]!r}")
            await send(message)

        try:
            await self.app(inner, receive, note)
        except ClientGoneError:
            record.status, record.code = record.status or GONE_STATUS, GONE_CODE
        except Exception as error:  # any error is answered, counted and logged here
            await self._fail(error, record, scope, receive, note)
        finally:
            record.route = getattr(inner.get("route"), "path", None)
            self.meter.count(record, time.perf_counter() - record.started)
            self._log(record)
            record.end_trace()

    async def _fail(self, error: Exception, record: RequestLog, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond with the error, unless a response has already begun."""
        if not isinstance(error, S1MiniError):
            access_logger.error("request failed", exc_info=error, extra={"fields": record.ids})
        record.fail(error)
        if record.status == 0:
            await record.error_response(error, record.id)(scope, receive, send)

    def _log(self, record: RequestLog) -> None:
        if record.path.startswith(QUIET) and (record.status < 400 or record.status == 503):
            return
        level = logging.WARNING if record.status >= 500 else logging.INFO
        fields = record.fields()
        if self.namespace and record.route is not None:
            fields |= _metrics(self.namespace, fields)
        access_logger.log(level, "request", extra={"fields": fields})


def _begin(scope: Scope, headers: Headers) -> RequestLog:
    record = RequestLog(sane_id(headers.get("x-request-id")), scope.get("method", "WEBSOCKET"), scope["path"])
    if (tracing := state_in(scope["app"]).tracing) is not None and not record.path.startswith(QUIET):
        record.trace = tracing.begin(record.id, record.method, headers)
    if polly.is_polly(scope["path"], headers):
        record.error_response = polly.error_response
    elif (detail := detail_kind(scope)) is not None:
        record.error_response = partial(error_response, detail=detail)
    return record


def _metrics(namespace: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that turn a log line into metrics (embedded metric format), by route and in total.

    `fields["route"]` must be a declared route, not text from a client, because AWS bills each route as a metric.
    """
    values = {**fields, "failed": int(fields["status"] >= 500)}
    metrics = [{"Name": name, "Unit": unit} for name, unit in UNITS.items() if values.get(name) is not None]
    directive = {"Namespace": namespace, "Dimensions": [[], ["route"]], "Metrics": metrics}
    return {
        "failed": values["failed"],
        "_aws": {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]},
    }


class ServerMetrics:
    """All metrics of one server and its process, in a separate registry."""

    def __init__(self, engine: SpeechEngine, gate: AdmissionController) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineFigures(engine, gate))
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=self.registry)
        if hasattr(engine, "process_id"):  # an engine in its own process
            ProcessCollector(f"{PREFIX}engine", lambda: engine.process_id, registry=self.registry)
        labels = ("route", "status")
        self._requests = Counter("s1_mini_http_requests", "Requests answered", labels, registry=self.registry)
        self._by_key = [
            Counter(f"s1_mini_key_{name}", f"{text}, by named API key", ("key",), registry=self.registry)
            for name, text in KEY_METRICS.items()
        ]
        self._total = ClientHistogram(
            "s1_mini_http_request_seconds",
            "Time until the response ended",
            ("route",),
            buckets=LATENCY_S,
            registry=self.registry,
        )

    def count(self, record: RequestLog, total_s: float) -> None:
        route = record.route or UNKNOWN_ROUTE
        self._requests.labels(route, str(record.status)).inc()
        self._total.labels(route).observe(total_s)
        if record.key:
            refused = record.code is not None and record.code != GONE_CODE
            amounts = (1, record.characters, record.audio_s, int(refused))
            for counter, amount in zip(self._by_key, amounts, strict=True):
                counter.labels(record.key).inc(amount)

    def text(self) -> tuple[bytes, str]:
        """Return all metrics and their media type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class EngineFigures(Collector):
    """Readiness, resources held by clients and, with `metrics_enabled`, the engine's own metrics."""

    def __init__(self, engine: SpeechEngine, gate: AdmissionController) -> None:
        self._engine, self._gate = engine, gate

    def collect(self) -> Iterator[Metric]:
        inside, is_ready = self._gate.num_inside, float(self._gate.refusal() is None)
        yield GaugeMetricFamily(f"{PREFIX}ready", "1 if requests are accepted", is_ready)
        yield GaugeMetricFamily(
            f"{PREFIX}http_requests_inside", "POST requests, WebSocket sessions and Wyoming texts in progress", inside
        )
        held = GaugeMetricFamily(f"{PREFIX}http_held", "Amount that all clients together hold", labels=["resource"])
        limits = GaugeMetricFamily(f"{PREFIX}http_limit", "Limit for all clients together", labels=["resource"])
        for resource, figures in self._gate.accounts.describe().items():
            held.add_metric([resource], figures["held"])
            limits.add_metric([resource], figures["limit"])
        yield from (held, limits)
        if self._engine.config.metrics_enabled:
            yield from map(_shown, self._engine.families())


def _shown(family: MetricFamily) -> Metric:
    """Convert a metric to the Prometheus client's class."""
    name, value = PREFIX + family.name, family.value
    if isinstance(value, Histogram):
        buckets = [("+Inf" if bound == float("inf") else str(bound), count) for bound, count in value.cumulative()]
        return HistogramMetricFamily(name, family.description, buckets=buckets, sum_value=value.sum)
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    if not isinstance(value, dict):
        return kind(name, family.description, value)
    shown = kind(name, family.description, labels=[family.label])
    for label, figure in value.items():
        shown.add_metric([label], figure)
    return shown
