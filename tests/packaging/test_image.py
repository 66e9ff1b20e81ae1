"""The Dockerfile keeps its guarantees; its install steps run in a separate environment."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
TRITON = "triton==3.7.1"  # dependencies of the locked torch with CUDA


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


# The instructions below the second FROM form the image; those above only build its contents.
IN_IMAGE = RECIPE[[number for number, one in enumerate(RECIPE) if one.word == "FROM"][1] :]


@pytest.mark.skipif(os.name == "nt", reason="the image is Linux")
@pytest.mark.parametrize("variable", ["S1_MINI_SERVER_PORT", "SAGEMAKER_BIND_TO_PORT"])
def test_the_health_check_uses_ping(variable: str) -> None:
    """The unchanged health check, against a server that is healthy and then is not."""
    (text,) = texts("HEALTHCHECK")
    command = text.partition("CMD ")[2]
    statuses = iter([200, 503])

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(next(statuses) if self.path == "/ping" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        environment[variable] = str(server.server_port)
        codes = [subprocess.run(["sh", "-c", command], env=environment, check=False).returncode for _ in range(2)]
        server.shutdown()
        thread.join()

    assert codes == [0, 1]


@pytest.mark.skipif(os.name == "nt", reason="the image is Linux")
def test_a_compiled_driver_replaces_the_compiler(tmp_path: Path) -> None:
    """Triton calls it like gcc; any other call is refused with a sentence."""
    made = tmp_path / "triton_driver"
    made.with_suffix(".c").write_text("int driver;")
    made.with_suffix(".so").write_bytes(b"compiled")
    script = (ROOT / "sagemaker" / "cc").read_text().replace("/opt/s1_mini/libexec/triton_driver", str(made))
    (tmp_path / "main.c").write_text("int driver;")
    (tmp_path / "other.c").write_text("int other;")

    def cc(name: str) -> subprocess.CompletedProcess[str]:
        words = [name, "-O3", "-shared", "-fPIC", "-Wno-psabi", "-o", "out.so", "-l:libcuda.so.1", "-L/usr/lib"]
        return subprocess.run(
            ["sh", "-c", script, "cc", *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    refused, given = cc("other.c"), cc("main.c")

    assert refused.returncode == 1
    assert "cannot compile other.c: the image has no compiler" in refused.stderr
    assert given.returncode == 0, given.stderr
    assert (tmp_path / "out.so").read_bytes() == b"compiled"


def test_all_that_is_installed_is_locked_and_nothing_is_installed_at_the_start() -> None:
    installs = [text for text in texts("RUN") if "-m pip" in text and " install " in text]

    assert len(installs) == 2
    assert "--require-hashes --requirement requirements.lock.txt" in installs[0]
    assert "--requirement requirements-torch.lock.txt" in installs[0]
    assert "--no-deps --no-build-isolation" in installs[1]
    assert "pip" not in (ROOT / "sagemaker" / "serve").read_text().replace("s1_mini", "")


def test_the_recipe_for_signatures_has_the_python_of_the_image_and_the_tested_version() -> None:
    page = (ROOT / "docs" / "synthetic_audio.md").read_text(encoding="utf-8")
    base = next(text.partition("=")[2] for text in texts("ARG") if text.startswith("BASE="))
    pinned = (ROOT / "requirements-c2pa.txt").read_text(encoding="utf-8")

    assert f"FROM {base} AS c2pa\n" in page
    (version,) = re.findall(r"^RUN pip install --target /c2pa (\S+)$", page, re.MULTILINE)
    assert f"\n{version} " in pinned
    assert not [text for text in texts("ENV") if "PYTHONPATH" in text]


def made_by() -> list[str]:
    """The steps that build the contents of the image."""
    return [one.text for one in RECIPE[: RECIPE.index(IN_IMAGE[0])] if one.word == "RUN"]


def copied() -> list[str]:
    words = [shlex.split(text) for text in texts("COPY") if "--from=" not in text]
    return [word for copy in words for word in copy[:-1] if not word.startswith("--")]


def test_copied_files_exist_and_only_they_pass_the_ignore_file() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    kept = {line[1:] for line in lines if line[0] == "!"}

    assert lines[0] == "*"
    assert kept == set(copied())
    assert all((ROOT / name).exists() for name in kept)
    assert any(fnmatch("src/x/__pycache__", line) for line in lines[1:])


@pytest.mark.image
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the image is Linux")
def test_the_install_steps_make_an_environment_that_speaks(tmp_path: Path) -> None:
    """The unchanged RUN lines, with this machine's index, in a folder that holds only the copied files."""
    build, venv = tmp_path / "build", tmp_path / "venv"
    for name in copied():
        target = build / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, target)
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    # This machine's own index, and torch for the CPU where it has one.
    environment |= {"VARIANT": "cpu", "CPU_INDEX": os.environ.get("PIP_EXTRA_INDEX_URL", "")}
    for text in (text for text in made_by() if "apt-get" not in text):
        step = text.replace("/opt/s1_mini", str(venv))
        subprocess.run(["sh", "-c", step], cwd=build, env=environment, check=True)

    say = [venv / "bin" / "s1-mini", "say", "Hello.", "-o", tmp_path / "hello.wav"]
    subprocess.run(say, cwd=tmp_path, env=environment | {"PYTHONSAFEPATH": "1"}, check=True)

    assert (tmp_path / "hello.wav").read_bytes()[:4] == b"RIFF"
    pip = [sys.executable, "-m", "pip", "--python", venv, "freeze", "--all"]
    have = {
        line.lower().partition("+")[0] for line in subprocess.check_output(pip, cwd=tmp_path, text=True).splitlines()
    }
    locked = re.findall(r"(?m)^(\S+==\S+) \\", (ROOT / "requirements.lock.txt").read_text())
    assert set(locked) <= {name.replace("_", "-") for name in have}
    assert not {name for name in have if name.startswith("pip==")}


