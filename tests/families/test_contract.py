"""Promises that all families keep: in the engine, through the server and SageMaker, converted and packaged."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from consistency import assert_consistent
from container_room import ENDPOINT, running
from door_room import Door
from s1_mini import EngineConfig, ParameterError, ProductionTTSEngine, TextStream
from s1_mini.exceptions import CheckpointError, VoiceNotFoundError
from s1_mini.families.find import Checkpoint
from s1_mini.families.registry import get_family
from s1_mini.packaging.verify import unpack_archive
from waiting import wait_until

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 1024, (8, 150))
HISTORY = {"semantic_prompt": RNG.integers(0, 10_000, 100), "coarse_prompt": CODES[:2], "fine_prompt": CODES}
ASKED: dict[str, Any] = {"text": "Hello there.", "seed": 1, "max_new_tokens": 12}
TEXTS = ["Two of them, here.", "A third one that is longer than they are."]


@dataclass(frozen=True)
class Kind:
    """A family, with inputs that it accepts and refuses."""

    family: str
    refuses_times: str = "no attention head that follows the text"
    voices: tuple[str, ...] = ()  # two of the random checkpoint
    tolerance: float = 0.0  # of a streamed sample
    stages: tuple[str, ...] = ()
    arrays: np.ndarray | dict[str, np.ndarray] | None = None  # a voice file
    meaningless: str = ""  # a parameter

    @property
    def voice(self) -> str:
        """The name of a voice that is not the default."""
        return self.voices[-1]

    def file(self) -> bytes:
        """The voice as a numpy file."""
        written = io.BytesIO()
        if isinstance(self.arrays, dict):
            np.savez_compressed(written, **self.arrays)
        else:
            np.save(written, self.arrays)
        return written.getvalue()


CASCADE = Kind(
    "cascade",
    "is not supported by this model",
    ("one", "two"),
    1e-6,
    ("semantic", "coarse", "fine", "codec"),
    HISTORY,
    "repetition_penalty",
)
VECTOR = RNG.standard_normal(512).astype(np.float32)
MEL = Kind("mel", voices=("first", "second"), tolerance=1e-5, stages=("decoder", "vocoder"), arrays=VECTOR)
MEL = replace(MEL, meaningless="top_p")
S1, QWEN3 = Kind("s1"), Kind("qwen3", voices=("serena", "ryan"), tolerance=1e-5)
AUDIO8 = Kind("audio8", tolerance=1e-5)
KINDS = (S1, QWEN3, AUDIO8, CASCADE, MEL)


def of(*kinds: Kind) -> pytest.MarkDecorator:
    """A test for some of the families."""
    return pytest.mark.parametrize("kind", kinds, indirect=True, scope="module", ids=lambda kind: kind.family)


with_server = of(CASCADE, MEL)  # the other tests of the server have S1
with_engine = of(
    QWEN3, AUDIO8, CASCADE, MEL
)  # for S1 these are in tests/test_engine.py, tests/runtime and tests/packaging


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.family)
def kind(request: pytest.FixtureRequest) -> Kind:
    chosen: Kind = request.param
    return chosen


@pytest.fixture(scope="module")
def checkpoint(kind: Kind, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint, shared with other tests or written by the command."""
    shared = {"s1": "tiny", "cascade": "cascade"}
    if kind.family in shared:
        found: Path = request.getfixturevalue(shared[kind.family])
        return found
    directory = tmp_path_factory.mktemp(kind.family) / "checkpoint"
    invoke("random-checkpoint", directory, "--family", kind.family, "--size", "tiny")
    return directory


def config_of(checkpoint: Path, **settings: Any) -> EngineConfig:
    return EngineConfig(checkpoint_path=checkpoint, device="cpu", compile="false", **settings)


@pytest.fixture(scope="module")
def spoken(checkpoint: Path) -> Iterator[ProductionTTSEngine]:
    """The engine of a family."""
    with ProductionTTSEngine(config_of(checkpoint, max_columns=512)) as engine:
        yield engine


