"""One real container on a real socket, around one engine with the tiny checkpoint, for all tests of this package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import httpx2
import pytest
from botocore.config import Config

from container_room import running
from door_room import Door
from s1_mini import EngineConfig, ProductionTTSEngine


@pytest.fixture(scope="session")
def small_engine(tiny: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=4)) as engine:
        yield engine


@pytest.fixture(scope="session")
def container(small_engine: ProductionTTSEngine, tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Any:
    """The shared container; its models are in the tests' assets, and two of them fit into memory."""
    size = sum(path.stat().st_size for path in tiny.glob("*.safetensors"))
    budget = {"models_kv_mb": 20.0, "models_memory_mb": 2.5 * (2 * size / 1e6 + 20.0)}
    models = {"models_root": tiny.parent, "max_sessions": 3} | budget
    with running(small_engine, tmp_path_factory.mktemp("store"), models) as container:
        yield container


@pytest.fixture
def http(container: Door) -> Iterator[httpx2.Client]:
    with container.http() as client:
        yield client


@pytest.fixture
def runtime(container: Door, account: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real client, configured by the environment with the local endpoint's URL."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", container.url)
    client = boto3.client("sagemaker-runtime", config=Config(proxies={}))
    answers: list[dict[str, Any]] = []
    client.meta.events.register("after-call", lambda parsed, **_: answers.append(parsed))
    yield client
    for answer in answers:  # an unread response body holds its socket
        if "Body" in answer:
            answer["Body"].close()
    client.close()
