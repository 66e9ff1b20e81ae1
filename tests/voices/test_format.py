"""A voice may consist of any tensors that its family defines: codes, a speaker vector, a history of several arrays."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from s1_mini.exceptions import CheckpointFileError, VoiceFileError
from s1_mini.types import Voice
from s1_mini.voices.format import TensorFormat, VoiceFormat
from s1_mini.voices.library import CheckpointVoices, read_summary, read_voice, write_voice
from s1_mini.voices.reference_cache import ReferenceStore
from voice_formats import BOOKS

VECTOR = VoiceFormat({"speaker": TensorFormat((512,), is_integer=False)}, "an encoder", 16_000, seconds=lambda _: 0.0)
HISTORY = VoiceFormat(
    {
        "semantic": TensorFormat((None,), is_integer=True),
        "coarse": TensorFormat((2, None), is_integer=True),
        "fine": TensorFormat((8, None), is_integer=True),
    },
    "an encoder",
    24_000,
    seconds=lambda shapes: shapes["fine"][1] / 75,
)
VOICES = {
    "vector": (VECTOR, {"speaker": torch.randn(512, generator=torch.Generator().manual_seed(0))}, 0.0),
    "history": (
        HISTORY,
        {"semantic": torch.arange(9000, 9010), "coarse": torch.ones(2, 15).long(), "fine": torch.ones(8, 15).long()},
        0.2,
    ),
    "large integers": (HISTORY, {"semantic": torch.tensor([2**40]), "coarse": torch.ones(2, 3).long()}, 0.04),
}
VOICES["large integers"][1]["fine"] = torch.full((8, 3), 2**20)


@pytest.mark.parametrize("kind", VOICES)
def test_a_voice_of_any_tensors_comes_back_from_its_file_and_from_the_cache(kind: str, tmp_path: Path) -> None:
    form, tensors, seconds = VOICES[kind]
    path = write_voice(tmp_path, "anna", Voice(tensors, "Hello."), encoder="an encoder")
    ReferenceStore(tmp_path, form, 10**6).write("key", Voice(tensors, ""))

    read, cached = read_voice(path, form).voice.tensors, ReferenceStore(tmp_path, form, 10**6).read("key")

    assert cached is not None
    for again in (read, cached.tensors):
        assert {name: tensor.dtype for name, tensor in again.items()} == {n: t.dtype for n, t in tensors.items()}
        assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert read_summary(path, form).seconds == pytest.approx(seconds)


def test_codes_are_kept_in_two_bytes_as_they_always_were(tmp_path: Path) -> None:
    path = write_voice(tmp_path, "anna", Voice({"codes": torch.full((BOOKS, 4), 1023)}, "Hello."))

    assert load_file(path)["codes"].dtype == torch.int16


def test_invalid_values_are_refused_when_a_voice_is_read(tmp_path: Path) -> None:
    form = replace(VECTOR, fault=lambda tensors: "" if tensors["speaker"].isfinite().all() else "is not finite")
    path = write_voice(tmp_path, "anna", Voice({"speaker": torch.full((512,), torch.inf)}, ""), is_default=True)
    library = CheckpointVoices(tmp_path, {"anna": path}, form, {})

    with pytest.raises(CheckpointFileError, match=r"anna\.safetensors is not a valid voice file: it is not finite"):
        read_voice(path, form)
    with pytest.raises(VoiceFileError, match="'anna' cannot be used"):
        _ = library.default


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        ({"speaker": torch.zeros(256)}, r"its tensor speaker is F32 \[256\]; expected floats \[512\]"),
        ({"speaker": torch.zeros(512).long()}, r"its tensor speaker is I64 \[512\]; expected floats \[512\]"),
        ({"codes": torch.zeros(BOOKS, 4).long()}, "speaker"),
    ],
)
def test_tensors_of_another_kind_are_refused_by_name(
    tensors: dict[str, torch.Tensor], told: str, tmp_path: Path
) -> None:
    save_file(tensors, tmp_path / "anna.safetensors")

    for read in (read_voice, read_summary):
        with pytest.raises(CheckpointFileError, match=rf"anna\.safetensors is not a valid voice file: .*{told}"):
            read(tmp_path / "anna.safetensors", VECTOR)
