"""Cascade checkpoints in every published form; a faulty one is reported before any weights are loaded."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import BertTokenizer
from typer.testing import CliRunner

from reference_bark import Reference
from s1_mini.capacity.sizes import Formats
from s1_mini.cli.app import app
from s1_mini.exceptions import CheckpointError, CheckpointFileError, CheckpointMismatchError, VoiceFileError
from s1_mini.families.base import Conversion
from s1_mini.families.cascade.config import make_config, read_cascade_config
from s1_mini.families.cascade.costs import measure_sizes
from s1_mini.families.cascade.family import Cascade
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.random import GENERATION, RECIPES, random_voice
from s1_mini.families.cascade.settings import CascadeSettings
from s1_mini.families.cascade.stages import TokenStage
from s1_mini.families.cascade.tokenizer import CascadeTokenizer
from s1_mini.families.cascade.voice import voice_format
from s1_mini.families.cascade.weights import PREFIXES
from s1_mini.families.find import Checkpoint
from s1_mini.layers.kv_cache import KVCache
from s1_mini.packaging.write import convert_checkpoint
from s1_mini.voices.library import CheckpointVoices
from s1_mini.weights.write import voice_file
from tests.families.conftest import CPU

SUNO = {"semantic": "text", "coarse": "coarse", "fine": "fine"}
CONFIG = make_config(RECIPES["tiny"].config, GENERATION)


def load(directory: Path) -> LoadedCascade:
    return LoadedCascade(directory, CPU, CascadeSettings())


def weights_of(directory: Path) -> dict[str, torch.Tensor]:
    loaded = load(directory)
    networks = [*loaded.models, loaded.codec]
    return {f"{n}.{name}": weight for n, module in enumerate(networks) for name, weight in module.named_parameters()}


def assert_same(one: Path, other: Path) -> None:
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(torch.allclose(first[name], second[name], atol=1e-6) for name in first)


def copy_of(directory: Path, target: Path, *but: str) -> Path:
    shutil.copytree(directory, target, ignore=shutil.ignore_patterns(*but))
    return target


def published_tensors(directory: Path) -> dict[str, torch.Tensor]:
    return dict(torch.load(directory / "pytorch_model.bin", weights_only=True))


@pytest.fixture
def suno(published_cascade: Path, tmp_path: Path) -> Path:
    """The published checkpoint in suno's layout: a file for each model, and the codec next to them."""
    target = copy_of(published_cascade, tmp_path / "suno", "pytorch_model.bin")
    tensors = published_tensors(published_cascade)
    for stage, stem in SUNO.items():
        own = {name.removeprefix(p): value for name, value in tensors.items() if name.startswith(p := PREFIXES[stage])}
        model = {suno_name(name): value for name, value in own.items()}
        told = {"n_layer": 1, "n_head": 2, "n_embd": 64, "block_size": 1024, "bias": False}
        torch.save({"model": model, "model_args": told | {"n_codes_total": 8}}, target / f"{stem}.pt")
    codec = {name.removeprefix("codec_model."): value for name, value in tensors.items() if "codec_model." in name}
    save_file(codec, target / "codec.safetensors")
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({"model_type": "bark", "codec_config": config["codec_config"]}))
    return target


def suno_name(name: str) -> str:
    pairs = [("att_proj", "c_attn"), ("attn.out_proj", "attn.c_proj"), ("mlp.out_proj", "mlp.c_proj")]
    pairs += [("in_proj", "c_fc"), ("layernorm_final", "ln_f"), ("layernorm_", "ln_"), ("layers.", "h.")]
    pairs += [("input_embeds_h.", "wtes."), ("input_embeds_layer.", "wte."), ("position_embeds_layer.", "wpe.")]
    for old, new in pairs:
        name = name.replace(old, new)
    return "_orig_mod." + ("" if name.startswith("lm_head") else "transformer.") + name


def test_all_published_forms_have_the_same_weights(
    cascade: Path, published_cascade: Path, suno: Path, tmp_path: Path
) -> None:
    safe = copy_of(published_cascade, tmp_path / "safe", "pytorch_model.bin")
    save_file(published_tensors(published_cascade), safe / "model.safetensors")

    for other in (published_cascade, safe, suno):
        assert_same(cascade, other)


def test_fine_heads_may_be_stored_next_to_their_tied_embeddings(published_cascade: Path, tmp_path: Path) -> None:
    other = copy_of(published_cascade, tmp_path / "heads", "pytorch_model.bin")
    tensors = published_tensors(published_cascade)
    heads = {f"fine_acoustics.lm_heads.{i}.weight": torch.full((1056, 64), float(i)) for i in range(7)}
    torch.save(tensors | heads, other / "pytorch_model.bin")

    weights = weights_of(other)

    assert [float(weights[f"2.lm_heads.{i}.weight"][0, 0]) for i in range(6)] == [1, 2, 3, 4, 5, 6]


