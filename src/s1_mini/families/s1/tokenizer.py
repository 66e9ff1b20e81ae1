"""Converts text to token ids and back, with the checkpoint's byte-pair vocabulary.

Text never becomes control tokens: if it contains the name of one, such as `<|im_end|>`, the name is encoded like other
text. Only `prompt.py` adds control tokens, by their ids.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from pathlib import Path

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.codec_lm.vocabulary import BytePairTokenizer, check_ids
from s1_mini.weights.directory import read_json, read_whole

# The published split pattern. `(\?!\S)` is a typo in the original for a look-ahead; it must stay, because the model was
# trained with it.
SPLIT_PATTERN = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"\p{P}",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(\?!\S)",
        r"\s+",
    )
)
_SEMANTIC = re.compile(r"<\|semantic:([0-9]{1,9})\|>")
_MAX_VOCABULARY_BYTES = 8 * 2**20  # S1-mini's vocabulary is 2.4 MB


@dataclass(frozen=True)
class Vocabulary:
    """The content of `tokenizer.tiktoken` and `special_tokens.json`."""

    ranks: dict[bytes, int]  # ids of text tokens, by their bytes
    special_tokens: dict[str, int]  # ids of control tokens, by name
    highest_id: int
    semantic_begin: int
    semantic_end: int


class S1Tokenizer(BytePairTokenizer):
    """The tokenizer of one checkpoint."""

    def __init__(self, vocabulary: Vocabulary, source: str = "the checkpoint") -> None:
        self.special_tokens = vocabulary.special_tokens
        self.highest_id = vocabulary.highest_id
        self.semantic_begin, self.semantic_end = vocabulary.semantic_begin, vocabulary.semantic_end
        fault = f"{source}: vocabulary and special tokens are inconsistent"
        super().__init__(SPLIT_PATTERN, vocabulary.ranks, vocabulary.special_tokens, fault)

    @classmethod
    def from_directory(cls, directory: Path) -> S1Tokenizer:
        """Read a checkpoint's vocabulary. Raises `CheckpointFileError` or `CheckpointMismatchError`."""
        return cls(read_vocabulary(directory), str(directory))

    def decode(self, tokens: list[int]) -> str:
        """Return the text of token ids; control tokens become their names."""
        return self._encoding.decode(tokens)

    def control(self, name: str) -> int:
        """Return the id of a control token such as `im_end`. Raises `CheckpointMismatchError` if there is none."""
        spelled = f"<|{name}|>"
        if spelled not in self.special_tokens:
            raise CheckpointMismatchError(f"special_tokens.json has no {spelled}, which S1 prompts need")
        return self.special_tokens[spelled]


def read_vocabulary(directory: Path) -> Vocabulary:
    """Read and check `tokenizer.tiktoken` and `special_tokens.json`, without building a tiktoken encoding.

    Raises `CheckpointFileError` or `CheckpointMismatchError`.
    """
    special = read_json(directory / "special_tokens.json")
    bad = [name for name, value in special.items() if not isinstance(value, int) or isinstance(value, bool)]
    if bad:
        raise CheckpointFileError(f"{directory / 'special_tokens.json'}: the id of {bad[0]} must be an integer")
    ranks = _read_ranks(directory / "tokenizer.tiktoken")
    check_ids(ranks, special, "tokenizer.tiktoken", "special_tokens.json")
    semantic = {int(m[1]): i for name, i in special.items() if (m := _SEMANTIC.fullmatch(name))}
    if sorted(semantic) != list(range(len(semantic))) or not semantic:
        raise CheckpointMismatchError("special_tokens.json: <|semantic:N|> tokens must be numbered from 0 without gaps")
    begin, end = semantic[0], semantic[len(semantic) - 1]
    if end - begin != len(semantic) - 1:
        raise CheckpointMismatchError("special_tokens.json: the ids of <|semantic:N|> must be consecutive")
    return Vocabulary(ranks, special, max([*ranks.values(), *special.values()]), begin, end)


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Read lines of `base64 rank`. A line whose token is only `=` is a placeholder, and is skipped."""
    ranks: dict[bytes, int] = {}
    count = 0
    content = read_whole(path, _MAX_VOCABULARY_BYTES)
    try:
        for line in content.decode("ascii").split("\n"):
            if line.strip() and not line.startswith("= "):
                token, rank = line.split()
                ranks[base64.b64decode(token, validate=True)] = int(rank)
                count += 1
    except (ValueError, binascii.Error) as error:
        raise CheckpointFileError(f"{path} is not a valid tiktoken vocabulary: {error}") from None
    if not ranks or len(ranks) != count:
        raise CheckpointFileError(f"{path} is empty or contains a token twice")
    return ranks