@pytest.mark.image
@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="the image is Linux")
def test_triton_uses_the_driver_that_the_dockerfile_compiles(tmp_path: Path) -> None:
    """In the CUDA image: its unchanged step, and then Triton itself, with an empty libcuda."""
    opt = tmp_path / "opt"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", opt], check=True)
    pip = [sys.executable, "-m", "pip", "--python", opt, "install", "--quiet", "--no-deps", TRITON]
    subprocess.run(pip, check=True)
    (opt / "libexec").mkdir()
    script = (ROOT / "sagemaker" / "cc").read_text().replace("/opt/s1_mini", str(opt))
    (opt / "libexec" / "cc").write_text(script)
    (opt / "libexec" / "cc").chmod(0o755)
    (step,) = [text for text in made_by() if "libcuda.so.1" in text]
    subprocess.run(["sh", "-c", step.replace("/opt/s1_mini", str(opt))], cwd=tmp_path, check=True)
    code = """
import os, sys
sys.setdlopenflags(os.RTLD_LAZY)  # the functions of CUDA are missing here; nothing calls them
from triton.backends.nvidia.driver import CudaUtils
print(sorted(name for name in vars(CudaUtils()) if "device" in name))
"""
    environment = {"PATH": "/usr/bin:/bin:/sbin", "HOME": str(tmp_path), "CC": str(opt / "libexec" / "cc")}
    environment |= {"TRITON_LIBCUDA_PATH": str(tmp_path), "LD_LIBRARY_PATH": str(tmp_path)}

    output = subprocess.run(
        [opt / "bin" / "python", "-c", code], env=environment, capture_output=True, text=True, check=False
    )

    assert output.stdout == "['get_device_properties']\n", output.stderr
    (cached,) = (tmp_path / ".triton").rglob("cuda_utils*.so")
    assert cached.read_bytes() == (opt / "libexec" / "triton_driver.so").read_bytes()
