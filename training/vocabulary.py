"""The voice's vocabulary: single bytes, the pieces of the speaker tag, S1's control tokens, semantic tokens.

Bytes are enough for a language this model only has to read aloud; the tag is merged so that it costs five tokens.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

from s1_mini.families.s1.random import CONTROL_TOKENS

NUM_SEMANTIC = 1024
MERGED = ("<|", "|>", "sp", "spe", "spea", "speak", "speake", "speaker")
PIECES = [bytes([value]) for value in range(256)] + [text.encode() for text in MERGED]  # of text, by token


def write_vocabulary(directory: Path) -> int:
    """Write `tokenizer.tiktoken` and `special_tokens.json`; give the size of the model's vocabulary.

    Several processes may do so at once, while others read.
    """
    lines = (f"{base64.b64encode(piece).decode()} {rank}\n" for rank, piece in enumerate(PIECES))
    _replace(directory / "tokenizer.tiktoken", "".join(lines))
    names = [f"<|{name}|>" for name in CONTROL_TOKENS] + [f"<|semantic:{i}|>" for i in range(NUM_SEMANTIC)]
    special = {name: len(PIECES) + index for index, name in enumerate(names)}
    _replace(directory / "special_tokens.json", json.dumps(special) + "\n")
    return len(PIECES) + len(names)


def _replace(path: Path, text: str) -> None:
    """Write a file whole, so that no reader sees half of it."""
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_text(text, encoding="ascii")
    temporary.replace(path)
