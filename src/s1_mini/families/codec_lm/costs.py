"""The memory and work of a codec language model with a causal codec, counted from networks on the meta device."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from s1_mini.capacity.sizes import Cost, Formats, MemoryRequirement, Sizes, StageSizes
from s1_mini.codecs.causal.codec import CausalCodec
from s1_mini.codecs.causal.costs import LIVE_TENSORS, codec_operations, stream_bytes, widest
from s1_mini.families.codec_lm.network import FrameNetwork
from s1_mini.weights.fit import count

CHUNK_FRAMES = 12  # frames per codec chunk; the codec reads its weights once per chunk
RANDOM_BYTES = 4  # bytes of a random number


def measure(
    network: FrameNetwork,
    codec: CausalCodec,
    formats: Formats,
    *,
    encoding_bytes: int,
    needed_positions: Callable[[float, int], int],
    other_bytes: int = 0,
    reference_states: int = 0,
) -> Sizes:
    """Return the memory and the work of a checkpoint, counted from its networks.

    `other_bytes` is the number of bytes per position besides the KV cache and random numbers; `reference_states` is the
    number of bytes of the codec states that are kept for cloned voices.
    """
    config = network.config
    backbone, depth = config.backbone, config.depth
    layers, head = count(network.layers), count(network.norm, network.output)
    depth_weights = count(network.fast_project_in, network.fast_layers, network.fast_norm)
    depth_weights += network.depth_head(1).shape.numel()
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

    return Sizes(
        stages={
            "language_model": StageSizes(model_bytes, frame, "memory", is_single=formats.weights == 4),
            "codec": StageSizes(codec_bytes, sound, "compute", is_single=formats.codec == 4),
        },
        demands={
            "language_model": MemoryRequirement(
                position=round(position_bytes) + RANDOM_BYTES * config.num_codebooks + other_bytes,
                encoding=encoding_bytes,  # on the model's device, even if the codec decodes on another
                copies=round(model_bytes),
                fixed_slot=round(depth_bytes * config.num_codebooks),
            ),
            "codec": MemoryRequirement(
                stream_row=stream_bytes(codec),
                frame=LIVE_TENSORS * formats.codec * widest(codec),
                copies=round(codec_bytes),
                reference_states=reference_states,
            ),
        },
        frame_s=codec.samples_per_frame / codec.sample_rate,
        max_positions=config.max_seq_len,
        needed_positions=needed_positions,
    )
