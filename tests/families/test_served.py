"""Every family works through the server, SageMaker and packaging."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx2
import numpy as np
import pytest
import soundfile
from botocore.config import Config
from botocore.exceptions import ClientError
from websockets.sync.client import connect

from commands import invoke
from container_room import ENDPOINT, running
from door_room import Door
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.families.registry import get_family

RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 1024, (8, 150))
HISTORY = {"semantic_prompt": RNG.integers(0, 10_000, 100), "coarse_prompt": CODES[:2], "fine_prompt": CODES}
ASKED: dict[str, Any] = {"text": "Hello there.", "seed": 1, "max_new_tokens": 12}


@dataclass(frozen=True)
class Kind:
    """A family, with inputs that it accepts and refuses."""

    family: str
    stages: tuple[str, ...]
    voice: str  # of the random checkpoint
    arrays: np.ndarray | dict[str, np.ndarray]  # a voice file
    meaningless: str  # a parameter

    def file(self) -> bytes:
        """The voice as a numpy file."""
        written = io.BytesIO()
        if isinstance(self.arrays, dict):
            np.savez_compressed(written, **self.arrays)
        else:
            np.save(written, self.arrays)
        return written.getvalue()


KINDS = (
    Kind("cascade", ("semantic", "coarse", "fine", "codec"), "two", HISTORY, "repetition_penalty"),
    Kind("mel", ("decoder", "vocoder"), "second", RNG.standard_normal(512).astype(np.float32), "top_p"),
)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.family)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture(scope="module")
def checkpoint(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp(kind.family) / "checkpoint"
    get_family(kind.family).write_random(directory, size="tiny", form="compact", seed=0)
    return directory


@pytest.fixture(scope="module")
def container(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with (
        ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")) as engine,
        running(engine, tmp_path_factory.mktemp("store")) as container,
    ):
        yield container


@pytest.fixture
def http(container: Door) -> Iterator[httpx2.Client]:
    with container.http() as client:
        yield client


@pytest.fixture
def expected(container: Door, kind: Kind) -> np.ndarray:
    return container.engine.generate(**ASKED, voice=kind.voice).audio


def heard(wav: bytes) -> np.ndarray:
    return soundfile.read(io.BytesIO(wav), dtype="float32")[0]


def samples(pcm: bytes) -> np.ndarray:
    return np.frombuffer(pcm, "<i2").astype(np.float32) / 32768


def same(wave: np.ndarray, expected: np.ndarray) -> bool:
    return wave.shape == expected.shape and bool(np.abs(wave - expected).max() < 1e-3)


def test_all_routes_return_the_engines_audio(http: httpx2.Client, kind: Kind, expected: np.ndarray) -> None:
    asked = ASKED | {"voice": kind.voice}
    openai = {"model": "any", "input": asked["text"], "response_format": "wav"}
    items = {"items": [{"text": asked["text"], "voice": kind.voice}, {"text": "♪"}], "seed": 1, "max_new_tokens": 12}

    whole = [http.post(path, json=asked) for path in ("/v1/tts", "/invocations")]
    streamed = http.post("/v1/tts", json=asked | {"stream": True, "format": "pcm"})
    spoken = http.post("/v1/audio/speech", json={k: v for k, v in asked.items() if k != "text"} | openai)
    batch = http.post("/v1/tts/batch", json=items)

    assert {answer.status_code for answer in (*whole, streamed, spoken, batch)} == {200}
    assert all(same(heard(answer.content), expected) for answer in whole)
    assert same(samples(streamed.content), expected)
    assert len(soundfile.read(io.BytesIO(spoken.content))[0]) == len(expected)
    assert [result["error_code"] for result in batch.json()["results"]] == [None, None]


def test_a_websocket_speaks_sentence_by_sentence(container: Door, kind: Kind) -> None:
    address = container.url.replace("http", "ws") + "/v1/audio/speech/stream"
    config = {"type": "session.config", "voice": kind.voice, "seed": 1, "max_new_tokens": 6, "response_format": "pcm"}
    messages, sound = [], 0
    with connect(address, proxy=None) as socket:
        for message in (config, {"type": "input.text", "text": "One. And two."}, {"type": "input.done"}):
            socket.send(json.dumps(message))
        for message in socket:
            sound += len(message) if isinstance(message, bytes) else 0
            messages += [] if isinstance(message, bytes) else [json.loads(message)]

    assert messages[-1]["type"] == "session.done"
    assert sound > 0


def test_voice_files_become_voices_and_recordings_and_damaged_files_are_refused(
    http: httpx2.Client, kind: Kind, tone: np.ndarray
) -> None:
    recording = io.BytesIO()
    soundfile.write(recording, tone, 44_100, format="WAV")
    file = kind.file()

    added = http.post("/v1/voices", data={"name": "mine"}, files={"audio": file})
    refused = [
        http.post("/v1/voices", data={"name": "other", "text": "Aah."}, files={"audio": content})
        for content in (recording.getvalue(), file[: len(file) // 2], file[:70] + b"\xff" * 40 + file[110:])
    ]

    assert added.status_code == 201
    assert http.post("/v1/tts", json=ASKED | {"voice": "mine"}).status_code == 200
    assert [answer.status_code for answer in refused] == [422, 422, 422]
    codes = [answer.json()["error"]["code"] for answer in refused]
    assert codes == ["voice_unsupported", "reference_invalid", "reference_invalid"]
    assert {voice["name"] for voice in http.get("/v1/voices").json()["voices"]} > {"mine", kind.voice}
    assert http.delete("/v1/voices/mine").status_code == 204


def test_an_unsupported_parameter_is_refused_by_name(http: httpx2.Client, kind: Kind) -> None:
    answer = http.post("/v1/tts", json=ASKED | {kind.meaningless: 1.0})

    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == kind.meaningless
    assert "is not supported by this model" in answer.json()["error"]["message"]


def test_health_names_the_stages_and_the_models_inputs(http: httpx2.Client, kind: Kind) -> None:
    health = http.get("/health").json()

    assert tuple(health["placement"]) == kind.stages
    assert health["model"]["family"] == get_family(kind.family).title
    assert kind.meaningless not in health["model"]["sampling"]
    assert not health["model"]["clones"]


def test_the_work_of_each_stage_is_counted(http: httpx2.Client, kind: Kind) -> None:
    def counted(name: str) -> list[float]:
        lines = http.get("/metrics").text.splitlines()
        found = {line.partition("} ")[0]: float(line.partition("} ")[2]) for line in lines if "stage=" in line}
        return [found[f's1_mini_stage_{name}_total{{stage="{stage}"'] for stage in kind.stages]

    names = ("seconds", "steps", "rows")
    http.post("/v1/tts", json=ASKED)
    before = {name: counted(name) for name in names}
    http.post("/v1/tts/batch", json={"items": [{"text": "One."}, {"text": "Two."}], "seed": 1, "max_new_tokens": 12})
    after = {name: counted(name) for name in names}

    assert all(one < other for name in names for one, other in zip(before[name], after[name], strict=True))
    assert after["rows"][0] - before["rows"][0] > after["steps"][0] - before["steps"][0], "two texts shared steps"


def test_boto3_calls_it_as_an_endpoint(
    container: Door, kind: Kind, expected: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ACCESS_KEY_ID", "a"), ("SECRET_ACCESS_KEY", "b"), ("DEFAULT_REGION", "eu-west-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    call: dict[str, Any] = {"EndpointName": ENDPOINT, "ContentType": "application/json"}
    body = json.dumps(ASKED | {"voice": kind.voice})
    runtime = boto3.client(
        "sagemaker-runtime", endpoint_url=container.url, config=Config(retries={"total_max_attempts": 1}, proxies={})
    )

    whole = runtime.invoke_endpoint(**call, Body=body, Accept="audio/wav")["Body"].read()
    parts = runtime.invoke_endpoint_with_response_stream(**call, Body=body, Accept="audio/pcm")["Body"]
    streamed = b"".join(event["PayloadPart"]["Bytes"] for event in parts)
    with pytest.raises(ClientError, match="is not supported by this model"):
        runtime.invoke_endpoint(**call, Body=json.dumps(ASKED | {kind.meaningless: 1.0}))
    runtime.close()

    assert same(heard(whole), expected)
    assert same(samples(streamed), expected)


def test_health_reports_only_compiled_stages_as_compiled(checkpoint: Path, kind: Kind) -> None:
    with ProductionTTSEngine(
        EngineConfig(checkpoint_path=checkpoint, device="cpu", compile_backend="inductor")
    ) as engine:
        told = engine.health_check()["compile"]

    assert told["value"] == "eager"
    assert told["reason"] == f"{get_family(kind.family).title} has no compilable blocks"


def test_a_voice_without_a_recording_is_listed_without_seconds(checkpoint: Path, kind: Kind) -> None:
    listed = invoke("voices", "describe", kind.voice, "--checkpoint", checkpoint)

    assert ("seconds      8.4" in listed) == (kind.family == "cascade")
    assert "0.0" not in listed


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS[:1], indirect=True, scope="module")
def test_a_package_passes_its_own_check(checkpoint: Path, tmp_path: Path) -> None:
    invoke("package", "--checkpoint", checkpoint, "-o", tmp_path / "model.tar.gz")

    assert invoke("package", "--check", tmp_path / "model.tar.gz", "--device", "cpu").count("    ok  ") == 8
