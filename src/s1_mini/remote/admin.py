"""Routes that concern all replicas and are answered by the supervisor: `/health`, `/metrics`, loading of models.

Voices need no such route: all replicas share one folder of added voices and look into it with every request.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from s1_mini.exceptions import EngineNotReadyError
from s1_mini.server.errors import BodyTooLargeError, BodyTooSlowError, ServerError, error_response, misaddressed

if TYPE_CHECKING:
    import httpx

    from s1_mini.remote.replica import Replica
    from s1_mini.server.settings import ServerSettings

PROBE_S = 2.0  # timeout of a replica's `/health` and `/metrics`
LOAD_S = 900.0  # timeout of loading a model
MAX_BODY_BYTES = 64 * 1024  # name and path of a model
FORWARDED = (b"authorization", b"content-encoding", b"content-type", b"host", b"origin", b"x-request-id")
SUMS = {"queue": None, "slots": ("free", "total"), "recordings": None}  # fields of /health to add up; None: all numbers
LABEL = "replica"

Headers = list[tuple[bytes, bytes]]


class AdminRoutes:
    """The supervisor's own routes."""

    def __init__(self, replicas: Sequence[Replica], settings: ServerSettings, is_draining: Callable[[], bool]) -> None:
        self._replicas, self._settings, self._is_draining = replicas, settings, is_draining
        # Requests that loaded a model, by its name, for replicas that start later.
        self._models: dict[str, tuple[Headers, bytes]] = {}
        self._changing = asyncio.Lock()  # models are loaded one at a time
        self.app = Starlette(
            routes=[
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/models", self._load, methods=["POST"]),
                Route("/models/{name}", self._unload, methods=["DELETE"]),
            ],
            exception_handlers={HTTPException: _refuse},
        )

    async def prepare(self, replica: Replica) -> None:
        """Load the models of the other replicas into one that has just started. Raises `OSError`."""
        async with self._changing:
            for headers, body in self._models.values():
                await replica.request("/models", method="POST", headers=headers, content=body, within_s=LOAD_S)

    async def healths(self, within_s: float) -> list[dict[str, Any]]:
        """Return the `/health` of each replica; empty for one that does not answer."""
        responses = await self._each("/health", self._replicas, within_s)
        return [json.loads(response.content) if _is_ok(response) else {} for response in responses]

    async def _health(self, request: Request) -> Response:  # noqa: ARG002
        each = await self.healths(PROBE_S)
        ready = [health for health in each if health.get("ready")] or [health for health in each if health]
        total: dict[str, Any] = dict(ready[0]) if ready else {"status": "stopped"}
        for part, names in SUMS.items():
            if part in total:
                summed = names or [name for name, value in total[part].items() if isinstance(value, int)]
                total[part] = total[part] | {
                    name: _sum(health.get(part, {}).get(name) for health in ready) for name in summed
                }
        total |= {
            "ready": not self._is_draining() and any(health.get("ready") for health in each),
            "requests": _sum(health.get("requests") for health in each),
            "server": {"requests": num_under_way(each), "draining": self._is_draining()},
            "replicas": [
                replica.health() | {"health": health} for replica, health in zip(self._replicas, each, strict=True)
            ],
        }
        return JSONResponse(total)

    async def _metrics(self, request: Request) -> Response:  # noqa: ARG002
        responses = await self._each("/metrics", self._replicas, PROBE_S)
        metrics = ReplicaMetrics(self._replicas, [each.text if _is_ok(each) else "" for each in responses])
        return Response(await asyncio.to_thread(generate_latest, metrics), media_type=CONTENT_TYPE_LATEST)

    async def _load(self, request: Request) -> Response:
        """Load a model into all replicas, or into none."""
        try:
            body = await self._read(request)
        except ServerError as error:
            return error_response(error, request.headers.get("x-request-id"))
        headers = _forwarded(request)
        async with self._changing:
            replicas = self._ready()
            responses = await self._each("/models", replicas, LOAD_S, method="POST", headers=headers, content=body)
            loaded = [each for each, response in zip(replicas, responses, strict=True) if _is_ok(response)]
            name = json.loads(body)["model_name"] if loaded else ""
            if loaded and loaded == replicas:
                self._models[name] = (headers, body)
                return _response(responses[0])
            if loaded:
                await self._each(f"/models/{name}", loaded, LOAD_S, method="DELETE", headers=_without_body(headers))
        return _response(next((each for each in responses if each is not None and not _is_ok(each)), None))

    async def _unload(self, request: Request) -> Response:
        """Unload a model from all replicas."""
        headers, path = _without_body(_forwarded(request)), request.scope["raw_path"].decode("latin-1")
        async with self._changing:
            responses = await self._each(path, self._ready(), LOAD_S, method="DELETE", headers=headers)
            answered = [response for response in responses if response is not None]
            best = min(answered, key=lambda response: response.status_code, default=None)
            if _is_ok(best):
                self._models.pop(request.path_params["name"], None)
        return _response(best)

    def _ready(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.is_ready]

    async def _each(
        self, target: str, replicas: Iterable[Replica], within_s: float, **options: Any
    ) -> list[httpx.Response | None]:
        """Send a request to replicas at the same time; the result is None for each that does not answer."""

        async def one(replica: Replica) -> httpx.Response | None:
            try:
                return await replica.request(target, within_s=within_s, **options)
            except OSError:
                return None

        return list(await asyncio.gather(*(one(replica) for replica in replicas)))

    async def _read(self, request: Request) -> bytes:
        content = bytearray()
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                async for piece in request.stream():
                    content += piece
                    if len(content) > MAX_BODY_BYTES:
                        raise BodyTooLargeError(MAX_BODY_BYTES)
        except TimeoutError:
            raise BodyTooSlowError(f"the body took longer than {self._settings.body_timeout_s:g} s") from None
        except ClientDisconnect:
            return b""
        return bytes(content)