def test_a_converted_checkpoint_generates_the_same_and_keeps_its_voices(
    published_cascade: Path, suno: Path, tmp_path: Path
) -> None:
    for source in (published_cascade, suno):
        target = tmp_path / f"compact_{source.name}"

        convert_checkpoint(source, target, Conversion(codec_precision="float32"))

        assert_same(source, target)
        assert not list(target.glob("*.bin")) + list(target.glob("*.pt"))
    form = Cascade().describe(target).voice
    assert CheckpointVoices.open(target, form).names == ["one", "two"]
    halved = tmp_path / "half"
    convert_checkpoint(published_cascade, halved, Conversion(precision="bfloat16", decode_only=True))
    assert load_file(halved / "coarse.safetensors")["coarse_acoustics.lm_head.weight"].dtype is torch.bfloat16
    assert not any("encoder" in name for name in load_file(halved / "codec.safetensors"))


def test_a_voice_is_written_as_the_same_bytes_each_time() -> None:
    voice = random_voice(CONFIG, 20)

    assert len({b"".join(voice_file("one", voice).chunks()) for _ in range(32)}) == 1


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("fine_acoustics.", r"no tensor begins with fine_acoustics\.;"),
        (
            {"fine_acoustics.layernorm_final.weight": torch.zeros(32)},
            r"fine_acoustics\.\*.*layernorm_final\.weight \(32,\), expected \(64,\)",
        ),
        ({"encoder.layer": torch.zeros(3)}, "encoder.layer does not belong to any model"),
        ("codec_model.decoder.layers.0.conv.bias", "decoder.layers.0.conv.bias is missing"),
    ],
)
def test_a_tensor_of_the_wrong_shape_is_reported_by_name(
    published_cascade: Path, tmp_path: Path, changed: str | dict[str, torch.Tensor], told: str
) -> None:
    other = copy_of(published_cascade, tmp_path / "other", "pytorch_model.bin")
    tensors = published_tensors(published_cascade)
    if isinstance(changed, str):
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(changed)}
    else:
        tensors |= changed
    torch.save(tensors, other / "pytorch_model.bin")

    for use in (load, lambda directory: Cascade().files(directory, Conversion())):
        with pytest.raises(CheckpointMismatchError, match=told):
            use(other)


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        ("fine.pt", r"has coarse\.pt, text\.pt, but not fine\.pt \(fine\)"),
        ("text.pt", r"has coarse\.pt, fine\.pt, but not text\.pt \(semantic\)"),
        ("codec.safetensors", r"but not codec\.safetensors \(codec\)"),
        ("*.pt", "has no models: expected model.safetensors"),
        ("fine.pt fine_2.pt", r"has coarse\.pt, fine_2\.pt, text\.pt, but not fine\.pt \(fine\)"),
    ],
)
def test_a_missing_file_is_named_with_the_existing_ones(suno: Path, lacking: str, told: str) -> None:
    lacking, *other = lacking.split()
    for file in suno.glob(lacking):
        file.rename(suno / other[0]) if other else file.unlink()

    with pytest.raises(CheckpointFileError, match=told):
        load(Checkpoint(suno).check_files().directory if lacking != "*.pt" else suno)


def test_a_suno_file_with_more_than_tensors_is_refused_with_a_hint(suno: Path) -> None:
    content = torch.load(suno / "text.pt", weights_only=True)
    torch.save(content | {"best_val_loss": np.float64(1.0)}, suno / "text.pt")

    for use in (lambda: load(suno), lambda: Cascade().files(suno, Conversion())):
        with pytest.raises(CheckpointFileError, match=r"not only plain data.*suno/bark-small.*model and model_args"):
            use()


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("config", "semantic_config.input_vocab_size", 129_599),
        ("config", "coarse_acoustics_config.block_size", 512),
        ("config", "coarse_acoustics_config.output_vocab_size", 12_097),
        ("config", "fine_acoustics_config.n_codes_given", 2),
        ("config", "fine_acoustics_config.num_heads", 5),
        ("config", "semantic_config.num_layers", "12"),
        ("config", "semantic_config.bias", 1),
        ("config", "codec_config.codebook_size", 512),
        ("generation", "semantic_config.eos_token_id", 9_999),
        ("generation", "semantic_config.text_pad_token", 129_600),
        ("generation", "coarse_acoustics_config.sliding_window_len", 61),
        ("generation", "coarse_acoustics_config.coarse_rate_hz", -75),
        ("generation", "fine_acoustics_config", [1]),
        ("generation", "codebook_size", True),
    ],
)
def test_invalid_numbers_are_named(part: str, name: str, value: object) -> None:
    config, generation = json.loads(json.dumps([RECIPES["tiny"].config, GENERATION]))
    target = config if part == "config" else generation
    group, _, key = name.rpartition(".")
    (target[group] if group else target)[key] = value

    with pytest.raises(CheckpointMismatchError, match=f"{'config' if part == 'config' else 'generation_config'}.json"):
        make_config(config, generation)


