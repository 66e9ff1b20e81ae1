"""A real container on a real socket, for the SageMaker tests."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from door_room import Door, listening
from s1_mini import ProductionTTSEngine
from s1_mini.sagemaker.app import make_container_app
from s1_mini.sagemaker.async_store import FolderStore
from s1_mini.sagemaker.settings import ContainerSettings
from s1_mini.server.settings import ServerSettings

ENDPOINT = "speech-local"
SHORT: dict[str, Any] = {"text": "Good morning.", "seed": 1, "max_new_tokens": 8, "chunk_profile": "balanced"}


@contextmanager
def running(
    engine: ProductionTTSEngine,
    store: Path,
    container: dict[str, Any] | None = None,
    endpoint: str = ENDPOINT,
    **settings: Any,
) -> Iterator[Door]:
    """Serve `engine` as the SageMaker container until the block ends."""
    app = make_container_app(
        engine,
        ServerSettings(host="127.0.0.1", port=0, **settings),
        ContainerSettings(**(container or {})),
        endpoint=endpoint,
        store=FolderStore(store),
    )
    with listening(app, engine) as door:
        door.store = store
        yield door


def recording(tone: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    soundfile.write(buffer, tone, 44_100, format="WAV")
    return buffer.getvalue()
