"""Converts text to character ids with the checkpoint's `spm_char.model`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import sentencepiece

from s1_mini.exceptions import CheckpointFileError, CheckpointMismatchError
from s1_mini.families.mel.config import MelConfig
from s1_mini.weights.directory import read_whole

FILE = "spm_char.model"
_MAX_BYTES = 4 * 2**20  # the published file is 238 kB


class CharTokenizer:
    """Vocabulary of one checkpoint."""

    def __init__(self, model: bytes, config: MelConfig, source: str = FILE) -> None:
        """Parse the model. Raises `CheckpointFileError` or `CheckpointMismatchError`."""
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError, OSError) as error:
            raise CheckpointFileError(f"{source} is not a sentencepiece model: {error}") from None
        if self._pieces.get_piece_size() > config.vocab_size:
            raise CheckpointMismatchError(
                f"{source} has {self._pieces.get_piece_size()} pieces, but config.json's vocab_size is "
                f"{config.vocab_size}"
            )
        self._eos = config.eos

    @classmethod
    def from_directory(cls, directory: Path, config: MelConfig) -> CharTokenizer:
        """Read the file. Raises `CheckpointFileError` or `CheckpointMismatchError`."""
        return cls(read_whole(directory / FILE, _MAX_BYTES), config, str(directory / FILE))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, followed by the end token. Unknown characters become the unknown token."""
        return [*self._pieces.encode(text), self._eos]

    def token_ends(self, text: str) -> np.ndarray:
        """Return where each token of a text ends, in bytes of UTF-8. The end token has no bytes of its own."""
        places = self._pieces.encode(text, return_type="offset_mapping")["offsets"]
        return np.array([len(text[:end].encode()) for end in (*(stop for _, stop in places), len(text))])
