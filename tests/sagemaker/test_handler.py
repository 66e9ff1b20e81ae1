"""The real SageMaker inference toolkit calls the handler through its DefaultHandlerService and Transformer."""

from __future__ import annotations

import base64
import gc
import inspect
import io
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import soundfile
from sagemaker_inference.default_handler_service import DefaultHandlerService

from s1_mini.exceptions import EngineNotReadyError, ParameterError
from s1_mini.packaging.write import lay_out, write_prefix
from s1_mini.sagemaker import handler
from s1_mini.server.errors import ContentTypeError, NotAcceptableError

CODE = Path(__file__).parents[2] / "sagemaker" / "code"
TOUCHED = "touched.txt"


class Context:
    """The context of multi-model-server, with the names of its own class."""

    def __init__(self, model_dir: Path) -> None:
        self.system_properties = {"model_dir": str(model_dir), "gpu_id": None}
        self.request_processor: list[Any] = []
        self.status, self.phrase, self.headers = 200, "", dict[str, str]()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:  # noqa: ARG002
        self.status, self.phrase = code, phrase

    def set_response_header(self, idx: int, key: str, value: str) -> None:  # noqa: ARG002
        self.headers[key] = value

    def set_response_content_type(self, idx: int, value: str) -> None:
        self.set_response_header(idx, "content-type", value)


class Toolkit:
    """A worker of the toolkit with our handler loaded."""

    def __init__(self, model_dir: Path) -> None:
        self.context = Context(model_dir)
        self.service = DefaultHandlerService()
        self.service.initialize(self.context)

    def __call__(self, body: Any, content_type: str = "application/json", accept: str | None = None) -> bytes:
        headers = {"Content-Type": content_type} | ({} if accept is None else {"Accept": accept})
        self.context.request_processor = [SimpleNamespace(get_request_properties=lambda: headers)]
        self.context.status, self.context.headers = 200, {}
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        given = None if data is None else bytearray(data)
        (answer,) = self.service.handle([{"body": given}], self.context)
        return answer if isinstance(answer, bytes) else answer.encode()

    def error(self, *arguments: Any, **named: Any) -> tuple[int, dict[str, Any]]:
        answer = self(*arguments, **named)
        assert b"Traceback" not in answer
        assert self.context.headers["content-type"] == "application/json"
        return self.context.status, json.loads(answer)["error"]


@contextmanager
def process() -> Iterator[None]:
    """A toolkit process with no model loaded yet."""
    with pytest.MonkeyPatch.context() as patch, closing(handler._Process()) as engine:
        patch.setattr(handler, "process_engine", engine)
        patch.syspath_prepend(CODE)
        patch.setenv("PYTHONPATH", "")
        patch.setenv("S1_MINI_DEVICE", "cpu")
        patch.delitem(sys.modules, "inference", raising=False)
        yield
        patch.delitem(sys.modules, "inference", raising=False)


@pytest.fixture
def load() -> Iterator[Callable[[Path], Toolkit]]:
    with process():
        yield Toolkit


@pytest.fixture(scope="module")
def loaded(tiny: Path) -> Iterator[tuple[Toolkit, handler._Process]]:
    """One engine for all tests that only send requests."""
    with process():
        yield Toolkit(tiny), handler.process_engine


@pytest.fixture
def toolkit(loaded: tuple[Toolkit, handler._Process], monkeypatch: pytest.MonkeyPatch) -> Toolkit:
    monkeypatch.setattr(handler, "process_engine", loaded[1])
    return loaded[0]


def request(text: str = "Hello there.", **fields: Any) -> dict[str, Any]:
    return {"text": text, "seed": 1, "max_new_tokens": 8} | fields


def test_the_four_functions_have_the_parameters_that_the_toolkit_counts() -> None:
    """The toolkit calls a function with its declared arguments, plus the context if it has one parameter more."""
    counts = {"model_fn": 1, "input_fn": 2, "predict_fn": 2, "output_fn": 2}
    for name, count in counts.items():
        parameters = inspect.signature(getattr(handler, name)).parameters.values()
        assert len(parameters) in {count, count + 1}
        assert all(p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for p in parameters)


def test_each_accepted_type_is_given_and_named(toolkit: Toolkit) -> None:
    for accept, kind in [("audio/wav", "WAV"), ("audio/flac", "FLAC"), ("audio/mpeg", "MP3"), ("audio/ogg", "OGG")]:
        answer = toolkit(request(), accept=accept)

        assert toolkit.context.status == 200, answer
        assert toolkit.context.headers["content-type"] == accept
        assert soundfile.info(io.BytesIO(answer)).format == kind


def test_without_accept_the_toolkit_asks_for_json_and_gets_the_sound_in_it(toolkit: Toolkit, engine: Any) -> None:
    answer = json.loads(toolkit(request(format="pcm")))
    alone = engine.generate(**request(), chunk_profile="throughput", return_bytes=True, audio_format="pcm")

    assert base64.b64decode(answer["audio"]) == alone.audio_bytes
    assert answer["sample_rate"] == alone.sample_rate
    rate = f"sample_rate={alone.sample_rate},format=pcm,channels=1,"
    assert toolkit.context.headers["X-Amzn-SageMaker-Custom-Attributes"].startswith(rate)


def test_json_lines_answer_line_by_line_and_a_bad_line_fails_alone(toolkit: Toolkit) -> None:
    lines = [request("One."), request(" "), {"txt": 1}, request("Four.", format="flac")]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    answers = [json.loads(line) for line in toolkit(body, "application/jsonlines").decode().splitlines()]

    assert toolkit.context.status == 200
    assert [("audio" in a, a.get("format"), a.get("error", {}).get("code")) for a in answers] == [
        (True, "wav", None),
        (False, None, "text_invalid"),
        (False, None, "request_invalid"),
        (True, "flac", None),
    ]


@pytest.mark.parametrize(
    ("body", "named", "status", "code"),
    [
        (b"{", {}, 400, "body_invalid"),
        ({"text": "x", "pitch": 2}, {}, 422, "request_invalid"),
        ({"text": " "}, {}, 422, "text_invalid"),
        ({"text": "x", "voice": "../x"}, {}, 404, "voice_not_found"),
        (b"x", {"content_type": "text/csv"}, 415, "content_type_unsupported"),
        ({"text": "x", "max_new_tokens": 4}, {"accept": "image/png"}, 406, "not_acceptable"),
        (None, {"content_type": "multipart/form-data; boundary=x"}, 415, "content_type_unsupported"),
    ],
)
def test_errors_have_a_status_and_a_code_and_no_traceback(
    toolkit: Toolkit, body: Any, named: dict[str, str], status: int, code: str
) -> None:
    assert (toolkit.error(body, **named)[0], toolkit.error(body, **named)[1]["code"]) == (status, code)


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return open, (TOUCHED, "w")


@pytest.mark.parametrize("content_type", ["application/x-npy", "application/x-npz", "application/octet-stream"])
def test_a_pickle_is_refused_and_never_opened(
    toolkit: Toolkit, content_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The toolkit's own default would run it."""
    monkeypatch.chdir(tmp_path)

    status, error = toolkit.error(pickle.dumps(Bomb()), content_type=content_type)

    assert (status, error["code"]) == (415, "content_type_unsupported")
    assert not (tmp_path / TOUCHED).exists()


def test_an_unexpected_error_is_500_and_reveals_nothing_internal(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("secret path /opt/ml")

    monkeypatch.setattr(handler.ProductionTTSEngine, "submit", fail)
    status, error = toolkit.error(request())

    assert (status, error["code"]) == (500, "internal_error")
    assert "secret" not in error["message"]


def test_a_response_that_would_kill_the_worker_is_refused_with_a_hint(
    toolkit: Toolkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MMS_MAX_RESPONSE_SIZE", "1000")
    status, error = toolkit.error(request(), accept="audio/wav")

    assert (status, error["code"]) == (422, "capacity_exceeded")
    assert "flac, mp3 or opus" in error["message"]


def test_two_services_of_one_process_share_one_engine(load: Callable[[Path], Toolkit], tiny: Path) -> None:
    load(tiny)
    first = handler.model_fn(str(tiny))
    load(tiny)

    assert handler.model_fn(str(tiny)) is first


def test_another_checkpoint_needs_another_process(load: Callable[[Path], Toolkit], tiny: Path, oracle: Path) -> None:
    load(tiny)

    assert load(oracle).error(request())[1]["code"] == "configuration_invalid"


def test_a_checkpoint_that_cannot_be_loaded_refuses_every_request_with_its_reason(
    load: Callable[[Path], Toolkit], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text("{}")
    status, error = load(tmp_path).error(request())

    assert (status, error["code"].startswith("checkpoint_")) == (500, True)


def test_an_artifact_brings_the_handler_that_the_toolkit_loads(
    load: Callable[[Path], Toolkit], oracle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prefix(lay_out(oracle), tmp_path / "model")
    monkeypatch.syspath_prepend(tmp_path / "model" / "code")

    assert load(tmp_path / "model")(request(), accept="audio/wav")[:4] == b"RIFF"
    assert Path(sys.modules["inference"].__file__ or "").parent == tmp_path / "model" / "code"


def test_a_model_folder_with_code_only_leaves_the_checkpoint_to_the_settings(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()

    assert handler.find_checkpoint(tmp_path) is None


def test_a_closed_engine_unfreezes_its_objects(tiny: Path) -> None:
    one = handler._Process()
    one.get(tiny)
    assert gc.get_freeze_count()

    one.close()

    assert not gc.get_freeze_count()


def test_a_stream_is_answered_whole(toolkit: Toolkit) -> None:
    whole, stream = (toolkit(request(stream=each), accept="audio/wav") for each in (False, True))

    assert stream == whole


def test_an_api_key_and_host_names_of_the_server_are_ignored(
    load: Callable[[Path], Toolkit], tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S1_MINI_SERVER_API_KEY", "secret")
    monkeypatch.setenv("S1_MINI_SERVER_ALLOWED_HOSTS", "example.com")

    assert load(tiny)(request(), accept="audio/wav")[:4] == b"RIFF"


def test_without_a_context_errors_are_raised(toolkit: Toolkit, tiny: Path) -> None:
    model = handler.model_fn(str(tiny))
    with pytest.raises(ContentTypeError):
        handler.input_fn(b"x", "multipart/form-data; boundary=x")
    with pytest.raises(EngineNotReadyError):
        handler.predict_fn(handler.Failure(ParameterError("x", "y")), handler.Failure(EngineNotReadyError("no")))
    with pytest.raises(NotAcceptableError):
        handler.output_fn(handler.Failure(NotAcceptableError("no")), "audio/wav")
    for body, code in ((b"", "body_invalid"), (b'{"text": " "}', "text_invalid")):
        data = handler.input_fn(body, "application/json")
        with pytest.raises(handler.RefusedError) as raised:
            handler.output_fn(handler.predict_fn(data, model), "audio/wav")
        assert raised.value.code == code


def test_the_folder_named_like_the_sdk_is_not_a_package() -> None:
    """With an `__init__.py` it would shadow AWS's own `sagemaker` in a checkout."""
    assert not list(CODE.parent.rglob("__init__.py"))


DIRECT = """
import sys
from s1_mini.sagemaker.handler import input_fn, model_fn, output_fn, predict_fn
body = input_fn(b'{"text": "Hi.", "max_new_tokens": 2}', "application/json")
audio, kind = output_fn(predict_fn(body, model_fn(sys.argv[1])), "audio/wav")
assert (audio[:4], kind) == (b"RIFF", "audio/wav")
"""


@pytest.mark.long
def test_a_program_that_calls_the_functions_itself_ends_without_a_message(tiny: Path) -> None:
    settings = {"S1_MINI_DEVICE": "cpu", "S1_MINI_COMPILE": "false"}
    command = [sys.executable, "-c", DIRECT, str(tiny)]
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
