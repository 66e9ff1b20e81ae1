"""Processes that see the dependencies of a plain install, but none of the extras' packages."""

from __future__ import annotations

import os
from pathlib import Path

from s1_mini.extras import MODULES

# Python runs a `sitecustomize` first: this one hides the extras' packages.
BLIND = """
import sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {names} else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
LACKING = {*(name.partition(".")[0] for names in MODULES.values() for name in names), "botocore", "starlette"}


def plain_environment(folder: Path, *, with_path: bool = True) -> dict[str, str]:
    """Return the variables of such a process; the module that hides the packages is written into `folder`.

    `with_path` keeps `PYTHONPATH`, which may point to a checkout.
    """
    (folder / "sitecustomize.py").write_text(BLIND.format(names=LACKING), encoding="utf-8")
    ours = {name: value for name, value in os.environ.items() if not name.startswith("S1_MINI_")}
    paths = [str(folder), *filter(None, [ours.get("PYTHONPATH") if with_path else None])]
    return ours | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
