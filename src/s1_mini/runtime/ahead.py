"""Steps for a CPU compiled ahead by numba: before the start where they are kept from before, else meanwhile.

Compiling takes some ten seconds of a core, once on a machine. A process of low priority does it, and keeps what it made
(`kernels/compiled/build.py` says where); it goes on when the engine stops. What begins after that uses it: an utterance
keeps the step that it began with.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from s1_mini.config import EngineConfig
from s1_mini.execution.compiled import Compilable
from s1_mini.execution.stage import Stage
from s1_mini.runtime.loader import Speaker
from s1_mini.types import Choice

logger = logging.getLogger(__name__)

LEAST_BYTES = 2e6  # of weights of a step: with fewer, it is not worth the seconds
MOST_BYTES = 400e6  # with more, a step on several threads by torch may be as fast
LIMIT_S = 600.0
LOOK_S = 0.25

CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from s1_mini.kernels.compiled.ahead import main
sys.exit(main(sys.argv[1:]))
"""

_children: list[subprocess.Popen[bytes]] = []  # those that may still compile: they end by themselves


class AheadCompiler:
    """Has the steps of an engine's stages compiled, and tells under `kernels` how far it is."""

    def __init__(
        self, speaker: Speaker, stages: Sequence[Stage], config: EngineConfig, *, in_background: bool = True
    ) -> None:
        """Begin, as `config` says, and perhaps wait for the end."""
        self._speaker, self._stopped = speaker, threading.Event()
        if speaker.device.value != "cpu":
            return
        reason = _reason_against(speaker.loaded.num_bytes, config)
        if reason is None:
            try:
                work = [each for each in (stage.compilable() for stage in stages) if each is not None]
                self._begin(work, waits=config.compile == "true" or not in_background)
            except Exception as error:
                self._fail(error)
        else:
            speaker.kernels = Choice("torch", reason)

    def close(self) -> None:
        """Take nothing into use any more."""
        self._stopped.set()

    def _begin(self, work: Sequence[Compilable], *, waits: bool) -> None:
        from s1_mini.kernels.compiled.ahead import mark, marker

        if not work:
            self._speaker.kernels = Choice("torch", f"{self._speaker.family} has no step that numba compiles")
            return
        missing = [each for each in work if not marker(each.module, each.formats).exists()]
        if waits or not missing:
            self._use(work, "at the start" if missing else "before, and kept")
            with suppress(OSError):  # what cannot be kept is compiled again at the next start
                for each in missing:
                    mark(each.module, each.formats)
            return
        marker(work[0].module, work[0].formats).parent.mkdir(parents=True, exist_ok=True)  # fails before hope is raised
        self._speaker.kernels = Choice("torch", "until numba has compiled the step, which goes on in the background")
        threading.Thread(target=self._wait, args=(work, missing), name="s1_mini compiler", daemon=True).start()

    def _wait(self, work: Sequence[Compilable], missing: Sequence[Compilable]) -> None:
        from s1_mini.kernels.compiled.ahead import marker

        try:
            for each in missing:
                if not self._compile(each, marker(each.module, each.formats)):
                    return
            self._use(work, "in the background")
        except Exception as error:
            self._fail(error)

    def _compile(self, work: Compilable, marker: Path) -> bool:
        """Wait for a process that compiles; tell whether it came to that. Raises `RuntimeError` if it fails."""
        from s1_mini.kernels.compiled.ahead import CLAIM

        claim = marker.with_suffix(CLAIM)
        if not _takes(claim):
            return self._wait_for_another(marker, claim)
        paths = json.dumps([str(path) for path in sys.path])  # it finds what we find
        priority = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0)  # Windows has it
        with tempfile.TemporaryFile() as told:
            child = subprocess.Popen(  # noqa: S603 - this Python and a module of ours
                [sys.executable, "-c", CHILD, paths, work.module, *work.formats],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
                creationflags=priority,
                start_new_session=True,
            )
            _children.append(child)
            until = time.monotonic() + LIMIT_S
            while child.poll() is None and time.monotonic() < until:
                if self._stopped.wait(LOOK_S):
                    return False
            if child.poll() is None:
                child.kill()
            if child.wait() or not marker.exists():
                claim.unlink(missing_ok=True)
                told.seek(0)
                last = told.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise RuntimeError(last or f"the process that compiles ended with {child.returncode}")
        return True

    def _wait_for_another(self, marker: Path, claim: Path) -> bool:
        """Wait likewise for a process that another engine has begun."""
        until = time.monotonic() + LIMIT_S
        while claim.exists() and time.monotonic() < until:
            if self._stopped.wait(LOOK_S):
                return False
        if not marker.exists():
            raise RuntimeError("the process that compiles for another engine failed")
        return True

    def _use(self, work: Sequence[Compilable], when: str) -> None:
        for each in work:
            each.use()
        names = " and ".join(each.what for each in work)
        choice = self._speaker.kernels = Choice("numba", f"{names}, compiled {when}")
        logger.info("kernels: %s (%s)", choice.value, choice.reason)

    def _fail(self, error: Exception) -> None:
        told = str(error).strip().partition("\n")[0] or type(error).__name__
        logger.warning("numba fails, torch computes: %s", told)
        self._speaker.kernels = Choice("torch", f"numba fails: {told}")


def _takes(claim: Path) -> bool:
    """Take a claim; tell whether nobody has it, or had it and was ended long ago."""
    claim.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileNotFoundError):
        if time.time() - claim.stat().st_mtime > LIMIT_S:
            claim.unlink()
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _reason_against(num_bytes: int, config: EngineConfig) -> str | None:
    """Say why nothing is to be compiled; None if something is."""
    if config.compile == "false" or config.compile_backend not in ("auto", "inductor"):
        return "turned off by S1_MINI_COMPILE or S1_MINI_COMPILE_BACKEND"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed; torch computes the same, in many small calls"
    if config.compile == "true":
        return None
    if num_bytes < LEAST_BYTES:
        return "so small a model is not worth compiling for; S1_MINI_COMPILE=true overrides"
    if num_bytes > MOST_BYTES:
        return "compiled steps use one core, and so large a model wants all; S1_MINI_COMPILE=true overrides"
    return None