def test_config_defaults_are_those_of_transformers(other_bark: Reference, tmp_path: Path) -> None:
    other_bark.model.config.save_pretrained(tmp_path)

    config = read_cascade_config(tmp_path)

    assert (config.semantic.num_layers, config.semantic.width, config.semantic.bias) == (3, 32, True)
    assert config.numbers == CONFIG.numbers


def test_text_becomes_the_ids_that_transformers_gives(published_cascade: Path) -> None:
    ours = CascadeTokenizer.from_directory(published_cascade)
    theirs = BertTokenizer(str(published_cascade / "vocab.txt"), do_lower_case=False)
    texts = ["Hello, world!", "[laughs] so… ♪ la ♪", "  two \t spaces\n\nand lines ", "Grüße, señor! 漢字", ""]

    assert [ours.encode(text) for text in texts] == [theirs.encode(text, add_special_tokens=False) for text in texts]
    theirs._tokenizer.save(str(published_cascade / "tokenizer.json"))
    again = CascadeTokenizer.from_directory(published_cascade)
    (published_cascade / "tokenizer.json").unlink()
    assert [again.encode(text) for text in texts] == [ours.encode(text) for text in texts]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"no unknown word"])
def test_a_malformed_vocabulary_is_refused(tmp_path: Path, content: bytes) -> None:
    for name in ("vocab.txt", "tokenizer.json"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CheckpointFileError, match=f"{name} is not a valid vocabulary"):
            CascadeTokenizer.from_directory(tmp_path)


