"""A corpus on one engine: complete, each text once, the same bytes whatever interrupts the run."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import soundfile

from corpus_room import NUM_TEXTS, SHORT, Local, begin, errors, ids, lines_of, metadata, num_entries, speak, tree
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.corpus.job import fingerprints
from s1_mini.corpus.rows import CorpusError, seed_of
from s1_mini.exceptions import EngineNotReadyError, GenerationError
from waiting import wait_until


def test_every_text_is_spoken_once_as_the_engine_speaks_it_with_the_seed_of_its_id(
    whole: Path, texts: Path, engine: ProductionTTSEngine
) -> None:
    output, given = metadata(whole), lines_of(texts.read_bytes())

    assert ids(output) == ids(given)
    assert [line["text"] for line in output] == [line["text"] for line in given]
    assert [line["file_name"] for line in output] == [f"{number:09}.wav" for number in range(NUM_TEXTS)]
    for number in (0, 7, NUM_TEXTS - 1):
        line, sound = output[number], (whole / f"shards/{number // 3:06}/{number:09}.wav").read_bytes()
        seed = seed_of(f"text-{number}", 0)
        alone = engine.generate(str(given[number]["text"]), seed=seed, max_new_tokens=6, chunk_profile="throughput")
        assert sound == alone.audio_bytes
        assert line["sha256"] == hashlib.sha256(sound).hexdigest()
        assert line["seconds"] == round(alone.audio_seconds, 6)
        assert line["sample_rate"] == soundfile.info(io.BytesIO(sound)).samplerate


def test_the_manifest_lists_every_shard_with_the_hashes_of_its_files(whole: Path) -> None:
    entries = lines_of((whole / "manifest.jsonl").read_bytes())

    assert [entry["shard"] for entry in entries] == [*range(7)]
    assert [entry["texts"] for entry in entries] == [3, 3, 3, 3, 3, 3, 2]
    assert [entry["spoken"] for entry in entries] == [entry["texts"] for entry in entries]
    for entry in entries:
        ((name, sha256),) = entry["files"].items()  # type: ignore[attr-defined]
        assert hashlib.sha256((whole / name).read_bytes()).hexdigest() == sha256
    assert errors(whole) == []


def test_the_engine_has_more_texts_than_slots_until_the_texts_run_out(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: Local
) -> None:
    at_once, most, lock, original = 0, 0, threading.Lock(), ProductionTTSEngine.generate

    def counted(self: ProductionTTSEngine, *arguments: object, **more: object) -> object:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        try:
            return original(self, *arguments, **more)  # type: ignore[arg-type]
        finally:
            with lock:
                at_once -= 1

    monkeypatch.setattr(ProductionTTSEngine, "generate", counted)

    assert local(texts, tmp_path / "out") == 0
    assert most == 8  # four slots on a CPU


def test_a_shard_is_begun_when_all_texts_of_the_previous_one_have_begun(
    texts: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, original, submit = [], ProductionTTSEngine.generate, ThreadPoolExecutor.submit

    def noted(self: ProductionTTSEngine, *arguments: object, **more: object) -> object:
        begun.append(numbers[more["seed"]])
        return original(self, *arguments, **more)  # type: ignore[arg-type]

    def slowly(self: ThreadPoolExecutor, *arguments: Any, **more: Any) -> object:
        time.sleep(0.002)  # as when many threads are started and others run in between
        return submit(self, *arguments, **more)

    numbers: dict[object, int] = {seed_of(f"text-{number}", 0): number for number in range(NUM_TEXTS)}
    monkeypatch.setattr(ProductionTTSEngine, "generate", noted)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", slowly)
    words = (texts, tmp_path / "out", "--local", "--checkpoint", tiny, "--parameters", '{"max_new_tokens": 6}')

    assert speak(monkeypatch, *words, "--shard-size", 10, "--in-flight", 1) == 0
    assert sorted(begun) == [*range(NUM_TEXTS)]
    assert len({number // 10 for number in begun[:10]}) == 1  # of whichever thread was first


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="Windows has no SIGKILL")
def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bytes(
    whole: Path, texts: Path, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, words = tmp_path / "log", ("--local", "--checkpoint", tiny, *SHORT, "--in-flight", 1)
    for attempt in range(9):
        output = tmp_path / f"killed-{attempt}"
        process = begin(texts, output, *words, log=log)
        wait_until(lambda output=output: num_entries(output) > 0, every_s=0.005, process=process, log=log)  # type: ignore[misc]
        process.kill()
        process.wait()
        if num_entries(output) < 7:  # a fast or busy machine may have finished it
            break
    stood = {path: path.stat().st_mtime_ns for path in (output / "manifest").glob("[0-9]*.json")}
    assert 0 < len(stood) < 7

    assert speak(monkeypatch, texts, output, *words) == 0

    assert {path: path.stat().st_mtime_ns for path in stood} == stood
    assert tree(output) == tree(whole)


def test_a_complete_corpus_is_not_synthesized_again(
    whole: Path, texts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], local: Local
) -> None:
    before = tree(whole)
    monkeypatch.setattr(ProductionTTSEngine, "start", lambda _: pytest.fail("an engine was started"))

    assert local(texts, whole) == 0

    assert tree(whole) == before
    assert "20 of 20 texts are already in" in capsys.readouterr().err


def test_a_deleted_shard_is_synthesized_again(whole: Path, texts: Path, tmp_path: Path, local: Local) -> None:
    for name, content in tree(whole).items():
        if not name.startswith("shards/000003/"):
            (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "out" / name).write_bytes(content)

    assert local(texts, tmp_path / "out") == 0

    assert tree(tmp_path / "out") == tree(whole)


def test_bad_lines_are_reported_with_line_id_and_reason_and_the_others_are_synthesized(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], local: Local
) -> None:
    given = [
        b'{"id": "good", "text": "Good."}',
        b"{",
        b"",
        b'{"id": "no text"}',
        b'{"id": "blank", "text": " "}',
        b'{"text": "No id."}',
        b'{"id": 6, "text": "A number is an id.", "seed": 3.0}',
        b'{"id": "seed", "text": "A.", "seed": -1}',
        b'{"id": "hot", "text": "A.", "parameters": {"heat": 1}}',
        b'{"id": "voice", "text": "A.", "voice": "nobody"}',
        b'{"id": "long", "text": "' + b"a" * 21_000 + b'"}',
        b'["a list"]',
        b'{"id": "broken", "text": "\xff"}',
        b'{"id": "empty", "text": ""}',
    ]
    (tmp_path / "texts.jsonl").write_bytes(b"\n".join(given))

    assert local(tmp_path / "texts.jsonl", tmp_path / "out") == 0

    assert ids(metadata(tmp_path / "out")) == ["good", "6"]
    assert metadata(tmp_path / "out")[1]["seed"] == 3
    output = errors(tmp_path / "out")
    assert [(line, name) for line, name, _ in output] == [
        (2, None),
        (4, "no text"),
        (5, "blank"),
        (6, None),
        (8, "seed"),
        (9, "hot"),
        (10, "voice"),
        (11, "long"),
        (12, None),
        (13, None),
        (14, "empty"),
    ]
    expected = ["is not JSON", "text: is missing", "text: is empty", "id: is missing", "seed: -1 is not"]
    expected += ["unknown parameter heat", "nobody", "has 21000 characters", "holds a JSON list"]
    expected += ["is not UTF-8", "text: is empty"]
    for (_, _, reason), part in zip(output, expected, strict=True):
        assert part in str(reason)
    assert "11 lines failed" in capsys.readouterr().err


def test_a_text_that_fails_is_retried_once_and_then_reported(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: Local
) -> None:
    original, failures = ProductionTTSEngine.generate, {"Number 4. Number 4. ": 1, "Number 6. ": 2}

    def failing(self: ProductionTTSEngine, text: str, **more: object) -> object:
        if failures.get(text):
            failures[text] -= 1
            raise GenerationError("numbers are not finite")
        return original(self, text, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(ProductionTTSEngine, "generate", failing)

    assert local(texts, tmp_path / "out") == 0

    assert errors(tmp_path / "out") == [(7, "text-6", "numbers are not finite")]
    assert len(metadata(tmp_path / "out")) == NUM_TEXTS - 1


def test_an_engine_that_dies_ends_the_run_and_blames_no_text(
    whole: Path, texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: Local
) -> None:
    words = (texts, tmp_path / "out")
    original = ProductionTTSEngine.generate

    def dying(self: ProductionTTSEngine, text: str, **more: object) -> object:
        if "10" in text:
            raise EngineNotReadyError("the engine has died")
        return original(self, text, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(ProductionTTSEngine, "generate", dying)
        assert local(*words) == 1
    assert not (tmp_path / "out" / "manifest" / "000003.json").exists()

    assert local(*words) == 0
    assert tree(tmp_path / "out") == tree(whole)


def test_a_missing_voice_is_reported_before_anything_is_synthesized(
    texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], local: Local
) -> None:
    words = (texts, tmp_path / "out", "--voice", "nobody")

    assert local(*words) == 1

    assert "nobody" in capsys.readouterr().err
    assert num_entries(tmp_path / "out") == 0
    assert local(*words[:-2]) == 0  # texts that were never synthesized leave no output


def test_a_corpus_of_only_bad_lines_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str], local: Local) -> None:
    source = tmp_path / "texts.csv"
    source.write_bytes("text\ncaf\xe9\n".encode("latin-1"))

    assert local(source, tmp_path / "out") == 1

    output = capsys.readouterr().err
    assert "all 1 lines failed" in output
    assert "errors.jsonl" in output
    assert [reason for *_, reason in errors(tmp_path / "out")] == ["is not UTF-8: it has the byte 0xe9"]


def test_fail_on_error_exits_with_1_if_any_line_failed_in_this_run_or_an_earlier_one(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, good = tmp_path / "texts.csv", tmp_path / "good.csv"
    source.write_bytes("text\nHello.\ncaf\xe9\n".encode("latin-1"))
    good.write_bytes(b"text\nHello.\n")
    options = ("--local", "--checkpoint", tiny, *SHORT)

    assert speak(monkeypatch, source, tmp_path / "out", *options) == 0
    for _ in range(2):
        assert speak(monkeypatch, source, tmp_path / "out", *options, "--fail-on-error") == 1
        assert f"1 of 2 lines failed; see {tmp_path / 'out'}/errors.jsonl" in capsys.readouterr().err
    assert speak(monkeypatch, good, tmp_path / "good", *options, "--fail-on-error") == 0


def test_a_corpus_depends_only_on_the_voices_that_it_names(tiny: Path, tmp_path: Path) -> None:
    config = EngineConfig(checkpoint_path=shutil.copytree(tiny, tmp_path / "tiny"), voices_path=tmp_path / "voices")
    (tmp_path / "voices").mkdir()
    for name in ("anna", "clara"):
        (tmp_path / f"voices/{name}.safetensors").write_bytes(name.encode())
    before = fingerprints(config, ("anna", "not there"))

    (tmp_path / "voices/clara.safetensors").write_bytes(b"another")
    (tmp_path / "tiny/.cache").mkdir()
    (tmp_path / "tiny/.cache/downloaded").write_text("now")
    after = fingerprints(config, ("anna", "not there"))
    (tmp_path / "voices/anna.safetensors").write_bytes(b"another")
    changed = fingerprints(config, ("anna",))

    assert before == after != changed
    assert set(before["added_voices"]) == {"anna"}


def test_a_voice_that_is_still_a_recording_is_refused_with_a_hint(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "anna.wav").write_bytes(b"")

    with pytest.raises(CorpusError, match=r"'anna' is a recording .* s1-mini voices add anna"):
        fingerprints(EngineConfig(checkpoint_path=tiny, voices_path=tmp_path), ("anna",))


def test_the_progress_bar_shows_audio_per_hour_and_cost_and_changes_no_byte(  # noqa: PLR0917 - fixtures
    whole: Path,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    local: Local,
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "160")

    assert local(texts, tmp_path / "out", "--in-flight", 3, "--price", "3600") == 0

    shown = capsys.readouterr().err
    assert "of 20 texts" in shown
    assert "h of audio per hour, cost" in shown
    assert tree(tmp_path / "out") == tree(whole)


def test_json_of_parameters_is_checked_by_its_option(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = []
    for given in ("{", json.dumps({"heat": 1}), json.dumps({"top_p": 7}), "[]"):
        assert speak(monkeypatch, texts, tmp_path / "out", "--local", "--parameters", given) == 1
        output.append(capsys.readouterr().err)

    assert "--parameters: is not JSON" in output[0]
    assert "--parameters: unknown parameter heat; available: language, instructions, normalize, " in output[1]
    assert "top_p: 7 is not a number in (0, 1]" in output[2]
    assert "--parameters: is a list; give an object" in output[3]
    assert not (tmp_path / "out").exists()
