"""A loaded cascade: the three models, the codec, and the chain of their stages."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from s1_mini.codecs.encodec.stage import MAX_FRAMES, EncodecDecoder, chunk_sizes
from s1_mini.codecs.encodec.weights import build_encodec
from s1_mini.codecs.stage import rows_of
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.stage import Autoregressive, Chunks, Spec
from s1_mini.exceptions import CheckpointMismatchError, VoiceError
from s1_mini.families.base import PLAIN, Placement, PromptOptions, StageChain
from s1_mini.families.cascade.config import NUM_COARSE
from s1_mini.families.cascade.on_vllm.stage import WorkedCoarse, WorkedSemantic, check_vllm, start_workers
from s1_mini.families.cascade.policies import CoarsePolicy, CoarseWindows, FinePolicy
from s1_mini.families.cascade.prompt import build_prompt
from s1_mini.families.cascade.settings import STAGES, CascadeSettings
from s1_mini.families.cascade.stages import FINE_ROWS, CoarseModel, FineModel, SemanticModel
from s1_mini.families.cascade.tokenizer import CascadeTokenizer, find_vocabulary
from s1_mini.families.cascade.weights import PREFIXES, build_models, read_config, read_models
from s1_mini.layers.quantized import quantize_linears
from s1_mini.types import ChunkProfile, Voice

logger = logging.getLogger(__name__)

# Frames of the first, second, … chunk of an utterance that the codec decodes; the fine model returns hundreds at once.
CHUNK_FRAMES: dict[ChunkProfile, tuple[int, ...]] = {
    "ttfa": (8, 16, 32, 64),
    "balanced": (16, 64, 128),
    "throughput": (256,),
}
CODEC_SLOTS = 2  # fine and codec slots per semantic slot, which may begin an utterance before decoding ends
PREFILL_POSITIONS = 4096  # per plan of the coarse model on a GPU; it prefills whole windows
MAX_PREFILLS = 8  # prefills per plan of the coarse model on a GPU
SPARE_FRAMES = 256  # frames that the codec decodes in one turn of a thread that also runs other stages


class LoadedCascade:
    """A loaded checkpoint directory."""

    heads, text_heads = (), (0, 0)  # no word times: only the semantic model reads the text, and it has another rate
    merges = begins_early = True  # optimizations of the coarse model's windows; tests check that they change no token

    def __init__(self, directory: Path, placement: Placement, settings: CascadeSettings) -> None:
        """Load all models and the codec. The config is checked first, then the tensors of all models.

        Raises `CheckpointError`, or `ConfigurationError` if stages cannot run on vLLM.
        """
        self._directory, self._placement, self._settings = directory, placement, settings
        self.config, self.tokenizer = read_config(directory), CascadeTokenizer.from_directory(directory)
        config, numbers = self.config, self.config.numbers
        self._check_vocabulary()
        if settings.vllm_stages:
            check_vllm(config, placement, settings)
        tensors = read_models(directory)
        self.models = build_models(
            config,
            tensors,
            dtype=placement.dtype,
            devices={stage: placement.of(stage) for stage in STAGES},
            source=directory.name,
            elsewhere=settings.vllm_stages,
        )
        self.codec = build_encodec(
            config.codec,
            tensors,
            prefix=PREFIXES["codec"],
            encodes=False,
            dtype=placement.codec_dtype,
            device=placement.of("codec"),
            source=f"{directory.name}, {PREFIXES['codec']}*",
        )
        if placement.weights_dtype is not None:
            for network in filter(None, (self.models.semantic, self.models.coarse)):
                quantize_linears(network.layers, placement.weights_dtype)
        self.networks = tuple(model for model in self.models if model is not None)
        self.num_bytes = sum(weight.nbytes for network in self.networks for weight in network.parameters())
        kv_item = (placement.kv_dtype or placement.dtype).itemsize
        self.position_bytes = round(config.semantic.kv_bytes(kv_item) + config.coarse.kv_bytes(kv_item))
        self.max_positions = min(config.semantic.block_size, numbers.prompt_size + numbers.max_semantic - 1)
        # Generation ends if the end token's probability is above this; 0: off.
        self.min_eos_p = numbers.min_eos_p if settings.min_eos_p is None else settings.min_eos_p

    def _check_vocabulary(self) -> None:
        numbers, size, path = self.config.numbers, self.tokenizer.size, find_vocabulary(self._directory)
        readable = self.config.semantic.input_size - numbers.text_offset
        if size > readable:
            raise CheckpointMismatchError(
                f"{path} has ids up to {size - 1}, but the semantic model accepts only ids below {readable}"
            )
        known = numbers.text_pad - numbers.text_offset
        if size < known:
            logger.warning(
                "%s has %d words, but the semantic model has %d, so the file may be truncated; missing words are "
                "spoken as an unknown word, or letter by letter",
                path,
                size,
                known,
            )

    def prompt(self, text: str, voices: Sequence[Voice], options: PromptOptions = PLAIN) -> PromptTokens:  # noqa: ARG002
        if len(voices) > 1:
            raise VoiceError("voice", f"{len(voices)} voices were given; this model supports one per request")
        return build_prompt(self.config.numbers, self.tokenizer.encode(text), voices[0] if voices else None)

    def own_voice(self, outputs: Sequence[np.ndarray], text: str) -> Voice:
        codes = outputs[1].T % self.config.numbers.codebook_size
        parts = {"semantic_prompt": outputs[0], "coarse_prompt": codes, "fine_prompt": outputs[2].T}
        return Voice({name: torch.from_numpy(part.copy()) for name, part in parts.items()}, text)

    def chain(self, slots: int, positions: int) -> StageChain:
        config, numbers, codec, settings = self.config, self.config.numbers, self.codec, self._settings
        positions = min(positions, self.max_positions)
        windows = CoarseWindows(numbers, merges=self.merges)
        _, _, fine, sound = policies = self._policies(slots, windows)
        workers = start_workers(
            self._directory,
            self._placement,
            settings,
            slots=slots,
            positions={"semantic": positions, "coarse": windows.most_positions},
            min_eos_p=self.min_eos_p,
        )
        models, kv_dtype = self.models, self._placement.kv_dtype
        temperature = numbers.fine_temperature if settings.fine_temperature is None else settings.fine_temperature
        return StageChain(
            policies=policies,
            stages=(
                WorkedSemantic(workers["semantic"], config)
                if models.semantic is None
                else SemanticModel(
                    models.semantic,
                    numbers,
                    slots=slots,
                    positions=positions,
                    min_eos_p=self.min_eos_p,
                    kv_dtype=kv_dtype,
                ),
                WorkedCoarse(workers["coarse"], config, windows)
                if models.coarse is None
                else CoarseModel(models.coarse, windows, slots=slots, kv_dtype=kv_dtype),
                FineModel(models.fine, fine, number=2, temperature=temperature),
                EncodecDecoder(codec, sound, number=3),
            ),
            sample_rate=codec.sample_rate,
            room=lambda prompt: min(numbers.max_semantic, positions + 1 - len(prompt.items)),
        )

    def _policies(self, slots: int, windows: CoarseWindows) -> tuple[Autoregressive, CoarsePolicy, FinePolicy, Chunks]:
        config, numbers, codec = self.config, self.config.numbers, self.codec
        elsewhere = self._settings.vllm_stages
        prefills_whole = {name: name in elsewhere or self._placement.of(name).type == "cuda" for name in STAGES}
        frames = {books: Spec("int64", (books,), rate=numbers.coarse_rate) for books in (NUM_COARSE, numbers.num_books)}
        tokens = Spec("int64", rate=numbers.semantic_rate)
        semantic = Autoregressive(
            name="semantic",
            input=Spec("int64", (2,)),
            output=tokens,
            slots=slots,
            held_back=1,
            is_remote="semantic" in elsewhere,
            not_finite="the semantic model's logits were not finite",
        )
        coarse = CoarsePolicy(
            name="coarse",
            input=tokens,
            output=frames[NUM_COARSE],
            slots=slots,
            holds="unit",
            windows=windows,
            begins_early=self.begins_early,
            is_remote="coarse" in elsewhere,
            prefill_positions=PREFILL_POSITIONS if prefills_whole["coarse"] else semantic.prefill_positions,
            max_prefills=MAX_PREFILLS if prefills_whole["coarse"] else semantic.max_prefills,
            not_finite="the coarse model's logits were not finite",
        )
        fine = FinePolicy(
            name="fine",
            input=frames[NUM_COARSE],
            output=frames[numbers.num_books],
            slots=CODEC_SLOTS * slots,
            numbers=numbers,
            together=max(FINE_ROWS) if prefills_whole["fine"] else 1,
            not_finite="the fine model's logits were not finite",
        )
        sound = Chunks(
            name="codec",
            input=frames[numbers.num_books],
            output=Spec("float32", rate=codec.sample_rate),
            slots=CODEC_SLOTS * slots,
            sizes={profile: chunk_sizes(config.codec, sizes) for profile, sizes in CHUNK_FRAMES.items()},
            rows=rows_of(codec.device, CODEC_SLOTS * slots),
            max_items=MAX_FRAMES,
            items_a_turn=SPARE_FRAMES,
            not_finite="the codec's samples were not finite; its weights may be damaged",
        )
        return semantic, coarse, fine, sound

    def condition(self, wave: Tensor) -> Generator[None, None, dict[str, Tensor]]:
        raise NotImplementedError
