"""Byte-pair tokenizers, and checks of their vocabularies."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import tiktoken

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError

# Published split pattern of Qwen2's tokenizer.
QWEN2_PATTERN = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
MAX_ID = 2**24  # far above any vocabulary
_MAX_SLICE = 400_000  # characters per call of tiktoken, as in the original implementation of S1


class BytePairTokenizer:
    """Converts text to token ids. Names of control tokens in a text are encoded like other text."""

    def __init__(
        self,
        pattern: str,
        ranks: dict[bytes, int],
        special_tokens: dict[str, int],
        fault: str,
        *,
        composes: bool = False,
    ) -> None:
        """`pattern` splits texts, after they were brought into Unicode's form NFC if the tokenizer `composes`.

        Raises `CheckpointMismatchError`, beginning with `fault`, for invalid ranks.
        """
        self._composes = composes
        try:
            self._encoding = tiktoken.Encoding(
                "checkpoint", pat_str=pattern, mergeable_ranks=ranks, special_tokens=special_tokens
            )
        except (ValueError, KeyError) as error:
            raise CheckpointMismatchError(f"{fault}: {error}") from None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        text = unicodedata.normalize("NFC", text) if self._composes else text
        slices = (text[i : i + _MAX_SLICE] for i in range(0, len(text), _MAX_SLICE))
        return [token for part in slices for token in self._encoding.encode_ordinary(part)]

    def token_ends(self, text: str) -> np.ndarray:
        """Return the end of each token of a text in bytes of UTF-8."""
        return np.cumsum([len(self._encoding.decode_single_token_bytes(token)) for token in self.encode(text)])


def byte_letters() -> dict[str, int]:
    """Return the byte for each letter of a token in `vocab.json`, as in GPT-2: visible bytes stand for themselves."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(others)}


def ranks_of(ids: Mapping[str, Any], source: str) -> dict[bytes, int]:
    """Return ids by the bytes of their tokens, which `ids` has as letters. Raises `CheckpointFileError`."""
    letters, ranks = byte_letters(), {}
    for token, rank in ids.items():
        if type(rank) is not int or not all(letter in letters for letter in token) or not token:
            raise CheckpointFileError(
                f"{source}: {token[:40]!r} must consist of letters that stand for bytes, as in GPT-2's vocabulary, "
                "and have an integer id"
            )
        ranks[bytes(letters[letter] for letter in token)] = rank
    if not ranks:
        raise CheckpointFileError(f"{source} has no tokens")
    return ranks


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
