"""The memory and the work of S1, computed from the configs of model and codec with networks on the meta device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from s1_mini.capacity.sizes import Formats, Sizes
from s1_mini.codecs.causal.costs import LIVE_TENSORS
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import ENCODE_BLOCK, Dac
from s1_mini.families.codec_lm.costs import RANDOM_BYTES, measure
from s1_mini.families.s1.config import AUDIO8_MODEL, S1Config, codec_sizes, read_configs
from s1_mini.families.s1.network import S1Network
from s1_mini.families.s1.random import FULL_MODEL
from s1_mini.weights.fit import count, skeleton


def measure_sizes(directory: Path | None, formats: Formats) -> Sizes:
    """Return the memory and the work of a checkpoint with restricted heads; of S1-mini if `directory` is None.

    Raises `CheckpointError`.
    """
    return _measure(directory, FULL_MODEL, formats)


def measure_audio8(directory: Path | None, formats: Formats) -> Sizes:
    """Return the same; of the published Audio8 if `directory` is None. Raises `CheckpointError`."""
    return _measure(directory, AUDIO8_MODEL, formats)


def _measure(directory: Path | None, published: Mapping[str, Any], formats: Formats) -> Sizes:
    if directory is None:
        config, dac = S1Config.from_json(published), DacConfig.from_json(codec_sizes(published))
    else:
        config, dac = read_configs(directory)
    residual = min(config.residual_codebook_size, dac.codebook_size)
    rows = dac.semantic_codebook_size + 1
    network = skeleton(lambda: S1Network(config, semantic_rows=rows, residual_rows=residual))
    whole, codec = skeleton(lambda: Dac(dac, encodes=True)), skeleton(lambda: Dac(dac, encodes=False))
    encoder = count(whole) - count(codec)
    codec.to(torch.float32 if formats.codec == 4 else torch.float16)

    def needed_positions(reference_s: float, text_bytes: int) -> int:
        # 200 bytes of text usually take about 320 frames (15 s). Each byte gets three positions for frames, which is
        # enough for slow voices, and one for its own token.
        return round(reference_s * dac.sample_rate / dac.samples_per_frame) + 4 * text_bytes

    return measure(
        network,
        codec,
        formats,
        encoding_bytes=4 * (encoder + LIVE_TENSORS * ENCODE_BLOCK * dac.samples_per_frame * dac.encoder_dim),
        needed_positions=needed_positions,
        other_bytes=RANDOM_BYTES if config.ras else 0,
    )
