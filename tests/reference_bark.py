"""What transformers gives for a cascade, by single runs: its own batches of unequal length differ in the fine stage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import BarkModel
from transformers.models.bark import generation_configuration_bark as bark
from transformers.utils import logging

logging.disable_progress_bar()


@dataclass(frozen=True)
class Spoken:
    """What each stage gave for one text."""

    tokens: list[int]
    voice: dict[str, Tensor] | None
    semantic: Tensor  # [n], without the end
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
        self,
        tokens: list[int],
        voice: dict[str, Tensor] | None = None,
        *,
        most: int = 768,
        eos_p: float | None = None,
    ) -> Spoken:
        """Speak the tokens of a text greedily, `most` semantic tokens at most."""
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
