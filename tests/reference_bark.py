"""Single cascade runs by transformers, as a reference: its batches of unequal length differ in the fine stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import BarkModel
from transformers.models.bark import generation_configuration_bark as bark
from transformers.utils import logging

from s1_mini.families.base import StageChain
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.prompt import build_prompt
from s1_mini.families.cascade.random import random_voice
from s1_mini.families.cascade.verify import run_stage
from s1_mini.types import Voice

logging.disable_progress_bar()


@dataclass(frozen=True)
class Spoken:
    """Output of each stage for one text."""

    tokens: list[int]
    voice: dict[str, Tensor] | None
    semantic: Tensor  # [n], without the end token
    coarse: Tensor  # [2, frames]
    fine: Tensor  # [8, frames]
    wave: Tensor  # [samples]

    def oracle(self, case: str) -> dict[str, Tensor]:
        """Return it as an oracle's tensors."""
        parts = {"tokens": torch.tensor(self.tokens), "semantic": self.semantic, "coarse": self.coarse}
        parts |= {"fine": self.fine, "wave": self.wave} | (self.voice or {})
        return {f"{case}.{name}": tensor.clone().contiguous() for name, tensor in parts.items()}


class Reference:
    """transformers' model of a checkpoint directory."""

    def __init__(self, directory: Path) -> None:
        self.model = BarkModel.from_pretrained(directory).eval()
        config = self.model.generation_config
        self.semantic = bark.BarkSemanticGenerationConfig(**config.semantic_config)
        self.coarse = bark.BarkCoarseGenerationConfig(**config.coarse_acoustics_config)
        self.fine = bark.BarkFineGenerationConfig(**config.fine_acoustics_config)

    def coarse_ids(self, semantic: Tensor, voice: dict[str, Tensor] | None = None) -> Tensor:
        """Return the ids [2 * frames] that the coarse model chooses greedily for semantic tokens [n]."""
        ids: Tensor = self.model.coarse_acoustics.generate(
            semantic.unsqueeze(0).clone(),
            semantic_generation_config=self.semantic,
            coarse_generation_config=self.coarse,
            history_prompt=voice,
        )
        return ids[0]

    def coarse_codes(self, semantic: Tensor, voice: dict[str, Tensor] | None = None) -> Tensor:
        """Return the same as codes [2, frames]."""
        return (self.coarse_ids(semantic, voice).view(-1, 2).T - 10_000) % 1024

    @torch.no_grad()
    def speak(
        self, tokens: list[int], voice: dict[str, Tensor] | None = None, *, most: int = 768, eos_p: float | None = None
    ) -> Spoken:
        """Synthesize the tokens of a text greedily, at most `most` semantic tokens."""
        ids, mask = torch.zeros(1, 256, dtype=torch.long), torch.zeros(1, 256, dtype=torch.long)
        ids[0, : len(tokens)], mask[0, : len(tokens)] = torch.tensor(tokens), 1
        shared = {"semantic_generation_config": self.semantic, "history_prompt": voice}
        semantic = self.model.semantic.generate(
            ids, attention_mask=mask, max_new_tokens=most, min_eos_p=eos_p, **shared
        )
        made = semantic[0][semantic[0] != 10_000].clone()
        shared["coarse_generation_config"] = self.coarse
        coarse = self.model.coarse_acoustics.generate(semantic, **shared)
        fine = self.model.fine_acoustics.generate(coarse, fine_generation_config=self.fine, **shared)
        wave = self.model.codec_decode(fine)[0]
        frames = (coarse[0].view(-1, 2).T - 10_000) % 1024
        return Spoken(tokens, voice, made, frames, fine[0].long(), wave)


PIECES = ([5, 9, 77, 30, 2], [30, 2], [8, 8, 1, 60], [1, 2, 3])  # token ids of each chunk of a text


def coarse_runs(
    loaded: LoadedCascade, chain: StageChain, bark: Reference, lengths: Sequence[int], *, num_semantic: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the coarse ids [frames, 2] of the chain and the codes of transformers for voices of some lengths."""
    for length in lengths:
        voice = random_voice(loaded.config, length, length) if length else None
        semantic = torch.randint(0, 10_000, (num_semantic,), generator=torch.Generator().manual_seed(length))
        prompt = build_prompt(loaded.config.numbers, [5], voice and Voice(voice, ""))
        made = run_stage(chain, 1, semantic.numpy(), prompt, max_steps=768)
        yield made, bark.coarse_codes(semantic, voice).T.numpy()


def piece_runs(
    loaded: LoadedCascade, chain: StageChain, bark: Reference, first_length: int
) -> Iterator[tuple[Tensor, ...]]:
    """Yield, for each chunk of a text, the coarse codes [2, frames] of the chain and of transformers.

    The first piece has `first_length` semantic tokens, and its tokens are the voice of the others, as in the engine.
    """
    voice = heard = None
    for tokens in PIECES:
        prompt = build_prompt(loaded.config.numbers, tokens, voice)
        steps = first_length if voice is None else 30
        made = [run_stage(chain, 0, prompt.items, prompt, max_steps=steps)]
        made.append(run_stage(chain, 1, made[0], prompt, max_steps=768))
        spoken = bark.speak(tokens, heard, most=steps)
        yield torch.from_numpy(made[1].T % 1024), spoken.coarse
        if voice is None:
            assert len(made[0]) == first_length
            made.append(run_stage(chain, 2, made[1] % 1024, prompt, max_steps=768))
            voice = loaded.own_voice(made, "")
            parts = {"semantic": spoken.semantic, "coarse": spoken.coarse, "fine": spoken.fine}
            heard = {f"{name}_prompt": part for name, part in parts.items()}
