"""Every example works against a real server, and the Compose file is valid and names settings that exist."""

from __future__ import annotations

import base64
import gc
import json
import os
import re
import runpy
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
import yaml
from websockets.sync.client import connect

from container_room import running
from door_room import Door
from own_folder import path_with
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.sagemaker.environment import container_environment
from s1_mini.server.settings import ServerSettings
from waiting import EVENTUALLY_S

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
KEY = "sesame"
OUTPUTS = {
    "openai_client.py": "openai.mp3",
    "elevenlabs_http.py": "elevenlabs.mp3",
    "polly.py": "polly.mp3",
    "sagemaker_boto3.py": "sagemaker.mp3",
    "websocket.py": "websocket.wav",
}
ELSEWHERE = {"twilio.py", "sagemaker_sdk.py"}  # tested below, and in tests/sagemaker/test_sdk.py


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[ProductionTTSEngine]:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", max_batch_size=4)) as engine:
        yield engine
        engine.stop(drain=False)


@pytest.fixture(scope="module")
def door(engine: ProductionTTSEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    with running(engine, tmp_path_factory.mktemp("store"), api_key=KEY) as door:
        yield door


@pytest.fixture(scope="module")
def endpoint(engine: ProductionTTSEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    """A local endpoint, which has no key."""
    with running(engine, tmp_path_factory.mktemp("store"), endpoint="speech") as door:
        yield door


def environment(door: Door) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    return kept | {"S1_MINI_URL": door.url, "S1_MINI_API_KEY": KEY, "PYTHONUTF8": "1"}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*OUTPUTS, *ELSEWHERE}


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", OUTPUTS)
def test_an_example_writes_audio_with_the_servers_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """In this process, which has imported the clients. A program that ends need not close them."""
    door = request.getfixturevalue("endpoint" if name == "sagemaker_boto3.py" else "door")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.setenv("S1_MINI_URL", door.url)
    monkeypatch.setenv("S1_MINI_API_KEY", KEY)
    monkeypatch.setenv("no_proxy", "127.0.0.1")

    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    gc.collect()

    audio, _ = soundfile.read(tmp_path / OUTPUTS[name])
    assert len(audio) > 1000


def test_a_twilio_caller_hears_the_greeting_as_mulaw(door: Door) -> None:
    command = [sys.executable, EXAMPLES / "twilio.py", "0"]
    with subprocess.Popen(command, env=environment(door), stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().split()[-1]
        try:
            with connect(f"ws://127.0.0.1:{port}", proxy=None) as socket:
                socket.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
                socket.send(json.dumps({"event": "start", "streamSid": "MZ1", "start": {"streamSid": "MZ1"}}))
                audio = b""
                while (event := json.loads(socket.recv(timeout=EVENTUALLY_S)))["event"] == "media":
                    assert event["streamSid"] == "MZ1"
                    audio += base64.b64decode(event["media"]["payload"])
                assert event == {"event": "mark", "streamSid": "MZ1", "mark": {"name": "greeting"}}
                socket.send(json.dumps(event))
            assert len(audio) > 1000
        finally:
            server.terminate()


def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((EXAMPLES / "compose.yaml").read_text(encoding="utf-8"))
    return document


def composed(given: dict[str, str]) -> dict[str, str]:
    """Return the variables of the server's container if Compose reads those of `given`."""
    found = {}
    for name, value in compose()["services"]["s1-mini"]["environment"].items():
        if value is not None:
            found[name] = re.sub(r"\$\{(\w+)(:-|:\?[^}]*)\}", lambda each: given.get(each[1], ""), str(value))
        elif name in given:
            found[name] = given[name]
    return found


def test_the_compose_file_names_settings_of_the_server_and_variables_of_opentelemetry() -> None:
    known = pytest.importorskip("opentelemetry.sdk.environment_variables")
    variables = compose()["services"]["s1-mini"]["environment"]
    theirs = {name for name in variables if name.startswith("OTEL_")}

    assert len(theirs) >= 5
    assert [name for name in theirs if not hasattr(known, name) or variables[name] is not None] == []
    for name in {*variables} - theirs:
        prefix, fields = "S1_MINI_", EngineConfig.model_fields
        if name.startswith("S1_MINI_SERVER_"):
            prefix, fields = "S1_MINI_SERVER_", ServerSettings.model_fields
        assert name.removeprefix(prefix).lower() in fields


def test_the_compose_file_needs_one_key_and_treats_each_further_key_as_a_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def settings(**given: str) -> ServerSettings:
        with monkeypatch.context() as patch:
            for name, value in container_environment(composed(given)).items():
                patch.setenv(name, value)
            return ServerSettings()

    alone = settings(S1_MINI_API_KEY="first")
    several = settings(S1_MINI_API_KEY="first", S1_MINI_API_KEYS="second,third", S1_MINI_API_KEY_NAMES="a,b,c")

    assert (alone.keys, alone.api_key_names, alone.fairness) == (["first"], (), "client")
    assert (several.keys, several.fairness) == (["first", "second", "third"], "client")
    assert [several.key_name(index) for index in range(3)] == ["a", "b", "c"]
    assert several.request_timeout_s == ServerSettings.model_fields["request_timeout_s"].default


def test_the_compose_file_builds_the_image_keeps_its_writable_folder_and_waits_for_the_drain() -> None:
    service = compose()["services"]["s1-mini"]
    recipe = EXAMPLES / service["build"]["context"] / service["build"]["dockerfile"]
    names = [volume.partition(":")[0] for volume in service["volumes"]]

    assert 'VOLUME ["/tmp"]' in recipe.read_text(encoding="utf-8")
    assert service["read_only"]
    assert [f"{name}:/tmp" for name in names] == service["volumes"]
    assert {*names} <= {*compose()["volumes"]}
    assert float(service["stop_grace_period"].removesuffix("s")) > ServerSettings().drain_timeout_s
    assert service["restart"] == "unless-stopped"


@pytest.mark.clients
def test_the_compose_file_is_valid_by_the_schema_of_compose(tmp_path: Path) -> None:
    path = path_with("check_jsonschema", tmp_path, "check-jsonschema>=0.37,<1")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]

    subprocess.run([*command, str(EXAMPLES / "compose.yaml")], env=os.environ | {"PYTHONPATH": path}, check=True)


@pytest.mark.clients
def test_the_compose_file_names_settings_that_open_webui_reads(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path)]
    subprocess.run([*command, "--only-binary=:all:", "--python-version=3.12", "open-webui"], check=True)
    (wheel,) = tmp_path.glob("open_webui-*.whl")
    config = zipfile.ZipFile(wheel).read("open_webui/config.py").decode()

    names = compose()["services"]["open-webui"]["environment"]
    assert len(names) >= 5
    assert [name for name in names if f"os.getenv('{name}'" not in config] == []
