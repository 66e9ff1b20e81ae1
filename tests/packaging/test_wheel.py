"""The published package builds without warnings, is complete, has no dead links, and runs once installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from own_folder import python_with
from plain_install import plain_environment
from s1_mini.extras import MODULES
from s1_mini.version import __version__

ROOT = Path(__file__).parents[2]
SOURCES = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "src")
BUILD = """
import sys, warnings
from setuptools import build_meta

warnings.simplefilter("error")
target = sys.argv[1]  # setuptools changes the arguments
build_meta.build_wheel(target)
build_meta.build_sdist(target)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive; any setuptools warning would have failed the build."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for path in [*(ROOT / name for name in SOURCES), *ROOT.glob("requirements*.txt")]:
        if path.is_dir():
            shutil.copytree(path, source / path.name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(path, source)
    subprocess.run([sys.executable, "-c", BUILD, target], cwd=source, check=True, capture_output=True)
    return target


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    (path,) = built.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return message_from_bytes(wheel.read(name))


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in (source / "s1_mini").rglob("*") if path.is_file()}

    expected = {name for name in files if "__pycache__" not in name}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == expected


def test_the_source_archive_builds_the_same_and_brings_no_tests(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"setup.py", "README.md", "LICENSE", "requirements.txt"} <= names
    assert {f"requirements-{extra}.txt" for extra in MODULES} <= names
    assert not {name for name in names if name.startswith(("tests", "scripts", "infra", "sagemaker"))}


def test_a_plain_install_needs_no_server_and_no_aws_and_all_is_every_extra_but_large_ones(metadata: Message) -> None:
    needs = metadata.get_all("Requires-Dist", [])
    plain = {re.split(r"[^\w-]", need)[0] for need in needs if "extra ==" not in need}

    assert {"torch", "typer"} <= plain
    assert not {"fastapi", "boto3", "matplotlib"} & plain
    assert set(metadata.get_all("Provides-Extra", [])) == {*MODULES, "all"}
    (everything,) = [need for need in needs if 'extra == "all"' in need]
    extras = set(re.findall(r"\w+", everything.partition("[")[2].partition("]")[0]))
    assert extras == set(MODULES) - {"ray", "vllm", "sdk"}


def test_links_in_the_package_description_lead_to_files_of_this_release(metadata: Message) -> None:
    ours = f"{metadata['Home-page']}/blob/v{__version__}/"
    targets = re.findall(r"\]\(([^)]+)\)", metadata.get_payload())

    files = [target.removeprefix(ours).partition("#")[0] for target in targets if target.startswith(ours)]
    assert len(files) > 20
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


@pytest.mark.long
def test_the_installed_wheel_works_without_the_extras(built: Path, tmp_path: Path) -> None:
    """This environment provides the dependencies of a plain install: a .pth file adds its packages."""
    (path,) = built.glob("*.whl")
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    pip = [sys.executable, "-m", "pip", "--python", venv, "install", "--quiet", "--no-deps", "--no-index", path]
    subprocess.run(pip, check=True)
    scripts = venv / ("Scripts" if sys.platform == "win32" else "bin")
    (site,) = [path for path in venv.rglob("site-packages") if not path.parent.is_symlink()]
    (site / "lent.pth").write_text(sysconfig.get_path("purelib"), encoding="utf-8")
    # The compile cache depends on the path: a process would compile for ten seconds after the command has ended.
    environment = plain_environment(tmp_path, with_path=False) | {"S1_MINI_COMPILE": "false"}

    def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    where = run(scripts / "python", "-c", "import s1_mini; print(s1_mini.__file__)").stdout
    said = run(scripts / "s1-mini", "say", "Hi.", "-o", "hi.wav")
    served = run(scripts / "s1-mini", "serve")

    assert Path(where.strip()).is_relative_to(venv)
    assert said.returncode == 0, said.stderr
    assert (tmp_path / "hi.wav").read_bytes().startswith(b"RIFF")
    assert served.returncode == 1
    assert 'pip install "s1-mini[server]"' in served.stderr


@pytest.mark.image
def test_one_line_of_uv_speaks_without_a_checkout(built: Path, tmp_path: Path) -> None:
    """The README's line, with the wheel from a folder; torch comes from pip's indexes instead of PyTorch's."""
    scripts = python_with(tmp_path / "uv", "uv").parent
    places = {"UV_FIND_LINKS": os.environ.get("PIP_FIND_LINKS"), "UV_INDEX": os.environ.get("PIP_EXTRA_INDEX_URL")}
    given = {name: place for name, place in places.items() if place}
    environment = plain_environment(tmp_path, with_path=False) | given | {"UV_CACHE_DIR": str(tmp_path / "cache")}
    environment["S1_MINI_COMPILE"] = "false"  # otherwise a process would compile for ten seconds after the command
    uvx = [scripts / "uvx", "--python", sys.executable, "--constraints", ROOT / "requirements-torch.lock.txt"]

    command = [*uvx, "--find-links", built, "s1-mini", "say", "Hello."]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert said.returncode == 0, said.stderr
    assert (tmp_path / "out.wav").read_bytes().startswith(b"RIFF")
