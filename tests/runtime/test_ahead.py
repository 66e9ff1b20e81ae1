"""Steps are compiled in the background; if anything goes wrong, only speed suffers."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from s1_mini import ProductionTTSEngine
from s1_mini.config import EngineConfig
from s1_mini.runtime import ahead
from s1_mini.runtime.ahead import AheadCompiler
from s1_mini.runtime.compiled import Compilable
from s1_mini.runtime.loader import load
from s1_mini.runtime.synthesizer import Synthesizer
from s1_mini.types import Choice
from waiting import EVENTUALLY_S, wait_until

pytest.importorskip("numba", reason="numba has no wheels for this platform")

BEGUN: list[AheadCompiler] = []  # in the running test


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Return a function that writes an importable module to compile; compiled code is cached in a temporary folder."""

    def write(body: str) -> str:
        (tmp_path / "to_compile.py").write_text(f"def compile_for(formats):\n    {body}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kept"))
        return "to_compile"

    return write


@pytest.fixture
def work(module: Callable[[str], str]) -> Compilable:
    return Compilable("steps", module("pass"), [], lambda: None)


def compiler(*work: Compilable | None, num_bytes: float = 1e7, **settings: Any) -> tuple[AheadCompiler, Any]:
    speaker = SimpleNamespace(
        device=Choice("cpu", ""), kernels=Choice("torch", ""), family="Toy", loaded=SimpleNamespace(num_bytes=num_bytes)
    )
    stages = [SimpleNamespace(compilable=lambda each=each: each) for each in work]
    BEGUN.append(AheadCompiler(speaker, stages, EngineConfig(**settings)))  # type: ignore[arg-type]
    return BEGUN[-1], speaker


@pytest.fixture(autouse=True)
def end_compiler_threads() -> Iterator[None]:
    """A thread that outlives its test would look for the test's module, and log its failure into the next test."""
    yield
    while BEGUN:
        BEGUN.pop().close()
    for thread in threading.enumerate():
        if thread.name == "s1_mini compiler":
            thread.join(EVENTUALLY_S)


def test_code_compiled_in_the_background_is_used_and_reused_at_the_next_start(module: Callable[[str], str]) -> None:
    used: list[bool] = []
    work = Compilable("steps", module("assert formats == ['int8']"), ["int8"], lambda: used.append(True))

    _, first = compiler(work)
    before = first.kernels.value
    wait_until(lambda: first.kernels.value == "numba")
    _, second = compiler(work)

    assert before == "torch"
    assert second.kernels == Choice("numba", "steps, compiled earlier, and cached")
    assert len(used) == 2


@pytest.mark.parametrize(("settings", "logged"), [({}, "numba"), ({"compile": "false"}, "torch")])
def test_the_start_on_a_cpu_logs_the_kernels_once_when_they_are_chosen(
    tiny: Path, work: Compilable, caplog: pytest.LogCaptureFixture, settings: dict[str, str], logged: str
) -> None:
    caplog.set_level(logging.INFO, "s1_mini")

    load(EngineConfig(checkpoint_path=tiny, device="cpu", **settings))
    _, speaker = compiler(work, **settings)
    wait_until(lambda: speaker.kernels.value == logged)
    BEGUN[-1].close()

    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("kernels: ")]
    assert [line.split()[1] for line in lines] == [logged]


def test_one_of_several_starting_engines_compiles_for_all(module: Callable[[str], str], tmp_path: Path) -> None:
    body = f"import time; time.sleep(0.5); open({str(tmp_path / 'times')!r}, 'a').write('once ')"
    work = Compilable("steps", module(body), [], lambda: None)

    speakers = [compiler(work)[1] for _ in range(3)]

    wait_until(lambda: all(speaker.kernels.value == "numba" for speaker in speakers))
    assert (tmp_path / "times").read_text() == "once "


