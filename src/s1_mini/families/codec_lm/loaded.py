"""A loaded codec language model with a causal codec, and the stages of its engine."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import torch

from s1_mini.alignment.words import Aligner
from s1_mini.codecs.causal.codec import CausalCodec
from s1_mini.codecs.causal.stage import MAX_FRAMES, CausalDecoder
from s1_mini.codecs.stage import rows_of
from s1_mini.core.prompt import PromptTokens
from s1_mini.core.stage import Autoregressive, Chunks, Spec, StagePolicy
from s1_mini.families.base import StageChain
from s1_mini.families.codec_lm.model import FrameModel
from s1_mini.families.codec_lm.stage import LanguageModel, prefill_sizes
from s1_mini.types import ChunkProfile

# Frames of the first, second, … chunk of an utterance; the last size applies to all further chunks (as in Nari's
# Qwen3-TTS server).
CHUNK_FRAMES: dict[ChunkProfile, tuple[int, ...]] = {
    "ttfa": (1, 2, 4, 8, 12),
    "balanced": (4, 4, 8, 16, 25),
    "throughput": (25,),
}
GPU_PREFILLS = 16  # per plan on a GPU, where one captured call prefills all of them
CODEC_SLOTS = 2  # per model slot, which may begin an utterance before the codec has decoded the previous one
SMALL_CHUNK = 4  # maximum frames of a first chunk that the model's thread decodes if the codec's thread is busy
SPARE_FRAMES = 32  # a thread that runs model and codec decodes, per turn, at most two frames per slot plus these

Model = TypeVar("Model", bound=FrameModel[Any])
Codec = TypeVar("Codec", bound=CausalCodec)


class LoadedFrameModel(Generic[Model, Codec]):
    """One checkpoint directory. Encoders of references are loaded when they are first needed."""

    reference: ClassVar[str] = ""  # name of the codes of a voice that the codec decodes before the utterance's

    def __init__(
        self,
        directory: Path,
        model: Model,
        codec: Codec,
        encodes_on: torch.device,
        token_ends: Callable[[str], np.ndarray],
    ) -> None:
        """`token_ends` returns the ends of a text's tokens in bytes."""
        self.model, self.codec, self.networks = model, codec, (model.network,)
        self.text_heads, self.heads = model.text_heads, model.kept_heads
        self.num_bytes, self.position_bytes = model.num_bytes, model.position_bytes
        self.max_positions = model.max_positions
        self._directory, self._encodes_on, self._token_ends = directory, encodes_on, token_ends
        self._lock = threading.Lock()  # of the encoders

    def chain(self, slots: int, positions: int) -> StageChain:
        """Build the stages of an engine, for `slots` utterances of up to `positions` positions each.

        The first stage reports the scores of `heads`, of which the first gives word times.
        """
        model, codec, reference, kept = self.model, self.codec, self.reference, self.heads
        is_gpu = model.device.type == "cuda"
        positions = min(positions, model.max_positions)
        frames = Spec("int64", (model.num_codebooks,), rate=codec.sample_rate / codec.samples_per_frame)
        policies = (
            Autoregressive(
                name="language model",
                input=Spec("int64", (model.num_codebooks + 1,)),
                output=frames,
                slots=slots,
                held_back=1,
                prefill_positions=prefill_sizes(model)[-1],
                max_prefills=GPU_PREFILLS if is_gpu else StagePolicy.max_prefills,
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
                helped_size=0 if is_gpu else SMALL_CHUNK,
                loaded_profile="balanced" if is_gpu and not model.batch_invariant else None,
                items_a_turn=SPARE_FRAMES + 2 * slots,
                not_finite="the codec's samples were not finite; its weights may be damaged",
            ),
        )

        def room(prompt: PromptTokens) -> int:
            # Frames that the codec decodes before those of the utterance.
            before = prompt.voice[reference].shape[-1] if reference in prompt.voice else 0
            return min(positions - len(prompt.items), codec.max_frames - int(before))

        stages = (
            LanguageModel(model, slots=slots, positions=positions, kept=kept),
            CausalDecoder(codec, policies[1], number=1, batch_invariant=model.batch_invariant, reference=reference),
        )
        return StageChain(
            policies=policies,
            stages=stages,
            sample_rate=codec.sample_rate,
            room=room,
            aligner=Aligner(kept[0], 1 / frames.rate, self._token_ends) if kept else None,
        )
