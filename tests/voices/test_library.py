"""Named voices of a checkpoint: loaded, selected by name, never guessed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import ParameterError, VoiceError, VoiceFileError
from s1_mini.types import Voice
from s1_mini.voices.library import FOLDER, CheckpointVoices, write_voice
from voice_formats import BOOKS, voice_format


def test_a_voice_is_read_as_it_was_written(voiced: Path) -> None:
    library = CheckpointVoices.open(voiced, voice_format())

    anna = library.describe("anna")
    assert library.names == ["anna", "bert"]
    assert (anna.voice.text, anna.description, anna.is_default) == ("I am anna.", "made up", True)
    assert anna.voice.tensors["codes"].shape == (BOOKS, 9)
    assert library.default is anna.voice


def test_a_list_has_the_same_details_and_codes_are_read_on_demand(voiced: Path) -> None:
    library, listed = CheckpointVoices.open(voiced, voice_format()), CheckpointVoices.listed(voiced, voice_format())

    assert [listed.summary(name) for name in listed.names] == [library.summary(name) for name in library.names]
    assert torch.equal(listed.describe("anna").voice.tensors["codes"], library.describe("anna").voice.tensors["codes"])
    assert listed.default is listed.describe("anna").voice


def test_the_default_voice_is_used_without_a_name_and_an_unknown_name_lists_the_known_ones(voiced: Path) -> None:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=voiced, device="cpu")) as engine:
        default, anna, bert = (
            engine.generate("Hello.", seed=1, max_new_tokens=6, voice=name).audio for name in (None, "anna", "bert")
        )
        for unknown in ("clara", "../anna", "", "ANNAS"):
            with pytest.raises(VoiceError, match="available: anna, bert"):
                engine.generate("Hello.", voice=unknown)

    assert np.array_equal(default, anna)
    assert not np.array_equal(default, bert)


def test_a_voice_and_a_reference_together_are_refused(engine: ProductionTTSEngine, tone: np.ndarray) -> None:
    with pytest.raises(ParameterError, match="voice: cannot be combined with reference_audio"):
        engine.generate("Hello.", voice="anna", reference_audio=tone)


@pytest.mark.parametrize("name", ["", "Anna", "../up", "a" * 65, "-x", "con.aux", "con", "nul", "lpt1"])
def test_a_name_that_is_not_a_portable_file_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(VoiceError, match="is not a valid name"):
        write_voice(tmp_path, name, Voice({"codes": torch.zeros(BOOKS, 3, dtype=torch.int64)}, ""))

    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_voice_is_reported_without_its_directory(tmp_path: Path) -> None:
    checkpoint = tmp_path / r"back\slash"  # some systems repeat it in the error message
    library = CheckpointVoices(checkpoint, {"bert": checkpoint / FOLDER / "bert.safetensors"}, voice_format(), {})

    with pytest.raises(VoiceFileError, match=r"voices.bert\.safetensors is not a valid voice file: ") as caught:
        library.summary("bert")
    assert tmp_path.name not in str(caught.value)


@pytest.mark.parametrize("damage", [b"no voice", b"\x08" + bytes(7) + b'{"a":{}}'])
def test_a_damaged_voice_is_named_with_advice_and_affects_no_other(
    damage: bytes, voiced: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (voiced / FOLDER / "bert.safetensors").write_bytes(damage)
    output = r"'bert' cannot be used: voices.bert\.safetensors is not a valid voice file: .*; download this file"

    with ProductionTTSEngine(EngineConfig(checkpoint_path=voiced, device="cpu")) as engine:
        assert engine.voice_names() == ["anna", "bert"]
        assert [info.name for info in engine.voices()] == [info.name for info in engine.voices()] == ["anna"]
        assert engine.generate("Hello.", seed=1, max_new_tokens=4).frames == 4
        with pytest.raises(VoiceFileError, match=output):
            engine.generate("Hello.", voice="bert")
        with pytest.raises(VoiceFileError, match=output):
            engine.describe_voice("bert")
        assert list(engine.health_check()["voices"]["failed"]) == ["bert"]

    warned = [record.message for record in caplog.records if "skipping a voice" in record.message]
    assert len(warned) == 1
    assert "'bert' cannot be used" in warned[0]


@pytest.mark.parametrize("tells_default", [False, True])
def test_a_request_without_a_voice_reports_a_damaged_default_with_advice(tells_default: bool, voiced: Path) -> None:
    if tells_default:  # and has codes that are in no codebook
        codes = torch.full((BOOKS, 9), 30_000)
        write_voice(voiced / FOLDER, "anna", Voice({"codes": codes}, "Ah."), is_default=True)
    else:
        (voiced / FOLDER / "anna.safetensors").write_bytes(b"no voice")
    output = r"^voice: is not set, and the default .*'anna' cannot be used: voices.anna\.safetensors .*; download this"

    with ProductionTTSEngine(EngineConfig(checkpoint_path=voiced, device="cpu")) as engine:
        with pytest.raises(VoiceFileError, match=output):
            engine.generate("Hello.")
        assert engine.generate("Hello.", voice="bert", seed=1, max_new_tokens=4).frames == 4