def test_a_killed_process_does_not_block_compilation(work: Compilable) -> None:
    from s1_mini.kernels.compiled.build import marker

    hold = """if True:
        import filelock, sys
        with filelock.FileLock(sys.argv[1]):
            print("held", flush=True)
            sys.stdin.read()"""
    lock = f"{marker(work.module, work.formats)}.lock"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", hold, lock], **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline()
        _, speaker = compiler(work)
        time.sleep(0.5)
        waited = speaker.kernels.value
        other.kill()

    assert waited == "torch"
    wait_until(lambda: speaker.kernels.value == "numba")


def test_code_compiled_by_another_installation_is_not_reused(work: Compilable, tmp_path: Path) -> None:
    _, first = compiler(work)
    wait_until(lambda: first.kernels.value == "numba")

    os.utime(tmp_path / "to_compile.py", (0, 0))
    _, second = compiler(work)

    assert "still compiling" in second.kernels.reason
    wait_until(lambda: second.kernels.value == "numba")


def test_modules_in_the_working_directory_are_not_imported(
    work: Compilable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "json.py").write_text("raise OSError('not mine')")
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])

    _, speaker = compiler(work)

    wait_until(lambda: speaker.kernels.value == "numba" or "fails" in speaker.kernels.reason)
    assert speaker.kernels.value == "numba"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no zombies")
