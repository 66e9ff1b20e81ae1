"""Prompts in vLLM's form: one id per position, with the ids that can be sampled first.

A position of the semantic model is the sum of two embeddings, of text and voice; the pair is encoded as one number
above all ids. The coarse model samples from its last ids, but vLLM from the first ones, so both ranges are swapped. The
id after all that can be sampled means that a row's logits were not finite. Arrays are numpy's or torch's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from s1_mini.exceptions import ConfigurationError
from s1_mini.families.cascade.config import CascadeConfig

MAX_ID = 2**31  # vLLM's ids have 32 bits


def num_sampled_ids(config: CascadeConfig, stage: str) -> int:
    """Return the number of ids that a stage can sample; the next id means that logits were not finite."""
    return config.numbers.semantic_size + 1 if stage == "semantic" else config.num_coarse_ids


def pack_semantic(config: CascadeConfig, items: np.ndarray) -> np.ndarray:
    """Return ids [S] of positions [S, 2], text and voice; the last position, the infer token, is a single id."""
    numbers = config.numbers
    pairs = (items[:, 0] - numbers.text_offset) * (numbers.semantic_size + 1) + items[:, 1]
    return np.concatenate((config.semantic.input_size + pairs[:-1], items[-1:, 0]))


def unpack_semantic(config: CascadeConfig, ids: Any) -> tuple[Any, Any, Any]:
    """Return for ids [S] whether each is a pair, its text id or the id itself, and its voice id or 0."""
    numbers, first = config.numbers, config.semantic.input_size
    is_pair = ids >= first
    pair, single = (ids - first) * is_pair, ids * ~is_pair
    size = numbers.semantic_size + 1
    return is_pair, single + (pair // size + numbers.text_offset) * is_pair, pair % size


def pack_coarse(config: CascadeConfig, ids: np.ndarray) -> np.ndarray:
    """Return ids [S] in vLLM's order: those that can be sampled first."""
    first, count = config.numbers.semantic_size, config.num_coarse_ids
    return np.where(ids >= first, ids - first, ids + count + 1)


def unpack_coarse(config: CascadeConfig, ids: Any) -> Any:
    """Return the model's ids [S]; the id for non-finite logits becomes an arbitrary one."""
    first, count = config.numbers.semantic_size, config.num_coarse_ids
    is_code = ids < count
    return (ids + first) * is_code + (ids - count - 1).clip(0) * ~is_code


def next_is_second(config: CascadeConfig, ids: Any) -> Any:
    """Return, for each packed coarse id [S], whether the id after it is a code of the second codebook.

    Codes alternate, and those of a voice end with the second codebook, but may begin with either: a voice's history
    of an odd number of codes begins with the second. Only the id itself is reliable, not its position.
    """
    return ids < config.numbers.codebook_size


def check_range(config: CascadeConfig) -> None:
    """Raise `ConfigurationError` if pairs exceed vLLM's largest id."""
    numbers = config.numbers
    pairs = (config.semantic.input_size - numbers.text_offset) * (numbers.semantic_size + 1)
    if config.semantic.input_size + pairs > MAX_ID:
        raise ConfigurationError(
            f"vllm_stages=semantic: {config.semantic.input_size} text ids and {numbers.semantic_size} speech ids form "
            f"more pairs than vLLM's largest token id ({MAX_ID})"
        )
