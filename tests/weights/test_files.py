"""Tensor files of any origin are read safely; faulty ones are refused by name, never misread."""

from __future__ import annotations

import json
import pickle
import shutil
import struct
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.find import Checkpoint
from s1_mini.weights.directory import find_tensors, tensor_bytes
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

    with pytest.raises(CheckpointFileError, match=r"must be a \.safetensors file in the same folder"):
        read_tensors(tmp_path / "model.safetensors.index.json")


def test_safetensors_win_over_a_pickle_next_to_them(tmp_path: Path) -> None:
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

    with pytest.raises(CheckpointFileError, match="may be truncated"):
        read_tensors(path)


@pytest.mark.parametrize("content", [{}, [1, 2], {"a": 3}, {"a": TENSORS["a.bias"], "b": "text"}])
def test_a_file_without_a_dictionary_of_tensors_is_refused(content: object, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "w.pth")

    with pytest.raises(CheckpointFileError, match="contain"):
        read_tensors(tmp_path / "w.pth")


def test_a_directory_that_is_not_a_checkpoint_is_reported_with_everything_missing(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "model.pth").touch()
    (tmp_path / "config.json").write_text("{}")

    lacking = r"tokenizer\.tiktoken, special_tokens\.json, codec\.safetensors \(or codec\.pth\)$"
    with pytest.raises(CheckpointFileError, match=f"is not a complete checkpoint: it lacks {lacking}"):
        Checkpoint(tmp_path).check_files()
    assert Checkpoint(tiny).check_files().directory == tiny


def test_a_damaged_config_is_reported_before_missing_files(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "bark"')

    with pytest.raises(CheckpointFileError, match=r"config\.json is not valid JSON"):
        Checkpoint(tmp_path).check_files()


def test_missing_weights_are_named_with_the_accepted_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointFileError, match=r"expected one of codec\.safetensors, .*codec\.pth"):
        find_tensors(tmp_path, "codec")


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"weight": None}, "weight is missing"),
        ({"extra": torch.ones(1)}, "extra is not part of this architecture"),
        ({"weight": torch.ones(3, 3)}, r"weight \(3, 3\), expected \(2, 3\) is misshapen"),
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


# A `.pth` that was repacked, or that exceeds the limits.

PTH = {
    "zeros": torch.zeros(5000),  # deflating makes it smaller
    "halves": torch.arange(7).half(),
    "noise": torch.randn(300, 5, generator=torch.Generator().manual_seed(1)),
    "turned": torch.arange(12.0).reshape(3, 4).T,
    "empty": torch.empty(0),
}
OLD_HEAD = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.save(PTH, tmp_path / "model.pth")
    return tmp_path / "model.pth"


def pack_again(
    saved: Path, method: int = zipfile.ZIP_STORED, change: Callable[[str, bytes], bytes] = lambda _, content: content
) -> Path:
    """Unpack a file and pack it again, as an ordinary zip program does."""
    again = saved.with_name("again.pth")
    with zipfile.ZipFile(saved) as archive, zipfile.ZipFile(again, "w", method) as target:
        for name in archive.namelist():
            target.writestr(name, change(name, archive.read(name)))
    return again


def assert_same(path: Path) -> None:
    tensors = read_tensors(path)
    assert tensors.keys() == PTH.keys()
    assert all(torch.equal(tensors[name], PTH[name]) for name in PTH)
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in tensors.values())


def test_a_file_packed_again_without_compression_gives_the_same_numbers(saved: Path) -> None:
    assert_same(pack_again(saved))


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_file_packed_again_with_compression_is_refused_with_a_hint(saved: Path, method: int) -> None:
    with pytest.raises(CheckpointFileError, match=r"again\.pth is compressed.* without compression \(zip -0 -r\)"):
        read_tensors(pack_again(saved, method))


def test_following_the_hint_gives_the_same_numbers(saved: Path) -> None:
    compressed = pack_again(saved, zipfile.ZIP_DEFLATED)

    assert_same(pack_again(compressed.replace(saved)))


@pytest.mark.skipif(shutil.which("zip") is None, reason="needs the program zip")
def test_a_file_repacked_by_zip_is_refused_or_unchanged(saved: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved) as archive:
        archive.extractall(tmp_path / "unpacked")
    for name, level in (("small.pth", "-9"), ("plain.pth", "-0")):
        subprocess.run(["zip", "-qr", level, tmp_path / name, "model"], cwd=tmp_path / "unpacked", check=True)

    assert_same(tmp_path / "plain.pth")
    with pytest.raises(CheckpointFileError, match="is compressed"):
        read_tensors(tmp_path / "small.pth")