def test_the_process_of_an_engine_that_stopped_goes_on_and_leaves_no_zombie(
    module: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[int] = []

    class Watched(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            super().__init__(*arguments, **keywords)
            begun.append(self.pid)

    def is_gone() -> bool:
        try:
            os.kill(begun[0], 0)
        except ProcessLookupError:
            return True
        return False

    monkeypatch.setattr(ahead.subprocess, "Popen", Watched)
    work = Compilable("steps", module(f"open({str(tmp_path / 'done')!r}, 'w')"), [], lambda: None)

    engine, _ = compiler(work)
    wait_until(lambda: bool(begun))
    engine.close()

    wait_until(is_gone)
    assert (tmp_path / "done").exists()


def test_compilation_that_outlives_its_engine_is_complete_for_the_next_one(
    module: Callable[[str], str], tmp_path: Path
) -> None:
    from s1_mini.kernels.compiled.build import marker

    name = module(f"import time; open({str(tmp_path / 'begun')!r}, 'w'); time.sleep(0.5)")
    parts = [Compilable(what, name, [what], lambda: None) for what in ("frames", "the codec")]

    engine, _ = compiler(*parts)
    wait_until((tmp_path / "begun").exists)
    engine.close()

    wait_until(lambda: all(marker(part.module, part.formats).exists() for part in parts))
    assert compiler(*parts)[1].kernels == Choice("numba", "frames and the codec, compiled earlier, and cached")


def test_an_engine_whose_warm_up_fails_leaves_no_thread_waiting_for_the_compiler(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Synthesizer) -> None:
        raise RuntimeError("no words")

    closed: list[bool] = []
    monkeypatch.setattr(Synthesizer, "_warm_up", fail)
    monkeypatch.setattr(AheadCompiler, "close", lambda _: closed.append(True))

    with pytest.raises(RuntimeError, match="no words"):
        ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu")).start()

    assert closed


def test_files_that_other_users_can_write_are_not_executed(work: Compilable, tmp_path: Path) -> None:
    if not hasattr(os, "geteuid"):
        pytest.skip("folders of Windows take their rights from the user's own")
    _, first = compiler(work)
    wait_until(lambda: first.kernels.value == "numba")

    next((tmp_path / "kept").iterdir()).chmod(0o777)
    _, second = compiler(work)

    assert second.kernels.value == "torch"
    assert "set S1_MINI_COMPILE_CACHE_PATH to a folder that only this user can write to" in second.kernels.reason


def test_cache_folders_unused_for_a_month_are_removed_at_a_start(work: Compilable, tmp_path: Path) -> None:
    from s1_mini.kernels.compiled import build

    build.in_order(_itself)
    used = build.cache_folder(Path(__file__))
    kept = tmp_path / "kept"
    fresh, old, foreign = (kept / f"s1-mini-{name}" for name in ("0123456789abcdef", "fedcba9876543210", "of-somebody"))
    for folder in (fresh, old, foreign):
        (folder / "inside").mkdir(parents=True)
        (folder / "inside" / "file").touch()
    file, link = kept / "s1-mini-0000000000000000", kept / "s1-mini-1111111111111111"
    file.touch()
    if sys.platform != "win32":  # where users may not create links
        link.symlink_to(foreign, target_is_directory=True)
    for path in (used, old, foreign, file):
        os.utime(path, (time.time() - 31 * 86_400,) * 2)
    build.in_order(_itself)

    compiler(work)

    assert not old.exists()
    assert all(path.exists() for path in (used, fresh, foreign / "inside" / "file", file))


def test_without_a_home_folder_code_is_compiled_but_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    from s1_mini.kernels.compiled import build

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in (build.CACHE_VARIABLE, "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    module = "s1_mini.kernels.compiled.layers"

    assert build.in_order(_itself)(2) == 2
    _, waiting = compiler(Compilable("steps", module, [], lambda: None), compile="true")
    assert waiting.kernels.value == "numba"
    _, beside = compiler(Compilable("steps", module, [], lambda: None))
    assert "set S1_MINI_COMPILE_CACHE_PATH to a folder" in beside.kernels.reason


def _itself(x: int) -> int:
    return x


def test_a_program_without_a_python_of_its_own_is_not_started_again(
    work: Compilable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(ahead.subprocess, "Popen", None)

    _, speaker = compiler(work)

    assert speaker.kernels.value == "torch"
    assert "S1_MINI_COMPILE=true" in speaker.kernels.reason


def test_a_full_disk_is_reported_with_the_folder_and_torch_computes(
    module: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    from s1_mini.kernels.compiled.build import REMEDY, marker

    work = Compilable("steps", module("raise OSError(28, 'no room')"), [], lambda: None)

    with caplog.at_level(logging.WARNING):
        _, speaker = compiler(work)
        wait_until(lambda: "numba failed" in speaker.kernels.reason)

    reason = f"OSError: the compile cache {marker('to_compile', []).parent} cannot be used (no room); {REMEDY}"
    assert speaker.kernels == Choice("torch", f"numba failed: {reason}")
    assert [record.message for record in caplog.records] == [f"numba failed, using torch: {reason}"]


def test_without_a_writable_cache_torch_is_used_and_no_process_is_started(
    work: Compilable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file"))
    monkeypatch.setattr(ahead.subprocess, "Popen", None)

    _, speaker = compiler(work)

    assert speaker.kernels.value == "torch"
    assert "numba failed" in speaker.kernels.reason


def test_unusable_compiled_code_is_reported_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    def use() -> None:
        raise RuntimeError("not the same")

    _, speaker = compiler(Compilable("steps", "s1_mini.kernels.compiled.layers", [], use), compile="true")

    assert speaker.kernels == Choice("torch", "numba failed: not the same")
    assert [record.message for record in caplog.records] == ["numba failed, using torch: not the same"]


def test_partial_compilation_is_reported() -> None:
    def fail() -> None:
        raise RuntimeError("not the same")

    module = "s1_mini.kernels.compiled.layers"
    parts = Compilable("frames", module, [], lambda: None), Compilable("the codec", module, [], fail)

    _, speaker = compiler(*parts, compile="true")

    assert speaker.kernels == Choice("numba", "frames; the rest by torch because numba failed: not the same")


@pytest.mark.parametrize(
    ("settings", "num_bytes", "told"),
    [
        ({"compile": "false"}, 1e7, "disabled by"),
        ({"compile_backend": "eager"}, 1e7, "disabled by"),
        ({}, 1e6, "too small"),
        ({}, 1e9, "a model this large"),
    ],
)
def test_nothing_is_compiled_where_it_is_disabled_or_not_worthwhile(
    settings: dict[str, Any], num_bytes: float, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "num_cores", lambda: 8)
    _, speaker = compiler(None, num_bytes=num_bytes, **settings)

    assert speaker.kernels.value == "torch"
    assert told in speaker.kernels.reason


def test_without_numba_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead.importlib.util, "find_spec", lambda _name: None)

    _, speaker = compiler(None)

    assert speaker.kernels == Choice("torch", "numba is not installed; torch is slower because of many small calls")
