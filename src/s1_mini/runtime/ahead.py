"""Compile the steps of a CPU engine with numba in the background, or load them at the start if they are cached.

Compiling takes about ten seconds on one core, once per machine. A process with low priority compiles and caches the
result (see `kernels/compiled/build.py`); the process continues even if the engine stops. A lock file keeps several
engines from compiling at the same time. An utterance is computed by the same code, compiled or torch, from start to
end.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from s1_mini.config import EngineConfig
from s1_mini.remote.child import Child, python
from s1_mini.runtime.compiled import Compilable
from s1_mini.runtime.loader import LoadedCheckpoint, first_line
from s1_mini.runtime.process import num_cores
from s1_mini.runtime.runner import attempt
from s1_mini.runtime.stage import Stage
from s1_mini.types import Choice

logger = logging.getLogger(__name__)

LEAST_BYTES = 2e6  # weights of a step; for smaller weights, compiling is not worth the time
MOST_BYTES = 400e6  # weights of a step; on more than `FEW_CORES`, torch computes larger models about as fast
FEW_CORES = 4  # Qwen3-TTS 0.6B: a compiled frame takes a third of the CPU time of torch's, but only one core
LIMIT_S = 600.0  # timeout of the compiler process
POLL_INTERVAL_S = 0.25  # poll interval while the compiler process runs

CHILD = """
from s1_mini.kernels.compiled.ahead import main
sys.exit(main(json.loads(sys.argv[1])))
"""


class AheadCompiler:
    """Compiles the steps of an engine's stages. `kernels` of the loaded checkpoint says what is in use, and why."""

    def __init__(
        self, speaker: LoadedCheckpoint, stages: Sequence[Stage], config: EngineConfig, *, in_background: bool = True
    ) -> None:
        """Start to compile, unless `config` disables that. With `compile="true"`, wait until all is compiled."""
        self._speaker, self._stopped = speaker, threading.Event()
        self._thread: threading.Thread | None = None
        if speaker.device.value != "cpu":
            return
        reason = _reason_against(speaker.loaded.num_bytes, config)
        if reason is None:
            waits = config.compile == "true" or not in_background
            attempt(lambda: self._begin(stages, waits=waits), self._fail)
        else:
            self._choose("torch", reason)

    def close(self) -> None:
        """Stop waiting for the compiler process; steps that it compiles from now on are not activated."""
        self._stopped.set()
        # Join, because the engine's process would abort if a thread released tensors while the interpreter shuts down.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _begin(self, stages: Sequence[Stage], *, waits: bool) -> None:
        from s1_mini.kernels.compiled.build import marker, remove_unused

        work = [each for each in (stage.compilable() for stage in stages) if each is not None]
        if not work:
            self._choose("torch", f"numba supports no step of {self._speaker.family}")
            return
        remove_unused()
        try:
            missing = {path: each for each in work if not (path := marker(each.module, each.formats)).exists()}
        except OSError:  # there is no cache: compile at each start, if the caller waits for it
            if not waits:
                raise
            self._use(work, "at the start")
            return
        if waits or not missing:
            if self._use(work, "at the start" if missing else "earlier, and cached"):
                with suppress(OSError):  # without a marker file, the next start compiles again
                    for path in missing:
                        path.touch()
            return
        if getattr(sys, "frozen", False) or not sys.executable:
            raise RuntimeError(
                "background compilation needs a Python interpreter; set S1_MINI_COMPILE=true to compile at startup"
            )
        self._speaker.kernels = Choice("torch", "numba is still compiling the step in the background")
        self._thread = threading.Thread(target=self._wait, args=(work, missing), name="s1_mini compiler", daemon=True)
        self._thread.start()

    def _wait(self, work: Sequence[Compilable], missing: Mapping[Path, Compilable]) -> None:
        if attempt(lambda: self._compile(missing), self._fail):
            self._use(work, "in the background")

    def _compile(self, missing: Mapping[Path, Compilable]) -> bool:
        """Compile in a child process; return False if the engine stops first. Raises `RuntimeError` if it fails."""
        parts = json.dumps([(each.module, list(each.formats), str(path)) for path, each in missing.items()])
        child = Child(python(CHILD, parts), name="compiler")
        child.logs, child.flags = True, getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0)
        child.launch()
        while not child.has_exited.wait(POLL_INTERVAL_S):
            if self._stopped.is_set():
                return False  # the child continues
            if time.monotonic() - child.began > LIMIT_S:
                child.kill(f"it took longer than {LIMIT_S:g} s")
        if code := child.returncode:
            last = next(filter(None, reversed(child.lines)), "")
            raise RuntimeError(child.verdict or last or f"the compiler process ended with exit code {code}")
        return not self._stopped.is_set()

    def _use(self, work: Sequence[Compilable], when: str) -> bool:
        """Activate the compiled steps, until one fails; return whether all are active."""
        used: list[str] = []

        def use_all() -> bool:
            for each in work:
                each.use()
                used.append(each.what)
            return True

        if not attempt(use_all, lambda error: self._fail(error, used)):
            return False
        self._choose("numba", f"{' and '.join(used)}, compiled {when}")
        return True

    def _choose(self, value: str, reason: str) -> None:
        self._speaker.kernels = Choice(value, reason)
        logger.info("kernels: %s (%s)", value, reason)

    def _fail(self, error: Exception, used: Sequence[str] = ()) -> None:
        reason = first_line(error)
        if used:
            logger.warning(
                "numba runs %s; the other steps run on torch because numba failed: %s", " and ".join(used), reason
            )
            self._speaker.kernels = Choice(
                "numba", f"{' and '.join(used)}; the rest by torch because numba failed: {reason}"
            )
        else:
            logger.warning("numba failed, using torch: %s", reason)
            self._speaker.kernels = Choice("torch", f"numba failed: {reason}")


def _reason_against(num_bytes: int, config: EngineConfig) -> str | None:
    if config.compile == "false" or config.compile_backend not in ("auto", "inductor"):
        return "disabled by S1_MINI_COMPILE or S1_MINI_COMPILE_BACKEND"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed; torch is slower because of many small calls"
    if config.compile == "true":
        return None
    if num_bytes < LEAST_BYTES:
        return "the model is too small to be worth compiling; S1_MINI_COMPILE=true overrides"
    if num_bytes > MOST_BYTES and num_cores() > FEW_CORES:
        return "compiled steps use one core, but a model this large needs all cores; S1_MINI_COMPILE=true overrides"
    return None
