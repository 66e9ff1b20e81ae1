"""The memory and the work of a mel model, computed from its configs with networks on the meta device.

A step reads the decoder's weights, and for each row the keys and values of its steps and its text. A text has about
half a token per step, because a second of speech has about 15 characters and 31 steps. The work of encoding the text is
not included.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from s1_mini.capacity.sizes import Cost, Formats, MemoryRequirement, Sizes, StageSizes
from s1_mini.codecs.hifigan.config import HifiGanConfig
from s1_mini.codecs.hifigan.model import Edges, HifiGan
from s1_mini.families.mel.config import MelConfig, read_configs
from s1_mini.families.mel.network import MelNetwork
from s1_mini.families.mel.random import FULL_MODEL
from s1_mini.families.mel.settings import STAGES
from s1_mini.weights.fit import count, skeleton

COUNTED_FRAMES = 64  # frames of the call whose operations are counted
CHUNK_STEPS = 32  # decoder steps per chunk of the vocoder, which reads its weights once per chunk
TOKENS_A_STEP = 0.5
STEPS_A_BYTE = 4  # steps that a slot should have per byte of text: twice what speech usually needs
LIVE_TENSORS = 8  # tensors in memory at once in a block of the vocoder


def widest(config: HifiGanConfig) -> int:
    """Return the number of elements per frame of the vocoder's largest activation."""
    steps, channels, most = 1, config.channels, 0
    for rate in config.rates:
        steps, channels = steps * rate, channels // 2
        most = max(most, steps * channels)
    return most


def measure_sizes(directory: Path | None, formats: Formats) -> Sizes:
    """Return the memory and the work of a checkpoint; of SpeechT5 if `directory` is None. Raises `CheckpointError`."""
    config, vocoder = MelConfig.from_json(FULL_MODEL), HifiGanConfig()
    if directory is not None:
        config, files = read_configs(directory)
        vocoder = files.config
    network, hifigan = skeleton(lambda: MelNetwork(config)), skeleton(lambda: HifiGan(vocoder))
    decoder, layers = (
        network.decoder.wrapped_decoder,
        [network.encoder.wrapped_encoder, network.decoder.wrapped_decoder],
    )
    small = count(network) - count(*layers)  # always float32
    once = count(*(layer.encoder_attn.kv_proj for layer in network.decoder.layers))  # read once per text, not per step
    fp8_weights = count(*network.products(torch.float8_e4m3fn)) if formats.is_fp8 else None

    def layer_bytes(total: int) -> float:
        large = total if fp8_weights is None else fp8_weights
        return formats.large * large + formats.weights * (total - large)

    step_bytes = layer_bytes(count(decoder) - once) + 4 * (count(network.decoder) - count(decoder))
    kv_bytes = 2 * config.decoder_layers * config.width * formats.kv
    # Operations of attention per position: a product with the key and a product with the value.
    attention = 4 * config.decoder_layers * config.width
    frames_per_step = config.frames_per_step
    operations, vocoder_bytes = (
        cache(lambda: frames_per_step * vocoder_operations(hifigan)),
        formats.codec * count(hifigan),
    )

    def step(rows: int, span: int) -> Cost:
        seen = span * (1 + TOKENS_A_STEP)
        return Cost(
            step_bytes + rows * seen * kv_bytes, rows * (2 * (count(network.decoder) - once) + attention * seen)
        )

    def sound(rows: int, _: int) -> Cost:
        return Cost(vocoder_bytes / CHUNK_STEPS, rows * operations())

    weight_bytes = layer_bytes(count(*layers)) + 4 * small
    return Sizes(
        stages={
            STAGES[0]: StageSizes(weight_bytes, step, "memory"),
            STAGES[1]: StageSizes(vocoder_bytes, sound, "compute", is_single=formats.codec == 4),
        },
        demands={
            STAGES[0]: MemoryRequirement(
                position=round(kv_bytes) + config.prenet_layers * config.prenet_units,
                copies=round(weight_bytes),
                fixed_slot=config.max_text * round(kv_bytes),
            ),
            STAGES[1]: MemoryRequirement(
                frame=LIVE_TENSORS * formats.codec * widest(vocoder), copies=round(vocoder_bytes)
            ),
        },
        frame_s=frames_per_step * vocoder.samples_per_frame / vocoder.sample_rate,
        max_positions=config.max_steps,
        needed_positions=lambda _, text_bytes: STEPS_A_BYTE * text_bytes,
    )


def vocoder_operations(vocoder: HifiGan) -> float:
    """Return the number of floating-point operations per frame of a long chunk, counted by torch."""
    frames = torch.zeros(1, vocoder.config.num_bins, COUNTED_FRAMES + 2 * vocoder.reach, device=vocoder.device)
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        vocoder(frames.to(vocoder.dtype), Edges(0, COUNTED_FRAMES, axis=2))
    return counter.get_total_flops() / COUNTED_FRAMES
