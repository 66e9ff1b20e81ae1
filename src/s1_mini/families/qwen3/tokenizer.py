"""Text to token ids with the byte-pair vocabulary of Qwen2: `vocab.json`, whose ids are the ranks of merges.

Text is always encoded as text: a control token in it (`<|im_end|>`) becomes the tokens of its letters. Only
`prompt.py` adds control tokens, by id.
"""

from __future__ import annotations

from pathlib import Path

from s1_mini.families.codec_lm.vocabulary import QWEN2_PATTERN, BytePairTokenizer, check_ids, ranks_of
from s1_mini.weights.directory import read_json


class Qwen2Tokenizer(BytePairTokenizer):
    """Vocabulary of one checkpoint; without control tokens."""

    def __init__(self, ranks: dict[bytes, int], source: str = "vocab.json") -> None:
        self.highest_id = max(ranks.values())
        super().__init__(QWEN2_PATTERN, ranks, {}, f"{source} is not a byte-pair vocabulary", composes=True)

    @classmethod
    def from_directory(cls, directory: Path) -> Qwen2Tokenizer:
        """Read `vocab.json`. Raises `CheckpointFileError` or `CheckpointMismatchError`."""
        path = directory / "vocab.json"
        ranks = ranks_of(read_json(path), str(path))
        check_ids(ranks, {}, path.name)
        return cls(ranks, str(path))
