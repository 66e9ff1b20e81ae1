"""A loaded S1 checkpoint: the model and its codec."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import PLAIN, Placement, PromptOptions
from s1_mini.families.codec_lm.loaded import LoadedFrameModel
from s1_mini.families.s1.config import read_configs
from s1_mini.families.s1.model import S1Model
from s1_mini.families.s1.settings import S1Settings
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.families.s1.weights import build_network
from s1_mini.layers.quantized import quantize_linears
from s1_mini.types import Voice
from s1_mini.weights.directory import find_tensors
from s1_mini.weights.files import read_tensors


class LoadedS1(LoadedFrameModel[S1Model, Dac]):
    """A loaded checkpoint directory. The codec's encoder is loaded when the first reference needs it."""

    def __init__(self, directory: Path, model: S1Model, codec: Dac, encodes_on: torch.device) -> None:
        super().__init__(directory, model, codec, encodes_on, model.tokenizer.token_ends)
        self._encoder: Dac | None = None

    def prompt(self, text: str, voices: Sequence[Voice], options: PromptOptions = PLAIN) -> PromptTokens:  # noqa: ARG002
        return self.model.prompt(text, voices)

    def own_voice(self, outputs: Sequence[np.ndarray], text: str) -> Voice:
        return Voice({"codes": torch.from_numpy(outputs[0].T.copy())}, text)

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        codec = self.encoding_codec()
        return {"codes": (yield from codec.encode_by_blocks(wave.to(codec.device)))}

    def encoding_codec(self) -> Dac:
        with self._lock:
            if self._encoder is None:
                encoder = open_dac(self._directory, self.codec.config, encodes=True, device=self._encodes_on)
                if self.codec.device == encoder.device:
                    encoder.share_decoding(self.codec)
                self._encoder = encoder
            return self._encoder


def open_s1(directory: Path, placement: Placement, settings: S1Settings) -> LoadedS1:
    """Load model and codec. Only the layers of the backbone are quantized. Raises `CheckpointError`."""
    config, codec_config = read_configs(directory)
    tokenizer, path = S1Tokenizer.from_directory(directory, config.dialect.files), find_tensors(directory, "model")
    network = build_network(
        config,
        tokenizer,
        read_tensors(path),
        heads=settings.heads,
        residual_codes=codec_config.codebook_size,
        dtype=placement.dtype,
        device=placement.of("language_model"),
        source=path.name,
    )
    if placement.weights_dtype is not None:
        quantize_linears(network.layers, placement.weights_dtype)
    model = S1Model(
        network,
        tokenizer,
        heads=settings.heads,
        repetition_mode=settings.repetition_mode,
        kv_dtype=placement.kv_dtype,
        batch_invariant=placement.batch_invariant,
    )
    _check_pair(model, codec_config)
    codec = open_dac(directory, codec_config, encodes=False, dtype=placement.codec_dtype, device=placement.of("codec"))
    return LoadedS1(directory, model, codec, placement.beside("language_model"))


def _check_pair(model: S1Model, codec: DacConfig) -> None:
    """Raise `CheckpointMismatchError` unless the model supports all codes of the codec."""
    num_semantic = model.tokenizer.semantic_end - model.tokenizer.semantic_begin + 1
    if model.num_codebooks != codec.num_codebooks:
        raise CheckpointMismatchError(
            f"config.json has num_codebooks={model.num_codebooks}, but the codec has {codec.num_codebooks}"
        )
    if codec.semantic_codebook_size != num_semantic or codec.codebook_size > model.network.config.codebook_size:
        raise CheckpointMismatchError(
            f"the codec's codebooks have {codec.semantic_codebook_size} and {codec.codebook_size} entries, but the "
            f"model has {num_semantic} semantic tokens and {model.network.config.codebook_size} codes"
        )
