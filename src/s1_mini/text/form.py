"""What a checkpoint reads: words of a language or raw text, and which characters. From a text to what is spoken of it.

A checkpoint says so in its `config.json`, whichever family it is of:
`"text": {"language": "en", "alphabet": " '(),-.:;?!ABC…"}`. One that says nothing takes all text as it is.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from s1_mini.exceptions import CheckpointMismatchError, NothingToSpeakError, ParameterError, TextError
from s1_mini.text.language import LANGUAGES, detect
from s1_mini.text.ornaments import is_ornament
from s1_mini.text.reading import spoken
from s1_mini.text.tidy import is_speakable, tidied
from s1_mini.types import Normalize, OnUnsupported

MAX_ALPHABET = 100_000
MAX_NAMED = 10  # characters in a warning

_LONELY = re.compile(r"\s+(?=[,.;:!?](?:\s|$))")  # before a mark whose word was left out
_PLAIN = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ı": "i", "ŋ": "ng"}
_PLAIN |= {"ẞ": "SS", "Æ": "Ae", "Œ": "Oe", "Ø": "O", "Đ": "D", "Ð": "D", "Þ": "Th", "Ł": "L", "Ŋ": "Ng"}
_PLAIN |= {"–": "-", "—": "-", "…": "...", "’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "[": "(", "]": ")"}


@dataclass(frozen=True)
class Script:
    """The text that is spoken for a request's text, and a warning for the client."""

    text: str
    warning: str | None = None  # skipped characters, or a text in another language


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
        self, text: str, max_length: int, *, choice: Normalize = "auto", on_unsupported: OnUnsupported = "error"
    ) -> Script:
        """Return what is spoken for a request's `text`.

        `max_length` bounds the characters of the text and of what is spoken. Raises `TextError` as `tidied` does, for
        a text that is too long when it is spoken, and for an unsupported character unless those are skipped; raises
        `NothingToSpeakError` if nothing is left to speak.
        """
        tidy = tidied(text, max_length)
        is_read = choice != "off" and self.language is not None
        said = self._said(text, max_length) if is_read else tidy
        fitting, unsupported = self._fit(said)
        if unsupported and on_unsupported == "error":
            raise TextError("text", self._unsupported(fitting, unsupported, text, choice))
        if not is_speakable(fitting):
            skipped = _skipped(unsupported) if unsupported else None
            raise NothingToSpeakError("text", self._nothing(text, unsupported), skipped)
        if fitting != said:
            fitting = tidied(_LONELY.sub("", fitting), len(fitting))
        warnings = [_skipped(unsupported)] if unsupported else []
        if (other := self._other_language(tidy)) is not None:
            warnings.append(other)
        return Script(self._ended(fitting) if is_read else fitting, " ".join(warnings) or None)

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
            raise NothingToSpeakError("text", self._nothing(text, ""))
        return tidied(said, max_length)

    def _ended(self, text: str) -> str:
        """End a text as sentences end: a voice that learnt from sentences may stop at once before a bare "Hi"."""
        is_open = text[-1:].isalnum() and self.alphabet is not None and "." in self.alphabet
        return f"{text}." if is_open else text

    def _nothing(self, text: str, unsupported: str) -> str:
        shown = reprlib.repr(text)
        if not unsupported:
            return f"{shown} has nothing to say; send at least one letter, number or symbol"
        return f"{self._voice()}; nothing of {shown} is left without the characters that it cannot pronounce"

    def _voice(self) -> str:
        name = LANGUAGES.get((self.language or "").replace("_", "-").partition("-")[0])
        return f"this voice speaks {name}" if name else "this voice reads a limited alphabet"

    def _unsupported(self, fitting: str, unsupported: str, sent: str, choice: Normalize) -> str:
        first = unsupported[0]
        place = _position(first, sent)
        where = "" if place is None else f" (character {place + 1})"
        way_out = "Remove it"
        if any(character.isalnum() for character in fitting):
            way_out += ', or set on_unsupported to "skip"'
        if choice == "off" and self.language is not None and not first.isalpha():
            way_out += ', or normalize to "auto", which reads numbers and symbols'
        return f"{self._voice()}; it cannot pronounce {first!r}{where}. {way_out}."

    def _other_language(self, text: str) -> str | None:
        """Return a warning for a text that is clearly not in the voice's language."""
        if (self.language or "").partition("-")[0] != "en" or (found := detect(text)) is None:
            return None
        return f"This voice speaks English; the text looks like {LANGUAGES[found]} and is read as English."

    def _fit(self, text: str) -> tuple[str, str]:
        """Return `text` in characters of the alphabet, and the unsupported ones, each once."""
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
        """Return a character's replacement in the alphabet: empty if it has no reading, None if unsupported."""
        assert self.alphabet is not None
        for form in (_PLAIN.get(character), unicodedata.normalize("NFKD", character)):
            if form is not None:
                bare = "".join(each for each in form if not unicodedata.combining(each))
                bare = "".join(_PLAIN.get(each, each) for each in bare)
                if bare and self.alphabet.issuperset(bare.replace(" ", "")):
                    return bare
        return "" if unicodedata.category(character)[0] in "PZMC" or is_ornament(character) else None


def _skipped(unsupported: str) -> str:
    named = ", ".join(repr(each) for each in unsupported[:MAX_NAMED])
    more = f" and {len(unsupported) - MAX_NAMED} more" if len(unsupported) > MAX_NAMED else ""
    return f"Skipped characters that this voice cannot pronounce: {named}{more}."


def _position(character: str, sent: str) -> int | None:
    """Find a character in the text as it was sent, where it may stand in another form."""
    place = sent.find(character)
    if place >= 0:
        return place
    forms = {character, unicodedata.normalize("NFD", character)[0]}
    found = (number for number, each in enumerate(sent) if forms.intersection(unicodedata.normalize("NFKC", each)))
    return next(found, None)
