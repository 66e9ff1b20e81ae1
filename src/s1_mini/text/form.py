"""What a checkpoint reads: words of a language or raw text, and which characters. From a text to what is spoken of it.

A checkpoint says so in its `config.json`, whichever family it is of:
`"text": {"language": "en", "alphabet": " '(),-.:;?!ABC…"}`. One that says nothing takes all text as it is.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from s1_mini.exceptions import CheckpointMismatchError, ParameterError, TextError
from s1_mini.text.reading import spoken
from s1_mini.text.tidy import is_speakable, tidied
from s1_mini.types import Normalize

Unspeakable = Literal["error", "skip"]

MAX_ALPHABET = 100_000
MAX_TOLD = 10  # letters that a warning names

_LONELY = re.compile(r"\s+(?=[,.;:!?](?:\s|$))")  # before a mark whose word was left out
_PLAIN = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ı": "i", "ŋ": "ng"}
_PLAIN |= {"ẞ": "SS", "Æ": "Ae", "Œ": "Oe", "Ø": "O", "Đ": "D", "Ð": "D", "Þ": "Th", "Ł": "L", "Ŋ": "Ng"}
_PLAIN |= {"–": "-", "—": "-", "…": "...", "’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "[": "(", "]": ")"}


@dataclass(frozen=True)
class Script:
    """What is spoken of a text, and the characters that are left out of it."""

    text: str
    skipped: str = ""

    @property
    def warning(self) -> str | None:
        """Say in one sentence, in ASCII, what is left out; None if nothing is."""
        if not self.skipped:
            return None
        names = ", ".join(_name(letter) for letter in self.skipped[:MAX_TOLD])
        more = f" and {len(self.skipped) - MAX_TOLD} more" if len(self.skipped) > MAX_TOLD else ""
        return f"outside this voice's alphabet, and not spoken: {names}{more}"


@dataclass(frozen=True)
class TextForm:
    """What a checkpoint reads."""

    language: str | None = None  # whose words it reads; None: text as it is written
    alphabet: frozenset[str] | None = None  # None: all characters

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TextForm:
        """Read `config.json`. Raises `CheckpointMismatchError`."""
        values = config.get("text")
        if values is None:
            return cls()
        if not isinstance(values, Mapping):
            raise CheckpointMismatchError(f"config.json: text={reprlib.repr(values)} is no object")
        language, alphabet = values.get("language"), values.get("alphabet")
        if language is not None:
            try:
                spoken("1", language)  # reads the rules now, and not with the first request
            except ParameterError as error:
                raise CheckpointMismatchError(f"config.json: text.{error}") from None
        if alphabet is not None and not (isinstance(alphabet, str) and 0 < len(alphabet) <= MAX_ALPHABET):
            raise CheckpointMismatchError(f"config.json: text.alphabet={reprlib.repr(alphabet)} is no text")
        return cls(language, None if alphabet is None else frozenset(alphabet))

    def script(
        self, text: str, max_length: int, *, choice: Normalize = "auto", unspeakable: Unspeakable = "error"
    ) -> Script:
        """Give what is to be spoken of a request's `text`.

        `max_length` counts characters of it, and of what is spoken. Positions in messages are those of `text`. Raises
        `TextError` as `tidied` does, for what is too long when it is spoken, and for a character that is outside
        the alphabet; with `skip`, only if nothing is left without those.
        """
        tidy = tidied(text, max_length)
        if choice == "off" or self.language is None:
            return self._within(tidy, text, unspeakable, choice)
        script = self._within(self._said(text, max_length), text, unspeakable, choice)
        return replace(script, text=self._ended(script.text))

    def transcript(self, text: str) -> str:
        """Give what the model is to read for `text`, which is in order and was spoken before: never an error."""
        said = spoken(text, self.language) if self.language is not None else text
        return " ".join(self._fit(said)[0].split())

    def _said(self, text: str, max_length: int) -> str:
        assert self.language is not None
        said = spoken(text, self.language)
        if len(said) > max_length:
            raise TextError(
                "text",
                f"its {len(text)} characters are {len(said)} when they are spoken; at most {max_length} are allowed; "
                "send it in parts or raise S1_MINI_MAX_TEXT_LENGTH",
            )
        if not is_speakable(said):
            raise TextError("text", f"{text[:20]!r} has nothing to say; send at least one letter, number or symbol")
        return tidied(said, max_length)

    def _ended(self, text: str) -> str:
        """End a text as sentences end: a voice that learnt from sentences may stop at once before a bare "Hi"."""
        is_open = text[-1:].isalnum() and self.alphabet is not None and "." in self.alphabet
        return f"{text}." if is_open else text

    def _within(self, tidy: str, sent: str, unspeakable: Unspeakable, choice: Normalize) -> Script:
        fitting, outside = self._fit(tidy)
        if not outside:
            return Script(fitting)
        first = outside[0]
        is_left = any(character.isalnum() for character in fitting)
        if unspeakable == "skip" and is_left:
            return Script(tidied(_LONELY.sub("", fitting), len(fitting)), outside)
        way_out = "take it out" + ("" if not is_left else ", or set S1_MINI_UNSPEAKABLE=skip to have the rest spoken")
        if choice == "off" and self.language is not None and not first.isalpha():
            way_out += "; normalize=auto reads numbers and signs"
        place = _position(first, sent)
        where = "" if place is None else f" at position {place}"
        raise TextError("text", f"{first!r} ({_name(first)}){where} is outside this voice's alphabet; {way_out}")

    def _fit(self, text: str) -> tuple[str, str]:
        """Give `text` in letters of the alphabet, and those that have no place in it, each once."""
        if self.alphabet is None or self.alphabet.issuperset(text):
            return text, ""
        outside: dict[str, None] = {}
        parts = []
        for character in text:
            if character in self.alphabet or character in " \n":
                parts.append(character)
                continue
            nearest = self._nearest(character)
            if nearest is None:
                outside[character] = None
            parts.append(nearest or "")
        return "".join(parts), "".join(outside)

    def _nearest(self, character: str) -> str | None:
        """Give what stands for a character in the alphabet; nothing for a mark without sound, None for a letter."""
        assert self.alphabet is not None
        for form in (_PLAIN.get(character), unicodedata.normalize("NFKD", character)):
            if form is not None:
                bare = "".join(each for each in form if not unicodedata.combining(each))
                bare = "".join(_PLAIN.get(each, each) for each in bare)
                if bare and self.alphabet.issuperset(bare.replace(" ", "")):
                    return bare
        return "" if unicodedata.category(character)[0] in "PZMC" else None


def _name(character: str) -> str:
    return f"U+{ord(character):04X} {unicodedata.name(character, 'without a name')}"


def _position(character: str, sent: str) -> int | None:
    """Find a character in the text as it was sent, where it may stand in another form."""
    place = sent.find(character)
    if place >= 0:
        return place
    forms = {character, unicodedata.normalize("NFD", character)[0]}
    found = (number for number, each in enumerate(sent) if forms.intersection(unicodedata.normalize("NFKC", each)))
    return next(found, None)
