"""Check an artifact against SageMaker's container contract: unpack it, start the container's process, call it, stop it.

The process gets none of this machine's settings and keys. Each step reports what SageMaker would have done.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import httpx2

import s1_mini
from s1_mini.packaging.verify import unpack_archive, verify_directory
from s1_mini.sagemaker.environment import BASE, container_environment

STARTUP_S = 240.0  # SageMaker's default for ContainerStartupHealthCheckTimeoutInSeconds
PING_S = 2.0
INVOKE_S = 60.0
STOP_S = 30.0
MAX_ANSWER_BYTES = 6 * 2**20
TEXT = "This is a test of the endpoint."
_KEPT = (
    *("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"),
    # Windows needs these to find its libraries, the temporary folder and the user's folder.
    *("SYSTEMROOT", "SYSTEMDRIVE", "COMSPEC", "PATHEXT", "TEMP", "TMP", "USERPROFILE", "USERNAME", "LOCALAPPDATA"),
)
_KEPT_PREFIXES = ("OMP_", "LC_", "NVIDIA_")


@dataclass(frozen=True)
class Step:
    """One check: its result, and what SageMaker would have done."""

    name: str
    passed: bool
    details: str


class StopSignal(NamedTuple):
    """The signal that ends a process, and the creation flags of a process that can receive the signal."""

    name: str
    signal: int
    creation_flags: int


# On Windows, SIGTERM kills a process, but a process in its own group can handle Ctrl-Break. The numbers are
# signal.CTRL_BREAK_EVENT and subprocess.CREATE_NEW_PROCESS_GROUP, which Python only has on Windows.
CTRL_BREAK = StopSignal("Ctrl-Break", 1, 0x200)
SIGTERM = StopSignal("SIGTERM", signal.SIGTERM, 0)
ENDING = CTRL_BREAK if os.name == "nt" else SIGTERM


class _Answer(NamedTuple):
    status: int
    body: bytes
    first_byte_s: float
    whole_s: float


def check_contract(artifact: Path, *, device: str | None = None) -> Iterator[Step]:
    """Check a `.tar.gz` or a folder of the prefix layout step by step; after a failed step, others may be left out.

    Raises `CheckpointError`, such as `PackageError` if the artifact differs from its manifest (which SageMaker would
    not notice), and `httpx2.HTTPError` if the process stops responding.
    """
    with tempfile.TemporaryDirectory(prefix="s1-mini-check-") as base:
        model = Path(base) / "model"
        if artifact.is_dir():
            manifest = verify_directory(artifact)
            _place(artifact.resolve(), model)
        else:
            manifest = unpack_archive(artifact, model)
        size = sum(content.size for content in manifest.files.values())
        files = f"{len(manifest.files)} files, {size / 1e6:,.0f} MB"
        yield Step("unpack", True, f"{files}, all matching the manifest; a container unpacks them to /opt/ml/model")
        with _container(Path(base), device) as (process, client, log):
            yield from _try_container(process, client, log)


def _try_container(process: subprocess.Popen[bytes], client: httpx2.Client, log: IO[bytes]) -> Iterator[Step]:
    began = time.monotonic()
    if not _wait_for_ping(process, client):
        end = (
            f"ended with exit code {process.returncode}"
            if process.poll() is not None
            else "did not return 200 from /ping"
        )
        log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
        details = f"the process {end} within {STARTUP_S:.0f} s: the endpoint would be Failed. Last lines of its log:"
        yield Step("start", False, f"{details}\n{log.read().decode(errors='replace')}")
        return
    taken = time.monotonic() - began
    yield Step(
        "start",
        True,
        f"/ping returned 200 after {taken:.1f} s (limit {STARTUP_S:.0f} s): the endpoint would be InService",
    )
    speech: dict[str, object] = {"text": TEXT, "seed": 1, "max_new_tokens": 64} | _voice(client)
    yield _judge("ping", _call(client, "/ping"), PING_S, "the instance is healthy")
    wav = _call(client, "/invocations", speech, "audio/wav")
    yield _judge("invoke", wav, INVOKE_S, "InvokeEndpoint returns the audio", starts=b"RIFF")
    stream = _call(client, "/invocations", speech | {"stream": True}, "audio/pcm")
    seen = f"{stream.status}, first byte after {stream.first_byte_s:.2f} s, all {len(stream.body):,} bytes after "
    seen += f"{stream.whole_s:.2f} s: "
    passed = stream.status == 200 and len(stream.body) > 0
    outcome = "InvokeEndpointWithResponseStream streams the audio" if passed else _refusal(stream)
    yield Step("stream", passed, seen + outcome)
    mistake = _call(client, "/invocations", {"text": ""}, "audio/wav")
    details = f"{mistake.status} as JSON: a ModelError (424) with OriginalStatusCode {mistake.status}"
    yield Step("a caller's mistake", 400 <= mistake.status < 500 and _is_json(mistake.body), details)
    yield _judge(
        "batch transform", _call(client, "/execution-parameters"), PING_S, "batch transform uses these settings"
    )
    yield stop(process, ENDING)


def _judge(name: str, answer: _Answer, limit_s: float, outcome: str, *, starts: bytes = b"") -> Step:
    seen = f"{answer.status}, {len(answer.body):,} bytes, {answer.whole_s:.2f} s (limit {limit_s:.0f} s)"
    fits = len(answer.body) <= MAX_ANSWER_BYTES and answer.whole_s <= limit_s
    passed = answer.status == 200 and fits and answer.body.startswith(starts)
    return Step(name, passed, f"{seen}: {outcome if passed else _refusal(answer)}")


def _refusal(answer: _Answer) -> str:
    """Return what the caller would get, with the error in the body, and what to do about a missing voice."""
    message = "the caller would get a ModelError (424)"
    if answer.status == 200:
        return message
    try:
        error = json.loads(answer.body)["error"]
        message += f": {error['message']}"
        if error["field"] == "voice":
            message += "; `s1-mini package --voices DIR` adds voices to the artifact, made by `s1-mini voices add`"
    except (ValueError, LookupError, TypeError):
        message += f": {answer.body[:200].decode(errors='replace')}"
    return message


def _voice(client: httpx2.Client) -> dict[str, object]:
    """Return the option that names the first voice, if there are voices but none is the default."""
    voices = json.loads(_call(client, "/v1/voices").body)["voices"]
    has_default = not voices or any(voice["is_default"] for voice in voices)
    return {} if has_default else {"voice": voices[0]["name"]}


def _is_json(body: bytes) -> bool:
    try:
        json.loads(body)
    except ValueError:
        return False
    return True


def stop(process: subprocess.Popen[bytes], ending: StopSignal) -> Step:
    """Send the signal that SageMaker sends, and check that the process ends in time."""
    began = time.monotonic()
    try:
        process.send_signal(ending.signal)
    except OSError as error:  # Windows can only signal processes of the same console
        return Step("stop", False, f"{ending.name} could not be sent ({error}): run this command in a console")
    try:
        code = process.wait(timeout=STOP_S)
    except subprocess.TimeoutExpired:
        return Step("stop", False, f"still running {STOP_S:.0f} s after {ending.name}: it would be killed")
    ended = time.monotonic() - began
    details = f"exit code {code}, {ended:.1f} s after {ending.name} (limit {STOP_S:.0f} s)"
    outcome = "a clean shutdown" if code == 0 else "requests in progress would be lost"
    return Step("stop", code == 0, f"{details}: {outcome}")


def _place(folder: Path, model: Path) -> None:
    try:
        model.symlink_to(folder, target_is_directory=True)
    except OSError:  # on Windows, most users cannot create links
        shutil.copytree(folder, model)


@contextmanager
def _container(base: Path, device: str | None) -> Iterator[tuple[subprocess.Popen[bytes], httpx2.Client, IO[bytes]]]:
    """Run the image's process on a free local port; yield it with a client and its log."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if name in _KEPT or name.startswith(_KEPT_PREFIXES)}
    kept["PYTHONPATH"] = str(Path(s1_mini.__file__).parents[1])  # the package of this process
    details = {BASE: str(base), "SAGEMAKER_BIND_TO_PORT": str(port), "S1_MINI_SERVER_HOST": "127.0.0.1"}
    details |= {} if device is None else {"S1_MINI_DEVICE": device}
    url = f"http://127.0.0.1:{port}"
    with (
        tempfile.TemporaryFile() as log,
        httpx2.Client(base_url=url, timeout=INVOKE_S, trust_env=False, verify=False) as client,
    ):
        process = subprocess.Popen(
            [sys.executable, "-m", "s1_mini", "serve"],
            env=container_environment(kept | details),
            cwd=base,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            creationflags=ENDING.creation_flags,
        )
        try:
            yield process, client, log
        finally:
            process.kill()
            process.wait()


def _wait_for_ping(process: subprocess.Popen[bytes], client: httpx2.Client) -> bool:
    ends = time.monotonic() + STARTUP_S
    while time.monotonic() < ends and process.poll() is None:
        with suppress(httpx2.TransportError):
            if client.get("/ping").status_code == 200:
                return True
        time.sleep(0.1)
    return False


def _call(client: httpx2.Client, path: str, body: dict[str, object] | None = None, accept: str = "*/*") -> _Answer:
    began = time.monotonic()
    method = "GET" if body is None else "POST"
    with client.stream(method, path, json=body, headers={"Accept": accept, "Connection": "close"}) as response:
        parts = response.iter_raw()
        content = next(parts, b"")
        first_s = time.monotonic() - began
        content += b"".join(parts)
    return _Answer(response.status_code, content, first_s, time.monotonic() - began)
