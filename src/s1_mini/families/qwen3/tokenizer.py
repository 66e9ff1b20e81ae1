"""Text to token ids with the byte-pair vocabulary of Qwen2: `vocab.json`, whose ids are the ranks of merges.

Text is always encoded as text: a control token in it (`<|im_end|>`) becomes the tokens of its letters. Only
`prompt.py` adds control tokens, by id.
"""

from __future__ import annotations

import unicodedata
from pathlib import Path

from s1_mini.exceptions import CheckpointFileError
from s1_mini.families.codec_lm.vocabulary import BytePairTokenizer, check_ids
from s1_mini.weights.directory import read_json

# Published split pattern of Qwen2's tokenizer.
SPLIT_PATTERN = "|".join(
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


class Qwen2Tokenizer(BytePairTokenizer):
    """Vocabulary of one checkpoint; without control tokens."""

    def __init__(self, ranks: dict[bytes, int], source: str = "vocab.json") -> None:
        self.highest_id = max(ranks.values())
        super().__init__(SPLIT_PATTERN, ranks, {}, f"{source} is not a byte-pair vocabulary")

    @classmethod
    def from_directory(cls, directory: Path) -> Qwen2Tokenizer:
        """Read `vocab.json`. Raises `CheckpointFileError` or `CheckpointMismatchError`."""
        ranks = _read_ranks(directory / "vocab.json")
        check_ids(ranks, {}, "vocab.json")
        return cls(ranks, str(directory / "vocab.json"))

    def encode(self, text: str) -> list[int]:
        """Encode text in Unicode's form NFC."""
        return super().encode(unicodedata.normalize("NFC", text))


def byte_letters() -> dict[str, int]:
    """Return the byte for each letter of a token in `vocab.json`, as in GPT-2: visible bytes stand for themselves."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(others)}


def _read_ranks(path: Path) -> dict[bytes, int]:
    letters, ranks = byte_letters(), {}
    for token, rank in read_json(path).items():
        if type(rank) is not int or not all(letter in letters for letter in token) or not token:
            raise CheckpointFileError(
                f"{path}: {token[:40]!r} must consist of letters that stand for bytes, as in GPT-2's vocabulary, "
                "and have an integer id"
            )
        ranks[bytes(letters[letter] for letter in token)] = rank
    if not ranks:
        raise CheckpointFileError(f"{path} has no tokens")
    return ranks
