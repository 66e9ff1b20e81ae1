"""Named voices in a running engine: added, listed and deleted."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import (
    CapacityError,
    ParameterError,
    ReferenceAudioError,
    TextError,
    VoiceError,
    VoiceExistsError,
    VoiceNotFoundError,
    VoiceReadOnlyError,
)
from s1_mini.types import VoiceInfo
from s1_mini.voices.library import NamedVoice
from s1_mini.voices.registry import VoiceDirectory, VoiceRegistry
from tests.voices.conftest import make_voice, settled
from voice_formats import voice_format
from waiting import wait_until


def engine_of(checkpoint: Path, **settings: Any) -> ProductionTTSEngine:
    return ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu", **settings))


def speak(engine: ProductionTTSEngine, voice: str) -> np.ndarray:
    audio = engine.generate("Hello.", voice=voice, seed=1, max_new_tokens=6).audio
    assert audio is not None
    return audio


def test_an_added_voice_speaks_as_its_reference_does(tiny: Path, tone: np.ndarray) -> None:
    with engine_of(tiny) as engine:
        info = engine.add_voice("mia", tone, "Ah.", description="A tone.")
        given = engine.generate("Hello.", reference_audio=tone, reference_text="Ah.", seed=1, max_new_tokens=6).audio

        assert info == VoiceInfo("mia", "A tone.", False, "added", pytest.approx(1.0, abs=0.05), "Ah.")
        assert engine.voices() == [info]
        assert engine.describe_voice("mia") == info
        assert np.array_equal(speak(engine, "mia"), given)


def test_each_use_of_a_recording_that_is_mostly_silent_warns(tiny: Path, tone: np.ndarray) -> None:
    long = np.concatenate([np.zeros(3 * 44_100, np.float32), tone])
    options: dict[str, Any] = {"reference_audio": long, "reference_text": "Ah.", "max_new_tokens": 4}
    warning = "Of the 4.0 s of the reference, 2.7 s of silence were left out."

    with engine_of(tiny) as engine:
        said = [engine.generate("Hello.", **options).warning for _ in range(2)]  # the second time from the cache
        said += [engine.generate("Hello. [pause 0.1s] You.", text_type="marked", **options).warning]
        said += [engine.add_voice("mia", long, "Ah.").warning]
        info = engine.describe_voice("mia")
        assert (info.warning, engine.generate("Hello.", voice="mia", max_new_tokens=4).warning) == (None, None)

    assert said == [warning] * 4
    assert info.seconds == pytest.approx(1.3, abs=0.05)


def test_a_restart_keeps_what_was_added_to_a_directory_and_nothing_else(
    tiny: Path, folder: Path, tone: np.ndarray
) -> None:
    with engine_of(tiny, voices_path=folder) as engine:
        engine.add_voice("mia", tone, "Ah.")
        before = speak(engine, "mia")
    with engine_of(tiny, voices_path=folder) as engine:
        assert np.array_equal(speak(engine, "mia"), before)

    with engine_of(tiny) as engine:
        engine.add_voice("mia", tone, "Ah.")
        engine.stop()
        engine.start()
        assert engine.voices() == []


def test_the_checkpoints_voices_are_read_only_and_take_precedence(
    voiced: Path, folder: Path, codec: str, tone: np.ndarray
) -> None:
    with engine_of(voiced) as engine:
        own = speak(engine, "anna")
    VoiceDirectory(folder, voice_format(codec)).put(NamedVoice("anna", make_voice(9)), replace=False)

    with engine_of(voiced, voices_path=folder) as engine:
        assert [(info.name, info.source) for info in engine.voices()] == [
            ("anna", "checkpoint"),
            ("bert", "checkpoint"),
        ]
        assert np.array_equal(speak(engine, "anna"), own)
        with pytest.raises(VoiceExistsError, match="'anna' is a voice of the checkpoint"):
            engine.add_voice("anna", tone, "Ah.")
        with pytest.raises(VoiceReadOnlyError, match="'anna' is a voice of the checkpoint and cannot be replaced"):
            engine.add_voice("anna", tone, "Ah.", replace=True)
        with pytest.raises(VoiceReadOnlyError, match="cannot be deleted"):
            engine.delete_voice("anna")


def test_an_unknown_voice_is_reported_with_twenty_available_ones(tiny: Path, folder: Path, codec: str) -> None:
    directory = VoiceDirectory(folder, voice_format(codec))
    for index in range(23):
        directory.put(NamedVoice(f"v{index:02}", make_voice()), replace=False)

    with engine_of(tiny, voices_path=folder) as engine:
        asks: list[Callable[[], object]] = [
            lambda: engine.generate("Hello.", voice="nobody"),
            lambda: engine.describe_voice("nobody"),
            lambda: engine.delete_voice("nobody"),
        ]
        for ask in asks:
            with pytest.raises(VoiceNotFoundError, match=r"available: v00, .*, v19 and 3 more$") as caught:
                ask()
            assert caught.value.code == "voice_not_found"


@pytest.mark.parametrize("name", ["MIA", " mia ", "\tMia\n"])
def test_a_voice_is_found_in_any_case_and_with_blanks_around_its_name(
    tiny: Path, folder: Path, codec: str, name: str
) -> None:
    VoiceDirectory(folder, voice_format(codec)).put(NamedVoice("mia", make_voice(3)), replace=False)
    (folder / "mia.lexicon").write_text("nginx = engine x\n", encoding="utf-8")

    with engine_of(tiny, voices_path=folder) as engine:
        assert np.array_equal(speak(engine, name), speak(engine, "mia"))
        read = engine.generate("nginx", voice=name, max_new_tokens=2).spoken_text
        assert read == engine.generate("nginx", voice="mia", max_new_tokens=2).spoken_text
        assert "engine" in read.lower()
        assert engine.describe_voice(name).name == "mia"
        engine.delete_voice(name)
        assert engine.voices() == []


@pytest.mark.parametrize(
    ("changes", "error", "complaint"),
    [
        ({"name": "../mia"}, VoiceError, "is not a valid name"),
        ({"name": None}, VoiceError, "is not a valid name"),
        ({"reference_audio": b"no audio"}, ReferenceAudioError, "reference_audio: "),
        ({"reference_text": "\x00"}, TextError, "reference_text: "),
        ({"reference_text": ""}, TextError, "reference_text: is empty"),
        ({"description": "x" * 501}, ParameterError, "description: has 501 characters"),
        ({"description": "\x07"}, ParameterError, "description: "),
    ],
)
def test_an_invalid_voice_is_refused_by_field_and_leaves_nothing(
    changes: dict[str, Any], error: type[Exception], complaint: str, engine: ProductionTTSEngine, tone: np.ndarray
) -> None:
    given = {"name": "mia", "reference_audio": tone, "reference_text": "Ah.", "description": ""} | changes

    with pytest.raises(error, match=complaint):
        engine.add_voice(**given)

    assert engine.voices() == []
    assert engine.add_voice("mia", tone, "Ah.").name == "mia"
    engine.delete_voice("mia")


def test_a_voice_that_leaves_no_room_in_a_slot_is_refused_when_it_is_added(tiny: Path, tone: np.ndarray) -> None:
    with engine_of(tiny, max_columns=64) as engine:
        with pytest.raises(CapacityError, match="use a shorter reference"):
            engine.add_voice("mia", np.tile(tone, 4), "Ah.")
        assert engine.voices() == []


def test_of_two_threads_that_add_a_name_one_wins_and_only_one_encodes(
    tiny: Path, folder: Path, tone: np.ndarray
) -> None:
    outcomes: list[str] = []
    with engine_of(tiny, voices_path=folder) as engine:

        def add(index: int) -> None:
            try:
                engine.add_voice("mia", np.roll(tone, index), f"Ah {index}.")
                outcomes.append(f"Ah {index}.")
            except VoiceExistsError as error:
                outcomes.append(error.code)

        threads = [threading.Thread(target=add, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(outcomes) == sorted([engine.describe_voice("mia").text, "voice_exists"])
        assert engine.health_check()["reference_cache"]["entries"] == 1


def test_an_engine_loads_recordings_of_a_former_one_in_the_background(
    tiny: Path, tmp_path: Path, tone: np.ndarray
) -> None:
    settings = {"reference_cache_path": tmp_path / "references"}
    with engine_of(tiny, **settings) as engine:
        engine.generate("Hi.", reference_audio=tone, reference_text="Ah.", max_new_tokens=4)

    with engine_of(tiny, **settings) as engine:
        wait_until(lambda: engine.health_check()["reference_cache"]["entries"])
        engine.generate("Hi.", reference_audio=tone, reference_text="Ah.", max_new_tokens=4)

        assert engine.health_check()["reference_cache"]["misses"] == 0


def test_deleting_a_voice_does_not_affect_requests_that_use_it(tiny: Path, folder: Path, tone: np.ndarray) -> None:
    text = "Hello there. " * 5
    with engine_of(tiny, voices_path=folder) as engine:
        engine.add_voice("mia", tone, "Ah.")
        whole = engine.generate(text, voice="mia", seed=1, max_new_tokens=12).audio
        stream = engine.stream(text, voice="mia", seed=1, max_new_tokens=12)
        heard = [next(stream).audio]

        engine.delete_voice("mia")
        heard += [chunk.audio for chunk in stream]

        assert np.array_equal(np.concatenate(heard), whole)
        assert list(folder.iterdir()) == []
        with pytest.raises(VoiceNotFoundError, match="available: none"):
            engine.generate("Hello.", voice="mia")


def test_adding_a_voice_succeeds_although_another_client_deletes_it_at_once(
    tiny: Path, tone: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = VoiceRegistry.add

    def add_and_delete(registry: VoiceRegistry, name: str, *voice: Any, **options: Any) -> VoiceInfo:
        info = add(registry, name, *voice, **options)
        registry.delete(name)
        return info

    monkeypatch.setattr(VoiceRegistry, "add", add_and_delete)
    with engine_of(tiny) as engine:
        assert engine.add_voice("mia", tone, "Ah.").name == "mia"
        assert engine.voices() == []


def test_a_replaced_voice_with_another_transcript_is_another_prompt(tiny: Path, tone: np.ndarray) -> None:
    with engine_of(tiny) as engine:
        engine.add_voice("mia", tone, "Ah.")
        before = speak(engine, "mia")
        with pytest.raises(VoiceExistsError, match="'mia' already exists"):
            engine.add_voice("mia", tone, "Oh.")
        assert np.array_equal(speak(engine, "mia"), before)

        engine.add_voice("mia", tone, "Another transcript, of more words.", replace=True)

        assert not np.array_equal(speak(engine, "mia"), before)
        assert engine.health_check()["reference_cache"]["misses"] == 1


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no FIFOs in folders")
def test_a_transcript_that_is_a_fifo_fails_and_delays_no_other(tiny: Path, folder: Path, tone: np.ndarray) -> None:
    for name in ("mia", "nils"):
        soundfile.write(folder / f"{name}.wav", tone, 44_100)
    os.mkfifo(folder / "mia.txt")
    (folder / "nils.txt").write_text("Ah.", encoding="utf-8")

    with engine_of(tiny, voices_path=folder) as engine:
        output = settled(engine)
        assert [voice.name for voice in engine.voices()] == ["nils"]
        assert "not a regular file" in output["failed"]["mia"]


def test_recordings_in_the_directory_become_voices_and_broken_ones_are_reported(
    tiny: Path, folder: Path, tone: np.ndarray
) -> None:
    soundfile.write(folder / "mia.wav", tone, 44_100)
    (folder / "mia.txt").write_text("Ah.", encoding="utf-8")
    soundfile.write(folder / "nils.flac", tone, 44_100)
    (folder / "olga.mp3").write_bytes(b"no audio")
    (folder / "olga.txt").write_text("Ah.", encoding="utf-8")
    soundfile.write(folder / "Not a name.ogg", tone, 44_100)
    (folder / "Not a name.txt").write_text("Ah.", encoding="utf-8")

    with engine_of(tiny, voices_path=folder) as engine:
        output = settled(engine)
        assert (output["count"], output["added"]) == (1, 1)
        assert sorted(output["failed"]) == ["Not a name", "nils", "olga"]
        assert "nils.txt is missing" in output["failed"]["nils"]
        first = speak(engine, "mia")

    made = (folder / "mia.safetensors").stat()
    with engine_of(tiny, voices_path=folder) as engine:
        settled(engine)
        assert (folder / "mia.safetensors").stat().st_ino == made.st_ino  # it is not encoded again

    (folder / "mia.txt").write_text("Oh.", encoding="utf-8")
    os.utime(folder / "mia.txt", ns=(made.st_mtime_ns + 10**9,) * 2)
    with engine_of(tiny, voices_path=folder) as engine:
        settled(engine)
        assert engine.describe_voice("mia").text == "Oh."
        assert not np.array_equal(speak(engine, "mia"), first)

        engine.delete_voice("mia")
        assert [path.name for path in folder.glob("mia.*")] == []
