"""The handler of SageMaker's inference toolkits: `model_fn`, `input_fn`, `predict_fn`, `output_fn`.

The functions call the container's application, which runs in this process. The toolkits put the traceback of an
exception into the response; therefore, with a context, the functions return failures as a status and a JSON object
instead of raising. Nothing is unpickled. `sagemaker/code/inference.py` imports the four functions.

The audio format depends on `Accept`, which only `output_fn` receives. Therefore `output_fn` calls the application.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple, NoReturn, Protocol

import httpx2
from anyio.from_thread import start_blocking_portal

from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.exceptions import CapacityError, ConfigurationError, S1MiniError
from s1_mini.runtime.process import freeze_what_is_loaded, prepare_process
from s1_mini.sagemaker.app import make_container_app
from s1_mini.sagemaker.invocations import ATTRIBUTES
from s1_mini.server.bodies import FORM, JSON
from s1_mini.server.errors import ContentTypeError, describe, row_of
from s1_mini.server.settings import ServerSettings

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 6_553_500  # multi-model-server kills a worker with a larger response (MMS_MAX_RESPONSE_SIZE)
UNLIMITED = 2**40  # bytes; the toolkit's own server limits request bodies


class Context(Protocol):
    """The toolkits' object for the status and headers of a response."""

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None: ...

    def set_response_header(self, idx: int, key: str, value: str) -> None: ...


class RefusedError(S1MiniError):
    """A failure of the application, with the `code` and message of its response."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Failure(NamedTuple):
    """Takes the place of any function's result after a failure; calling it raises the exception."""

    error: Exception

    def __call__(self, _: str | None) -> NoReturn:
        raise self.error


class Body(NamedTuple):
    """A request body with its content type."""

    content: bytes
    content_type: str


Call = Callable[[str | None], httpx2.Response]  # takes `Accept`, returns the application's response


class Container:
    """The container's application around a started engine, on its own event loop."""

    def __init__(self, engine: ProductionTTSEngine) -> None:
        settings = ServerSettings(
            api_key=None,
            api_keys=None,
            allowed_hosts=("localhost",),
            fairness="request",
            request_timeout_s=engine.config.request_timeout_s,
            **dict.fromkeys(("max_body_bytes", "max_bodies_bytes", "max_audio_bytes"), UNLIMITED),
        )
        app = make_container_app(engine, settings, streams=False)
        self.engine = engine
        self._stack = ExitStack()
        self._portal = self._stack.enter_context(start_blocking_portal())
        self._stack.enter_context(self._portal.wrap_async_context_manager(app.router.lifespan_context(app)))
        transport = httpx2.ASGITransport(app)
        self._client = httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=None)
        self._stack.callback(self._portal.call, self._client.aclose)

    def invoke(self, body: Body, accept: str | None) -> httpx2.Response:
        headers = {"Content-Type": body.content_type} | ({"Accept": accept} if accept else {})
        encoded = {name.encode(): value.encode("latin-1", "replace") for name, value in headers.items()}
        return self._portal.call(partial(self._client.post, "/invocations", content=body.content, headers=encoded))

    def close(self) -> None:
        """End the application, but not the engine."""
        self._stack.close()


class _Process:
    """The only container of this process, started on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._container: Container | None = None
        self._checkpoint: Path | None = None

    def get(self, checkpoint: Path | None) -> Container:
        """Return the container for `checkpoint`. Raises `ConfigurationError` if another checkpoint is loaded."""
        with self._lock:
            if self._container is None:
                prepare_process()
                named = {} if checkpoint is None else {"checkpoint_path": checkpoint}
                engine = ProductionTTSEngine(EngineConfig(**named))
                engine.start()
                self._container, self._checkpoint = Container(engine), checkpoint
                atexit.register(self.close)  # otherwise the portal's generator fails when Python ends
                freeze_what_is_loaded()
            elif checkpoint != self._checkpoint:
                raise ConfigurationError(
                    f"this process has already loaded {self._checkpoint}; load {checkpoint} in another process"
                )
            return self._container

    def close(self) -> None:
        with self._lock:
            container, self._container = self._container, None
            if container is not None:
                try:
                    container.close()
                    container.engine.stop()
                finally:
                    gc.unfreeze()


process_engine = _Process()


def find_checkpoint(model_dir: str | Path) -> Path | None:
    """Return `model_dir` if it has a checkpoint; otherwise None, which stands for the checkpoint of the settings."""
    directory = Path(model_dir)
    return directory if (directory / "config.json").is_file() else None


def model_fn(model_dir: str) -> Container | Failure:
    """Return the started container of this process, with the checkpoint in `model_dir` or that of the settings.

    A failure is logged with its traceback and returned, so that every request is refused with its reason.
    """
    try:
        return process_engine.get(find_checkpoint(model_dir))
    except Exception as error:  # otherwise the toolkit would restart the worker forever
        logger.exception("the engine failed to start")
        return Failure(error)


def input_fn(
    request_body: bytes | bytearray | str | None, content_type: str | None, context: Context | None = None
) -> Body | Failure:
    """Return the body for `predict_fn`. Without `context`, raises `ContentTypeError` for a form."""
    kind = content_type or JSON
    if kind.lower().startswith(FORM):  # multi-model-server itself parses forms, and passes no body on
        return _fail(
            ContentTypeError(f"{FORM} is not supported here; send application/json or application/jsonlines"), context
        )
    content = request_body.encode() if isinstance(request_body, str) else bytes(request_body or b"")
    return Body(content, kind)


def predict_fn(data: Body | Failure, model: Container | Failure, context: Context | None = None) -> Call | Failure:
    """Bind the body to the container for `output_fn`. Without `context`, raises an earlier failure."""
    if isinstance(model, Failure):
        return _fail(model.error, context)
    if isinstance(data, Failure):
        return _fail(data.error, context)
    return partial(model.invoke, data)


def output_fn(prediction: Call | Failure, accept: str | None, context: Context | None = None) -> tuple[bytes, str]:
    """Return the body and content type of the container's response in a format that `accept` allows.

    With `context`, sets the status of a failure and the custom attributes. Without `context`, raises an earlier
    failure, or `RefusedError` with the code and message of an error response.
    """
    try:
        response = prediction(accept)
        if context is not None:
            _check_size(response)
    except Exception as error:  # otherwise the toolkit would send the traceback to the client
        if context is None:
            raise
        if not isinstance(error, S1MiniError):
            logger.exception("request failed")
        response = httpx2.Response(row_of(error).status, json=describe(error, None))
    if response.is_error:
        details = response.json()["error"]
        if context is None:
            raise RefusedError(details["code"], details["message"])
        context.set_response_status(code=response.status_code, phrase=details["code"])
    if context is not None and (attributes := response.headers.get(ATTRIBUTES)):
        context.set_response_header(0, ATTRIBUTES, attributes)
    return response.content, response.headers["Content-Type"]


def _check_size(response: httpx2.Response) -> None:
    limit = int(os.environ.get("MMS_MAX_RESPONSE_SIZE") or MAX_ANSWER_BYTES)
    if len(response.content) > limit:
        raise CapacityError(
            f"the response is {len(response.content)} bytes; the limit of this server is {limit}. "
            "Request flac, mp3 or opus, or split the text"
        )


def _fail(error: Exception, context: Context | None) -> Failure:
    if context is None:
        raise error
    return Failure(error)
