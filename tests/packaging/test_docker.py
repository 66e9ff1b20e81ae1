"""The image, built and run by Docker: its user, its contents, and synthesis on a read-only file system."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from waiting import EVENTUALLY_S

ROOT = Path(__file__).parents[2]
TAG = "s1-mini:test"
# Only the privileges it needs: the options of an orchestrator's strictest profile.
STRICT = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]

pytestmark = [
    pytest.mark.docker,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("docker") is None, reason="needs Docker: it builds and runs the image"),
]


def docker(*words: str, check: bool = True) -> str:
    return subprocess.run(["docker", *words], cwd=ROOT, check=check, stdout=subprocess.PIPE, text=True).stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def _image() -> None:
    """The image without CUDA, which fits on a hosted runner."""
    docker(
        "build", "--platform=linux/amd64", "--build-arg=VARIANT=cpu", "--file=sagemaker/Dockerfile", f"--tag={TAG}", "."
    )


def started(*options: str) -> Iterator[str]:
    name = docker("run", "--detach", "--publish=127.0.0.1::8080", *options, TAG, "serve")
    try:
        yield name
    finally:
        docker("rm", "--force", "--volumes", name)


@pytest.fixture(params=["1000:1000", "4321:4321"])
def container(request: pytest.FixtureRequest) -> Iterator[str]:
    """A container with the image's own user, and with one that the image does not know."""
    yield from started(*STRICT, f"--user={request.param}")


def health(name: str) -> str:
    end = time.monotonic() + EVENTUALLY_S
    while time.monotonic() < end:
        state = json.loads(docker("inspect", "--format={{json .State}}", name))
        if state["Health"]["Status"] != "starting" or not state["Running"]:
            return str(state["Health"]["Status"])
        time.sleep(1)
    return "starting"


def test_the_container_works_and_stops_cleanly_with_only_tmp_writable(container: str) -> None:
    assert health(container) == "healthy", docker("logs", container)
    address = docker("port", container, "8080/tcp")

    answer = httpx2.post(f"http://{address}/invocations", json={"text": "Hello."}, timeout=EVENTUALLY_S)
    docker("stop", "--time=30", container)

    assert answer.status_code == 200
    assert answer.content[:4] == b"RIFF"
    assert docker("inspect", "--format={{.State.ExitCode}}", container) == "0"


def test_the_image_runs_without_root_and_has_no_compiler_or_installer() -> None:
    code = "id -u; for it in gcc cc tcc clang make pip apt-get; do command -v $it; done; true"

    who, *found = docker("run", "--rm", TAG, "sh", "-c", code).splitlines()

    assert who == "1000"
    assert found == ["/usr/bin/apt-get"], "Debian's own, which only root can use"


def test_a_container_started_as_root_drops_its_privileges() -> None:
    for name in started("--user=0"):
        assert health(name) == "healthy", docker("logs", name)
        status = docker("exec", name, "cat", "/proc/1/status")

    assert "\nUid:\t1000\t1000\t1000\t1000\n" in status
    assert "\nNoNewPrivs:\t1\n" in status