@pytest.fixture(scope="module")
def container(spoken: ProductionTTSEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with running(spoken, tmp_path_factory.mktemp("store")) as container:
        yield container


@with_engine
def test_a_batch_sounds_as_one_by_one_and_a_stream_as_the_whole(kind: Kind, spoken: ProductionTTSEngine) -> None:
    options = {"profiles": ("ttfa", "balanced"), "tolerance": kind.tolerance, "seed": 3, "max_new_tokens": 12}
    assert_consistent(spoken, TEXTS, **options)


@with_engine
def test_the_audio_depends_on_the_seed_and_the_text_and_not_on_other_requests(spoken: ProductionTTSEngine) -> None:
    def speak(text: str, seed: int) -> np.ndarray:
        return spoken.generate(text, seed=seed, max_new_tokens=12).audio

    first = speak(TEXTS[0], 1)
    others = [spoken.stream(text, seed=5, max_new_tokens=24) for text in TEXTS]
    assert next(others[0])
    again = speak(TEXTS[0], 1)
    assert all(list(other) for other in others)

    assert np.array_equal(first, again)
    assert len({wave.tobytes() for wave in (first, speak(TEXTS[0], 2), speak(TEXTS[1], 1))}) == 3


def test_voices_are_chosen_by_name_and_an_unknown_one_is_refused(kind: Kind, spoken: ProductionTTSEngine) -> None:
    if kind.voices:
        first, second = (spoken.generate(**ASKED, voice=name).audio for name in kind.voices)
        assert first.shape != second.shape or np.abs(first - second).max() > 0.01
        assert first.std() > 0.01
        assert np.array_equal(first, spoken.generate(**ASKED).audio) is (kind is not CASCADE)  # the default
        assert {*kind.voices} <= {*spoken.voice_names()}
    with pytest.raises(VoiceNotFoundError, match=f"unknown voice 'bob'.*{', '.join(kind.voices[:1])}"):
        spoken.generate(**ASKED, voice="bob")


@with_engine
def test_a_cancelled_request_frees_its_slot_and_delays_no_other(spoken: ProductionTTSEngine) -> None:
    expected = spoken.generate(**ASKED).audio
    chunks = spoken.stream("This would go on for a minute or so.", seed=1, max_new_tokens=100)
    next(chunks)

    chunks.close()

    assert np.array_equal(spoken.generate(**ASKED).audio, expected)
    wait_until(lambda: not spoken.health_check()["requests"])
    slots = spoken.health_check()["slots"]
    assert slots["free"] == slots["total"]


def test_word_times_of_a_checkpoint_without_them_are_refused(kind: Kind, spoken: ProductionTTSEngine) -> None:
    with pytest.raises(ParameterError, match=f"word_times: .*{kind.refuses_times}"):
        spoken.generate(**ASKED, word_times=True)


@of(S1, AUDIO8, CASCADE, MEL)
def test_a_text_stream_is_refused_by_families_that_need_the_whole_text(kind: Kind, spoken: ProductionTTSEngine) -> None:
    if kind.family != "qwen3":
        with pytest.raises(ParameterError, match="text: a TextStream is not supported by this model"):
            spoken.stream(TextStream())


@of(QWEN3, AUDIO8, MEL)  # the cascade has more forms, in tests/families/test_cascade_checkpoints.py
def test_a_converted_and_a_packaged_checkpoint_speak_the_same_and_are_planned(
    checkpoint: Path, spoken: ProductionTTSEngine, tmp_path: Path
) -> None:
    invoke("convert", "--checkpoint", checkpoint, "-o", tmp_path / "same", "--codec-precision", "float32")
    invoke("package", "--checkpoint", checkpoint, "-o", tmp_path / "model.tar.gz", "--codec-precision", "float32")
    unpack_archive(tmp_path / "model.tar.gz", tmp_path / "unpacked")
    plans = json.loads(invoke("plan", "--checkpoint", checkpoint, "--gpu", "l4", "--json"))["plans"]

    expected = spoken.generate(**ASKED).audio
    for other in ("same", "unpacked"):
        with ProductionTTSEngine(config_of(tmp_path / other)) as engine:
            np.testing.assert_allclose(engine.generate(**ASKED).audio, expected, rtol=0, atol=1e-5)
    assert plans[0]["slots"] == 256


def test_a_missing_or_truncated_file_is_named(checkpoint: Path, tmp_path: Path) -> None:
    missing = shutil.copytree(checkpoint, tmp_path / "missing")
    for name in ("tokenizer.tiktoken", "tokenizer.json", "vocab.json", "vocab.txt", "spm_char.model"):
        for path in missing.glob(name):
            path.unlink()
            with pytest.raises(CheckpointError, match=name.partition(".")[0]):
                Checkpoint(missing).check_files()
    truncated = shutil.copytree(checkpoint, tmp_path / "truncated")
    weights = max(truncated.rglob("*.safetensors"), key=lambda path: path.stat().st_size)
    weights.write_bytes(weights.read_bytes()[:-1000])

    with pytest.raises(CheckpointError, match=weights.name):
        ProductionTTSEngine(config_of(truncated)).start()


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


@with_server
def test_all_routes_return_the_engines_audio(http: httpx2.Client, kind: Kind, expected: np.ndarray) -> None:
    asked = ASKED | {"voice": kind.voice}
    openai = {"model": "any", "input": asked["text"], "response_format": "wav"}
    items = {
        "items": [{"text": asked["text"], "voice": kind.voice}, {"text": "♪"}],
        "seed": 1,
        "max_new_tokens": 12,
    }

    whole = [http.post(path, json=asked) for path in ("/v1/tts", "/invocations")]
    streamed = http.post("/v1/tts", json=asked | {"stream": True, "format": "pcm"})
    spoken = http.post("/v1/audio/speech", json={k: v for k, v in asked.items() if k != "text"} | openai)
    batch = http.post("/v1/tts/batch", json=items)

    assert {answer.status_code for answer in (*whole, streamed, spoken, batch)} == {200}
    assert all(same(heard(answer.content), expected) for answer in whole)
    assert same(samples(streamed.content), expected)
    assert len(soundfile.read(io.BytesIO(spoken.content))[0]) == len(expected)
    assert [result["error_code"] for result in batch.json()["results"]] == [None, None]


@with_server
def test_a_websocket_speaks_sentence_by_sentence(container: Door, kind: Kind) -> None:
    address = container.url.replace("http", "ws") + "/v1/audio/speech/stream"
    config = {
        "type": "session.config",
        "voice": kind.voice,
        "seed": 1,
        "max_new_tokens": 6,
        "response_format": "pcm",
    }
    messages, sound = [], 0
    with connect(address, proxy=None) as socket:
        for message in (config, {"type": "input.text", "text": "One. And two."}, {"type": "input.done"}):
            socket.send(json.dumps(message))
        for message in socket:
            sound += len(message) if isinstance(message, bytes) else 0
            messages += [] if isinstance(message, bytes) else [json.loads(message)]

    assert messages[-1]["type"] == "session.done"
    assert sound > 0


@with_server
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


@with_server
def test_an_unsupported_parameter_is_refused_by_name(http: httpx2.Client, kind: Kind) -> None:
    answer = http.post("/v1/tts", json=ASKED | {kind.meaningless: 1.0})

    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == kind.meaningless
    assert "is not supported by this model" in answer.json()["error"]["message"]


@with_server
def test_health_names_the_stages_and_the_models_inputs(http: httpx2.Client, kind: Kind) -> None:
    health = http.get("/health").json()

    assert tuple(health["placement"]) == kind.stages
    assert health["model"]["family"] == get_family(kind.family).title
    assert kind.meaningless not in health["model"]["sampling"]
    assert not health["model"]["clones"]


@with_server
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


@with_server
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


@with_server
def test_health_reports_only_compiled_stages_as_compiled(checkpoint: Path, kind: Kind) -> None:
    with ProductionTTSEngine(
        EngineConfig(checkpoint_path=checkpoint, device="cpu", compile_backend="inductor")
    ) as engine:
        told = engine.health_check()["compile"]

    assert told["value"] == "eager"
    assert told["reason"] == f"{get_family(kind.family).title} has no compilable blocks"


@with_server
def test_a_voice_without_a_recording_is_listed_without_seconds(checkpoint: Path, kind: Kind) -> None:
    listed = invoke("voices", "describe", kind.voice, "--checkpoint", checkpoint)

    assert ("seconds      8.4" in listed) == (kind.family == "cascade")
    assert "0.0" not in listed


@pytest.mark.long
@of(CASCADE)
def test_a_package_passes_its_own_check(checkpoint: Path, tmp_path: Path) -> None:
    invoke("package", "--checkpoint", checkpoint, "-o", tmp_path / "model.tar.gz")

    assert invoke("package", "--check", tmp_path / "model.tar.gz", "--device", "cpu").count("    ok  ") == 8
