"""Normalize the loudness of speech (ITU-R BS.1770-4: K-weighting, 400 ms blocks, two gates) and bound its peaks."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOUDNESS = -17.0  # LUFS of the teacher's audio; exported voices have -16, because `export.py` raises the volume
KNEE, PEAK = 0.6, 0.85  # of full scale: above the knee, waves are compressed to stay below the peak
BLOCK_S, HOP_S = 0.4, 0.1
EVEN = 2400  # samples
ABSOLUTE_GATE, RELATIVE_GATE = -70.0, -10.0  # LUFS; LU below the mean of the blocks that pass the first gate


def loudness(waves: Tensor, rate: int) -> Tensor:
    """Integrated loudness in LUFS [B] of mono waves [B, T]; minus infinity for silence."""
    length, block, hop = waves.shape[-1], round(BLOCK_S * rate), round(HOP_S * rate)
    padded = torch.nn.functional.pad(waves.float(), (0, max(0, block - length)))
    # Length of the transforms: with room for the filters' tails, and a multiple of EVEN, because transforms of many
    # different lengths, or of lengths with large prime factors, take much GPU memory.
    transformed = -(-(padded.shape[-1] + rate // 10) // EVEN) * EVEN
    spectrum = torch.fft.rfft(padded, n=transformed)
    frequencies = torch.linspace(0, rate / 2, spectrum.shape[-1], device=waves.device)
    weighted = torch.fft.irfft(spectrum * k_weighting(frequencies), n=transformed)
    power = weighted[:, : padded.shape[-1]].unfold(-1, block, hop).square().mean(-1)
    level = -0.691 + 10 * power.clamp_min(1e-12).log10()
    kept = level > ABSOLUTE_GATE
    kept &= level > _mean_level(power, kept).unsqueeze(1) + RELATIVE_GATE
    return _mean_level(power, kept)


def _mean_level(power: Tensor, kept: Tensor) -> Tensor:
    return -0.691 + 10 * ((power * kept).sum(-1) / kept.sum(-1)).nan_to_num(0).log10()


def k_weighting(frequencies: Tensor) -> Tensor:
    """Gain at each frequency in Hz: a shelf of 4 dB above 1.5 kHz, and a high pass at 38 Hz, as analogue filters."""
    s = 2j * math.pi * frequencies.double()
    shelf_at, shelf_q, gain = 2 * math.pi * 1681.97, 0.7072, 10 ** (3.99984 / 20)
    low_at, low_q = 2 * math.pi * 38.1355, 0.5003
    shelf = gain * s**2 + gain**0.4996668 * shelf_at / shelf_q * s + shelf_at**2
    shelf = shelf / (s**2 + shelf_at / shelf_q * s + shelf_at**2)
    return (shelf * s**2 / (s**2 + low_at / low_q * s + low_at**2)).abs().float()


def levelled(waves: Tensor, rate: int, target: float = LOUDNESS) -> Tensor:
    """Waves [B, T] at `target` LUFS; silence stays silence."""
    gain = 10 ** ((target - loudness(waves, rate)) / 20)
    return bounded(waves * gain.nan_to_num(0, posinf=0).unsqueeze(1))


def bounded(waves: Tensor) -> Tensor:
    """Compress samples above `KNEE`, so that none exceeds `PEAK`."""
    room = PEAK - KNEE
    bent = KNEE + room * ((waves.abs() - KNEE).clamp_min(0) / room).tanh()
    return torch.where(waves.abs() > KNEE, waves.sign() * bent, waves)
