"""Imported by Python at its start, where `held_environment` put this folder on PYTHONPATH."""

import sys

IS_SERVER = "s1_mini.remote.replica_process" in sys.orig_argv or {"serve"} <= set(sys.orig_argv)

if IS_SERVER and "--replicas" not in sys.orig_argv:  # the supervisor of replicas generates nothing itself
    from held_generation import install_from_environment

    install_from_environment()
