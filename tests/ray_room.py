"""Ray for tests: from this environment, or installed into a separate folder."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]


def path_with_ray(folder: Path) -> str:
    """Return a PYTHONPATH with Ray, installed into `folder` unless it is there already."""
    ours = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    if find_spec("ray") is not None:
        return ours
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*command, "--requirement", str(ROOT / "requirements-ray.txt")], check=True)
    return os.pathsep.join([ours, str(folder)])