@pytest.mark.parametrize("length", [8, 20_004, 40_000])
def test_a_record_of_another_length_than_its_tensor_is_refused(saved: Path, length: int) -> None:
    def change(name: str, content: bytes) -> bytes:
        return (content * 2)[:length] if name.endswith("data/0") else content

    with pytest.raises(CheckpointFileError, match=r"is damaged: a tensor is [\d,]+ bytes, but no record has"):
        read_tensors(pack_again(saved, change=change))


def test_a_duplicate_record_is_refused(saved: Path) -> None:
    again = pack_again(saved)
    with zipfile.ZipFile(again, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("model/data/0", bytes(20_000))

    with pytest.raises(CheckpointFileError, match="is damaged: it contains 'model/data/0' twice"):
        read_tensors(again)


@pytest.mark.parametrize("bytes_off", [1, 4, 16, 256])
def test_numbers_that_would_be_read_from_another_place_are_refused(saved: Path, bytes_off: int) -> None:
    """A local header with a wrong length moves the offset at which torch reads; torch checks nothing else."""
    with zipfile.ZipFile(saved) as archive:
        at = archive.getinfo("model/data/0").header_offset + 28
    content = bytearray(saved.read_bytes())
    (length,) = struct.unpack_from("<H", content, at)
    struct.pack_into("<H", content, at, length ^ bytes_off)
    saved.write_bytes(content)

    with pytest.raises(CheckpointFileError, match=r"the offset of .* is wrong"):
        read_tensors(saved)


def with_pickle(saved: Path, steps: bytes, *, zipped: bool = True) -> Path:
    """Return a file with a hand-written pickle."""
    if zipped:
        return pack_again(saved, change=lambda name, content: steps if name.endswith("data.pkl") else content)
    saved.write_bytes(b"".join(pickle.dumps(part, 2) for part in OLD_HEAD) + steps)
    return saved


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("count", [200_000, 5_000_000])
def test_five_megabytes_of_marks_are_refused_before_torch_counts_them(
    saved: Path, zipped: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch takes 3 µs and 64 bytes for each."""
    path = with_pickle(saved, b"\x80\x02" + b"(" * count + b".", zipped=zipped)
    monkeypatch.setattr("torch.load", lambda *_, **__: pytest.fail("torch reads it"))

    with pytest.raises(CheckpointFileError, match=r"list of tensors has more than .* save only the tensors"):
        read_tensors(path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.", r"builtins\.bytearray"),  # 2 GB of memory by 30 bytes
        (b"ctorch._utils\n_rebuild_sparse_tensor\n)R.", r"torch\._utils\._rebuild_sparse_tensor"),
    ],
)
def test_a_pickle_that_names_more_than_data_and_tensors_is_refused(
    saved: Path, steps: bytes, told: str, zipped: bool
) -> None:
    with pytest.raises(CheckpointFileError, match=f"contains '{told}', not only plain data and tensors"):
        read_tensors(with_pickle(saved, b"\x80\x02" + steps, zipped=zipped))


def test_a_dictionary_that_holds_itself_is_refused(saved: Path) -> None:
    with pytest.raises(CheckpointFileError, match="not plain tensors"):
        read_tensors(with_pickle(saved, b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s."))


@pytest.mark.parametrize("zipped", [True, False])
def test_a_small_tensor_that_claims_to_be_large_is_refused(tmp_path: Path, zipped: bool) -> None:
    torch.save({"a": torch.zeros(1).expand(2**40)}, tmp_path / "w.pth", _use_new_zipfile_serialization=zipped)

    with pytest.raises(CheckpointFileError, match="not plain tensors: 'a'"):
        read_tensors(tmp_path / "w.pth")


def test_names_that_no_terminal_can_show_are_refused_in_plain_letters(tmp_path: Path) -> None:
    torch.save({"\ud800\x1b[2J" * 100: torch.zeros(1), ("a",): torch.zeros(1)}, tmp_path / "w.pth")

    with pytest.raises(CheckpointFileError) as caught:
        read_tensors(tmp_path / "w.pth")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_the_size_of_a_checkpoint_counts_the_tensors_of_all_its_files_and_folders(tmp_path: Path) -> None:
    sizes = {"model.safetensors": 5, "speech_tokenizer/model.safetensors": 3, "pytorch_model.bin": 2, "config.json": 9}
    for name, size in sizes.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(size))

    assert tensor_bytes(tmp_path) == 10
