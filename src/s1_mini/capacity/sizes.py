"""The sizes of a checkpoint without its weights: both configs, built with shapes and no values, and counted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from s1_mini.capacity.cost import Costs
from s1_mini.capacity.memory import LIVE_TENSORS, Demand
from s1_mini.codecs.carry import Carry
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import ENCODE_BLOCK, Dac
from s1_mini.codecs.dac.weights import read_dac_config
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.network import S1Network
from s1_mini.weights.files import read_json
from s1_mini.weights.fit import skeleton

COUNTED_FRAMES = 64  # of one call whose operations are counted
DRAW_BYTES = 4  # a random number


@dataclass(frozen=True)
class Formats:
    """Bytes of the numbers that are stored: of all weights but the slow layers', of those, of keys and values."""

    weights: float = 2
    slow: float = 2
    kv: float = 2
    codec: int = 2


@dataclass(frozen=True)
class Sizes:
    """One checkpoint as a plan needs it. Bytes, and operations (multiplying and adding are two)."""

    costs: Costs
    demand: Demand
    model_bytes: float
    codec_bytes: float  # of the decoding half
    codec_operations: float  # of a frame
    samples_per_frame: int
    sample_rate: int
    max_columns: int

    @property
    def frame_s(self) -> float:
        """Seconds of sound of one frame."""
        return self.samples_per_frame / self.sample_rate


def read_configs(directory: Path) -> tuple[S1Config, DacConfig]:
    """Read both configs of a checkpoint, and no weights. Raises `CheckpointError`."""
    return S1Config.from_json(read_json(directory / "config.json")), read_dac_config(directory)


def configs_from(model: dict[str, Any], codec: dict[str, Any]) -> tuple[S1Config, DacConfig]:
    """Read both configs as they stand in files. Raises `CheckpointMismatchError`."""
    return S1Config.from_json(model), DacConfig.from_json(codec)


def measure_sizes(config: S1Config, dac: DacConfig, formats: Formats, *, prefix_cache_bytes: int) -> Sizes:
    """Count what a checkpoint of these configs takes with restricted heads."""
    residual = min(config.residual_codebook_size, dac.codebook_size)
    with skeleton():
        network = S1Network(config, main_rows=dac.semantic_codebook_size + 1, residual_rows=residual)
        codec = Dac(dac, encodes=False)
    network.to(torch.float16)  # any format of two bytes
    codec.to(torch.float32 if formats.codec == 4 else torch.float16)
    codec.prepare()
    costs = Costs(network, codec, slow_item=formats.slow, kv_item=formats.kv)
    slow = count(network.layers)
    model_bytes = formats.slow * slow + formats.weights * (count(network) - slow)
    return Sizes(
        costs=costs,
        demand=measure_demand(
            codec, model_bytes=model_bytes, column_bytes=costs.column_bytes, prefix_cache_bytes=prefix_cache_bytes
        ),
        model_bytes=model_bytes,
        codec_bytes=formats.codec * count(codec),
        codec_operations=codec_operations(codec),
        samples_per_frame=dac.samples_per_frame,
        sample_rate=dac.sample_rate,
        max_columns=config.max_seq_len,
    )


def measure_demand(codec: Dac, *, model_bytes: float, column_bytes: float, prefix_cache_bytes: int) -> Demand:
    """Tell what slots of a model of that size take, and this codec's rows, wherever its weights lie."""
    item = next(codec.decoder.parameters()).element_size()
    config = codec.config
    with torch.inference_mode():
        carry = Carry()
        codec.push(torch.zeros(1, codec.num_codebooks, 1, dtype=torch.int64, device=codec.device), carry)
    return Demand(
        column=round(column_bytes) + DRAW_BYTES * codec.num_codebooks,
        stream_row=carry.num_bytes,
        frame=LIVE_TENSORS * item * widest(config),
        prefix_cache=prefix_cache_bytes,
        encoding=_encoding_bytes(config),
        copies=round(model_bytes) + item * count(codec),
    )


def widest(config: DacConfig) -> int:
    """Numbers that the widest layer of the decoder makes of one frame: channels by steps."""
    steps, dim, most = math.prod(config.downsample_factor), config.decoder_dim, 0
    for rate in config.decoder_rates:
        steps, dim = steps * rate, dim // 2
        most = max(most, steps * dim)
    return most


def _encoding_bytes(config: DacConfig) -> int:
    """Memory for the encoding half, which stays in float32, and for one block of a reference."""
    with skeleton():
        both, half = Dac(config, encodes=True), Dac(config, encodes=False)
    samples = ENCODE_BLOCK * config.samples_per_frame
    return 4 * (count(both) - count(half)) + 4 * LIVE_TENSORS * samples * config.encoder_dim


def codec_operations(codec: Dac) -> float:
    """Operations that decoding one frame takes, counted by torch."""
    codes = torch.zeros(1, codec.num_codebooks, COUNTED_FRAMES, dtype=torch.int64, device=codec.device)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        codec.push(codes, Carry())
    return counter.get_total_flops() / COUNTED_FRAMES


def count(*modules: nn.Module) -> int:
    """Parameters of some modules."""
    return sum(weight.numel() for module in modules for weight in module.parameters())
