"""Imported at Python's start-up if `held_environment` put this folder on PYTHONPATH.

Servers generate nothing while the file in `HELD_GENERATION_FILE` exists. A supervisor waits for silent replicas until
a file of that name with the suffix `-silence` exists, and then kills a replica that has left one check unanswered.
"""

import os
import sys
from pathlib import Path

IS_SERVER = "s1_mini.remote.replica" in sys.orig_argv or {"serve"} <= set(sys.orig_argv)

if IS_SERVER and "--replicas" in sys.orig_argv:
    from s1_mini.remote.replica import Replica

    file = Path(os.environ["HELD_GENERATION_FILE"] + "-silence")
    Replica.silent_s = property(lambda _: 4.0 if file.exists() else float("inf"), lambda *_: None)
elif IS_SERVER:
    from held_generation import install_from_environment

    install_from_environment()
