"""An open S1 checkpoint: the model and its codec."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from s1_mini.alignment.head import AlignmentHead
from s1_mini.alignment.words import Aligner
from s1_mini.codecs.causal.stage import MAX_FRAMES, CausalDecoder
from s1_mini.codecs.dac.config import DacConfig
from s1_mini.codecs.dac.model import Dac
from s1_mini.codecs.dac.weights import open_dac
from s1_mini.codecs.stage import rows_of
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.stage import Autoregressive, Chunks, Spec
from s1_mini.exceptions import CheckpointMismatchError
from s1_mini.families.base import PLAIN, LoadedModel, Placement, PromptOptions, StageChain
from s1_mini.families.s1.config import read_configs
from s1_mini.families.s1.language_model import LanguageModel
from s1_mini.families.s1.model import S1Model
from s1_mini.families.s1.settings import S1Settings
from s1_mini.families.s1.tokenizer import S1Tokenizer
from s1_mini.families.s1.weights import build_network
from s1_mini.layers.quantized import quantize_linears
from s1_mini.types import ChunkProfile, Voice
from s1_mini.weights.directory import find_tensors
from s1_mini.weights.files import read_tensors

# Frames of the first, second, … chunk of an utterance; the last size applies to all further chunks (as in Nari's
# Qwen3-TTS server).
CHUNK_FRAMES: dict[ChunkProfile, tuple[int, ...]] = {
    "ttfa": (1, 2, 4, 8, 12),
    "balanced": (4, 4, 8, 16, 25),
    "throughput": (25,),
}
CODEC_SLOTS = 2  # per slot of the model, because decoding may end after the model's slot has a new utterance
SMALL_CHUNK = 4  # maximum frames of a first chunk that the model's thread decodes if the codec's thread is busy
SPARE_FRAMES = 32  # a thread with model and codec decodes at most two frames per generated one and these


class LoadedS1:
    """One checkpoint directory. The codec's encoder is loaded when it is first needed."""

    def __init__(self, directory: Path, model: S1Model, codec: Dac, encodes_on: torch.device) -> None:
        self.model, self.codec = model, codec
        self.networks = (model.network,)
        config = model.network.config
        self.text_heads = config.num_layers, config.backbone.num_heads
        self.heads: Sequence[AlignmentHead] = model.kept_heads
        self.num_bytes, self.position_bytes, self.max_positions = (
            model.num_bytes,
            model.position_bytes,
            model.max_positions,
        )
        self._directory, self._encodes_on = directory, encodes_on
        self._encoder: Dac | None = None
        self._lock = threading.Lock()

    def prompt(self, text: str, voices: Sequence[Voice], options: PromptOptions = PLAIN) -> PromptTokens:  # noqa: ARG002
        return self.model.prompt(text, voices)

    def own_voice(self, outputs: Sequence[np.ndarray], text: str) -> Voice:
        return Voice({"codes": torch.from_numpy(outputs[0].T.copy())}, text)

    def chain(self, slots: int, positions: int) -> StageChain:
        model, codec = self.model, self.codec
        positions = min(positions, model.max_positions)
        frames = Spec("int64", (model.num_codebooks,), rate=codec.sample_rate / codec.samples_per_frame)
        policies = (
            Autoregressive(
                name="language model",
                input=Spec("int64", (model.num_codebooks + 1,)),
                output=frames,
                slots=slots,
                held_back=1,
                not_finite="the model's logits were not finite",
            ),
            Chunks(
                name="codec",
                input=frames,
                output=Spec("float32", rate=codec.sample_rate),
                slots=CODEC_SLOTS * slots,
                sizes=CHUNK_FRAMES,
                rows=rows_of(model.device, CODEC_SLOTS * slots),
                max_items=MAX_FRAMES,
                helped_size=0 if model.device.type == "cuda" else SMALL_CHUNK,
                items_a_turn=SPARE_FRAMES + 2 * slots,
                not_finite="the codec's samples were not finite; its weights may be damaged",
            ),
        )
        stages = (
            LanguageModel(model, slots=slots, positions=positions, kept=self.heads),
            CausalDecoder(codec, policies[1], number=1, batch_invariant=model.batch_invariant),
        )
        return StageChain(
            policies=policies,
            stages=stages,
            sample_rate=codec.sample_rate,
            room=lambda prompt: min(positions - len(prompt.items), codec.max_frames),
            aligner=Aligner(self.heads[0], 1 / frames.rate, model.tokenizer.token_ends) if self.heads else None,
        )

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        codec = self.encoding_codec()
        return {"codes": (yield from codec.encode_by_blocks(wave.to(codec.device)))}

    def encoding_codec(self) -> Dac:
        with self._lock:
            if self._encoder is None:
                encoder = open_dac(self._directory, encodes=True, device=self._encodes_on)
                if self.codec.device == encoder.device:
                    encoder.share_decoding(self.codec)
                self._encoder = encoder
            return self._encoder


def as_s1(loaded: LoadedModel) -> LoadedS1:
    """Cast the type for callers that support only S1. Raises `CheckpointMismatchError` for other families."""
    if not isinstance(loaded, LoadedS1):
        raise CheckpointMismatchError("only S1 checkpoints support this")
    return loaded


def open_s1(directory: Path, placement: Placement, settings: S1Settings) -> LoadedS1:
    """Open model and codec; quantized formats apply to the backbone's layers. Raises `CheckpointError`."""
    config, codec_config = read_configs(directory)
    tokenizer, path = S1Tokenizer.from_directory(directory), find_tensors(directory, "model")
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
    codec = open_dac(directory, encodes=False, dtype=placement.codec_dtype, device=placement.of("codec"))
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
