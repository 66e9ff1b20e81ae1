"""Packages for tests that no other test needs: from this environment, or installed into a separate folder."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]


def path_with(module: str, folder: Path, *requirements: str) -> str:
    """Return a PYTHONPATH with a module; its requirements are installed into `folder` unless it can be imported."""
    ours = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    if find_spec(module) is not None:
        return ours
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), *requirements]
    subprocess.run(command, cwd=ROOT, check=True)
    return os.pathsep.join([ours, str(folder)])