def test_a_vocabulary_of_another_size_is_an_error_or_a_warning(
    cascade: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = shutil.copytree(cascade, tmp_path / "other")
    words = (other / "vocab.txt").read_text()

    def load_with(size: int) -> list[str]:
        more = range(size - words.count("\n"))
        (other / "vocab.txt").write_text(words + "".join(f"word{number}\n" for number in more))
        caplog.clear()
        load(other)
        return [record.getMessage() for record in caplog.records]

    assert load_with(119_547) == []
    (message,) = load_with(119_546)
    assert "vocab.txt has 119546 words, but the semantic model has 119547, so the file may be truncated" in message
    with pytest.raises(
        CheckpointMismatchError, match=r"vocab\.txt has ids up to 119552, but .* accepts only ids below 119552"
    ):
        load_with(119_553)


def read_voice(data: bytes) -> dict[str, torch.Tensor]:
    return dict(voice_format(CONFIG).from_file(data))


def published_voice(target: Path, **changed: np.ndarray) -> bytes:
    voice = random_voice(CONFIG, 200)
    np.savez(target, **{name: value.numpy() for name, value in voice.items()} | changed)
    return target.read_bytes()


def test_a_published_voice_file_is_read(tmp_path: Path) -> None:
    small = random_voice(CONFIG, 200)["semantic_prompt"].numpy()

    voice = read_voice(published_voice(tmp_path / "a.npz", semantic_prompt=small.astype(np.uint16)))

    assert {name: tuple(value.shape) for name, value in voice.items()} == {
        "semantic_prompt": (200,),
        "coarse_prompt": (2, 300),
        "fine_prompt": (8, 300),
    }
    assert all(value.dtype is torch.int64 for value in voice.values())


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"semantic_prompt": np.arange(300)}, "300 semantic tokens for 300 frames.*1.50 frames per token"),
        ({"semantic_prompt": np.arange(9_900, 10_100)}, "semantic_prompt with the id 10099; use 0 to 9999"),
        (
            {"semantic_prompt": np.zeros((2, 100), int)},
            r"semantic_prompt is int64 \[2, 100\]; expected integers \[any\]",
        ),
        ({"semantic_prompt": np.zeros(200)}, "semantic_prompt is float64"),
        ({"coarse_prompt": np.zeros((2, 300), int)}, "does not match its coarse_prompt"),
        ({"fine_prompt": np.zeros((8, 301), int)}, "does not match its coarse_prompt"),
        ({"semantic_prompt": np.array([None])}, "it contains object, not numbers"),
    ],
)
def test_a_voice_whose_parts_disagree_is_refused(tmp_path: Path, changed: dict[str, np.ndarray], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        read_voice(published_voice(tmp_path / "a.npz", **changed))


def test_a_voice_file_that_lacks_a_part_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", semantic_prompt=np.arange(9))

    with pytest.raises(ValueError, match="lacks coarse_prompt, fine_prompt; a voice file needs semantic_prompt"):
        read_voice((tmp_path / "a.npz").read_bytes())


def test_published_voices_are_found_next_to_the_checkpoint_by_name(published_cascade: Path, cascade: Path) -> None:
    form = Cascade().describe(published_cascade).voice
    beside, kept = CheckpointVoices.open(published_cascade, form), CheckpointVoices.open(cascade, form)

    assert beside.names == kept.names == ["one", "two"]
    assert beside.summary("two").seconds == kept.summary("two").seconds == pytest.approx(8.4, rel=0.01)
    for name, tensor in kept.describe("two").voice.tensors.items():
        assert torch.equal(beside.describe("two").voice.tensors[name], tensor)


def test_a_broken_published_voice_is_reported_by_name_and_part(published_cascade: Path, tmp_path: Path) -> None:
    other = copy_of(published_cascade, tmp_path / "other")
    form, part = Cascade().describe(other).voice, other / "speaker_embeddings" / "one_fine_prompt.npy"

    part.write_bytes(b"noise")
    library = CheckpointVoices.open(other, form)
    assert library.describe("two").name == "two"
    with pytest.raises(VoiceFileError, match="'one' cannot be used: the checkpoint's voice one"):
        library.describe("one")
    np.save(part, np.zeros((8, 300)))
    with pytest.raises(
        VoiceFileError, match=r"the checkpoint's voice one is invalid: its fine_prompt is float64 \[8, "
    ):
        CheckpointVoices.open(other, form).describe("one")


def test_a_voice_path_outside_of_its_checkpoint_is_refused(published_cascade: Path, tmp_path: Path) -> None:
    other = copy_of(published_cascade, tmp_path / "other")
    index = json.loads((other / "speaker_embeddings_path.json").read_text())
    index["one"]["fine_prompt"] = "../../secret.npy"
    (other / "speaker_embeddings_path.json").write_text(json.dumps(index))

    with pytest.raises(CheckpointError, match="outside the checkpoint"):
        Cascade().files(other, Conversion())


def test_an_oracle_in_safetensors_is_checked_on_the_command_line(
    bark: Reference, published_cascade: Path, tmp_path: Path
) -> None:
    oracle = bark.speak([7, 8], most=4).oracle("short")
    save_file(oracle, tmp_path / "oracle.safetensors")
    wrong = oracle | {"short.coarse": oracle["short.coarse"] + 1, "short.odd": torch.zeros(1)}
    save_file(wrong, tmp_path / "wrong.safetensors")
    command = ["verify", "--checkpoint", str(published_cascade), "--oracle"]

    right = CliRunner().invoke(app, [*command, str(tmp_path / "oracle.safetensors")])
    other = CliRunner().invoke(app, [*command, str(tmp_path / "wrong.safetensors")])

    assert right.exit_code == 0, right.output
    assert "all 4 checks passed" in right.output
    assert other.exit_code != 0


@pytest.mark.parametrize(("size", "millions"), [("small", 389), ("large", 1086)])
def test_a_plan_counts_what_a_checkpoint_weighs(tmp_path: Path, size: str, millions: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RECIPES[size].config))
    sizes = measure_sizes(tmp_path, Formats())

    weights = sum(sizes.weight_bytes(bound) for bound in ("memory", "compute"))
    assert weights == pytest.approx(2e6 * millions, rel=0.06)
    assert sizes.demand.position == pytest.approx({"small": 36_900, "large": 98_300}[size], rel=0.01)
    assert all(stage.step(1, 300).num_bytes > 0 for stage in sizes.stages.values())


@pytest.mark.parametrize("positions", [128, 256])
def test_a_slot_takes_the_memory_that_is_counted_for_it(published_cascade: Path, positions: int) -> None:
    loaded, demands = load(published_cascade), measure_sizes(published_cascade, Formats(kv=4)).demands

    def num_bytes(slots: int) -> int:
        """Count the bytes of the tensors that both token models allocate."""
        stages = [stage for stage in loaded.chain(slots, positions).stages if isinstance(stage, TokenStage)]
        held = [each for stage in stages for value in vars(stage).values() for each in _tensors(value)]
        return sum(tensor.nbytes for tensor in held)

    counted = sum(demands[name].slot(positions) for name in ("semantic", "coarse"))
    assert num_bytes(9) - num_bytes(8) == pytest.approx(counted, rel=0.005)


def _tensors(value: object) -> list[torch.Tensor]:
    found = vars(value).values() if isinstance(value, KVCache) else [value]
    return [each for each in found if isinstance(each, torch.Tensor)]
