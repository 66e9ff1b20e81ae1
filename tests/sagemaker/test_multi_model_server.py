"""The real multi-model-server, on Java, serves our handler: the whole stack of SageMaker's older containers.

Separate from the other tests, because it needs Java 17 and its own environment: the toolkit's `model_server` imports
pkg_resources, which setuptools 82 removed.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
import soundfile

from waiting import EVENTUALLY_S, wait_until

pytestmark = [
    pytest.mark.java,
    pytest.mark.skipif(shutil.which("java") is None, reason="multi-model-server runs on Java 17, which is not here"),
]

ROOT = Path(__file__).parents[2]
PINS = ["multi-model-server==1.1.11", "sagemaker-inference==1.10.1", "setuptools<81"]
START = """
import os
from sagemaker_inference import model_server
model_server.MMS_CONFIG_FILE = os.environ["CONFIG_FILE"]
original = model_server._generate_mms_config_properties
model_server._generate_mms_config_properties = lambda *a: original(*a).replace("0.0.0.0", "127.0.0.1")
model_server.start_model_server()
"""
SHORT = {"text": "Good morning.", "seed": 1, "max_new_tokens": 8}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, oracle: Path) -> Iterator[httpx2.Client]:
    """A server with one worker, whose model folder is a checkpoint with our `code/inference.py`."""
    home = tmp_path_factory.mktemp("mms")
    python = make_environment(home / "venv")
    model = home / "ml" / "model"
    shutil.copytree(oracle, model, ignore=shutil.ignore_patterns("oracle.pt"))
    shutil.copytree(ROOT / "sagemaker" / "code", model / "code", ignore=shutil.ignore_patterns("__pycache__"))
    port = free_port()
    variables = {
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "CONFIG_FILE": str(home / "mms.properties"),
        "SAGEMAKER_BASE_DIR": str(home / "ml"),
        "SAGEMAKER_BIND_TO_PORT": str(port),
        "SAGEMAKER_MODEL_SERVER_WORKERS": "1",
        "S1_MINI_DEVICE": "cpu",
        "HOME": str(home),
        "TEMP": str(home),
    }
    with (home / "log").open("w") as log:
        command = [str(python), "-c", START]
        process = subprocess.Popen(command, cwd=home, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            with httpx2.Client(
                base_url=f"http://127.0.0.1:{port}", timeout=EVENTUALLY_S, trust_env=False, verify=False
            ) as client:
                wait_until(lambda: speaks(client), every_s=0.2, process=process, log=home / "log")
                yield client
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # SIGTERM leaves its workers running
            process.wait()


def free_port() -> int:
    """Return a free port that multi-model-server accepts: it stores ports in signed 16 bits."""
    for port in range(28_080, 32_767):
        with socket.socket() as tried, suppress(OSError):
            tried.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def make_environment(directory: Path) -> Path:
    """Create an environment with the pinned server, on top of this environment's packages."""
    venv.create(directory, with_pip=True)
    python = directory / "bin" / "python"
    purelib = subprocess.check_output(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
    )
    (Path(purelib.strip()) / "ours.pth").write_text(f"{ROOT / 'src'}\n{sysconfig.get_path('purelib')}\n")
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--ignore-installed", "--no-deps", *PINS], check=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "model-archiver", "enum-compat", "future"], check=True)
    return python


def speaks(client: httpx2.Client) -> bool:
    try:
        return client.post("/invocations", json=SHORT, headers={"Accept": "audio/wav"}).status_code == 200
    except httpx2.TransportError:
        return False


def test_audio_is_returned_through_the_server(server: httpx2.Client) -> None:
    answer = server.post("/invocations", json=SHORT, headers={"Accept": "audio/flac"})

    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/flac")
    assert answer.headers["x-amzn-sagemaker-custom-attributes"].startswith("sample_rate=")
    assert soundfile.info(io.BytesIO(answer.content)).format == "FLAC"


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"{", {"Content-Type": "application/json"}, 400, "body_invalid"),
        (b"x", {"Content-Type": "application/x-npy"}, 415, "content_type_unsupported"),
        (b'{"text": " "}', {"Content-Type": "application/json"}, 422, "text_invalid"),
    ],
)
def test_a_failure_has_its_status_and_no_traceback(
    server: httpx2.Client, content: bytes, headers: dict[str, str], status: int, code: str
) -> None:
    answer = server.post("/invocations", content=content, headers=headers)

    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "Traceback" not in answer.text


def test_the_worker_lives_on_after_failures(server: httpx2.Client) -> None:
    assert server.get("/ping").json() == {"status": "Healthy"}
    assert speaks(server)
