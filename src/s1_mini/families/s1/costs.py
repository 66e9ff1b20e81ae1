"""The memory and work of S1, counted from both configs with networks on the meta device."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch

from s1_mini.capacity.sizes import Cost, Formats, MemoryRequirement, Sizes, StageSizes
from s1_mini.codecs.causal.costs import LIVE_TENSORS, codec_operations, count, stream_bytes, widest
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import ENCODE_BLOCK, Dac
from s1_mini.families.s1.config import S1Config, read_configs
from s1_mini.families.s1.network import S1Network
from s1_mini.families.s1.random import FULL_MODEL
from s1_mini.weights.fit import skeleton

CHUNK_FRAMES = 12  # frames per codec chunk, which reads the weights once
RANDOM_BYTES = 4  # bytes of a random number


def measure_sizes(directory: Path | None, formats: Formats, prefix_cache_bytes: int) -> Sizes:
    """Count a checkpoint, or S1-mini if none is given, with restricted heads. Raises `CheckpointError`."""
    config, dac = read_configs(directory) if directory else (S1Config.from_json(FULL_MODEL), DacConfig())
    residual = min(config.residual_codebook_size, dac.codebook_size)
    with skeleton():
        network = S1Network(config, semantic_rows=dac.semantic_codebook_size + 1, residual_rows=residual)
        whole, codec = Dac(dac, encodes=True), Dac(dac, encodes=False)
    encoder = count(whole) - count(codec)
    codec.to(torch.float32 if formats.codec == 4 else torch.float16)
    backbone, depth = config.backbone, config.depth
    layers, head = count(network.layers), count(network.norm, network.output)
    depth_weights = count(network.fast_project_in, network.fast_layers, network.fast_norm, network.fast_output)
    passes = config.num_codebooks - 1  # depth transformer passes per frame; the first has two positions
    depth_attended = sum(range(2, passes + 2))  # positions that these passes attend to
    position_bytes = 2 * config.num_layers * backbone.num_kv_heads * backbone.head_dim * formats.kv
    depth_bytes = 2 * config.num_depth_layers * depth.num_kv_heads * depth.head_dim * formats.weights
    # Operations of attention per position: one product with the key, one with the value.
    attention = 4 * config.num_layers * backbone.num_heads * backbone.head_dim
    depth_attention = 4 * config.num_depth_layers * depth.num_heads * depth.head_dim
    model_bytes = formats.large * layers + formats.weights * (count(network) - layers)
    codec_bytes = formats.codec * count(codec)
    operations = cache(lambda: codec_operations(codec))

    def frame(rows: int, span: int) -> Cost:
        read = formats.large * layers + formats.weights * (head + passes * depth_weights)
        products = 2 * (layers + head + depth_weights * (passes + 1))
        attended = attention * span + depth_attention * (depth_attended + 2)
        kv_bytes = span * position_bytes + depth_attended * depth_bytes
        return Cost(read + rows * kv_bytes, rows * (products + attended))

    def sound(rows: int, _: int) -> Cost:
        return Cost(codec_bytes / CHUNK_FRAMES, rows * operations())

    def needed_positions(reference_s: float, text_bytes: int) -> int:
        # 200 bytes of text take about 320 frames (15 s). Per byte: three frames, for slow voices, and its own position.
        return round(reference_s * dac.sample_rate / dac.samples_per_frame) + 4 * text_bytes

    encoding = 4 * (encoder + LIVE_TENSORS * ENCODE_BLOCK * dac.samples_per_frame * dac.encoder_dim)
    return Sizes(
        stages={
            "language_model": StageSizes(model_bytes, frame, "memory"),
            "codec": StageSizes(codec_bytes, sound, "compute", is_single=formats.codec == 4),
        },
        demands={
            "language_model": MemoryRequirement(
                position=round(position_bytes) + RANDOM_BYTES * codec.num_codebooks,
                prefix_cache=prefix_cache_bytes,
                encoding=encoding,  # on the model's device, even if the codec decodes on another
                copies=round(model_bytes),
            ),
            "codec": MemoryRequirement(
                stream_row=stream_bytes(codec),
                frame=LIVE_TENSORS * formats.codec * widest(codec),
                copies=round(codec_bytes),
            ),
        },
        frame_s=dac.samples_per_frame / dac.sample_rate,
        max_positions=config.max_seq_len,
        needed_positions=needed_positions,
    )
