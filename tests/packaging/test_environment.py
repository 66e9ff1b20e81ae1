"""Mapping of SageMaker's variables, row by row, and valid model folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from s1_mini.exceptions import CheckpointNotFoundError, ConfigurationError
from s1_mini.sagemaker.environment import TABLE, container_environment
from s1_mini.server.settings import ServerSettings

ROOT = Path(__file__).parents[2]
EXAMPLES = {
    "SAGEMAKER_BIND_TO_PORT": ("9090", {"port": 9090}),
    "SAGEMAKER_MAX_PAYLOAD_IN_MB": ("25", {"max_body_bytes": 25 * 2**20}),
    "SAGEMAKER_MODEL_SERVER_TIMEOUT_SECONDS": ("40", {"request_timeout_s": 40.0}),
}


def test_every_row_of_the_table_has_an_example_and_stands_in_the_documentation() -> None:
    page = (ROOT / "docs" / "package.md").read_text()

    assert {row.theirs for row in TABLE} == set(EXAMPLES)
    assert [row for row in TABLE if not re.search(rf"`{row.theirs}`.*`{row.ours}`", page)] == []


@pytest.mark.parametrize("row", TABLE)
def test_a_variable_of_the_platform_becomes_a_setting_unless_ours_is_set(
    row: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value, fields = EXAMPLES[row.theirs]
    base = {"SAGEMAKER_BASE_DIR": str(tmp_path)}

    environment = container_environment(base | {row.theirs: value})

    monkeypatch.setenv(row.ours, environment[row.ours])
    settings = ServerSettings()
    assert {name: getattr(settings, name) for name in fields} == fields
    assert container_environment(base | {row.theirs: value, row.ours: "7"})[row.ours] == "7"


@pytest.mark.parametrize(
    ("given", "fairness"),
    [
        ({}, "request"),
        ({"S1_MINI_SERVER_API_KEY": "", "S1_MINI_SERVER_API_KEYS": ""}, "request"),
        ({"S1_MINI_SERVER_API_KEY": "one"}, "client"),
        ({"S1_MINI_SERVER_API_KEYS": "one,two"}, "client"),
        ({"S1_MINI_SERVER_API_KEY": "one", "S1_MINI_SERVER_FAIRNESS": "request"}, "request"),
    ],
)
def test_the_container_counts_by_key_if_it_has_keys_and_by_request_if_it_has_none(
    given: dict[str, str], fairness: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All requests of SageMaker come from one address, so that clients without keys cannot be told apart."""
    for name, value in container_environment({"SAGEMAKER_BASE_DIR": str(tmp_path)} | given).items():
        monkeypatch.setenv(name, value)

    assert ServerSettings().fairness == fairness


def test_an_invalid_number_is_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="SAGEMAKER_MAX_PAYLOAD_IN_MB must be an integer"):
        container_environment({"SAGEMAKER_BASE_DIR": str(tmp_path), "SAGEMAKER_MAX_PAYLOAD_IN_MB": "many"})


def test_the_unpacked_model_is_used_and_a_folder_of_code_alone_is_not(tmp_path: Path) -> None:
    base = {"SAGEMAKER_BASE_DIR": str(tmp_path)}
    assert "S1_MINI_CHECKPOINT_PATH" not in container_environment(base)
    (tmp_path / "model" / "code").mkdir(parents=True)
    assert "S1_MINI_CHECKPOINT_PATH" not in container_environment(base)
    (tmp_path / "model" / "config.json").write_text("{}")
    assert container_environment(base)["S1_MINI_CHECKPOINT_PATH"] == str(tmp_path / "model")
    assert container_environment(base | {"S1_MINI_CHECKPOINT_PATH": "mine"})["S1_MINI_CHECKPOINT_PATH"] == "mine"


def test_the_checkpoint_of_vllm_s_containers_is_found_in_their_order(tmp_path: Path) -> None:
    def checkpoint(**given: str) -> str | None:
        environment = container_environment({"SAGEMAKER_BASE_DIR": str(tmp_path)} | given)
        return environment.get("S1_MINI_CHECKPOINT_PATH")

    assert checkpoint(HF_MODEL_ID="owner/hub") == "owner/hub"
    assert checkpoint(HF_MODEL_ID="owner/hub", SM_VLLM_MODEL="owner/vllm") == "owner/vllm"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert checkpoint(HF_MODEL_ID="owner/hub") == str(tmp_path / "model")
    assert checkpoint(SM_VLLM_MODEL="owner/vllm") == "owner/vllm"
    assert checkpoint(SM_VLLM_MODEL="owner/vllm", S1_MINI_CHECKPOINT_PATH="mine") == "mine"


@pytest.mark.skipif(os.name == "nt", reason="the image is Linux")
def test_serve_names_the_flags_of_vllm_in_one_warning(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "src"), "SAGEMAKER_BASE_DIR": str(tmp_path)}
    environment |= {"SM_VLLM_MODEL": "owner/vllm", "SM_VLLM_MAX_MODEL_LEN": "9", "SM_VLLM_DTYPE": "half"}
    command = [sys.executable, "-m", "s1_mini.sagemaker.environment", "--help"]

    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0
    assert done.stderr.count("flags of vLLM have no effect") == 1
    assert "s1-mini: SM_VLLM_DTYPE, SM_VLLM_MAX_MODEL_LEN: flags" in done.stderr


def test_an_extra_folder_around_the_files_is_reported(tmp_path: Path) -> None:
    (tmp_path / "model" / "s1-mini").mkdir(parents=True)
    (tmp_path / "model" / "s1-mini" / "config.json").write_text("{}")

    with pytest.raises(CheckpointNotFoundError, match="wraps its files in a folder"):
        container_environment({"SAGEMAKER_BASE_DIR": str(tmp_path)})


@pytest.mark.skipif(os.name == "nt", reason="the image is Linux")
def test_serve_says_in_one_sentence_why_it_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights.bin").write_text("?")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {"PATH": path, "PYTHONPATH": str(ROOT / "src"), "SAGEMAKER_BASE_DIR": str(tmp_path)}

    done = subprocess.run([ROOT / "sagemaker" / "serve"], env=environment, capture_output=True, check=False)

    assert done.returncode == 1
    assert b"has no checkpoint: config.json is missing" in done.stderr
    assert b"Traceback" not in done.stderr
