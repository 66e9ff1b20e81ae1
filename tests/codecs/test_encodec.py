"""Encodec matches transformers' EncodecModel at any length, and reports what is wrong with a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import EncodecConfig as TheirConfig
from transformers import EncodecModel

from s1_mini.codecs.encodec.config import EncodecConfig
from s1_mini.codecs.encodec.model import Encodec
from s1_mini.codecs.encodec.weights import TINY, build_encodec, can_encode, check, random_encodec, random_tensors
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.weights.weight_norm import NEW, OLD

pytestmark = pytest.mark.usefixtures("no_grad")

# Lengths: below a frame, the receptive field and the seven mirrored frames; whole and partial frames.
LENGTHS = (1, 2, 5, 100, 319, 320, 321, 640, 1999, 2240, 2241, 7_999, 24_001)


def sizes(config: EncodecConfig) -> dict[str, Any]:
    return TheirConfig(num_filters=config.num_filters, hidden_size=config.hidden_size).to_dict()


def theirs(tensors: Mapping[str, Tensor], **given: Any) -> EncodecModel:
    model = EncodecModel(TheirConfig(**given)).eval()
    model.load_state_dict(dict(tensors), strict=True)
    return model


def build(tensors: Mapping[str, Tensor], config: EncodecConfig = TINY, **options: Any) -> Encodec:
    return build_encodec(config, tensors, **({"encodes": True, "source": "codec.safetensors"} | options))


def noise(*shape: int, seed: int = 0) -> Tensor:
    return 0.1 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compare(oracle: EncodecModel, codec: Encodec, waves: Tensor, bandwidth: float = 6.0) -> None:
    codes = oracle.encode(waves.unsqueeze(1), bandwidth=bandwidth).audio_codes[0]
    assert torch.equal(codec.encode(waves, codes.shape[1]), codes)
    assert (codec.decode(codes) - oracle.decode(codes[None], [None]).audio_values[:, 0]).abs().max() <= 1e-5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_both_halves_give_what_transformers_gives_at_any_length(seed: int) -> None:
    tensors = random_tensors(TINY, seed)
    oracle, codec = theirs(tensors, **sizes(TINY)), build(tensors)

    for samples in LENGTHS:
        waves = noise(2, samples, seed=samples)
        assert (codec.latents(waves) - oracle.encoder(waves.unsqueeze(1))).abs().max() <= 1e-5
        compare(oracle, codec, waves)


def test_the_published_size_gives_what_transformers_gives() -> None:
    config, waves = EncodecConfig(), noise(1, 12_345)
    tensors = random_tensors(config)
    oracle, codec = theirs(tensors), build(tensors, config)

    for bandwidth in config.target_bandwidths:
        compare(oracle, codec, waves, bandwidth)


@pytest.mark.parametrize(
    "changed",
    [
        {"upsampling_ratios": [4, 2], "target_bandwidths": [30.0, 60.0]},
        {"num_residual_layers": 2, "dilation_growth_rate": 3, "residual_kernel_size": 5},
        {"use_conv_shortcut": False, "num_lstm_layers": 1, "last_kernel_size": 5, "compress": 1},
        {"codebook_size": 32, "target_bandwidths": [1.5, 3.0]},
    ],
)
def test_other_sizes_give_what_transformers_gives(changed: dict[str, Any]) -> None:
    given = sizes(TINY) | changed
    config = EncodecConfig.from_json(given)
    tensors = random_tensors(config)

    compare(theirs(tensors, **given), build(tensors, config), noise(2, 4_321), config.target_bandwidths[0])


def test_random_weights_use_their_codebooks_and_can_be_heard() -> None:
    codec = random_encodec(TINY)

    codes = codec.encode(noise(1, 48_000), 8)
    samples = codec.decode(codes)

    assert all(len(book.unique()) > 40 for book in codes[0])
    assert 0.01 < samples.std() < 1


@pytest.mark.parametrize("norms", [NEW, OLD, None])
@pytest.mark.parametrize("prefix", ["", "codec_model."])
def test_both_spellings_of_weight_norm_and_a_prefix_mean_the_same(norms: Any, prefix: str) -> None:
    tensors = random_tensors(TINY, norms=norms, prefix=prefix) | ({"semantic.x": torch.ones(1)} if prefix else {})
    codes = torch.randint(0, 1024, (1, 8, 9), generator=torch.Generator().manual_seed(0))

    check(TINY, tensors, prefix=prefix)

    sound = build(tensors, prefix=prefix).decode(codes)
    assert (sound - random_encodec(TINY).decode(codes)).abs().max() <= 1e-6


def test_a_codec_without_its_encoder_has_half_the_weights_and_needs_no_more() -> None:
    tensors = random_tensors(TINY, norms=None)
    half = {name: tensor for name, tensor in tensors.items() if not name.startswith("encoder.")}
    codes = torch.zeros(1, 2, 8, dtype=torch.int64)

    decoder = build(half, encodes=False)

    assert torch.equal(decoder.decode(codes), build(tensors, encodes=False).decode(codes))
    assert not can_encode(half)
    with pytest.raises(CheckpointMismatchError, match=r"codec\.safetensors has no encoder"):
        build(half)


def test_codes_beyond_a_codebook_select_its_last_entry() -> None:
    codec = random_encodec(TINY)
    high, last = torch.full((1, 8, 9), 5000), torch.full((1, 8, 9), 1023)

    assert torch.equal(codec.decode(high), codec.decode(last))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("decoder.layers.0.conv.bias", None, "decoder.layers.0.conv.bias is missing"),
        ("decoder.layers.0.conv.bias", torch.ones(3), r"decoder.layers.0.conv.bias \(3,\), expected \(64,\)"),
        ("decoder.layers.99.conv.bias", torch.ones(3), "decoder.layers.99.conv.bias is not part of this"),
        (
            "decoder.layers.0.conv.weight_g",
            None,
            "decoder.layers.0.conv.weight_v but no decoder.layers.0.conv.weight_g",
        ),
        ("decoder.layers.0.conv.weight_g", torch.ones(3), "scale of decoder.layers.0.conv has shape"),
        ("quantizer.layers.0.codebook.embed", torch.ones(1024, 8), r"embed \(1024, 8\), expected \(1024, 16\)"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(name: str, change: Tensor | None, message: str) -> None:
    tensors = random_tensors(TINY, norms=OLD) | {name: change}
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}

    for refuse in (lambda: build(tensors), lambda: check(TINY, tensors, source="codec.safetensors")):
        with pytest.raises(CheckpointMismatchError, match=f"codec.safetensors.*{message}"):
            refuse()


def test_a_config_of_transformers_is_read_and_what_is_absent_is_as_published() -> None:
    assert EncodecConfig.from_json(TheirConfig().to_dict()) == EncodecConfig.from_json({}) == EncodecConfig()
    config = EncodecConfig()
    assert (config.samples_per_frame, config.num_codebooks) == (320, 32)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"audio_channels": 2}, "audio_channels=2 is not supported"),
        ({"norm_type": "time_group_norm"}, "norm_type='time_group_norm' is not supported"),
        ({"chunk_length_s": 1.0}, "chunk_length_s=1.0 is not supported"),
        ({"hidden_size": "wide"}, "hidden_size='wide' must be a positive integer"),
        ({"hidden_size": True}, "hidden_size=True must be a positive integer"),
        ({"upsampling_ratios": []}, r"upsampling_ratios=\[\] must be a list"),
        ({"upsampling_ratios": [2] * 20}, "num_filters times 2 .* is 33554432"),
        ({"target_bandwidths": [6.0, 3.0]}, "target_bandwidths=.* ascending"),
        ({"target_bandwidths": [0.1]}, ".*require 0 codebooks"),
        ({"codebook_size": 1000}, "codebook_size=1000 must be a power of two"),
        ({"codebook_dim": 64}, "codebook_dim=64 must equal hidden_size=128"),
        ({"use_conv_shortcut": 1}, "use_conv_shortcut=1 must be true or false"),
        ({"num_residual_layers": 30}, "the receptive field of the residual layers"),
        ({"num_lstm_layers": 100_000}, "num_lstm_layers=100000 must be a positive integer up to 32"),
        ({"compress": 64}, "compress is 64; the limit is 32"),
    ],
)
def test_an_invalid_config_is_refused_by_name(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=f"^bark.json: {message}"):
        EncodecConfig.from_json(TheirConfig().to_dict() | changed, "bark.json")
