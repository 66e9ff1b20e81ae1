"""A third family, unlike S1 in every respect, needs no change outside its package except its registration."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

from consistency import assert_consistent
from container_room import running
from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import CheckpointMismatchError, ReferenceAudioError
from s1_mini.families import registry
from tests.toy.family import NAME, VOICES, LoadedToy, Toy
from tests.toy.stages import SAMPLE_RATE, SAMPLES

TEXT = "One sentence. " * 30


def test_it_speaks_in_its_voices(engine: ProductionTTSEngine) -> None:
    low, high, default = (engine.generate("Hello.", voice=voice, seed=1) for voice in (*VOICES, None))

    assert engine.sample_rate == SAMPLE_RATE
    assert len(low.audio) == low.frames * SAMPLES
    assert not np.array_equal(low.audio, high.audio)
    assert np.array_equal(low.audio, default.audio)


def test_a_batch_sounds_as_one_by_one_and_a_stream_as_the_whole(engine: ProductionTTSEngine) -> None:
    assert_consistent(engine, ["One.", "Two of them.", TEXT, "The last one."], seed=3, max_new_tokens=40)


def test_a_text_is_split_at_what_the_model_reads_at_once(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe, prompt, pieces = Toy.describe, LoadedToy.prompt, []
    monkeypatch.setattr(Toy, "describe", lambda self, path: replace(describe(self, path), max_piece_bytes=20))
    monkeypatch.setattr(LoadedToy, "prompt", lambda self, text, *more: pieces.append(text) or prompt(self, text, *more))
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")) as engine:
        engine.generate("One sentence. And another one.", seed=1, max_new_tokens=10)

    assert pieces[-2:] == ["One sentence.", "And another one."]


def test_a_recording_becomes_a_voice_and_is_kept(checkpoint: Path, tmp_path: Path) -> None:
    tone = np.sin(np.linspace(0, 2000, 2 * SAMPLE_RATE)).astype(np.float32) / 2
    config = EngineConfig(checkpoint_path=checkpoint, device="cpu", voices_path=tmp_path / "voices")
    with ProductionTTSEngine(config) as engine:
        heard = engine.generate("Hello.", reference_audio=tone, seed=1).audio
        engine.add_voice("mine", tone, "Aah.")
    with ProductionTTSEngine(config) as engine:
        kept = engine.generate("Hello.", voice="mine", seed=1).audio

    assert np.array_equal(heard, kept)


def test_it_is_served_over_http_and_sagemaker(engine: ProductionTTSEngine, tmp_path: Path) -> None:
    expected = engine.generate("Hello there.", seed=5, voice="high").audio
    with running(engine, tmp_path) as container, container.http() as client:
        body = {"text": "Hello there.", "seed": 5, "voice": "high", "format": "wav"}
        answers = [client.post(path, json=body) for path in ("/v1/tts", "/invocations")]

    for answer in answers:
        assert answer.status_code == 200
        wave, rate = soundfile.read(io.BytesIO(answer.content), dtype="float32")
        assert rate == SAMPLE_RATE
        assert np.abs(wave - expected).max() < 1e-3


def test_it_is_written_packaged_and_planned_by_the_commands(checkpoint: Path, tmp_path: Path) -> None:
    from s1_mini.cli.app import app

    commands = (
        ["package", "--checkpoint", str(checkpoint), "-o", str(tmp_path / "model.tar.gz")],
        ["convert", "--checkpoint", str(checkpoint), "-o", str(tmp_path / "compact")],
        ["plan", "--checkpoint", str(checkpoint), "--gpu", "l4", "--json"],
    )
    output = [CliRunner().invoke(app, command) for command in commands]

    assert [result.exit_code for result in output] == [0, 0, 0], [result.output for result in output]
    assert (tmp_path / "model.tar.gz").stat().st_size > 0
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tmp_path / "compact", device="cpu")) as engine:
        assert engine.voice_names() == sorted(VOICES)
    plan = json.loads(output[2].stdout)
    assert plan


def test_without_the_registration_it_is_an_unknown_family(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registry.FAMILIES, NAME)

    with pytest.raises(CheckpointMismatchError, match=r"model_type must be one of .*, not 'toy'"):
        ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")).start()


def test_a_voice_file_of_its_own_is_a_voice_and_a_wrong_one_is_refused(engine: ProductionTTSEngine) -> None:
    def file(vector: np.ndarray) -> bytes:
        written = io.BytesIO()
        np.save(written, vector)
        return written.getvalue()

    engine.add_voice("mine", file(np.full(8, 0.3, np.float32)), "")

    assert np.array_equal(
        engine.generate("Hi.", voice="mine", seed=1).audio, engine.generate("Hi.", voice="high", seed=1).audio
    )
    with pytest.raises(ReferenceAudioError, match=r"its tensor speaker is torch.float32 \[9\]; expected floats \[8\]"):
        engine.add_voice("other", file(np.zeros(9, np.float32)), "")
