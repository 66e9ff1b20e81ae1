"""Tensor files: read safely whatever they are, refused by name whatever is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.find import Checkpoint
from s1_mini.weights.directory import find_tensors
from s1_mini.weights.files import read_tensors
from s1_mini.weights.fit import fit

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)}


class Trap:
    """Unpickling this would write a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return (open, (str(self.target), "w"))


def same(tensors: dict[str, torch.Tensor]) -> bool:
    return tensors.keys() == TENSORS.keys() and all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_a_pth_is_read_wrapped_or_not_and_in_both_of_torchs_forms(
    wrapper: str | None, zipped: bool, tmp_path: Path
) -> None:
    content = {wrapper: TENSORS, "epoch": 3} if wrapper else TENSORS
    torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)

    assert same(read_tensors(tmp_path / "w.pth"))


def test_sharded_safetensors_are_put_together(tmp_path: Path) -> None:
    for index, name in enumerate(TENSORS):
        save_file({name: TENSORS[name]}, tmp_path / f"model-{index}.safetensors")
    weight_map = {name: f"model-{index}.safetensors" for index, name in enumerate(TENSORS)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    assert same(read_tensors(find_tensors(tmp_path, "model")))


def test_an_index_cannot_reach_outside_its_directory(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../secret.safetensors"}}))

    with pytest.raises(CheckpointFileError, match="not a safetensors file in its folder"):
        read_tensors(tmp_path / "model.safetensors.index.json")


def test_safetensors_win_over_a_pickle_beside_them(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "model.safetensors")
    torch.save({}, tmp_path / "model.pth")

    assert find_tensors(tmp_path, "model").suffix == ".safetensors"


def test_a_foreign_pickle_is_refused_and_nothing_in_it_runs(tmp_path: Path) -> None:
    torch.save({"a": Trap(tmp_path / "written")}, tmp_path / "model.pth")

    with pytest.raises(CheckpointFileError, match=r"model\.pth cannot be read as weights"):
        read_tensors(tmp_path / "model.pth")

    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
@pytest.mark.parametrize("kept", [0, 1, 100, -100])
def test_a_truncated_file_is_refused_by_name(suffix: str, kept: int, tmp_path: Path) -> None:
    path = tmp_path / f"model{suffix}"
    if suffix == ".pth":
        torch.save(TENSORS, path)
    else:
        save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:kept])

    with pytest.raises(CheckpointFileError, match="is it complete"):
        read_tensors(path)


@pytest.mark.parametrize("content", [{}, [1, 2], {"a": 3}, {"a": TENSORS["a.bias"], "b": "text"}])
def test_a_file_without_a_dictionary_of_tensors_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pth")

    with pytest.raises(CheckpointFileError, match="holds"):
        read_tensors(tmp_path / "w.pth")


def test_a_directory_that_is_no_checkpoint_is_told_with_all_that_it_lacks(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "model.pth").touch()
    (tmp_path / "config.json").write_text("{}")

    lacking = r"tokenizer\.tiktoken, special_tokens\.json, codec\.safetensors \(or codec\.pth\)$"
    with pytest.raises(CheckpointFileError, match=f"is no checkpoint: it lacks {lacking}"):
        Checkpoint(tmp_path).check_files()
    assert Checkpoint(tiny).check_files().directory == tiny


def test_a_config_that_is_damaged_is_told_before_what_lacks(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bark"')

    with pytest.raises(CheckpointFileError, match=r"config\.json is not readable JSON"):
        Checkpoint(tmp_path).check_files()


def test_missing_weights_are_named_with_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFileError, match=r"expected one of codec\.safetensors, .*codec\.pth"):
        find_tensors(tmp_path, "codec")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"weight": None}, "weight is missing"),
        ({"extra": torch.ones(1)}, "extra is not part of this architecture"),
        ({"weight": torch.ones(3, 3)}, r"weight \(3, 3\), config says \(2, 3\) is misshapen"),
    ],
)
def test_fitting_is_strict_and_names_the_tensor(change: dict[str, torch.Tensor], complaint: str) -> None:
    tensors = {"weight": torch.ones(2, 3), "bias": torch.ones(2)} | change
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    with torch.device("meta"):
        module = nn.Linear(3, 2)

    with pytest.raises(CheckpointMismatchError, match=complaint):
        fit(module, given, source="model.pth", dtype=torch.float32, device=torch.device("cpu"))


def test_tensors_of_the_right_kind_are_taken_over_without_a_copy() -> None:
    tensors = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}
    with torch.device("meta"):
        module = nn.Linear(3, 2)

    fit(module, tensors, source="model.pth", dtype=torch.float32, device=torch.device("cpu"))

    assert module.weight.data_ptr() == tensors["weight"].data_ptr()
    assert not module.weight.requires_grad