class ReplicaMetrics(Collector):
    """The metrics of all replicas, labelled by replica, and the state of the replicas."""

    def __init__(self, replicas: Sequence[Replica], texts: Sequence[str]) -> None:
        self._replicas, self._texts = replicas, texts

    def collect(self) -> Iterable[Metric]:
        """Yield each metric once, with the samples of all replicas."""
        families: dict[str, Metric] = {}
        for replica, text in zip(self._replicas, self._texts, strict=True):
            for family in text_string_to_metric_families(text):
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    known.add_sample(sample.name, sample.labels | {LABEL: replica.member.name}, sample.value)
        yield from families.values()
        ready = GaugeMetricFamily("s1_mini_replica_ready", "1 if the replica takes requests in", labels=[LABEL])
        starts = CounterMetricFamily("s1_mini_replica_starts", "Times that the replica was started", labels=[LABEL])
        for replica in self._replicas:
            ready.add_metric([replica.member.name], float(replica.is_ready))
            starts.add_metric([replica.member.name], replica.num_starts)
        yield from (ready, starts)


def _refuse(request: Request, error: Exception) -> Response:
    """Return an error of the framework in the format of all errors."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "")
    response = error_response(
        misaddressed(request.method, request.url.path, allowed), request.headers.get("x-request-id")
    )
    if allowed:
        response.headers["Allow"] = allowed
    return response


def num_under_way(healths: Iterable[dict[str, Any]]) -> int:
    """Return the number of requests that replicas have under way."""
    return _sum(health.get("server", {}).get("requests") for health in healths)


def _sum(values: Iterable[Any]) -> int:
    return sum(value for value in values if isinstance(value, int))


def _forwarded(request: Request) -> Headers:
    return [(name, value) for name, value in request.headers.raw if name in FORWARDED]


def _without_body(headers: Headers) -> Headers:
    return [(name, value) for name, value in headers if not name.startswith(b"content-")]


def _is_ok(response: httpx.Response | None) -> TypeGuard[httpx.Response]:
    return response is not None and response.status_code == 200


def _response(response: httpx.Response | None) -> Response:
    if response is None:
        return error_response(EngineNotReadyError("no replica is ready; try again later"), None)
    return Response(response.content, response.status_code, media_type=response.headers.get("content-type"))
