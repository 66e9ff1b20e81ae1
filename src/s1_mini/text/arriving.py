"""Divides a text that arrives in pieces into parts that no later piece changes.

A part ends with a letter or a digit that is followed by a space or a mark. Anything after that is held back, because
the last word may not be complete. Tidying and tokenizing such parts gives the same result as for the whole text. If the
text is normalized, each sentence is normalized by itself once it is complete; of an incomplete sentence, only the plain
words at its beginning are certain, except the last of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from s1_mini.exceptions import NothingToSpeakError, TextTooLongError
from s1_mini.text.split import MAX_REST, first_sentence, is_abbreviation
from s1_mini.text.structure import PARAGRAPH_BREAK
from s1_mini.text.tidy import composed, is_speakable, tidied

_WORD = re.compile(r"([^\s,，、]+)[\s,，、]*")
_STRETCHED = re.compile(r"(\w)\1\1")


class ArrivingText:
    """The parts of one text. Joined, they are the result of `tidied` or, with `read`, of `read` for each sentence."""

    def __init__(
        self, max_length: int, *, keeps_paragraphs: bool = False, read: Callable[[str], str] | None = None
    ) -> None:
        """`max_length` counts characters as they are sent; `read` normalizes a sentence.

        A paragraph break becomes a space unless `keeps_paragraphs` is True.
        """
        self._max_length, self._keeps_paragraphs, self._read = max_length, keeps_paragraphs, read
        self._length = 0
        self._rest = ""  # text after the last part, as it was sent
        self._has_begun = False
        self._sentence = ""  # tidy text that is not normalized, with the space before it
        self._certain = ""  # the beginning of `_sentence` that was returned already
        self._held = ""  # marks at the end of the normalized text, which may belong to the next token
        self._says = False

    def add(self, piece: str, *, is_last: bool) -> str:
        """Return the part that `piece` completes, which may be empty; with `is_last`, all of the rest.

        Raises `TextTooLongError`, `NothingToSpeakError`, and the other errors of `tidied`.
        """
        self._length += len(piece)
        if self._length > self._max_length:
            raise TextTooLongError(
                "text",
                f"has {self._length} characters so far; the limit is {self._max_length}. End this text and begin "
                "another, or raise S1_MINI_MAX_TEXT_LENGTH.",
            )
        text = self._tidy(piece, is_last=is_last)
        if self._read is not None:
            text = self._normalize(text, is_last=is_last)
        self._says = self._says or is_speakable(text)
        if is_last and not self._says:
            raise NothingToSpeakError("text", "contains nothing to speak; send at least one letter, number or symbol")
        return text if self._keeps_paragraphs else text.replace(PARAGRAPH_BREAK, " ")

    def _tidy(self, piece: str, *, is_last: bool) -> str:
        text = self._rest + piece
        if is_last and not self._has_begun:
            return tidied(text, self._max_length)
        end = len(text) if is_last else _end_of_part(text, len(self._rest))
        part, self._rest = composed(text[:end]), text[end:]
        part = part if self._has_begun else part.lstrip()
        self._has_begun |= bool(part)
        return part.rstrip() if is_last else part

    def _normalize(self, part: str, *, is_last: bool) -> str:
        if not (part or is_last):
            return ""
        text, said = self._sentence + part, self._held
        while stop := _end_of_sentence(text, is_last=is_last):
            said += self._finish(text[:stop], is_first=not (said or self._says))
            text = text[stop:]
        self._sentence = text
        said += self._begin(self._sentence, is_first=not (said or self._says))
        end = len(said)
        while end and not is_last and not said[end - 1].isalnum():
            end -= 1
        self._held = said[end:]
        return said[:end]

    def _finish(self, sentence: str, *, is_first: bool) -> str:
        """Return the part of a complete sentence that was not returned before."""
        assert self._read is not None
        bare, (certain, self._certain) = sentence.lstrip(), (self._certain, "")
        said = self._read(bare)
        if said.startswith(certain) and not said[len(certain) :][:1].isalnum():
            said = said[len(certain) :]
        else:  # normalization would change a word that was returned already, so that word stays as written
            rest = bare[len(certain) :]
            said = rest[: len(rest) - len(rest.lstrip())] + self._read(rest.lstrip())
        gap = "" if certain or is_first or not said else sentence[: len(sentence) - len(bare)]
        return gap + said

    def _begin(self, sentence: str, *, is_first: bool) -> str:
        """Return the plain words of an incomplete sentence that were not returned before."""
        bare, before = sentence.lstrip(), self._certain
        self._certain = bare[: _end_of_plain(bare, len(before))]
        gap = "" if before or is_first or not self._certain else sentence[: len(sentence) - len(bare)]
        return gap + self._certain[len(before) :]


def _end_of_part(text: str, start: int) -> int:
    """Return the end of the longest beginning of `text` that cannot change, from `start` on; 0 if there is none."""
    for end in range(len(text) - 1, max(0, start - 1), -1):
        before, after = unicodedata.category(text[end - 1])[0], text[end]
        if before in "LN" and (after.isspace() or unicodedata.category(after)[0] in "PSZ"):
            return end
    return 0


def _end_of_sentence(text: str, *, is_last: bool) -> int:
    """Return the end of the first sentence of a text, at most `MAX_REST`; 0 if the sentence is not complete."""
    beginning = text[: MAX_REST + 100]  # long enough to see that a sentence has ended
    sentence, is_complete = first_sentence(beginning)
    end = len(beginning) - len(beginning.lstrip()) + len(sentence)
    if end > MAX_REST:
        cut = max(beginning.rfind(mark, 1, MAX_REST) for mark in " ,，、")
        return cut if cut > 0 else MAX_REST
    is_complete = is_complete or (is_last and len(beginning) == len(text))
    return end if sentence and is_complete else 0


def _end_of_plain(sentence: str, start: int) -> int:
    """Return the end of the second-to-last of the plain words at the beginning of a sentence.

    The words before `start` are known to be plain.
    """
    end = before = start
    for found in _WORD.finditer(sentence, start):
        word = found[1].replace("'", "").replace("’", "")
        is_plain = word.isalpha() and not any(letter.isupper() for letter in word[1:]) and not _STRETCHED.search(word)
        if not is_plain or is_abbreviation(word):
            return end
        end, before = before, found.end(1)
    return end
