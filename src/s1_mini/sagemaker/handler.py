"""The handler of SageMaker's inference toolkits: `model_fn`, `input_fn`, `predict_fn`, `output_fn`.

A compatibility surface; our own container serves `s1-mini serve`. The toolkits call these four by the number of their
parameters: the declared ones, and one more for the context. They put the traceback of anything raised into the answer,
so nothing is raised here where there is a context: what goes wrong is handed from function to function as a `Failure`
and becomes a status and one JSON object. Nothing is ever unpickled. `sagemaker/code/inference.py` imports the four.
"""

from __future__ import annotations

import base64
import gc
import json
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from s1_mini.audio.container import encode
from s1_mini.config import EngineConfig
from s1_mini.engine import ProductionTTSEngine
from s1_mini.exceptions import CapacityError, ConfigurationError, S1MiniError
from s1_mini.responses import GenerationResponse
from s1_mini.runtime.process import freeze_what_is_loaded, prepare_process
from s1_mini.sagemaker.accept import JSON, JSON_LINES, Answer, choose_answer
from s1_mini.sagemaker.attributes import HEADER, write_attributes
from s1_mini.sagemaker.payload import Asked, Payload, read_payload
from s1_mini.server.errors import code_of, describe, row_of

logger = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 6_553_500  # beyond, multi-model-server kills its worker instead of answering; a variable raises it
AT_ONCE = 64  # lines of one body that are with the engine at the same time


class Context(Protocol):
    """What the toolkits hand over beside a request."""

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Set the status of an answer."""

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Set a header of an answer."""


class Failure(NamedTuple):
    """What went wrong on the way, travelling where the value would have."""

    error: Exception


class Spoken(NamedTuple):
    """What became of a body: for each of its requests the sound, or what went wrong with it alone."""

    requests: list[Asked | S1MiniError]
    responses: list[GenerationResponse | S1MiniError]
    is_lines: bool


