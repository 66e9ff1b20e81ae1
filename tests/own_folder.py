"""Packages for tests that no other test needs: from this environment, or installed into a separate folder."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
RAY_GAVE_UP = "The current node timed out during startup"  # after 30 s, which a busy machine exceeds; then start again


def path_with(module: str, folder: Path, *requirements: str) -> str:
    """Return a PYTHONPATH with a module; its requirements are installed into `folder` unless it can be imported."""
    ours = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    if find_spec(module) is not None:
        return ours
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *requirements]
    subprocess.run(command, cwd=ROOT, check=True)
    return os.pathsep.join([ours, str(folder)])


def python_with(folder: Path, *arguments: str) -> Path:
    """Return the Python of a new environment: this one's packages, and those that pip installs for `arguments`."""
    venv.create(folder, with_pip=False)
    base = {"base": str(folder), "platbase": str(folder)}
    python = Path(sysconfig.get_path("scripts", "venv", base), Path(sys.executable).name)
    packages = Path(sysconfig.get_path("purelib", "venv", base))
    (packages / "here.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    command = [python, "-m", "pip", "install", "--no-input", "--quiet", "--no-compile"]
    subprocess.run([*command, *arguments], cwd=ROOT, check=True)
    return python
