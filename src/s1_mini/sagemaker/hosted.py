"""Several checkpoints in one process, within one budget of memory: loaded, listed and unloaded by name.

Each has an engine of its own, beside the one that always stands. Belongs to the event loop's thread; loading and
unloading happen in others.
"""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import dataclass
from pathlib import Path

from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.server.errors import ConflictError, InvalidError, NotFoundError, StorageError

logger = logging.getLogger(__name__)

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
ARCHIVE = ".tar.gz"  # SageMaker's TargetModel names the archive, where a loaded model has a plain name
TENSOR_FILES = (".safetensors", ".pth")
WORKING_SHARE = 2.0  # memory of a loaded checkpoint over its tensor files: float16 is kept as float32, some is work
GB = 2**30
UNLOAD_S = 20.0


class ModelNotFoundError(NotFoundError):
    """No model of that name is loaded."""

    code = "model_not_found"


class ModelLoadedError(ConflictError):
    """A model of that name is loaded already, or being loaded."""

    code = "model_already_loaded"


class ModelMemoryError(StorageError):
    """The model does not fit beside those that are loaded."""

    code = "model_memory_exceeded"


@dataclass(frozen=True)
class Hosted:
    """One model: its name, where it lies, what it counts in bytes, and its engine once that is started."""

    name: str
    url: str
    num_bytes: int
    engine: ProductionTTSEngine


class HostedModels:
    """The loaded models by name."""

    def __init__(self, settings: ContainerSettings, config: EngineConfig) -> None:
        self._settings, self._config = settings, config
        self._hosted: dict[str, Hosted] = {}
        self._loading: dict[str, int] = {}  # bytes that are spoken for

    def list(self) -> list[Hosted]:
        """Give all loaded models, by name."""
        return [self._hosted[name] for name in sorted(self._hosted)]

    def get(self, name: str) -> Hosted:
        """Give a loaded model. Raises `ModelNotFoundError`."""
        if name not in self._hosted:
            raise ModelNotFoundError(f"no model {name[:128]!r} is loaded here")
        return self._hosted[name]

    def find(self, target: str) -> Hosted:
        """Give the model that `TargetModel` means: the one of that name, or of the name before `.tar.gz`.

        Raises `ModelNotFoundError`; another model never speaks instead.
        """
        name = target.removeprefix("/")
        return self.get(name if name in self._hosted else name.removesuffix(ARCHIVE))

    async def load(self, name: str, url: str) -> Hosted:
        """Load the checkpoint in the folder `url` under `name`.

        Raises `ModelLoadedError`, `ModelMemoryError`, `InvalidError` for a name or a folder that cannot be one, and
        `CheckpointError` or `ConfigurationError` if it cannot be loaded.
        """
        if not NAME.fullmatch(name):
            raise InvalidError("model_name", f"{name[:128]!r}; 1 to 128 of A-Z, a-z, 0-9, ., - and _ are allowed")
        if name in self._hosted or name in self._loading:
            raise ModelLoadedError(f"the model {name!r} is loaded already; unload it first")
        directory = self._directory(url)
        num_bytes = measure(directory) + round(self._settings.models_kv_mb * 1e6)
        self._check_room(num_bytes)
        self._loading[name] = num_bytes
        try:
            kept = {"checkpoint_path": directory, "kv_cache_gb": self._settings.models_kv_mb * 1e6 / GB}
            config = self._config.model_copy(update=kept)
            hosted = Hosted(name, url, num_bytes, ProductionTTSEngine(config))
            await asyncio.to_thread(hosted.engine.start)
        finally:
            del self._loading[name]
        self._hosted[name] = hosted
        logger.info("model loaded", extra={"fields": {"event": "model_loaded", "model": name, "bytes": num_bytes}})
        return hosted

    async def unload(self, name: str) -> None:
        """Take a model away; what it speaks is finished first. Raises `ModelNotFoundError`."""
        hosted = self.get(name)
        del self._hosted[name]
        self._loading[name] = hosted.num_bytes  # until its memory is free
        try:
            await asyncio.to_thread(hosted.engine.stop, timeout_s=UNLOAD_S)
        finally:
            del self._loading[name]

    async def close(self) -> None:
        """Take all models away at once."""
        hosted, self._hosted = list(self._hosted.values()), {}
        for each in hosted:
            await asyncio.to_thread(each.engine.stop, drain=False)

    def _check_room(self, num_bytes: int) -> None:
        taken = sum(each.num_bytes for each in self._hosted.values()) + sum(self._loading.values())
        budget = self._settings.models_memory_mb * 1e6
        if taken + num_bytes > budget:
            raise ModelMemoryError(
                f"the model counts {num_bytes / 1e6:.0f} MB; {max(0.0, budget - taken) / 1e6:.0f} of "
                f"{budget / 1e6:.0f} MB are free. Unload another (or raise S1_MINI_SERVER_SAGEMAKER_MODELS_MEMORY_MB)"
            )

    def _directory(self, url: str) -> Path:
        """Give the folder that `url` names, if it lies in the models' root."""
        root = self._settings.models_root.resolve()
        try:
            directory = Path(url).resolve()
            is_there = directory.is_relative_to(root) and directory.is_dir()
        except (OSError, ValueError):
            is_there = False
        if not is_there:
            raise InvalidError("url", f"{url[:200]!r} is no folder in {root}")
        return directory


def measure(directory: Path) -> int:
    """Give what a checkpoint's tensors count, in bytes of memory."""
    files = (path for path in directory.iterdir() if path.suffix in TENSOR_FILES and path.is_file())
    return round(WORKING_SHARE * sum(path.stat().st_size for path in files))
