"""Conversion of ids to vLLM's form, in which a position has one id and only the first ids can be sampled.

A position of the semantic model's prompt is the sum of the embeddings of a text id and a voice id; this pair is packed
into one number above all ids. The coarse model samples from its last ids, but vLLM samples from the first ids, so the
two ranges are swapped. The id after those that can be sampled means that a row's logits were not finite. Functions with
arguments of type `Any` take arrays of numpy or torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from s1_mini.exceptions import ConfigurationError
from s1_mini.families.cascade.config import CascadeConfig

NUM_IDS = 2**31  # vLLM's ids are signed 32-bit integers from 0


def num_sampled_ids(config: CascadeConfig, stage: str) -> int:
    """Return the number of ids that a stage can sample. The id after them means that logits were not finite."""
    return config.numbers.semantic_size + 1 if stage == "semantic" else config.num_coarse_ids


def pack_semantic(config: CascadeConfig, items: np.ndarray) -> np.ndarray:
    """Return packed ids [S] of positions [S, 2], each a text id and a voice id; the last one is the infer token."""
    numbers = config.numbers
    pairs = (items[:, 0] - numbers.text_offset) * (numbers.semantic_size + 1) + items[:, 1]
    return np.concatenate((config.semantic.input_size + pairs[:-1], items[-1:, 0]))


def unpack_semantic(config: CascadeConfig, ids: Any) -> tuple[Any, Any, Any]:
    """Return, for packed ids [S], whether an id is a pair, its text id (or the id itself), and its voice id (or 0)."""
    numbers, first = config.numbers, config.semantic.input_size
    is_pair = ids >= first
    pair, single = (ids - first) * is_pair, ids * ~is_pair
    size = numbers.semantic_size + 1
    return is_pair, single + (pair // size + numbers.text_offset) * is_pair, pair % size


def pack_coarse(config: CascadeConfig, ids: np.ndarray) -> np.ndarray:
    """Return ids [S] in vLLM's order, in which the ids that can be sampled come first."""
    first, count = config.numbers.semantic_size, config.num_coarse_ids
    return np.where(ids >= first, ids - first, ids + count + 1)


def unpack_coarse(config: CascadeConfig, ids: Any) -> Any:
    """Return the model's ids for packed ids [S]; the id for non-finite logits becomes an arbitrary id."""
    first, count = config.numbers.semantic_size, config.num_coarse_ids
    is_code = ids < count
    return (ids + first) * is_code + (ids - count - 1).clip(0) * ~is_code


def next_is_second(config: CascadeConfig, ids: Any) -> Any:
    """Return, for each packed coarse id [S], whether the next id is a code of the second codebook.

    Codes of the two codebooks alternate. A voice's history ends with a code of the second codebook; if its number of
    codes is odd, it also begins with one. The position of an id therefore does not tell its codebook, but the id
    does.
    """
    return ids < config.numbers.codebook_size


def check_range(config: CascadeConfig) -> None:
    """Raise `ConfigurationError` if vLLM has too few ids for the text ids and all packed pairs."""
    numbers = config.numbers
    num_text, num_voice = config.semantic.input_size - numbers.text_offset, numbers.semantic_size + 1
    if (needed := config.semantic.input_size + num_text * num_voice) > NUM_IDS:
        raise ConfigurationError(
            f"vllm_stages=semantic: the pairs of {num_text} text ids and {num_voice} voice ids need {needed} token "
            f"ids; vLLM has {NUM_IDS}"
        )
