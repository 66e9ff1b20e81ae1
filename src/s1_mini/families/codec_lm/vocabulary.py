"""Checks of byte-pair vocabularies, and encoding of long texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import tiktoken

from s1_mini.exceptions import CheckpointMismatchError

MAX_ID = 2**24  # far above any vocabulary
_MAX_SLICE = 400_000  # characters per call of tiktoken, as in the original implementation of S1


def encode_slices(encoding: tiktoken.Encoding, text: str) -> list[int]:
    """Encode text; the names of control tokens in it are encoded like other text."""
    slices = (text[i : i + _MAX_SLICE] for i in range(0, len(text), _MAX_SLICE))
    return [token for part in slices for token in encoding.encode_ordinary(part)]


def token_ends(encoding: tiktoken.Encoding, tokens: list[int]) -> np.ndarray:
    """Return the end of each token in bytes of UTF-8."""
    return np.cumsum([len(encoding.decode_single_token_bytes(token)) for token in tokens])


def check_ids(ranks: Mapping[bytes, int], special_tokens: Mapping[str, int], source: str, others: str = "") -> None:
    """Raise `CheckpointMismatchError` for ids that tiktoken does not support; with some of them, it would panic.

    `source` is the file of the ranks, `others` that of the special tokens.
    """
    both = f"{source} and {others}" if others else source
    missing = next((value for value in range(256) if bytes([value]) not in ranks), None)
    if missing is not None:
        raise CheckpointMismatchError(f"{source} has no token for the byte {missing}, which some texts need")
    ids = [*ranks.values(), *special_tokens.values()]
    if len(set(ids)) != len(ids):
        twice = next(number for number, count in Counter(ids).items() if count > 1)
        raise CheckpointMismatchError(f"the id {twice} occurs twice in {both}")
    if min(ids) < 0 or max(ids) >= MAX_ID:
        raise CheckpointMismatchError(f"{both}: ids must be from 0 to {MAX_ID - 1}")