class _Engine:
    """The one engine of this process, started by whoever comes first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: ProductionTTSEngine | None = None
        self._checkpoint: Path | None = None

    def get(self, checkpoint: Path | None) -> ProductionTTSEngine:
        """Give the engine that speaks `checkpoint`. Raises `ConfigurationError` if it speaks another already."""
        with self._lock:
            if self._engine is None:
                named = {} if checkpoint is None else {"checkpoint_path": checkpoint}
                prepare_process()
                engine = ProductionTTSEngine(EngineConfig(**named))
                engine.start()
                freeze_what_is_loaded()
                self._engine, self._checkpoint = engine, checkpoint
            elif checkpoint != self._checkpoint:
                raise ConfigurationError(
                    f"this process speaks with {self._checkpoint}; {checkpoint} needs a process of its own"
                )
            return self._engine

    def close(self) -> None:
        """Stop the engine, if there is one."""
        with self._lock:
            engine, self._engine = self._engine, None
            if engine is not None:
                try:
                    engine.stop()
                finally:
                    gc.unfreeze()


process_engine = _Engine()


def find_checkpoint(model_dir: str | Path) -> Path | None:
    """Give `model_dir` if a checkpoint lies in it; None, for what the settings name, if it only holds code."""
    directory = Path(model_dir)
    return directory if (directory / "config.json").is_file() else None


def model_fn(model_dir: str) -> ProductionTTSEngine | Failure:
    """Give the engine of this process, started: with the checkpoint in `model_dir`, or with what the settings name.

    A failure is logged with its traceback and given back: every request is then refused with its reason.
    """
    try:
        return process_engine.get(find_checkpoint(model_dir))
    except Exception as error:
        logger.exception("the engine does not start")
        return Failure(error)


def input_fn(
    request_body: bytes | bytearray | str | None, content_type: str | None, context: Context | None = None
) -> Payload | Failure:
    """Read the requests in a body of JSON or JSON lines. Without `context` raises `RequestError`."""
    try:
        return read_payload(request_body, content_type)
    except S1MiniError as error:
        return _fail(error, context)


def predict_fn(
    data: Payload | Failure, model: ProductionTTSEngine | Failure, context: Context | None = None
) -> Spoken | Failure:
    """Speak what `input_fn` has read; lines are spoken together. Without `context` raises `S1MiniError`."""
    for given in (model, data):
        if isinstance(given, Failure):
            return _fail(given.error, context)
    assert isinstance(model, ProductionTTSEngine)
    assert isinstance(data, Payload)
    if not data.is_lines:
        try:
            return Spoken(data.items, [_speak(model, data.items[0])], is_lines=False)
        except Exception as error:
            return _fail(error, context)
    with ThreadPoolExecutor(max(1, min(AT_ONCE, len(data.items)))) as pool:
        responses = list(pool.map(lambda item: _speak_line(model, item), data.items))
    return Spoken(data.items, responses, is_lines=True)


def output_fn(prediction: Spoken | Failure, accept: str | None, context: Context | None = None) -> tuple[bytes, str]:
    """Put the sound into the form that `accept` names; JSON lines answer JSON lines. Gives body and content type.

    Without `context` raises `S1MiniError`; with it, sets the status of a failure and the sample rate's header.
    """
    try:
        body, content_type, attributes = _shape(prediction, accept)
        _check_size(body, context)
    except Exception as error:
        if context is None:
            raise
        return _refuse(error, context)
    if context is not None and attributes:
        context.set_response_header(0, HEADER, attributes)
    return body, content_type


def _speak(engine: ProductionTTSEngine, item: Asked | S1MiniError) -> GenerationResponse:
    if isinstance(item, S1MiniError):
        raise item
    request = item.request
    return engine.generate(request.text, **request.arguments("throughput"))


def _speak_line(engine: ProductionTTSEngine, item: Asked | S1MiniError) -> GenerationResponse | S1MiniError:
    try:
        return _speak(engine, item)
    except S1MiniError as error:
        return error


def _shape(spoken: Spoken | Failure, accept: str | None) -> tuple[bytes, str, str]:
    if isinstance(spoken, Failure):
        raise spoken.error
    if spoken.is_lines:
        pairs = zip(spoken.requests, spoken.responses, strict=True)
        return b"".join(_line(request, response) for request, response in pairs), JSON_LINES, ""
    (request,), (response,) = spoken.requests, spoken.responses
    assert isinstance(request, Asked)
    assert isinstance(response, GenerationResponse)
    answer = choose_answer(accept, request.audio_format)
    attributes = write_attributes(sample_rate=response.sample_rate, format=answer.audio_format)
    if answer.is_json:
        return json.dumps(_audio_object(response, answer, request)).encode(), JSON, attributes
    return _audio(response, answer), answer.media_type, attributes


def _line(request: Asked | S1MiniError, response: GenerationResponse | S1MiniError) -> bytes:
    if isinstance(request, S1MiniError) or isinstance(response, S1MiniError):
        error = response if isinstance(response, S1MiniError) else request
        assert isinstance(error, S1MiniError)
        return json.dumps(describe(error, None)).encode() + b"\n"
    answer = choose_answer(JSON, request.audio_format)
    return json.dumps(_audio_object(response, answer, request)).encode() + b"\n"


def _audio_object(response: GenerationResponse, answer: Answer, asked: Asked) -> dict[str, Any]:
    """Give a sound as JSON carries it, with what a client needs to know of it."""
    return {
        "audio": base64.b64encode(_audio(response, answer)).decode(),
        "format": answer.audio_format,
        "sample_rate": response.sample_rate,
        "audio_seconds": round(response.audio_seconds, 3),
        "finish_reason": response.finish_reason,
        **({"spoken_text": response.spoken_text} if asked.request.return_spoken_text else {}),
        **({"warning": response.warning} if response.warning else {}),
    }


def _audio(response: GenerationResponse, answer: Answer) -> bytes:
    return encode(response.audio, response.sample_rate, answer.audio_format)


def _check_size(body: bytes, context: Context | None) -> None:
    limit = int(os.environ.get("MMS_MAX_RESPONSE_SIZE") or MAX_ANSWER_BYTES)
    if context is not None and len(body) > limit:
        raise CapacityError(
            f"the answer has {len(body)} bytes and this server hands on {limit}; "
            "ask for flac, mp3 or opus, or send the text in parts"
        )


def _fail(error: Exception, context: Context | None) -> Failure:
    if context is None:
        raise error
    return Failure(error)


def _refuse(error: Exception, context: Context) -> tuple[bytes, str]:
    if not isinstance(error, S1MiniError):
        logger.error("a request failed", exc_info=error)
    context.set_response_status(code=row_of(error).status, phrase=code_of(error))
    return json.dumps(describe(error, None)).encode(), JSON
