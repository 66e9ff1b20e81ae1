"""The speaker encoder of Qwen3-TTS matches transformers' ECAPA-TDNN and spectrogram."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniDiTConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import ECAPA_TimeDelayNet

from s1_mini.codecs.blocks import result_of
from s1_mini.codecs.qwen12 import speaker
from s1_mini.codecs.qwen12.speaker import BLOCK, PREFIX, SpeakerConfig, SpeakerEncoder, build_speaker_encoder, log_mel
from s1_mini.exceptions import CheckpointMismatchError

pytestmark = pytest.mark.usefixtures("no_grad")

TINY: dict[str, Any] = {
    "enc_dim": 24,
    "mel_dim": 40,
    "enc_channels": [16, 16, 16, 16, 48],
    "enc_kernel_sizes": [5, 3, 3, 3, 1],
    "enc_dilations": [1, 2, 3, 4, 1],
    "enc_attention_channels": 10,
    "enc_res2net_scale": 4,
    "enc_se_channels": 6,
}


@cache
def theirs() -> ECAPA_TimeDelayNet:
    model = ECAPA_TimeDelayNet(Qwen2_5OmniDiTConfig(**TINY)).eval()
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        fan_in = weight[0].numel() if weight.dim() > 1 else 25
        weight.copy_(torch.randn(weight.shape, generator=generator) / math.sqrt(fan_in))
    return model


def ours(config: dict[str, Any] = TINY, **changes: Tensor) -> SpeakerEncoder:
    tensors = {PREFIX + name: each for name, each in theirs().state_dict().items()} | {"talker.other": torch.ones(1)}
    return build_speaker_encoder(
        SpeakerConfig.from_json(config), tensors | changes, device=torch.device("cpu"), source="model.safetensors"
    )


def noise(samples: int) -> Tensor:
    return 0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(samples))


@pytest.mark.parametrize("samples", [12_000, 31_277, 120_000])
def test_the_spectrogram_is_that_of_transformers(samples: int) -> None:
    """Compared with an implementation in float64."""
    bank = mel_filter_bank(513, 128, 0.0, 12_000.0, 24_000, norm="slaney", mel_scale="slaney")
    wave = noise(samples)
    padded = torch.nn.functional.pad(wave[None], (384, 384), mode="reflect")[0].double().numpy()
    power = spectrogram(padded, window_function(1024, "hann"), 1024, 256, power=2.0, center=False)
    expected = torch.from_numpy((power + 1e-9) ** 0.5)

    mel = result_of(log_mel(wave, 128))

    torch.testing.assert_close(
        mel.double(), (torch.from_numpy(bank).T @ expected).clamp_min(1e-5).log(), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize("rest", [1, 255])
def test_samples_after_the_last_full_frame_make_no_block(rest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    wave = noise(34 * speaker.HOP + rest)
    expected = result_of(log_mel(wave, 40))
    monkeypatch.setattr(speaker, "BLOCK", 17)

    torch.testing.assert_close(result_of(log_mel(wave, 40)), expected)
    assert expected.shape == (40, 34)


@pytest.mark.parametrize("block", [BLOCK, 17])
@pytest.mark.parametrize("samples", [12_000, 31_277])
def test_the_vector_is_that_of_transformers_in_blocks_of_any_size(
    samples: int, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speaker, "BLOCK", block)
    wave = noise(samples)

    vector = ours().encode(wave)

    assert vector.shape == (24,)
    assert vector.std() > 0.1
    torch.testing.assert_close(vector, theirs()(result_of(log_mel(wave, 40)).T[None])[0], rtol=0, atol=1e-5)


def test_a_long_recording_is_encoded_in_blocks_of_at_most_eleven_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths, encoder = [], ours()
    for layer in encoder.modules():
        if isinstance(layer, torch.nn.Conv1d):
            layer.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[2]))

    num_yields = sum(1 for _ in encoder.encode_by_blocks(noise(60 * 24_000)))

    assert max(lengths) == BLOCK + 8, "the overlap of a convolution of 3 positions that are 4 apart"
    assert num_yields >= sum(length > 1 for length in lengths)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"enc_dim": None}, r"enc_dim=None must be a positive integer"),
        ({"sample_rate": 16_000}, r"sample_rate=16000 must be 24000"),
        ({"enc_dilations": [1, 2]}, r"must have the same length, at least 3"),
        ({"enc_channels": [16, 16, 8, 16, 48]}, r"all enc_channels .* but the last must be equal"),
        ({"enc_res2net_scale": 3}, r"a multiple of enc_res2net_scale=3"),
    ],
)
def test_an_invalid_config_is_refused_with_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointMismatchError, match=rf"^config\.json: speaker_encoder_config.*{message}"):
        SpeakerConfig.from_json(TINY | changes)


def test_weights_that_do_not_fit_are_named() -> None:
    with pytest.raises(CheckpointMismatchError, match=r"^model\.safetensors .*fc\.weight \(3, 3\)"):
        ours(**{f"{PREFIX}fc.weight": torch.zeros(3, 3)})
