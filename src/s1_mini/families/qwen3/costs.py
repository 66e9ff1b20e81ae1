"""The memory and work of Qwen3-TTS, counted from both configs with networks on the meta device."""

from __future__ import annotations

from pathlib import Path

import torch

from s1_mini.capacity.sizes import Formats, Sizes
from s1_mini.codecs.causal.stage import START_BYTES
from s1_mini.codecs.qwen12.config import Qwen12Config, read_qwen12_config
from s1_mini.codecs.qwen12.model import Qwen12
from s1_mini.codecs.qwen12.speaker import SpeakerConfig, SpeakerEncoder
from s1_mini.codecs.qwen12.weights import encoder_shapes
from s1_mini.families.codec_lm.costs import measure
from s1_mini.families.qwen3.config import Qwen3Config, read_config
from s1_mini.families.qwen3.network import Qwen3Network
from s1_mini.families.qwen3.random import codec_json, model_json
from s1_mini.families.qwen3.settings import CODEC_FOLDER
from s1_mini.weights.fit import count, skeleton

TEXT_BYTES = 8  # bytes of the id of a text token that a position reads
FRAMES_A_BYTE = 2  # enough for slow voices: usually, 200 bytes of English take about 190 frames (15 s)
WHOLE_TEXT_BYTES = 2000  # assumed size of a text for VoiceDesign, which is not split
TOKENS_A_SECOND = 6  # of a reference's transcript


def measure_sizes(directory: Path | None, formats: Formats) -> Sizes:
    """Return the memory and the work of a checkpoint; of 1.7B CustomVoice if `directory` is None.

    Raises `CheckpointError`.
    """
    if directory is None:
        config, codec = Qwen3Config.from_json(model_json("1.7b")), Qwen12Config.from_json(codec_json("1.7b"))
    else:
        config, codec = read_config(directory), read_qwen12_config(directory / CODEC_FOLDER)
    clones = config.kind == "base"
    network, decoder, speaker = skeleton(lambda: Qwen3Network(config)), skeleton(lambda: Qwen12(codec)), 0
    if clones:
        speaker = count(skeleton(lambda: SpeakerEncoder(SpeakerConfig.from_json(config.speaker_encoder))))
    decoder.to(torch.float32 if formats.codec == 4 else torch.float16)
    encoder = sum(torch.Size(shape).numel() for shape in encoder_shapes(codec).values())
    rate = codec.sample_rate / codec.samples_per_frame

    def needed_positions(reference_s: float, text_bytes: int) -> int:
        reference = reference_s * (rate + TOKENS_A_SECOND) if clones else 0
        if not config.has_voices:
            text_bytes = max(text_bytes, WHOLE_TEXT_BYTES)
        return round(reference) + (1 + FRAMES_A_BYTE) * text_bytes

    return measure(
        network,
        decoder,
        formats,
        # Activations take as much memory as the codec's encoder; the speaker encoder's are freed before.
        encoding_bytes=4 * (2 * encoder + speaker) if clones else 0,
        needed_positions=needed_positions,
        other_bytes=TEXT_BYTES,
        reference_states=START_BYTES if clones else 0,
    )
