"""Inputs of the stages from text and voice: the semantic model's prompt, and the history for the other models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from s1_mini.core.messages import Begin
from s1_mini.core.prompt import PromptTokens
from s1_mini.exceptions import GenerationError, TextError
from s1_mini.families.cascade.config import NUM_COARSE, Numbers
from s1_mini.families.cascade.policies import COARSE, FINE, SEMANTIC, CoarseWindows
from s1_mini.types import Voice

NUM_DROPPED = 2  # codes at the end of a voice that are dropped, as in suno's code, to align them with semantic tokens


def build_prompt(numbers: Numbers, ids: Sequence[int], voice: Voice | None) -> PromptTokens:
    """Build the prompt for the tokenizer's `ids`. Raises `TextError` if the text has too many tokens."""
    if len(ids) > numbers.max_text:
        raise TextError(
            "text",
            f"has a sentence of {len(ids)} tokens; the model's limit is {numbers.max_text}. Write shorter sentences, "
            "or lower S1_MINI_CHUNK_LENGTH",
        )
    items = np.empty((numbers.prompt_size, 2), np.int64)
    items[:, 0], items[:, 1] = numbers.text_pad, numbers.semantic_size
    items[: len(ids), 0] = np.asarray(ids, np.int64) + numbers.text_offset
    history: dict[str, np.ndarray] = {}
    if voice is not None:
        tensors = {name: tensor.numpy() for name, tensor in voice.tensors.items()}
        own = tensors["semantic_prompt"][-numbers.max_text :]
        items[: len(own), 1] = own
        history = _histories(numbers, tensors)
    items[-1] = numbers.semantic_infer
    facts = {SEMANTIC: "semantic", COARSE: "coarse", FINE: "fine"}
    return PromptTokens(items, voice=history, facts={fact: len(history.get(name, ())) for fact, name in facts.items()})


def window_prompt(windows: CoarseWindows, begin: Begin) -> np.ndarray:
    """Return the ids [S] of a coarse unit's prompt. Raises `GenerationError` if there are no semantic tokens."""
    numbers, voice = windows.numbers, begin.conditions.voice
    if not len(begin.inputs):
        raise GenerationError(
            "the model ended before the first semantic token, so there is no audio. Try a different seed or reword "
            "the text"
        )
    own, before = (voice.get(name, np.zeros(0, np.int64)) for name in ("semantic", "coarse"))
    facts = {SEMANTIC: len(own), COARSE: len(before)}
    first = windows.seen(windows.at(begin.number, facts), facts)
    seen = np.concatenate((own[first:], begin.inputs))
    text = np.full(numbers.max_coarse_text + 1, numbers.coarse_pad)
    text[: len(seen)] = seen
    text[-1] = numbers.coarse_infer
    codes = begin.past + np.arange(NUM_COARSE) * numbers.codebook_size
    past = np.concatenate((before, codes.reshape(-1)))
    past = past[max(0, len(past) - numbers.max_coarse_history) :] + numbers.semantic_size
    return np.concatenate((text, past))


def _histories(numbers: Numbers, tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a voice's semantic tokens [n] and flat codes [m] for the coarse, and frames [f, K] for the fine model."""
    semantic, coarse, fine = (tensors[f"{name}_prompt"] for name in ("semantic", "coarse", "fine"))
    flat = (coarse + np.arange(NUM_COARSE)[:, None] * numbers.codebook_size).T.reshape(-1)
    even = len(semantic) - len(semantic) % 2
    count = min(numbers.max_semantic_history, even, int(len(flat) / numbers.ratio))
    codes = round(count * numbers.ratio)
    return {
        "semantic": semantic[len(semantic) - count :],
        "coarse": flat[len(flat) - codes :][:-NUM_DROPPED],
        "fine": fine.T[-numbers.fine_hop :],
    }
