"""Converts text to token ids and back, with the checkpoint's byte-pair vocabulary.

Text never becomes control tokens: if it contains the name of one, such as `<|im_end|>`, the name is encoded like other
text. Only `prompt.py` adds control tokens, by their ids.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.codec_lm.vocabulary import (
    QWEN2_PATTERN,
    BytePairTokenizer,
    byte_letters,
    check_ids,
    ranks_of,
)
from s1_mini.families.s1.settings import SMALL_FILES
from s1_mini.weights.directory import read_json, read_whole

# S1's published split pattern. `(\?!\S)` is a typo in the original for a look-ahead; it must stay, because the model
# was trained with it.
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
_MAX_JSON_BYTES = 32 * 2**20  # Qwen3's tokenizer.json is 11 MB
# How Qwen2's `tokenizer.json` splits a text before it merges bytes.
QWEN2_STEPS = [
    {"type": "Split", "pattern": {"Regex": QWEN2_PATTERN}, "behavior": "Isolated", "invert": False},
    {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False},
]
_SPACE_OPTIONS = ("lstrip", "rstrip", "single_word")  # of added tokens; with them, the text around a token matters
_QWEN2_UNUSED = ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback")  # options of its model


@dataclass(frozen=True)
class Vocabulary:
    """The content of `tokenizer.tiktoken` and `special_tokens.json`, or of `tokenizer.json`."""

    source: str  # name of the file with the control tokens
    ranks: dict[bytes, int]  # ids of text tokens, by their bytes
    special_tokens: dict[str, int]  # ids of control tokens, by name
    highest_id: int
    semantic_begin: int
    semantic_end: int


class S1Tokenizer(BytePairTokenizer):
    """The tokenizer of one checkpoint."""

    def __init__(self, vocabulary: Vocabulary, source: str = "the checkpoint") -> None:
        self.source, self.special_tokens = vocabulary.source, vocabulary.special_tokens
        self.highest_id = vocabulary.highest_id
        self.semantic_begin, self.semantic_end = vocabulary.semantic_begin, vocabulary.semantic_end
        fault = f"{source}: vocabulary and special tokens are inconsistent"
        is_qwen = vocabulary.source == "tokenizer.json"
        pattern = QWEN2_PATTERN if is_qwen else SPLIT_PATTERN
        super().__init__(pattern, vocabulary.ranks, vocabulary.special_tokens, fault, composes=is_qwen)

    @classmethod
    def from_directory(cls, directory: Path, files: Sequence[str] = SMALL_FILES) -> S1Tokenizer:
        """Read a checkpoint's vocabulary, which is in the last of its small `files`.

        Raises `CheckpointFileError` or `CheckpointMismatchError`.
        """
        return cls(read_vocabulary(directory, files), str(directory))

    def decode(self, tokens: list[int]) -> str:
        """Return the text of token ids; control tokens become their names."""
        return self._encoding.decode(tokens)

    def control(self, name: str) -> int:
        """Return the id of a control token such as `im_end`. Raises `CheckpointMismatchError` if there is none."""
        spelled = f"<|{name}|>"
        if spelled not in self.special_tokens:
            raise CheckpointMismatchError(f"{self.source} has no {spelled}, which prompts need")
        return self.special_tokens[spelled]


def read_vocabulary(directory: Path, files: Sequence[str] = SMALL_FILES) -> Vocabulary:
    """Read and check the vocabulary in the last of the small `files`, without building a tiktoken encoding.

    Raises `CheckpointFileError` or `CheckpointMismatchError`.
    """
    source, ranks_source = files[-1], next((name for name in files if name.endswith(".tiktoken")), files[-1])
    if source == ranks_source:
        ranks, special = _read_qwen2(directory / source)
    else:
        ranks, special = _read_ranks(directory / ranks_source), read_json(directory / source)
    bad = [name for name, value in special.items() if type(value) is not int]
    if bad:
        raise CheckpointFileError(f"{directory / source}: the id of {bad[0]} must be an integer")
    check_ids(ranks, special, ranks_source, "" if source == ranks_source else source)
    semantic = {int(m[1]): i for name, i in special.items() if (m := _SEMANTIC.fullmatch(name))}
    if sorted(semantic) != list(range(len(semantic))) or not semantic:
        raise CheckpointMismatchError(f"{source}: <|semantic:N|> tokens must be numbered from 0 without gaps")
    begin, end = semantic[0], semantic[len(semantic) - 1]
    if end - begin != len(semantic) - 1:
        raise CheckpointMismatchError(f"{source}: the ids of <|semantic:N|> must be consecutive")
    return Vocabulary(source, ranks, special, max([*ranks.values(), *special.values()]), begin, end)


def _read_qwen2(path: Path) -> tuple[dict[bytes, int], dict[str, Any]]:
    """Read a `tokenizer.json` of Qwen2's form: the ids of text tokens by their bytes, those of others by their names.

    The ids of text tokens are ranks: the merges are in the order of the ids of their results.
    """
    content = read_json(path, _MAX_JSON_BYTES)
    try:
        model, ids = content["model"], content["model"]["vocab"]
        steps = [dict(step) for step in content["pre_tokenizer"]["pretokenizers"]]
        merges = ["".join(pair.split(" ") if isinstance(pair, str) else pair) for pair in model["merges"]]
        special = {str(each["content"]): each["id"] for each in content["added_tokens"]}
        takes_more = any(each.get(option) for each in content["added_tokens"] for option in _SPACE_OPTIONS)
        ranks = ranks_of(ids, str(path))
        merged = [ids[each] for each in merges]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CheckpointFileError(f"{path} is not a byte-pair tokenizer with added tokens: {error!r}") from None
    for step in steps:
        step.pop("trim_offsets", None)  # has no effect on ids
    fits = {
        "added_tokens": not takes_more,
        "normalizer": content.get("normalizer") == {"type": "NFC"},
        "pre_tokenizer": steps == QWEN2_STEPS,
        "model": model.get("type") == "BPE" and not any(model.get(key) for key in _QWEN2_UNUSED),
        "model.merges": merged == sorted(ids[token] for token in ids.keys() - byte_letters().keys()),
    }
    wrong = [part for part, is_fit in fits.items() if not is_fit]
    if wrong:
        raise CheckpointMismatchError(
            f"{path}: {wrong[0]} is not that of Qwen2, the only supported tokenizer, whose text tokens are in the "
            "order of their merges"
        )
    return ranks, special


def _read_ranks(path: Path) -> dict[bytes, int]:
    """Read lines of `base64 rank`. A line whose token is only `=` is a placeholder, and is skipped."""
    fields = read_whole(path, _MAX_VOCABULARY_BYTES).split()
    tokens, decode = fields[::2], partial(binascii.a2b_base64, strict_mode=True)
    try:
        pairs = zip(tokens, fields[1::2], strict=True)
        ranks = {decode(token): int(rank) for token, rank in pairs if token != b"="}
    except ValueError as error:
        raise CheckpointFileError(f"{path} is not a valid tiktoken vocabulary: {error}") from None
    if not ranks or len(ranks) != len(tokens) - tokens.count(b"="):
        raise CheckpointFileError(f"{path} is empty or contains a token twice")
    return ranks
