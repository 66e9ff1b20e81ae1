"""Byte-pair tokenizers, and checks of their vocabularies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import tiktoken

from s1_mini.exceptions import CheckpointMismatchError

MAX_ID = 2**24  # far above any vocabulary
_MAX_SLICE = 400_000  # characters per call of tiktoken, as in the original implementation of S1


class BytePairTokenizer:
    """Converts text to token ids. Names of control tokens in a text are encoded like other text."""

    def __init__(self, pattern: str, ranks: dict[bytes, int], special_tokens: dict[str, int], fault: str) -> None:
        """`pattern` splits texts. Raises `CheckpointMismatchError`, beginning with `fault`, for invalid ranks."""
        try:
            self._encoding = tiktoken.Encoding(
                "checkpoint", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens
            )
        except (ValueError, KeyError) as error:
            raise CheckpointMismatchError(f"{fault}: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        slices = (text[i : i + _MAX_SLICE] for i in range(0, len(text), _MAX_SLICE))
        return [token for part in slices for token in self._encoding.encode_ordinary(part)]

    def token_ends(self, text: str) -> np.ndarray:
        """Return the end of each token of a text in bytes of UTF-8."""
        return np.cumsum([len(self._encoding.decode_single_token_bytes(token)) for token in self.encode(text)])


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
