"""Semantic and coarse tokens of this engine's stages and of transformers, for the same voices and texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from reference_bark import Reference
from s1_mini.families.base import Chain
from s1_mini.families.cascade.loaded import LoadedCascade
from s1_mini.families.cascade.prompt import build_prompt
from s1_mini.families.cascade.random import random_voice
from s1_mini.families.cascade.verify import run_stage
from s1_mini.types import Voice

PIECES = ([5, 9, 77, 30, 2], [30, 2], [8, 8, 1, 60], [1, 2, 3])  # token ids of each piece of a text


def coarse_runs(
    loaded: LoadedCascade, chain: Chain, bark: Reference, lengths: Sequence[int], *, num_semantic: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the coarse ids [frames, 2] of the chain and the codes of transformers for voices of some lengths."""
    for length in lengths:
        voice = random_voice(loaded.config, length, length) if length else None
        semantic = torch.randint(0, 10_000, (num_semantic,), generator=torch.Generator().manual_seed(length))
        prompt = build_prompt(loaded.config.numbers, [5], voice and Voice(voice, ""))
        made = run_stage(chain, 1, semantic.numpy(), prompt, max_steps=768)
        yield made, bark.coarse_codes(semantic, voice).T.numpy()


def piece_runs(loaded: LoadedCascade, chain: Chain, bark: Reference, first_length: int) -> Iterator[tuple[Tensor, ...]]:
    """Yield, for each piece of a text, the coarse codes [2, frames] of the chain and of transformers.

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
