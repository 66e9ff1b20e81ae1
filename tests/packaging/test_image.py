"""The image's recipe keeps what we promise of it; its install steps run in an environment of their own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
KNOWN = {"ARG", "FROM", "ENV", "WORKDIR", "COPY", "RUN", "LABEL", "EXPOSE", "CMD"}


class Instruction(NamedTuple):
    word: str
    text: str


def read_recipe() -> list[Instruction]:
    text = (ROOT / "sagemaker" / "Dockerfile").read_text()
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", lines)
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


RECIPE = read_recipe()


def texts(word: str) -> list[str]:
    return [one.text for one in RECIPE if one.word == word]


def test_only_plain_instructions_stand_in_it() -> None:
    """No ADD, which unpacks and fetches; no ENTRYPOINT, which SageMaker does not replace; root, as it expects."""
    assert {one.word for one in RECIPE} <= KNOWN


def test_every_base_is_named_by_a_version() -> None:
    assert all(":" in text and "latest" not in text for text in texts("FROM"))
    assert texts("ARG")[0] == "PYTHON=3.12"


def test_there_is_a_variant_with_cuda_and_one_without() -> None:
    (install,) = [text for text in texts("RUN") if "requirements.lock.txt" in text]

    assert "VARIANT=cuda" in texts("ARG")
    assert "cuda) ;;" in install
    assert "cpu) export PIP_EXTRA_INDEX_URL" in install


def test_all_that_is_installed_is_locked_and_nothing_is_installed_at_the_start() -> None:
    installs = [text for text in texts("RUN") if "pip install" in text]

    assert len(installs) == 2
    assert "--requirement requirements.lock.txt" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1]
    assert "pip" not in (ROOT / "sagemaker" / "serve").read_text().replace("s1_mini", "")


def test_layers_are_quiet_and_keep_no_caches() -> None:
    for text in texts("RUN"):
        assert "pip install" not in text or "--quiet" in text
        assert "apt-get install" not in text or ("-qq" in text and "--no-install-recommends" in text)
        assert "apt-get update" not in text or "rm -rf /var/lib/apt/lists/*" in text
        assert ";" not in text or text.startswith("set -eu;"), "a step that fails must fail the layer"
    assert "PIP_NO_CACHE_DIR=1" in " ".join(texts("ENV"))


def test_dependencies_are_a_layer_below_the_code() -> None:
    order = [one.text for one in RECIPE if one.word in {"COPY", "RUN"}]

    assert order.index("requirements.lock.txt ./") < order.index("src src")


def test_the_bidirectional_stream_is_announced_and_the_command_is_a_list() -> None:
    assert texts("LABEL") == ['com.amazonaws.sagemaker.capabilities.bidirectional-streaming="true"']
    assert texts("CMD") == ['["serve"]']
    assert texts("EXPOSE") == ["8080"]


def test_no_secret_and_no_setting_of_a_person_is_in_it() -> None:
    assert re.findall(r"(?i)secret|password|token|api_key|aws_", (ROOT / "sagemaker" / "Dockerfile").read_text()) == []


def copied() -> list[str]:
    words = [shlex.split(text) for text in texts("COPY") if "--from=" not in text]
    return [word for copy in words for word in copy[:-1] if not word.startswith("--")]


def test_what_is_copied_is_there_and_passes_the_ignore_file_and_nothing_else_does() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    kept = {line[1:] for line in lines if line[0] == "!"}

    assert lines[0] == "*"
    assert kept == set(copied())
    assert all((ROOT / name).exists() for name in kept)
    assert any(fnmatch("src/x/__pycache__", line) for line in lines[1:])


def test_serve_is_a_program_that_becomes_the_server() -> None:
    path = ROOT / "sagemaker" / "serve"

    assert path.read_bytes().startswith(b"#!/bin/sh\n")
    assert b"\r" not in path.read_bytes()
    assert path.read_text().splitlines()[-1].startswith("exec ")
    if os.name != "nt":
        assert path.stat().st_mode & stat.S_IXUSR
        assert subprocess.run(["sh", "-n", path], check=False).returncode == 0


def test_no_python_package_hides_the_sdk_of_that_name() -> None:
    assert not (ROOT / "sagemaker" / "__init__.py").exists()


@pytest.mark.image
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the image is Linux")
def test_the_install_steps_make_an_environment_that_speaks(tmp_path: Path) -> None:
    """The RUN lines as they stand, with this machine's index, in a folder that holds only what is copied."""
    build, venv = tmp_path / "build", tmp_path / "venv"
    for name in copied():
        target = build / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    for text in (text for text in texts("RUN") if "apt-get" not in text):
        step = text.replace("/opt/s1_mini", str(venv))
        subprocess.run(["sh", "-c", step], cwd=build, env=environment | {"VARIANT": "cuda"}, check=True)

    say = [venv / "bin" / "s1-mini", "say", "Hello.", "-o", tmp_path / "hello.wav"]
    subprocess.run(say, cwd=tmp_path, env=environment | {"PYTHONSAFEPATH": "1"}, check=True)

    assert (tmp_path / "hello.wav").read_bytes()[:4] == b"RIFF"
    freeze = subprocess.check_output([venv / "bin" / "pip", "freeze"], cwd=tmp_path, text=True)
    locked = re.findall(r"(?m)^([A-Za-z0-9_.-]+==[^\s;]+)\s+#", (ROOT / "requirements.lock.txt").read_text())
    have = {line.lower().replace("_", "-").partition("+")[0] for line in freeze.splitlines()}
    assert {pin.lower() for pin in locked if "wheel" not in pin and "setuptools" not in pin} <= have
