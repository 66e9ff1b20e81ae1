"""A voice of S1: the codes [K, F] of its recording."""

from __future__ import annotations

from functools import partial

from s1_mini.codecs.dac.config import DacConfig
from s1_mini.voices.format import Shapes, TensorFormat, Tensors, VoiceFormat


def voice_format(codec: DacConfig, encoder: str) -> VoiceFormat:
    """Say what a voice is that a codec of these sizes has encoded, whose fingerprint is `encoder`."""
    return VoiceFormat(
        tensors={"codes": TensorFormat((codec.num_codebooks, None), is_integer=True)},
        encoder=encoder,
        sample_rate=codec.sample_rate,
        seconds=partial(_seconds, codec),
        fault=partial(_fault, codec),
    )


def _seconds(codec: DacConfig, shapes: Shapes) -> float:
    return shapes["codes"][1] * codec.samples_per_frame / codec.sample_rate


def _fault(codec: DacConfig, tensors: Tensors) -> str:
    codes = tensors["codes"]
    limits = [codec.semantic_codebook_size] + [codec.codebook_size] * (len(codes) - 1)
    if any(row.min() < 0 or row.max() >= limit for row, limit in zip(codes, limits, strict=True)):
        return "has codes that this codec has not; it was encoded by another"
    return ""
