"""Loading checkpoints: every published form works, every contradiction is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from s1_mini import EngineConfig, ProductionTTSEngine
from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError, CheckpointNotFoundError, ConfigurationError
from s1_mini.families.find import find_checkpoint
from s1_mini.families.registry import get_family
from s1_mini.families.s1.random import RECIPES, Recipe, write_random_checkpoint
from s1_mini.kernels import backend
from s1_mini.runtime import loader
from s1_mini.runtime.loader import (
    choose_batch_invariance,
    choose_device,
    choose_kernels,
    choose_kv_dtype,
    choose_precision,
    choose_weights_dtype,
    load,
)
from s1_mini.types import Choice


def speak(checkpoint: Path) -> np.ndarray:
    with ProductionTTSEngine(EngineConfig(checkpoint_path=checkpoint, device="cpu")) as engine:
        return engine.generate("Same voice.", seed=1, max_new_tokens=12).audio


@pytest.fixture(scope="module")
def expected(published: Path) -> np.ndarray:
    return speak(published)


def edit(checkpoint: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], object], file: str) -> Path:
    """Copy a published checkpoint with its tensors changed."""
    shutil.copytree(checkpoint, target)
    tensors = torch.load(target / file, weights_only=True)
    torch.save(change(tensors), target / file)
    return target


def legacy_attention(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    split = {}
    for name, tensor in tensors.items():
        if ".wqkv." in name:
            heads, groups = (64, 32) if name.startswith("layers") else (32, 16)
            for part, rows in zip("qkv", tensor.split((heads, groups, groups)), strict=True):
                split[name.replace("wqkv", f"w{part}")] = rows.clone()
        else:
            split[name] = tensor
    return split


MODEL_FORMS = {
    "lightning wrapper and prefix": lambda t: {"state_dict": {f"model.{name}": v for name, v in t.items()}},
    "legacy wq/wk/wv": legacy_attention,
    "audio decoder tensors beside fast ones": lambda t: t | {"audio_decoder.mystery": torch.ones(3)},
    "audio tensors to ignore": lambda t: t | {"audio_projector.weight": torch.ones(3, 3)},
    "sibling's prefixes": lambda t: {
        f"audio_decoder.{n.removeprefix('fast_')}" if n.startswith("fast_") else f"text_model.model.{n}": v
        for n, v in t.items()
    },
}


@pytest.mark.parametrize("form", MODEL_FORMS)
def test_every_published_form_of_a_model_speaks_with_the_same_voice(
    form: str, published: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    changed = edit(published, tmp_path / "c", MODEL_FORMS[form], "model.pth")

    assert np.array_equal(speak(changed), expected)


def test_a_codec_with_its_generators_prefix_is_the_same_codec(
    published: Path, expected: np.ndarray, tmp_path: Path
) -> None:
    changed = edit(published, tmp_path / "c", lambda t: {f"generator.{n}": v for n, v in t.items()}, "codec.pth")

    assert np.array_equal(speak(changed), expected)


MODEL_FAULTS = {
    "missing": (lambda t: {n: v for n, v in t.items() if n != "norm.weight"}, "norm.weight is missing"),
    "extra": (lambda t: t | {"layers.9.new": torch.ones(1)}, "layers.9.new is not part of this architecture"),
    "misshapen": (lambda t: t | {"norm.weight": torch.ones(5)}, r"norm.weight \(5,\), expected \(32,\)"),
    "short head": (lambda t: t | {"output.weight": torch.ones(7, 32)}, r"output.weight \(7, 32\) must have 336 rows"),
    "a head of no shape": (
        lambda t: t | {"output.weight": torch.tensor(1.0)},
        r"output.weight \(\) must have 336 rows",
    ),
    "whole numbers": (lambda t: t | {"norm.weight": torch.ones(32, dtype=torch.int64)}, "norm.weight is not floating"),
    "the same twice": (
        lambda t: t | {"model.norm.weight": torch.ones(32)},
        "two tensors of the file map to norm.weight",
    ),
    "legacy beside joined": (
        lambda t: t | {f"layers.0.attention.w{p}.weight": torch.ones(8, 32) for p in "qkv"},
        "exist both joined and as",
    ),
    "half a legacy attention": (lambda t: t | {"layers.0.attention.wq.weight": torch.ones(1)}, "incomplete"),
}


@pytest.mark.parametrize("fault", MODEL_FAULTS)
def test_a_model_that_contradicts_its_config_is_refused_by_tensor(fault: str, published: Path, tmp_path: Path) -> None:
    change, complaint = MODEL_FAULTS[fault]
    changed = edit(published, tmp_path / "c", change, "model.pth")

    with pytest.raises(CheckpointMismatchError, match=complaint):
        load(EngineConfig(checkpoint_path=changed, device="cpu"))


def test_half_a_weight_norm_is_refused(published: Path, tmp_path: Path) -> None:
    name = "decoder.model.0.conv.parametrizations.weight.original1"
    changed = edit(published, tmp_path / "c", lambda t: {n: v for n, v in t.items() if n != name}, "codec.pth")

    with pytest.raises(CheckpointMismatchError, match="original0 but no decoder"):
        load(EngineConfig(checkpoint_path=changed, device="cpu"))


@pytest.mark.parametrize("shape", [(16,), (1, 1, 1)])
def test_a_misshapen_scale_of_a_weight_norm_is_refused(shape: tuple[int, ...], published: Path, tmp_path: Path) -> None:
    name = "decoder.model.0.conv.parametrizations.weight.original0"
    changed = edit(published, tmp_path / "c", lambda t: t | {name: torch.ones(shape)}, "codec.pth")

    with pytest.raises(CheckpointMismatchError, match=r"the scale of decoder\.model\.0\.conv"):
        load(EngineConfig(checkpoint_path=changed, device="cpu"))


def test_a_fault_of_the_encoding_half_is_found_before_the_first_reference(published: Path, tmp_path: Path) -> None:
    changed = edit(published, tmp_path / "c", lambda t: t | {"encoder.block.5.alpha": torch.ones(1, 7, 1)}, "codec.pth")

    with pytest.raises(CheckpointMismatchError, match=r"encoder\.block\.5\.alpha"):
        load(EngineConfig(checkpoint_path=changed, device="cpu"))


def test_a_tied_head_that_differs_from_the_embedding_is_refused(published: Path, tmp_path: Path) -> None:
    changed = edit(published, tmp_path / "c", lambda t: t, "model.pth")
    path = changed / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tie_word_embeddings": True}))

    with pytest.raises(CheckpointMismatchError, match="ties the head to the embeddings"):
        load(EngineConfig(checkpoint_path=changed, device="cpu"))


@pytest.mark.parametrize("books", [{"semantic_codebook_size": 128}, {"codebook_size": 256}])
def test_a_codec_whose_codes_the_model_does_not_know_is_refused(books: dict[str, int], tmp_path: Path) -> None:
    recipe = Recipe(RECIPES["tiny"].model, RECIPES["tiny"].codec | books, num_semantic=64)
    write_random_checkpoint(tmp_path / "c", recipe)

    with pytest.raises(CheckpointMismatchError, match="the codec's codebooks have"):
        load(EngineConfig(checkpoint_path=tmp_path / "c", device="cpu"))


CONFIG_FAULTS = {
    "far too large": ({"n_layer": 10**9}, "n_layer=1000000000 must be a positive integer up to 256"),
    "no base": ({"rope_base": 0}, "rope_base=0 must be a positive number"),
    "a list for a name": ({"model_type": ["dual_ar"]}, "model_type must be one of"),
    "foreign family": ({"model_type": "llama"}, "model_type must be one of .*, not 'llama'"),
    "not a number": ({"dim": "wide"}, "dim='wide' must be a positive integer"),
    "heads that do not group": ({"n_local_heads": 3}, "n_head=4 must be a multiple of n_local_heads=3"),
    "a switch that is none": ({"attention_qk_norm": "yes"}, "must be true or false"),
    "other codebooks than the codec": ({"num_codebooks": 4}, "codebook_embeddings.weight|the codec has 10"),
    "semantic range": ({"semantic_begin_id": 5, "semantic_end_id": 9}, r"semantic tokens at \(5, 9\)"),
    "vocabulary too small": ({"vocab_size": 300}, "vocab_size is 300"),
}


@pytest.mark.parametrize("fault", CONFIG_FAULTS)
def test_a_config_that_contradicts_the_checkpoint_is_refused_by_field(fault: str, tiny: Path, tmp_path: Path) -> None:
    values, complaint = CONFIG_FAULTS[fault]
    shutil.copytree(tiny, tmp_path / "c")
    path = tmp_path / "c" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))

    with pytest.raises(CheckpointMismatchError, match=complaint):
        load(EngineConfig(checkpoint_path=tmp_path / "c", device="cpu"))


@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "codec.safetensors", "tokenizer.tiktoken", "special_tokens.json"]
)
def test_a_missing_file_is_named(name: str, tiny: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny, tmp_path / "c")
    (tmp_path / "c" / name).unlink()

    with pytest.raises(CheckpointFileError, match=name.split(".", maxsplit=1)[0]):
        load(EngineConfig(checkpoint_path=tmp_path / "c", device="cpu"))


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFoundError, match="nowhere is not a directory"):
        find_checkpoint(tmp_path / "nowhere")


def test_the_encoding_half_is_loaded_with_the_first_reference_only(tiny: Path) -> None:
    speaker = load(EngineConfig(checkpoint_path=tiny, device="cpu"))

    assert not speaker.loaded.codec.encodes
    assert speaker.loaded.encoding_codec().encodes
    assert speaker.loaded.encoding_codec() is speaker.loaded.encoding_codec()
    assert speaker.loaded.encoding_codec().decoder is speaker.loaded.codec.decoder  # in memory once


def test_the_codec_that_encodes_decodes_with_shared_weights_of_another_precision(tiny: Path) -> None:
    codec = load(EngineConfig(checkpoint_path=tiny, device="cpu", codec_dtype="bfloat16")).loaded.encoding_codec()

    sound = codec.decode(torch.zeros(1, codec.num_codebooks, 2, dtype=torch.int64))

    assert sound.dtype == torch.bfloat16
    assert codec.quantizer.quantizer.books[0].codebook.weight.dtype == torch.float32  # the one that encodes references


def test_choices_of_device_and_precision_explain_themselves() -> None:
    assert choose_device("cpu").reason == "set explicitly"
    assert choose_precision("auto", "cpu").value == "float32"
    assert choose_precision("bfloat16", "cpu").value == "bfloat16"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_a_missing_device_is_refused() -> None:
    assert choose_device("auto").value == "cpu"
    with pytest.raises(ConfigurationError, match="this machine has 0 CUDA devices"):
        choose_device("cuda")


@pytest.mark.parametrize(
    ("weights", "kv", "chosen", "share"),
    [("int8", "full", ("int8", "full"), 1), ("fp8", "fp8", ("int8", "fp8"), 1 / 4)],
)
def test_an_engine_with_eight_bit_weights_works_and_reports_its_choice(
    weights: str, kv: str, chosen: tuple[str, str], share: float, tiny: Path
) -> None:
    full = load(EngineConfig(checkpoint_path=tiny, device="cpu")).loaded.model
    config = EngineConfig(checkpoint_path=tiny, device="cpu", weights_dtype=weights, kv_dtype=kv)
    model = load(config).loaded.model

    with ProductionTTSEngine(config) as engine:
        health = engine.health_check()
        spoken = engine.generate("Some words.", max_new_tokens=8)

    assert spoken.success
    assert spoken.frames
    assert (health["weights_dtype"]["value"], health["kv_dtype"]["value"]) == chosen
    assert (
        weights == chosen[0] or "fp8 was requested, but cpu does not support fp8" in health["weights_dtype"]["reason"]
    )
    assert model.num_bytes < full.num_bytes
    assert model.position_bytes == full.position_bytes * share
    assert {weight.dtype for weight in model.network.fast_layers.parameters()} == {torch.float32}


def test_unsupported_options_of_a_device_are_replaced_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    on_ampere = choose_weights_dtype("fp8", "cuda"), choose_kv_dtype("fp8", "cuda")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    on_ada = choose_weights_dtype("fp8", "cuda"), choose_kv_dtype("fp8", "cuda")

    assert [choice.value for choice in on_ampere] == ["int8", "full"]
    assert all("compute capability 8.0, but fp8 needs 8.9" in choice.reason for choice in on_ampere)
    assert [choice.value for choice in on_ada] == ["fp8", "fp8"]
    assert choose_kv_dtype("fp8", "mps").value == "full"
    assert choose_weights_dtype("full", "cpu").value == choose_kv_dtype("full", "cpu").value == "full"


def test_stages_are_placed_by_name_and_a_wrong_placement_is_refused_before_weights_are_read(
    tiny: Path, tmp_path: Path
) -> None:
    placed = load(EngineConfig(checkpoint_path=tiny, device="cpu", placement="codec=cpu, language_model=auto"))
    shutil.copytree(tiny, tmp_path / "c")
    (tmp_path / "c" / "model.safetensors").write_bytes(b"broken")

    def refusal(placement: str) -> str:
        with pytest.raises(ConfigurationError) as refused:
            load(EngineConfig(checkpoint_path=tmp_path / "c", device="cpu", placement=placement))
        return str(refused.value)

    assert {stage: choice.value for stage, choice in placed.devices.items()} == {
        "language_model": "cpu",
        "codec": "cpu",
    }
    assert "no stage vocoder; its stages are language_model, codec" in refusal("vocoder=cpu")
    assert "placement: codec='cuda:7' is not available: this machine has 0 CUDA devices" in refusal("codec=cuda:7")
    assert "is not a device" in refusal("codec=gpu")
    assert "'codec=cpu' is not stage=device, or names a stage twice" in refusal("codec=cpu,codec=cpu")


def test_weights_that_the_machine_cannot_multiply_stay_unquantised_and_health_reports_why(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no kernel for this processor")

    monkeypatch.setattr("s1_mini.runtime.loader.product", refuse)
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", weights_dtype="int8")) as engine:
        output = engine.health_check()["weights_dtype"]

    assert output == {"value": "full", "reason": "cpu cannot multiply int8 weights: no kernel for this processor"}


@pytest.mark.parametrize(
    ("has_bfloat16", "in_float16", "expected"),
    [(True, False, "bfloat16"), (False, True, "float16"), (False, False, "float32")],
)
def test_a_gpu_without_bfloat16_computes_in_a_format_of_the_model_and_reports_why(
    monkeypatch: pytest.MonkeyPatch, has_bfloat16: bool, in_float16: bool, expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: has_bfloat16)

    choice = choose_precision("auto", "cuda", in_float16=in_float16)

    assert choice.value == expected
    assert choice.reason.startswith("this GPU does not support bfloat16") == (not has_bfloat16)


def test_kernels_that_cannot_be_compiled_are_left_out_and_the_reason_is_reported(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: str) -> None:
        raise OSError("no C compiler\nand much more")

    monkeypatch.setattr(backend, "_uses_triton", True)
    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu")) as engine:
        assert engine.health_check()["kernels"]["value"] == "torch"
    assert backend._uses_triton, "on a CPU nothing is tried"
    monkeypatch.setattr(loader, "HAS_TRITON", False)
    assert choose_kernels("cuda").reason.startswith("Triton is not installed")
    monkeypatch.setattr(loader, "HAS_TRITON", True)
    monkeypatch.setattr(loader, "_try_kernel", refuse)

    assert choose_kernels("cuda") == Choice("torch", "Triton failed: no C compiler")
    assert not backend._uses_triton
    monkeypatch.setattr(loader, "_try_kernel", lambda _: None)
    assert choose_kernels("cuda").value == "triton"


def test_batch_invariance_is_on_only_if_it_is_guaranteed_and_health_reports_it(tiny: Path) -> None:
    s1, cascade = get_family("s1"), get_family("cascade")
    ours, torchs = Choice("triton", "it is there"), Choice("torch", "Triton failed: no C compiler")

    with ProductionTTSEngine(EngineConfig(checkpoint_path=tiny, device="cpu", batch_invariance="on")) as engine:
        output = engine.health_check()["batch_invariance"]

    assert output == {"value": "on", "reason": "a CPU is always batch-invariant"}
    assert choose_batch_invariance("on", s1, "cuda", ours, "bfloat16").value == "on"
    assert choose_batch_invariance("off", s1, "cuda", ours, "bfloat16").value == "off"
    assert choose_batch_invariance("on", s1, "cuda", ours, "float32").value == "off"
    assert choose_batch_invariance("on", s1, "cuda", torchs, "bfloat16").reason.endswith("Triton failed: no C compiler")
    assert choose_batch_invariance("on", cascade, "cuda", ours, "bfloat16").value == "off"
