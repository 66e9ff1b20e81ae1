"""schemathesis generates requests from the container's OpenAPI document, and finds no undeclared failure."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.server.test_run import served
from waiting import EVENTUALLY_S, wait_until

EXAMPLES = 10  # of each route, besides the cases that cover its fields one by one
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
SMALL = {"S1_MINI_MAX_COLUMNS": "64", "S1_MINI_MAX_BATCH_SIZE": "8"}  # a random model never stops by itself


@pytest.mark.schema
def test_schemathesis_finds_no_undeclared_response(tiny: Path, tmp_path: Path) -> None:
    command = [Path(sys.executable).with_name("schemathesis"), "run", "--checks", CHECKS, "--no-color"]
    command += ["--max-examples", str(EXAMPLES), "--seed", "1", "--phases", "examples,coverage,fuzzing"]
    command += ["--continue-on-failure", "--warnings", "off", "--request-timeout", str(EVENTUALLY_S)]
    with served(tiny, **SMALL) as running:
        wait_until(running.is_ready)
        url = f"http://127.0.0.1:{running.port}/openapi.json"
        done = subprocess.run([*command, url], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert running.is_ready()
        assert not any("traceback" in json.loads(line) for line in running.lines)

    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2000:]
