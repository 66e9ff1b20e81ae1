"""Tidy a text: compose Unicode and normalize white space; everything that is read aloud is kept.

Refuses input that is not text or has nothing to speak. Sentences, tokens and models play no part: `(excited)` and
`<|im_end|>` are plain text here. The engine tidies the text of a request once, before `split`.
"""

from __future__ import annotations

import re
import unicodedata

from s1_mini.exceptions import TextError, TextTooLongError
from s1_mini.text.structure import separator_of

MAX_MARKS = 30  # on one letter, as in Unicode's stream-safe text (UAX #15); sorting many more marks takes seconds

_REFUSED = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ud800-\udfff]")  # controls except \t \n \v \f \r; surrogates
_INVISIBLE = "\ufeff\u2060"  # byte order mark (zero-width no-break space); word joiner, which replaces it
_OTHER_MARKS = "\u0f73\u0f75\u0f81"  # combining class 0, but NFC decomposes them to combining marks
_WHITE_SPACE = re.compile(r"\s+")
_UNSPOKEN = ("P", "Z", "M", "Cc", "Cf")  # punctuation, separators, lone marks, controls, format characters


def tidied(text: str, max_length: int) -> str:
    r"""Return `text` composed (NFC) and trimmed, with a single space for every run of white space.

    A blank line or a paragraph separator becomes `PARAGRAPH_BREAK`, so that `split` sees the paragraph end there.
    Byte order marks are removed. Tidying the result again changes nothing.

    `max_length` counts characters as they were sent. Positions in messages count from 1. Raises `TextTooLongError`,
    and `TextError` if the text is not a str, is empty, has nothing to speak ("..."), or has a control character other
    than \t \n \v \f \r, half a surrogate pair, or more than `MAX_MARKS` combining marks in a row.
    """
    if not isinstance(text, str):
        raise TextError("text", f"must be a str, not {type(text).__name__}")
    if len(text) > max_length:
        allowed = f"the limit is {max_length}. Split the text or raise S1_MINI_MAX_TEXT_LENGTH."
        raise TextTooLongError("text", f"has {len(text)} characters; {allowed}")
    tidy = composed(text).strip()
    _check_speakable(tidy)
    return tidy


def composed(text: str) -> str:
    """Return a part of a text as `tidied` does, but keep white space at its ends. Raises `TextError`."""
    _check_characters(text)
    _check_marks(text)
    return spaced(text)


def spaced(text: str) -> str:
    """Return `text`, which may have the separators of `structure`, as `composed` does; raises nothing."""
    visible = text.translate(dict.fromkeys(map(ord, _INVISIBLE)))
    return _WHITE_SPACE.sub(lambda run: separator_of(run.group()), unicodedata.normalize("NFC", visible))


def is_speakable(text: str) -> bool:
    """Return whether `text` has a letter, number, symbol, private-use or unassigned character."""
    return not all(unicodedata.category(character).startswith(_UNSPOKEN) for character in text)


def _check_characters(text: str) -> None:
    found = _REFUSED.search(text)
    if found is None:
        return
    name = f"U+{ord(found.group()):04X} (character {found.start() + 1})"
    if found.group() >= "\ud800":
        raise TextError(
            "text", f"contains the lone surrogate {name}, half of a character; decode the text before you send it"
        )
    raise TextError("text", f"contains the control character {name}; only tabs and line breaks are allowed")


def _check_marks(text: str) -> None:
    run = 0
    for position, character in enumerate(text):
        if unicodedata.combining(character) or character in _OTHER_MARKS:
            run += 1
        elif character not in _INVISIBLE:  # removed before NFC, which joins the runs around it
            run = 0
        if run > MAX_MARKS:
            raise TextError(
                "text", f"has more than {MAX_MARKS} combining marks in a row (character {position + 1}); remove some"
            )


def _check_speakable(text: str) -> None:
    if not text:
        raise TextError("text", "is empty; send at least one letter, number or symbol")
    if not is_speakable(text):
        raise TextError("text", f"{text[:20]!r} contains nothing to speak; send at least one letter, number or symbol")
