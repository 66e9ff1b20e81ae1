"""The routes `/models…` of a multi-model container: several checkpoints within one memory budget.

Each model has its own engine, in addition to the one that is always loaded. The registry is used only by the event
loop's thread; loading and unloading happen in other threads.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from s1_mini.exceptions import CheckpointError, StorageError
from s1_mini.sagemaker import invocations
from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.sagemaker.state import container_of
from s1_mini.server.bodies import read_json
from s1_mini.server.errors import ConflictError, InvalidError, NotFoundError
from s1_mini.server.schemas import Strict
from s1_mini.speech_engine import SpeechEngine
from s1_mini.weights.directory import WORKING_SHARE, tensor_bytes

logger = logging.getLogger(__name__)

router = APIRouter(tags=["sagemaker"], include_in_schema=False)

PAGE = 100
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
ARCHIVE = ".tar.gz"  # SageMaker's TargetModel is the archive's name, but models are loaded under a plain name
UNLOAD_S = 20.0
WATCH_S = 1.0  # how often the engines of models are checked


class ModelNotFoundError(NotFoundError, code="model_not_found"):
    """No model of that name is loaded."""


class ModelLoadedError(ConflictError, code="model_already_loaded"):
    """A model of that name is already loaded or being loaded."""


class ModelMemoryError(StorageError, code="model_memory_exceeded"):
    """The model exceeds the memory budget."""


@dataclass
class Hosted:
    """One model."""

    name: str
    url: str
    num_bytes: int  # share of the memory budget
    engine: SpeechEngine
    is_ready: bool = False  # False while the model is being loaded or unloaded

    def describe(self) -> dict[str, str]:
        return {"modelName": self.name, "modelUrl": self.url}


class HostedModels:
    """The loaded models by name."""

    def __init__(self, settings: ContainerSettings, engine: SpeechEngine) -> None:
        """Models run as `engine` does: in the server's process or in their own."""
        self._settings, self._config, self._make = settings, engine.config, type(engine)
        self._models: dict[str, Hosted] = {}

    def list(self) -> list[Hosted]:
        return sorted((model for model in self._models.values() if model.is_ready), key=lambda model: model.name)

    def get(self, name: str) -> Hosted:
        """Return a loaded model. Raises `ModelNotFoundError`."""
        model = self._models.get(name)
        if model is None or not model.is_ready:
            raise ModelNotFoundError(f"the model {name[:128]!r} is not loaded; load it with POST /models")
        return model

    def find(self, target: str) -> Hosted:
        """Return the model of a `TargetModel`, which is its name with or without `.tar.gz`.

        Raises `ModelNotFoundError`; another model is never used instead.
        """
        name = target.removeprefix("/")
        return self.get(name if name in self._models else name.removesuffix(ARCHIVE))

    async def load(self, name: str, url: str) -> Hosted:
        """Load the checkpoint in the folder `url` under `name`.

        Raises `ModelLoadedError`, `ModelMemoryError`, `InvalidError` for an invalid name, folder or checkpoint, and
        `ConfigurationError` or `EngineError` if it cannot be loaded.
        """
        if not NAME.fullmatch(name):
            raise InvalidError(
                "model_name", f"must be 1 to 128 characters of A-Z, a-z, 0-9, ., - and _, not {name[:128]!r}"
            )
        if name in self._models:
            raise ModelLoadedError(f"the model {name!r} is already loaded; unload it first")
        directory, kv_bytes = self._directory(url), self._settings.models_kv_mb * 1e6
        num_bytes = round(WORKING_SHARE * tensor_bytes(directory) + kv_bytes)
        self._check_memory(num_bytes)
        update = {"checkpoint_path": directory, "kv_cache_gb": kv_bytes / 1e9}
        model = Hosted(name, url, num_bytes, self._make(self._config.model_copy(update=update)))
        self._models[name] = model
        try:
            await asyncio.to_thread(model.engine.start)
            model.is_ready = True
        except CheckpointError as error:
            raise InvalidError("url", f"cannot be loaded: {error}") from None
        finally:
            if not model.is_ready:
                del self._models[name]
        logger.info("model loaded", extra={"fields": {"event": "model_loaded", "model": name, "bytes": num_bytes}})
        return model

    async def unload(self, name: str) -> None:
        """Unload a model after its current requests, at most `UNLOAD_S` later. Raises `ModelNotFoundError`."""
        model = self.get(name)
        model.is_ready = False
        try:
            await asyncio.to_thread(model.engine.stop, timeout_s=UNLOAD_S)
        finally:
            del self._models[name]  # its memory is free

    async def watch(self) -> None:
        """Unload models whose engine has failed, so that they can be loaded again. Runs until it is cancelled."""
        while True:
            await asyncio.sleep(WATCH_S)
            for model in self.list():
                if not model.engine.state().is_ready:
                    logger.error("model failed", extra={"fields": {"event": "model_failed", "model": model.name}})
                    try:
                        await self.unload(model.name)
                    except ModelNotFoundError:
                        pass  # a request is unloading it
                    except Exception:  # the other models must still be watched
                        logger.exception("a failed model was removed, but its engine did not stop")

    async def close(self) -> None:
        models = self.list()
        for model in models:
            model.is_ready = False
        await asyncio.gather(*(asyncio.to_thread(model.engine.stop, drain=False) for model in models))

    def _check_memory(self, num_bytes: int) -> None:
        taken = sum(model.num_bytes for model in self._models.values())
        budget = self._settings.models_memory_mb * 1e6
        if taken + num_bytes > budget:
            raise ModelMemoryError(
                f"the model needs {num_bytes / 1e6:.0f} MB, but {max(0.0, budget - taken) / 1e6:.0f} of "
                f"{budget / 1e6:.0f} MB are free. Unload another model or raise "
                "S1_MINI_SERVER_SAGEMAKER_MODELS_MEMORY_MB"
            )

    def _directory(self, url: str) -> Path:
        root = self._settings.models_root.resolve()
        try:
            directory = Path(url).resolve()
            is_there = directory.is_relative_to(root) and directory.is_dir()
        except (OSError, ValueError):
            is_there = False
        if not is_there:
            raise InvalidError("url", f"must be a folder in {root}, not {url[:200]!r}")
        return directory


