"""Written characters that take several code points: an accented letter, an emoji with a skin tone, a flag.

Knows just enough of Unicode's grapheme clusters (UAX 29) not to tear one apart. Called by `split`.
"""

from __future__ import annotations

import re
import unicodedata

_ZERO_WIDTH_JOINER = "\u200d"
_VIRAMA = 9  # canonical combining class: the mark that binds two Indic consonants into one
_FLAG_LETTERS = re.compile("[\U0001f1e6-\U0001f1ff]+$")
# Extend what stands before them though they are no marks: joiners, Thai and Lao am, halfwidth voicing, tones, tags.
_EXTENDERS = re.compile("[\u200c\u200d\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")


def would_tear(text: str, cut: int) -> bool:
    """Tell whether a cut before `text[cut]` tears a written character apart; `text` starts with a whole one."""
    if not 0 < cut < len(text):
        return False
    before, after = text[cut - 1], text[cut]
    return (
        unicodedata.category(after).startswith("M")
        or _EXTENDERS.match(after) is not None
        or before == _ZERO_WIDTH_JOINER
        or unicodedata.combining(before) == _VIRAMA
        or (_FLAG_LETTERS.match(after) is not None and _num_flag_letters(text[:cut]) % 2 == 1)
    )


def _num_flag_letters(text: str) -> int:
    found = _FLAG_LETTERS.search(text)
    return len(found.group()) if found else 0
