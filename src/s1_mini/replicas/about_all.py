"""What the supervisor answers itself, since it is about all replicas: `/health`, `/metrics`, models come and gone.

Voices need none of it: all replicas share one folder of added voices, and look into it whenever a voice is asked for.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector, CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from s1_mini.exceptions import EngineNotReadyError
from s1_mini.replicas.asking import Answer, ask
from s1_mini.server.errors import (
    BodyTooLargeError,
    BodyTooSlowError,
    ServerError,
    error_response,
    misaddressed,
)

if TYPE_CHECKING:
    from s1_mini.replicas.replica import Replica
    from s1_mini.server.settings import ServerSettings

LOOK_S = 2.0  # at a replica's health or figures
LOAD_S = 900.0  # a model
MAX_BODY_BYTES = 64 * 1024  # of the name and the place of a model
PASSED = ("authorization", "content-encoding", "content-type", "host", "origin", "x-request-id")
SUMS = {"queue": None, "slots": ("free", "total"), "recordings": None}  # parts of /health that add up; which of them
LABEL = "replica"


@dataclass(frozen=True)
class LoadedModel:
    """What a replica that starts later is told, so that it has the same models."""

    headers: dict[str, str]
    body: bytes


class AboutAll:
    """The supervisor's own routes."""

    def __init__(self, replicas: Sequence[Replica], settings: ServerSettings, is_draining: Callable[[], bool]) -> None:
        self._replicas, self._settings, self._is_draining = replicas, settings, is_draining
        self._models: dict[str, LoadedModel] = {}
        self._changing = asyncio.Lock()  # models, one after the other
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
        """Load into a replica that has just started what the others have. Raises `OSError`."""
        async with self._changing:
            for model in self._models.values():
                await ask(
                    replica.member.socket,
                    "/models",
                    method="POST",
                    headers=model.headers,
                    body=model.body,
                    within_s=LOAD_S,
                )

    async def _health(self, request: Request) -> Response:  # noqa: ARG002
        answers = await self._each("/health", self._replicas, LOOK_S)
        told = [json.loads(answer.body) if answer is not None and answer.status == 200 else {} for answer in answers]
        whole = [health for health in told if health.get("ready")] or [health for health in told if health]
        shown: dict[str, Any] = dict(whole[0]) if whole else {"status": "stopped"}
        for part, names in SUMS.items():
            if part in shown:
                summed = names or [name for name, value in shown[part].items() if isinstance(value, int)]
                shown[part] = shown[part] | {
                    name: _sum(health.get(part, {}).get(name) for health in whole) for name in summed
                }
        inside = _sum(health.get("server", {}).get("requests") for health in told)
        shown |= {
            "ready": not self._is_draining() and any(health.get("ready") for health in told),
            "requests": _sum(health.get("requests") for health in told),
            "server": {"requests": inside, "draining": self._is_draining()},
            "replicas": [
                replica.health() | {"health": health} for replica, health in zip(self._replicas, told, strict=True)
            ],
        }
        return JSONResponse(shown)

    async def _metrics(self, request: Request) -> Response:  # noqa: ARG002
        answers = await self._each("/metrics", self._replicas, LOOK_S)
        texts = {
            replica.member.name: answer.body.decode()
            for replica, answer in zip(self._replicas, answers, strict=True)
            if answer is not None and answer.status == 200
        }
        registry = CollectorRegistry()
        registry.register(Figures(self._replicas, texts))
        return Response(await asyncio.to_thread(generate_latest, registry), media_type=CONTENT_TYPE_LATEST)

    async def _load(self, request: Request) -> Response:
        """Load a model into all replicas, or into none."""
        try:
            body = await self._read(request)
        except ServerError as error:
            return error_response(error, request.headers.get("x-request-id"))
        headers = {name: value for name, value in request.headers.items() if name in PASSED}
        async with self._changing:
            there = self._ready()
            answers = await self._each("/models", there, LOAD_S, method="POST", headers=headers, body=body)
            failed = [answer for answer in answers if answer is None or answer.status != 200]
            if not failed and answers:
                name = json.loads(body)["model_name"]
                self._models[name] = LoadedModel(headers, body)
                return _answer(answers[0])
            done = [each for each, answer in zip(there, answers, strict=True) if answer and answer.status == 200]
            if done:
                name = json.loads(body)["model_name"]
                await self._each(f"/models/{name}", done, LOAD_S, method="DELETE", headers=_without_body(headers))
        return _answer(next((answer for answer in failed if answer is not None), None))

    async def _unload(self, request: Request) -> Response:
        """Take a model away from all replicas."""
        headers = {name: value for name, value in request.headers.items() if name in PASSED}
        async with self._changing:
            path = request.scope["raw_path"].decode("latin-1")
            answers = await self._each(path, self._ready(), LOAD_S, method="DELETE", headers=_without_body(headers))
            told = [answer for answer in answers if answer is not None]
            best = min(told, key=lambda answer: answer.status, default=None)
            if best is not None and best.status == 200:
                self._models.pop(request.path_params["name"], None)
        return _answer(best)

    def _ready(self) -> list[Replica]:
        return [replica for replica in self._replicas if replica.is_ready]

    async def _each(
        self, target: str, replicas: Iterable[Replica], within_s: float, **given: Any
    ) -> list[Answer | None]:
        """Ask replicas at the same time; None for each that does not answer."""

        async def one(replica: Replica) -> Answer | None:
            try:
                return await ask(replica.member.socket, target, within_s=within_s, **given)
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


class Figures(Collector):
    """The figures of all replicas, each with its name as a label, and how the replicas are."""

    def __init__(self, replicas: Sequence[Replica], texts: dict[str, str]) -> None:
        self._replicas, self._texts = replicas, texts

    def collect(self) -> Iterable[Metric]:
        """Give the figures: a family of all replicas once."""
        families: dict[str, Metric] = {}
        for name, text in self._texts.items():
            for family in text_string_to_metric_families(text):
                known = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    known.add_sample(sample.name, sample.labels | {LABEL: name}, sample.value)
        yield from families.values()
        ready = GaugeMetricFamily("s1_mini_replica_ready", "1 if the replica takes requests in", labels=[LABEL])
        starts = CounterMetricFamily("s1_mini_replica_starts", "Times that the replica was started", labels=[LABEL])
        for replica in self._replicas:
            ready.add_metric([replica.member.name], float(replica.is_ready))
            starts.add_metric([replica.member.name], replica.num_starts)
        yield from (ready, starts)


def _refuse(request: Request, error: Exception) -> Response:
    """Put what the framework refuses into the shape of all errors."""
    assert isinstance(error, HTTPException)
    allowed = (error.headers or {}).get("Allow", "")
    refused = misaddressed(request.method, request.url.path, allowed)
    response = error_response(refused, request.headers.get("x-request-id"))
    if allowed:
        response.headers["Allow"] = allowed
    return response


def _sum(values: Iterable[Any]) -> int:
    return sum(value for value in values if isinstance(value, int))


def _without_body(headers: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.startswith("content-")}


def _answer(answer: Answer | None) -> Response:
    if answer is None:
        return error_response(EngineNotReadyError("no replica speaks at this moment; try again later"), None)
    return Response(answer.body, answer.status, media_type=answer.content_type or None)
