"""The language in which the text of a checkpoint is normalized, and the checkpoint's alphabet.

A checkpoint of any family declares both in its `config.json`:
`"text": {"language": "en", "alphabet": " '(),-.:;?!ABC…"}`. Without this entry, text is not normalized. The exception
is a model with a choice of languages: each request has a language, and numbers whose reading is certain become words.
The entry may also have `piece_bytes`, the largest piece of text that the checkpoint speaks well, and `misread`, words
that it misreads before a mark, with spellings that it reads right: `{"no": "knoe"}`.
"""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from s1_mini.exceptions import CheckpointMismatchError, NothingToSpeakError, ParameterError, TextError
from s1_mini.text.detection import LANGUAGES, detect, identify
from s1_mini.text.reading import Watch, is_ornament, spoken, spoken_certain, unwatched
from s1_mini.text.split import PIECE_BYTES
from s1_mini.text.structure import in_paragraphs, structured, without_separators
from s1_mini.text.tidy import is_speakable, spaced, tidied
from s1_mini.types import Normalize, OnUnsupported

MAX_ALPHABET = 100_000
MIN_PIECE_BYTES = 50
MAX_NAMED = 10  # characters in a warning

# White space before punctuation, and brackets or quotation marks, whose words were skipped.
_LONELY = re.compile(r"(?<!\s)\s++(?=[,.;:!?](?:\s|$))|(?<!\s)\s*+\(\s*+\)|(?:^|(?<!\s)\s++)\"\"(?=[\s.,;:!?]|$)")
_PLAIN = {"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "đ": "d", "ð": "d", "þ": "th", "ł": "l", "ı": "i", "ŋ": "ng"}
_PLAIN |= {"ẞ": "SS", "Æ": "Ae", "Œ": "Oe", "Ø": "O", "Đ": "D", "Ð": "D", "Þ": "Th", "Ł": "L", "Ŋ": "Ng"}
_PLAIN |= {"–": "-", "—": "-", "…": "...", "’": "'", "‘": "'", "“": '"', "”": '"', "„": '"', "[": "(", "]": ")"}


@dataclass(frozen=True)
class NormalizedText:
    """The text that is spoken for a request's text, and a warning for the client."""

    structured: str  # tidy, with the separators of `structure`
    warning: str | None = None  # skipped characters, or a text in another language

    @property
    def text(self) -> str:
        """The text in paragraphs, without separators."""
        return in_paragraphs(self.structured)


def unchecked() -> None:
    """Check nothing."""


@dataclass(frozen=True)
class TextForm:
    """Language and alphabet of a checkpoint, or of one request to a checkpoint with a choice of languages."""

    language: str | None = None  # language of the normalization; None: not normalized
    alphabet: frozenset[str] | None = None  # None: all characters
    is_chosen: bool = False  # whether requests choose the language; if they name none, each sentence has its own
    piece_bytes: int = PIECE_BYTES  # maximum size of a piece, unless the settings have another
    # Words in lower case that the voice misreads before a mark, with spellings that it reads right.
    misread: Mapping[str, str] = field(default_factory=dict, hash=False)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TextForm:
        values = config.get("text")
        if values is None:
            return cls()
        if not isinstance(values, Mapping):
            raise CheckpointMismatchError(f"config.json: text={reprlib.repr(values)} must be an object")
        language, alphabet = values.get("language"), values.get("alphabet")
        piece_bytes = values.get("piece_bytes", PIECE_BYTES)
        if language is not None:
            try:
                spoken("1", language)  # load the rules now, not at the first request
            except ParameterError as error:
                raise CheckpointMismatchError(f"config.json: text.{error}") from None
        if alphabet is not None and not (isinstance(alphabet, str) and 0 < len(alphabet) <= MAX_ALPHABET):
            raise CheckpointMismatchError(
                f"config.json: text.alphabet={reprlib.repr(alphabet)} must be a string of 1 to {MAX_ALPHABET} "
                "characters"
            )
        if type(piece_bytes) is not int or not MIN_PIECE_BYTES <= piece_bytes <= PIECE_BYTES:
            raise CheckpointMismatchError(
                f"config.json: text.piece_bytes={reprlib.repr(piece_bytes)} must be a whole number from "
                f"{MIN_PIECE_BYTES} to {PIECE_BYTES}"
            )
        misread = values.get("misread", {})
        if not isinstance(misread, Mapping) or not all(
            isinstance(each, str) and each.isalpha() and each.islower() for pair in misread.items() for each in pair
        ):
            raise CheckpointMismatchError(
                f"config.json: text.misread={reprlib.repr(misread)} must be an object with words in lower case"
            )
        return cls(language, None if alphabet is None else frozenset(alphabet), False, piece_bytes, misread)

    def script(
        self,
        text: str,
        max_length: int,
        *,
        choice: Normalize = "auto",
        on_unsupported: OnUnsupported = "error",
        continues: bool = False,
        check: Callable[[], None] = unchecked,
    ) -> NormalizedText:
        """Return the spoken form of a request's `text`. With `continues`, `text` is the beginning of a sentence.

        `max_length` bounds the characters of the text and of its spoken form. `check` is called between the parts of
        a long text, and may raise an error to end the work. Raises the errors of `tidied`,
        `TextError` for a spoken form that is too long and, with `on_unsupported="error"`, for an unsupported character,
        and `NothingToSpeakError` if nothing is left to speak.
        """
        tidy = tidied(text, max_length)
        is_read = choice != "off" and (self.language is not None or self.is_chosen)
        said = self._said(text, max_length, check) if is_read else spaced(structured(text)).strip()
        fitting, unsupported = self._fit(said)
        if unsupported and on_unsupported == "error":
            raise TextError("text", self._unsupported(fitting, unsupported, text, choice))
        if not is_speakable(fitting):
            skipped = _skipped(unsupported) if unsupported else None
            raise NothingToSpeakError("text", self._nothing(text, unsupported), skipped)
        if fitting != said:
            fitting = spaced(_LONELY.sub("", fitting)).strip()
        warnings = [_skipped(unsupported)] if unsupported else []
        if (other := self._other_language(tidy)) is not None:
            warnings.append(other)
        return NormalizedText(
            self._ended(fitting, "," if continues else ".") if is_read else fitting, " ".join(warnings) or None
        )

    def prompt(self, piece: str, choice: Normalize, *, continues: bool) -> str:
        """Return a piece of a spoken form as the model reads it. With `continues`, the sentence goes on after it.

        A piece without a final mark gets one, because a voice trained on sentences repeats or skips words of a text
        that does not end. Words that the voice misreads before a mark are respelled.
        """
        ended = piece if self.reader(choice) is None else self._ended(piece, "," if continues else ".")
        return self._misread.sub(self._respelled, ended) if self.misread else ended

    def reader(self, choice: Normalize) -> Callable[[str], str] | None:
        """Return the normalization of a tidy sentence; None if it stays as written."""
        return None if choice == "off" or not (self.language is not None or self.is_chosen) else self.transcript

    def part_reader(self, text: str) -> Callable[[str], str]:
        """Return the normalization of parts of a text, which are read in the language of the whole text."""
        finds = self.is_chosen and self.language is None
        return (replace(self, language=identify(text)) if finds else self).transcript

    def transcript(self, text: str) -> str:
        """Normalize the transcript of a reference, which was validated before; raises nothing."""
        return " ".join(self._fit(self._read(text))[0].split())

    def _read(self, text: str, watch: Watch = unwatched) -> str:
        if self.is_chosen:
            return spoken_certain(text, self.language, watch, keeps_structure=True)
        return text if self.language is None else spoken(text, self.language, watch, keeps_structure=True)

    def _said(self, text: str, max_length: int, check: Callable[[], None]) -> str:
        def too_long(length: str) -> TextError:
            return TextError(
                "text",
                f"has {length} characters after normalization ({len(text)} as sent); the limit is {max_length}. "
                "Split the text or raise S1_MINI_MAX_TEXT_LENGTH.",
            )

        def watch(num_added: int) -> None:
            check()
            if num_added > max_length:
                raise too_long(f"more than {max_length}")

        said = self._read(text, watch)
        if (length := len(without_separators(said))) > max_length:
            raise too_long(str(length))
        if not is_speakable(said):
            raise NothingToSpeakError("text", self._nothing(text, ""))
        return spaced(said).strip()

    def _ended(self, text: str, mark: str) -> str:
        """Add a missing final mark, because a voice trained on sentences may stop before it says a bare "Hi"."""
        is_open = text[-1:].isalnum() and self.alphabet is not None and mark in self.alphabet
        return f"{text}{mark}" if is_open else text

    @cached_property
    def _misread(self) -> re.Pattern[str]:
        return re.compile(rf"\b(?:{'|'.join(map(re.escape, self.misread))})(?=[.,;:!?)\"]|$)", re.IGNORECASE)

    def _respelled(self, found: re.Match[str]) -> str:
        word = found.group()
        spelling = self.misread.get(word.lower(), word)  # "ſ" matches s, but lower() keeps it
        return spelling.upper() if word.isupper() else spelling.capitalize() if word[0].isupper() else spelling

    def _nothing(self, text: str, unsupported: str) -> str:
        shown = reprlib.repr(text)
        if not unsupported:
            return f"{shown} contains nothing to speak; send at least one letter, number or symbol"
        return f"{self._voice()}; it cannot pronounce any character of {shown}"

    def _voice(self) -> str:
        name = LANGUAGES.get((self.language or "").replace("_", "-").partition("-")[0])
        return f"this voice speaks {name}" if name else "this voice has a limited alphabet"

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
        is_english = (self.language or "").partition("-")[0] == "en" and not self.is_chosen
        if not is_english or (found := detect(text)) is None:
            return None
        return f"This voice speaks English; the text looks like {LANGUAGES[found]} and is read as English."

    def _fit(self, text: str) -> tuple[str, str]:
        """Return `text` in characters of the alphabet, and each unsupported character once."""
        if self.alphabet is None or self.alphabet.issuperset(text):
            return text, ""
        outside: dict[str, None] = {}
        parts = []
        for character in text:
            if character in self.alphabet or character.isspace():
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
    """Find a character in the text as it was sent, where it may have another Unicode form."""
    place = sent.find(character)
    if place >= 0:
        return place
    forms = {character, unicodedata.normalize("NFD", character)[0]}
    found = (number for number, each in enumerate(sent) if forms.intersection(unicodedata.normalize("NFKC", each)))
    return next(found, None)
