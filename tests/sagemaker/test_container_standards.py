"""The container's application under the bootstrap of AWS's model-hosting-container-standards, which vLLM uses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from own_folder import ROOT, path_with
from waiting import EVENTUALLY_S

pytestmark = pytest.mark.clients

PROGRAM = Path(__file__).with_name("standards_bootstrap.py")
SCRIPT = """
import model_hosting_container_standards.sagemaker as standards
from fastapi import Request, Response
from model_hosting_container_standards.common.fastapi.middleware import custom_middleware

@standards.custom_ping_handler
async def ping(request: Request) -> Response:
    return Response("custom", 200 if request.app.state.engine.state().is_ready else 503)

@custom_middleware("throttle")
async def throttle(request, call_next):
    answer = await call_next(request)
    answer.headers["X-Throttled"] = "yes"
    return answer
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PYTHONPATH with AWS's package."""
    folder = tmp_path_factory.mktemp("standards")
    return path_with("model_hosting_container_standards", folder, "model-hosting-container-standards>=0.1.16,<0.2")


@pytest.mark.parametrize("script", ["", SCRIPT], ids=["bare", "custom"])
def test_our_routes_work_and_a_custom_ping_and_middleware_are_used(
    packages: str, script: str, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    if script:
        (tmp_path / "model" / "model.py").write_text(script)
    path = os.pathsep.join([packages, str(ROOT), str(ROOT / "tests")])
    environment = os.environ | {"PYTHONPATH": path, "SAGEMAKER_MODEL_PATH": str(tmp_path / "model")}

    command = [sys.executable, "-W", "ignore", str(PROGRAM), str(tiny)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=EVENTUALLY_S, check=False)

    assert result.returncode == 0, result.stderr[-4000:]
    assert json.loads(result.stdout.splitlines()[-1]) == {
        "ping": [200, "custom" if script else ""],
        "throttled": ["yes", "yes"] if script else [None, None],
        "whole": [200, "RIFF"],
        "streams": "chunked",
        "sessions": [200, True, 200],
        "wrong": [422, "text"],
        "bidirectional": "Metadata",
    }
