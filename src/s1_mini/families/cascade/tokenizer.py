"""Converts text to ids with the checkpoint's WordPiece vocabulary: `tokenizer.json`, or BERT's cased `vocab.txt`."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from s1_mini.exceptions import CheckpointFileError
from s1_mini.weights.directory import read_whole

FILES = ("tokenizer.json", "vocab.txt")
UNKNOWN = "[UNK]"
_MAX_BYTES = 32 * 2**20  # published vocabularies are 3 MB


def find_vocabulary(directory: Path) -> Path:
    """Return the file of a checkpoint's vocabulary. Raises `CheckpointFileError` if there is none."""
    for name in FILES:
        if (directory / name).is_file():
            return directory / name
    raise CheckpointFileError(f"{directory} has no vocabulary: expected one of {', '.join(FILES)}")


class CascadeTokenizer:
    """Vocabulary of one checkpoint."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.size = 1 + max(tokenizer.get_vocab().values(), default=-1)  # all ids are below this

    @classmethod
    def from_directory(cls, directory: Path) -> CascadeTokenizer:
        """Read the vocabulary. Raises `CheckpointFileError`."""
        path = find_vocabulary(directory)
        content = read_whole(path, _MAX_BYTES)
        try:
            text = content.decode()
            if path.suffix == ".json":
                return cls(Tokenizer.from_str(text))
            return cls(_word_piece({word: number for number, word in enumerate(text.split("\n")) if word}))
        except Exception as error:  # the library raises bare exceptions
            raise CheckpointFileError(f"{path} is not a valid vocabulary: {str(error)[:200]}") from None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text with normalized white space, without special tokens."""
        ids: list[int] = self._tokenizer.encode(" ".join(text.split()), add_special_tokens=False).ids
        return ids


def _word_piece(vocabulary: dict[str, int]) -> Tokenizer:
    """Build the tokenizer of BERT's multilingual cased models."""
    if UNKNOWN not in vocabulary:
        raise ValueError(f"it has no {UNKNOWN} token")
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=UNKNOWN, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer
