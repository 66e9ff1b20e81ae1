"""Losses from frozen networks: the networks equal their originals, and the losses have usable gradients."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperModel
from transformers.audio_utils import mel_filter_bank

from recipes.voice.networks import Resemblyzer, mel_bank, open_whisper_encoder, read_ctranslate2
from recipes.voice.perceptual import FADE, P808, Perceptual, SpeakerEncoder, WhisperEncoder
from recipes.voice.speech import resampled

RATE = 24_000
WIDTH, POSITIONS = 16, 150


def whisper() -> WhisperModel:
    torch.manual_seed(0)
    config = WhisperConfig(
        d_model=WIDTH, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=32, max_source_positions=POSITIONS,
        decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=32, vocab_size=8, pad_token_id=0, bos_token_id=0,
        eos_token_id=0, decoder_start_token_id=0, max_target_positions=8,
    )  # fmt: skip
    model = WhisperModel(config).eval()
    with torch.no_grad():
        for parameter in model.encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def ctranslate2_weights(model: WhisperModel) -> dict[str, Tensor]:
    """Return the weights of the encoder under the names of CTranslate2."""
    encoder = model.encoder
    found = {
        "encoder/num_heads": torch.tensor(2, dtype=torch.int16),
        "encoder/position_encodings/encodings": encoder.embed_positions.weight,
        "encoder/layer_norm/gamma": encoder.layer_norm.weight,
        "encoder/layer_norm/beta": encoder.layer_norm.bias,
    }
    for name in ("conv1", "conv2"):
        found |= {f"encoder/{name}/{kind}": getattr(getattr(encoder, name), kind) for kind in ("weight", "bias")}
    for index, layer in enumerate(encoder.layers):
        attention, prefix = layer.self_attn, f"encoder/layer_{index}"
        projections = (attention.q_proj, attention.k_proj, attention.v_proj)
        biases = [torch.zeros(WIDTH) if each.bias is None else each.bias for each in projections]
        found |= {
            f"{prefix}/self_attention/linear_0/weight": torch.cat([each.weight for each in projections]),
            f"{prefix}/self_attention/linear_0/bias": torch.cat(biases),
        }
        linear = {
            "self_attention/linear_1": attention.out_proj,
            "ffn/linear_0": layer.fc1,
            "ffn/linear_1": layer.fc2,
        }
        for name, module in linear.items():
            found |= {f"{prefix}/{name}/{kind}": getattr(module, kind) for kind in ("weight", "bias")}
        norms = {"self_attention": layer.self_attn_layer_norm, "ffn": layer.final_layer_norm}
        for name, module in norms.items():
            found |= {
                f"{prefix}/{name}/layer_norm/gamma": module.weight,
                f"{prefix}/{name}/layer_norm/beta": module.bias,
            }
    return {name: tensor.detach() for name, tensor in found.items()}


def write_ctranslate2(path: Path, variables: Mapping[str, Tensor], version: int = 6) -> None:
    def text(value: str) -> bytes:
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    kinds = {torch.float32: 0, torch.int16: 2, torch.float16: 4}
    content = struct.pack("<I", version) + text("WhisperSpec") + struct.pack("<II", 3, len(variables))
    for name, tensor in variables.items():
        raw = tensor.numpy().tobytes()
        content += text(name) + struct.pack(f"<B{tensor.dim()}I", tensor.dim(), *tensor.shape)
        content += struct.pack("<BI", kinds[tensor.dtype], len(raw)) + raw
    path.write_bytes(content)


def test_the_encoder_read_from_ctranslate2_equals_whispers(tmp_path: Path) -> None:
    model = whisper()
    other = {"decoder/scale_embeddings": torch.tensor(1, dtype=torch.int16), "decoder/weight": torch.ones(3, 2)}
    write_ctranslate2(tmp_path / "model.bin", {**other, **ctranslate2_weights(model)})
    assert all(name.startswith("encoder/") for name in read_ctranslate2(tmp_path / "model.bin", "encoder/"))
    mel = torch.randn(2, 80, 2 * POSITIONS)
    with torch.no_grad():
        expected = model.encoder(mel).last_hidden_state
        features, score = WhisperEncoder(open_whisper_encoder(tmp_path)).outputs(mel)
    assert score is None
    assert len(features) == 2
    torch.testing.assert_close(features[-1].transpose(1, 2), expected, atol=1e-4, rtol=1e-4)


def test_mel_filters_equal_those_of_whisper() -> None:
    expected = mel_filter_bank(201, 80, 0.0, 8000.0, 16000, norm="slaney", mel_scale="slaney")
    np.testing.assert_allclose(mel_bank(400, 80).numpy(), expected.T, atol=1e-6)


def p808() -> P808:
    shapes = {5: (32, 1), 6: (32, 32), 7: (32, 32), 8: (32, 32), 9: (64, 32)}
    tensors = {}
    for number, shape in shapes.items():
        tensors[f"conv2d_{number}/kernel:0"] = 0.1 * torch.randn(*shape, 3, 3)
        tensors[f"conv2d_{number}/bias:0"] = torch.zeros(shape[0])
    for number, outputs in {3: 64, 4: 64, 5: 1}.items():
        tensors[f"small/dense_{number}/MatMul/resource:0"] = 0.1 * torch.randn(64, outputs)
        tensors[f"small/dense_{number}/BiasAdd/resource:0"] = torch.zeros(outputs)
    return P808(tensors)


@pytest.fixture
def perceptual() -> Perceptual:
    """All networks with random weights; P.808 also in place of DistillMOS, which is a package of its own."""
    torch.manual_seed(0)
    speaker = Resemblyzer().eval()
    with torch.no_grad():
        speaker.lstm.weight_ih_l0.mul_(1000)  # so that powers, which are small, change the embedding
    return Perceptual([p808(), WhisperEncoder(whisper().encoder), p808(), SpeakerEncoder(speaker)], RATE)


def speech(rows: int = 2, seconds: float = 1.2) -> Tensor:
    torch.manual_seed(1)
    time = torch.arange(round(seconds * RATE)) / RATE
    return (0.2 * torch.sin(6.3 * 200 * time) * torch.sin(6.3 * 3 * time)).expand(rows, 1, -1) + 0.01 * torch.randn(
        rows, 1, len(time)
    )


def test_equal_waves_have_no_loss_and_worse_waves_a_larger_one(perceptual: Perceptual) -> None:
    wave = speech()
    equal = perceptual(wave, wave)
    assert len(equal) == len(perceptual.loss_names)
    torch.testing.assert_close(equal, torch.zeros(len(perceptual.loss_names)), atol=1e-5, rtol=0)
    near, far = (perceptual(wave, wave + level * torch.randn_like(wave)) for level in (0.01, 0.2))
    is_distance = torch.tensor([not name.endswith("score") for name in perceptual.loss_names])
    assert (near[is_distance] > 0).all()
    assert (far[is_distance] > near[is_distance]).all()


def test_silence_has_finite_gradients(perceptual: Perceptual) -> None:
    decoded = torch.zeros(2, 1, round(1.2 * RATE), requires_grad=True)
    perceptual(speech(), decoded).sum().backward()
    assert decoded.grad is not None
    assert decoded.grad.isfinite().all()
    assert decoded.grad.abs().max() > 0


@pytest.mark.parametrize(
    ("frequency", "lowest", "highest"),
    [
        (100, -0.05, 0.05),
        (4000, -0.05, 0.05),
        (7250, -0.05, 0.05),
        (7600, -9, -3),
        (7900, -200, -60),
        (9000, -200, -60),
    ],
)
def test_the_networks_hear_what_the_judges_do(frequency: float, lowest: float, highest: float) -> None:
    time = torch.arange(RATE) / RATE
    heard = resampled(torch.sin(2 * torch.pi * frequency * time).unsqueeze(0), RATE / 16_000, FADE)
    loudness = 20 * math.log10(float(heard[0, 4000:12_000].square().mean().sqrt()) * math.sqrt(2) + 1e-12)
    assert lowest < loudness < highest


def test_the_speakers_lstm_can_be_derived_by_cudnn_which_needs_its_training_mode() -> None:
    network = Resemblyzer().eval()
    SpeakerEncoder(network)
    assert network.lstm.training
    assert not network.lstm.dropout
