"""A loaded Qwen3-TTS checkpoint: the model and its codec."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.qwen12.encoder import Encoder
from s1_mini.codecs.qwen12.model import Qwen12
from s1_mini.codecs.qwen12.speaker import SAMPLE_RATE, SpeakerConfig, SpeakerEncoder, build_speaker_encoder
from s1_mini.codecs.qwen12.weights import open_decoder, open_encoder
from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import CheckpointMismatchError, ConfigurationError, VoiceError
from s1_mini.families.base import PLAIN, Placement, PromptOptions
from s1_mini.families.codec_lm.loaded import LoadedFrameModel
from s1_mini.families.qwen3.config import AUTO, Defaults, Qwen3Config, read_config
from s1_mini.families.qwen3.model import Qwen3Model
from s1_mini.families.qwen3.settings import CODEC_FOLDER, Qwen3Settings
from s1_mini.families.qwen3.tokenizer import Qwen2Tokenizer
from s1_mini.families.qwen3.voice import CODES, VECTOR
from s1_mini.families.qwen3.weights import build_network
from s1_mini.layers.quantized import quantize_linears
from s1_mini.types import Voice
from s1_mini.weights.directory import find_model
from s1_mini.weights.files import read_tensors


class LoadedQwen3(LoadedFrameModel[Qwen3Model, Qwen12]):
    """One checkpoint directory. The encoders of references are loaded when they are first needed."""

    reference = CODES

    def __init__(self, directory: Path, model: Qwen3Model, codec: Qwen12, encodes_on: torch.device) -> None:
        super().__init__(directory, model, codec, encodes_on, model.prompts.token_ends)
        self.config = model.config
        self._encoders: tuple[Encoder, SpeakerEncoder] | None = None

    def prompt(self, text: str, voices: Sequence[Voice], options: PromptOptions = PLAIN) -> PromptTokens:
        return self.model.prompt(text, voices, **_checked(voices, options))

    def begin_text(
        self, text: str, voices: Sequence[Voice], options: PromptOptions, *, is_last: bool
    ) -> PromptTokens | None:
        checked, voice = _checked(voices, options), voices[0] if voices else None
        prompt = self.model.prompts.build(text, voice, **checked, whole_text=False, is_complete=is_last)
        return self.model.check_length(prompt) if is_last or prompt.num_after else None

    def rest_of_text(self, text: str, *, is_last: bool) -> np.ndarray:
        return np.array(self.model.prompts.rest(text, is_last=is_last), np.int64)

    def own_voice(self, outputs: Sequence[np.ndarray], text: str) -> Voice:  # noqa: ARG002
        """Return an empty voice, because the model cannot continue its own voice; the next sentence gets a new one."""
        return Voice({}, text)

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        encoder, speaker = self.encoders()
        wave = wave.to(self._encodes_on)
        vector = yield from speaker.encode_by_blocks(wave)
        return {VECTOR: vector, CODES: (yield from encoder.encode_by_blocks(wave))}

    def encoders(self) -> tuple[Encoder, SpeakerEncoder]:
        with self._lock:
            if self._encoders is None:
                folder, device = self._directory / CODEC_FOLDER, self._encodes_on
                encoder, path = open_encoder(folder, device=device), find_model(self._directory)
                sizes = SpeakerConfig.from_json(self.config.speaker_encoder)
                speaker = build_speaker_encoder(sizes, read_tensors(path), device=device, source=path.name)
                self._encoders = encoder, speaker
            return self._encoders


def _checked(voices: Sequence[Voice], options: PromptOptions) -> dict[str, Any]:
    """Return the options of a prompt as keywords. Raises `VoiceError`."""
    if len(voices) > 1:
        raise VoiceError("voice", f"{len(voices)} voices were given; this model supports one per request")
    language = None if options.language == AUTO else options.language
    return {"language": language, "instructions": options.instructions}


def open_qwen3(directory: Path, placement: Placement, settings: Qwen3Settings) -> LoadedQwen3:
    """Load model and codec. `weights_dtype` applies to the talker's layers and, on a CPU, to the code predictor's.

    Raises `CheckpointError`, or `ConfigurationError` for float16.
    """
    if placement.dtype == torch.float16:
        raise ConfigurationError("precision: Qwen3-TTS overflows in float16; unset S1_MINI_PRECISION, or use float32")
    config, path, device = read_config(directory), find_model(directory), placement.of("language_model")
    network = build_network(
        config,
        read_tensors(path),
        dtype=placement.dtype,
        device=device,
        source=path.name,
    )
    if placement.weights_dtype is not None:
        quantize_linears(network.layers, placement.weights_dtype)
        if device.type == "cpu":  # which reads the code predictor's layers 15 times per frame, 70 % of all bytes
            quantize_linears(network.fast_layers, placement.weights_dtype)
    model = Qwen3Model(
        network,
        Qwen2Tokenizer.from_directory(directory),
        Defaults.read(directory).with_settings(settings),
        text_layout=settings.text_layout,
        kv_dtype=placement.kv_dtype,
        batch_invariant=placement.batch_invariant,
    )
    codec = open_decoder(directory / CODEC_FOLDER, dtype=placement.codec_dtype, device=placement.of("codec"))
    _check_pair(config, codec)
    return LoadedQwen3(directory, model, codec, placement.beside("language_model"))


def _check_pair(config: Qwen3Config, codec: Qwen12) -> None:
    """Raise `CheckpointMismatchError` unless the codec has a rate of 24 kHz and the same codes as the model."""
    if codec.sample_rate != SAMPLE_RATE:
        raise CheckpointMismatchError(f"{CODEC_FOLDER} has a rate of {codec.sample_rate} Hz; it must be {SAMPLE_RATE}")
    ours, theirs = (config.num_codebooks, config.code_size), codec.table.shape[:2]
    if ours != tuple(theirs):
        raise CheckpointMismatchError(
            f"config.json has {ours[0]} codebooks of {ours[1]} codes, but {CODEC_FOLDER} has {theirs[0]} of {theirs[1]}"
        )
