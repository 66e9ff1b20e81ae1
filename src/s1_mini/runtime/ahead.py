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
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from s1_mini.config import EngineConfig
from s1_mini.runtime.compiled import Compilable
from s1_mini.runtime.loader import Speaker
from s1_mini.runtime.stage import Stage
from s1_mini.types import Choice

logger = logging.getLogger(__name__)

LEAST_BYTES = 2e6  # of weights of a step: with fewer, it is not worth the seconds
MOST_BYTES = 400e6  # with more, a step on several threads by torch may be as fast
LIMIT_S = 600.0
LOOK_S = 0.25
STALE_S = 60.0  # after which a claim is nobody's: who compiles renews it every few seconds

CHILD = """
import json, sys
sys.path[:] = json.loads(sys.argv.pop(1))
from s1_mini.kernels.compiled.ahead import main
sys.exit(main(json.loads(sys.argv.pop(1))))
"""


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
        from s1_mini.kernels.compiled.ahead import is_kept, mark, marker
        from s1_mini.kernels.compiled.build import make_folder, remove_unused

        if not work:
            self._speaker.kernels = Choice("torch", f"{self._speaker.family} has no step that numba compiles")
            return
        remove_unused()
        missing = [each for each in work if not is_kept(each.module, each.formats)]
        if waits or not missing:
            if self._use(work, "at the start" if missing else "before, and kept"):
                with suppress(OSError):  # what cannot be kept is compiled again at the next start
                    for each in missing:
                        mark(each.module, each.formats)
            return
        make_folder(marker(work[0].module, work[0].formats).parent)  # fails before hope is raised
        if getattr(sys, "frozen", False) or not sys.executable:
            raise RuntimeError("this program has no Python to compile with; S1_MINI_COMPILE=true compiles at the start")
        self._speaker.kernels = Choice("torch", "until numba has compiled the step, which goes on in the background")
        threading.Thread(target=self._wait, args=(work, missing), name="s1_mini compiler", daemon=True).start()

    def _wait(self, work: Sequence[Compilable], missing: Sequence[Compilable]) -> None:
        from s1_mini.kernels.compiled.ahead import marker

        try:
            if self._compile({marker(each.module, each.formats): each for each in missing}):
                self._use(work, "in the background")
        except Exception as error:
            self._fail(error)

    def _compile(self, work: Mapping[Path, Compilable]) -> bool:
        """Wait until all is compiled, which leaves these markers; tell whether it came to that.

        One process compiles what no other engine's does, and goes on when this engine stops. Raises `RuntimeError` if
        it fails.
        """
        from s1_mini.kernels.compiled.ahead import CLAIM

        until = time.monotonic() + LIMIT_S
        while left := [marker for marker in work if not marker.exists()]:
            mine: dict[Path, Compilable] = {}
            try:
                for marker in left:
                    if _takes(marker.with_suffix(CLAIM)):
                        mine[marker] = work[marker]
                if mine and not self._compile_apart(mine, until):
                    return False
            except BaseException:
                for marker in mine:
                    marker.with_suffix(CLAIM).unlink(missing_ok=True)
                raise
            if not mine and self._stopped.wait(LOOK_S):
                return False
            if not mine and time.monotonic() > until:
                raise RuntimeError("the process that compiles for another engine takes too long")
        return not self._stopped.is_set()

    def _compile_apart(self, work: Mapping[Path, Compilable], until: float) -> bool:
        """Compile in a process; tell whether it ended before the engine did. Raises `RuntimeError` if it fails."""
        parts = json.dumps([(each.module, list(each.formats)) for each in work.values()])
        paths = json.dumps([str(path) for path in sys.path])  # it finds what we find, and nothing beside
        # of Windows: neither a window, nor the Ctrl-C that is meant for the engine
        flags = getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0) | getattr(subprocess, "CREATE_NO_WINDOW", 0)
        with tempfile.TemporaryFile() as told:
            child = subprocess.Popen(  # noqa: S603 - this Python and a module of ours
                [sys.executable, "-P", "-c", CHILD, paths, parts],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=told,
                creationflags=flags,
                start_new_session=True,
            )
            while child.poll() is None and time.monotonic() < until:
                if self._stopped.wait(LOOK_S):
                    # It goes on. Somebody must wait for it all the same, or it stays as a zombie when it has ended.
                    threading.Thread(target=child.wait, name="s1_mini compiler's end", daemon=True).start()
                    return False
            if child.poll() is None:
                child.kill()
            if child.wait() or not all(marker.exists() for marker in work):
                told.seek(0)
                last = told.read().decode(errors="replace").strip().rpartition("\n")[2]
                raise RuntimeError(last or f"the process that compiles ended with {child.returncode}")
        return True

    def _use(self, work: Sequence[Compilable], when: str) -> bool:
        """Take what is compiled into use, up to the first that fails; tell whether none did."""
        used: list[str] = []
        try:
            for each in work:
                each.use()
                used.append(each.what)
        except Exception as error:
            self._fail(error, used)
            return False
        choice = self._speaker.kernels = Choice("numba", f"{' and '.join(used)}, compiled {when}")
        logger.info("kernels: %s (%s)", choice.value, choice.reason)
        return True

    def _fail(self, error: Exception, used: Sequence[str] = ()) -> None:
        told = str(error).strip().partition("\n")[0] or type(error).__name__
        if used:
            logger.warning("numba makes %s; it fails at more, which torch computes: %s", " and ".join(used), told)
            self._speaker.kernels = Choice("numba", f"{' and '.join(used)}; the rest by torch, numba fails: {told}")
            return
        logger.warning("numba fails, torch computes: %s", told)
        self._speaker.kernels = Choice("torch", f"numba fails: {told}")


def _takes(claim: Path) -> bool:
    """Take a claim; tell whether nobody has it, or had it and was ended before it could let go."""
    from s1_mini.kernels.compiled.build import make_folder

    make_folder(claim.parent)
    with suppress(FileNotFoundError):
        if time.time() - claim.stat().st_mtime > STALE_S:
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
