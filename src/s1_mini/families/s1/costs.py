"""What S1 weighs and costs: both configs, built with shapes and no values, and counted.

Only shapes are looked at: the weights may be on meta.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from s1_mini.capacity.memory import Demand
from s1_mini.capacity.sizes import Cost, Formats, Sizes, StageSizes
from s1_mini.codecs.carry import Carry
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import ENCODE_BLOCK, Dac
from s1_mini.families.s1.config import S1Config
from s1_mini.families.s1.network import S1Network
from s1_mini.kernels.backend import current
from s1_mini.weights.fit import skeleton

COUNTED_FRAMES = 64  # of one call whose operations are counted
CHUNK_FRAMES = 12  # for which the codec's weights are read once in a stream
DRAW_BYTES = 4  # a random number
LIVE_TENSORS = 4  # of a convolution block: input, with its past, activation, output


def measure_sizes(config: S1Config, dac: DacConfig, formats: Formats, prefix_cache_bytes: int) -> Sizes:
    """Count what a checkpoint of these configs takes with restricted heads."""
    residual = min(config.residual_codebook_size, dac.codebook_size)
    with skeleton():
        network = S1Network(config, main_rows=dac.semantic_codebook_size + 1, residual_rows=residual)
        codec = Dac(dac, encodes=False)
    network.to(torch.float16)  # any format of two bytes
    codec.to(torch.float32 if formats.codec == 4 else torch.float16)
    codec.prepare()
    costs = Costs(network, slow_item=formats.large, kv_item=formats.kv)
    slow = count(network.layers)
    model_bytes = formats.large * slow + formats.weights * (count(network) - slow)
    codec_bytes, operations = formats.codec * count(codec), codec_operations(codec)

    def sound(rows: int, _: int) -> Cost:
        return Cost(codec_bytes / CHUNK_FRAMES, rows * operations)

    return Sizes(
        stages={
            "language_model": StageSizes(model_bytes, costs.step, "memory"),
            "codec": StageSizes(codec_bytes, sound, "compute", is_single=formats.codec == 4),
        },
        demands=measure_demands(
            codec, model_bytes=model_bytes, column_bytes=costs.column_bytes, prefix_cache_bytes=prefix_cache_bytes
        ),
        frame_s=dac.samples_per_frame / dac.sample_rate,
        max_positions=config.max_seq_len,
        needed_positions=partial(needed_positions, dac),
    )


def needed_positions(dac: DacConfig, reference_s: float, text_bytes: int) -> int:
    """Give the positions of a reference, of a piece of text, and of its speech.

    A piece of 200 bytes is spoken in 15 s or so, 320 frames; thrice its bytes leave room for slow voices.
    """
    return round(reference_s * dac.sample_rate / dac.samples_per_frame) + text_bytes + 3 * text_bytes


def measure_demands(
    codec: Dac, *, model_bytes: float, column_bytes: float, prefix_cache_bytes: int
) -> dict[str, Demand]:
    """Tell what slots of a model of that size take, and this codec's rows, of each stage."""
    item = next(codec.decoder.parameters()).element_size()
    config = codec.config
    with torch.inference_mode(), current(codec.device):
        carry = Carry()
        codec.push(torch.zeros(1, codec.num_codebooks, 1, dtype=torch.int64, device=codec.device), carry)
    return {
        "language_model": Demand(
            position=round(column_bytes) + DRAW_BYTES * codec.num_codebooks,
            prefix_cache=prefix_cache_bytes,
            encoding=_encoding_bytes(config),  # on the model's device, wherever sound is made
            copies=round(model_bytes),
        ),
        "codec": Demand(
            stream_row=carry.num_bytes, frame=LIVE_TENSORS * item * widest(config), copies=item * count(codec)
        ),
    }


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


class Costs:
    """What a frame of one checkpoint costs."""

    def __init__(self, network: S1Network, *, slow_item: float | None = None, kv_item: float | None = None) -> None:
        """Count; `slow_item` is the bytes of a weight of the slow layers, `kv_item` of a number of keys and values.

        Both are the network's own if not given.
        """
        config = network.config
        self._item = network.norm.weight.element_size()
        self._slow_item = slow_item or _item(network.layers)
        slow = config.slow
        self.column_bytes = 2 * config.num_layers * slow.num_kv_heads * slow.head_dim * (kv_item or self._item)
        self._layers = count(network.layers)
        self._head = count(network.norm, network.output)
        self._fast = count(network.fast_project_in, network.fast_layers, network.fast_norm, network.fast_output)
        self._passes = config.num_codebooks - 1  # of the fast transformer in a frame; the first has two columns
        # Each query head meets each key once and each value once.
        self._meeting = 4 * config.num_layers * config.slow.num_heads * config.slow.head_dim
        self._fast_meeting = 4 * config.num_fast_layers * config.fast.num_heads * config.fast.head_dim
        self._fast_column = 2 * config.num_fast_layers * config.fast.num_kv_heads * config.fast.head_dim * self._item

    def slow_step(self, rows: int, span: int) -> Cost:
        """Make the main token of `rows` rows that look at `span` columns each."""
        return Cost(
            self._layers * self._slow_item + self._head * self._item + rows * span * self.column_bytes,
            rows * (2 * (self._layers + self._head) + self._meeting * span),
        )

    def fast_steps(self, rows: int) -> Cost:
        """Make the other codes of a frame of `rows` rows."""
        seen = sum(range(2, self._passes + 2))  # columns that the passes look at
        return Cost(
            self._passes * self._fast * self._item + rows * seen * self._fast_column,
            rows * (2 * self._fast * (self._passes + 1) + self._fast_meeting * (seen + 2)),
        )

    def step(self, rows: int, span: int) -> Cost:
        """Make a whole frame of `rows` rows."""
        return self.slow_step(rows, span) + self.fast_steps(rows)


def _item(module: nn.Module) -> float:
    """Bytes of a weight on average: layers may be kept in eight bits, with norms in full."""
    weights = list(module.parameters())
    return sum(weight.numel() * weight.element_size() for weight in weights) / sum(weight.numel() for weight in weights)