class LoadBody(Strict):
    """Body of `POST /models`."""

    model_name: str = Field(min_length=1, max_length=128)
    url: str = Field(min_length=1, max_length=4096, description="Folder of the checkpoint on the server's disk.")


@router.post("/models")
async def load_model(request: Request) -> dict[str, Any]:
    """Load a model; 409 if it is loaded, 507 if it does not fit."""
    body = await read_json(request, LoadBody)
    hosted = await container_of(request).hosted.load(body.model_name, body.url)
    return hosted.describe()


@router.get("/models")
async def list_models(
    request: Request, limit: Annotated[int, Query(ge=1)] = PAGE, next_page_token: Annotated[int, Query(ge=0)] = 0
) -> dict[str, Any]:
    """List up to `limit` loaded models, starting at `next_page_token`."""
    hosted, end = container_of(request).hosted.list(), next_page_token + limit
    page: dict[str, Any] = {"models": [each.describe() for each in hosted[next_page_token:end]]}
    if end < len(hosted):
        page["nextPageToken"] = str(end)
    return page


@router.get("/models/{name}")
async def describe_model(name: str, request: Request) -> dict[str, Any]:
    """Describe one model; 404 if it is not loaded."""
    return container_of(request).hosted.get(name).describe()


@router.delete("/models/{name}")
async def unload_model(name: str, request: Request) -> Response:
    """Unload a model; 404 if it is not loaded."""
    await container_of(request).hosted.unload(name)
    return Response()


@router.post("/models/{name}/invoke")
async def invoke_model(name: str, request: Request) -> Response:
    """Speak with one model; 404 if it is not loaded."""
    return await invocations.answer(request, container_of(request).hosted.find(name).engine)
