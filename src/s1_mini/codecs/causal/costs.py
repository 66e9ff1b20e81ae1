"""The memory and the work of a causal codec, counted from its layers on the meta device."""

from __future__ import annotations

from typing import cast

import torch
from torch.utils.flop_counter import FlopCounterMode

from s1_mini.codecs.causal.codec import CausalCodec
from s1_mini.codecs.causal.layers import CausalConv1d, CausalConvTranspose1d, WindowTransformer
from s1_mini.codecs.stream_state import StreamState
from s1_mini.kernels.backend import current
from s1_mini.layers.transformer import TransformerBlock

COUNTED_FRAMES = 64  # frames of the call whose operations are counted
LIVE_TENSORS = 4  # tensors of a convolution in memory at once: input, input with past, activation, output


def widest(codec: CausalCodec) -> int:
    """Return the number of elements per frame, channels times steps, of the decoder's largest activation."""
    steps, most = 1, 0
    for part in (codec.parts.upsample, codec.parts.decoder):
        for layer in part.modules():
            if isinstance(layer, CausalConvTranspose1d):
                steps *= layer.stride
                most = max(most, steps * layer.conv.out_channels)
    return most


def stream_bytes(codec: CausalCodec) -> int:
    """Return the bytes of the state of one decoded stream: the past inputs of each layer and the step count.

    The sizes are read from the layers. Running the layers on the meta device would import torch's compiler, which takes
    seconds.
    """
    numbers, steps = 0, 0
    for part in codec.modules():
        if isinstance(part, CausalConv1d | CausalConvTranspose1d):
            numbers += part.context * part.conv.in_channels
        elif isinstance(part, WindowTransformer):
            config = cast(TransformerBlock, part.layers[0]).attention.config
            numbers += 2 * len(part.layers) * (part.window - 1) * config.num_kv_heads * config.head_dim
            steps += torch.int64.itemsize
    return numbers * next(codec.parameters()).element_size() + steps


def codec_operations(codec: CausalCodec) -> float:
    """Return the number of floating-point operations for decoding one frame, counted by torch."""
    codec.prepare()
    codes = torch.zeros(1, codec.num_codebooks, COUNTED_FRAMES, dtype=torch.int64, device=codec.device)
    with torch.inference_mode(), current(codec.device), FlopCounterMode(display=False) as counter:
        codec.push(codes, StreamState())
    return counter.get_total_flops() / COUNTED_FRAMES
