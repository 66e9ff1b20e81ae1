"""What a corpus raises."""

from __future__ import annotations

from s1_mini.exceptions import S1MiniError


class CorpusError(S1MiniError):
    """The input of a corpus cannot be read, its output cannot be gone on with, or its workers are lost."""

    code = "corpus_invalid"
