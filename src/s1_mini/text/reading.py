"""`spoken`: a text as it is written to a text as it is said, whole words and marks of sentences only.

English is read as a whole, in `english`; of other languages their numbers, by CLDR's rules, and what is the same in
all: markup is taken out, drawn-out letters are shortened. Knows no voice: what one cannot say, `alphabet` finds.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from s1_mini.exceptions import ParameterError
from s1_mini.text.ornaments import unified, without_ornaments

MAX_PASSES = 4  # until nothing changes: a text of words alone stays as it is

_LINE_ENDS = re.compile("\r\n?|[\v\f\x85\u2028]")
_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_MARKS = str.maketrans("’‘ʼ′“”„«»″−‐‑⁄∕＄％", "'" * 4 + '"' * 6 + "---//$%") | {ord("…"): "..."}
_FRACTIONS = re.compile(r"(\d?)([¼-¾⅐-⅞])")
_OTHER_DIGITS = re.compile(r"[^\x00-\x7f]")
_STYLED = re.compile("[ℂℍℕℙℚℝℤℓ\u2460-\u24ea\u3371-\u33df\uff01-\uff5e\U0001d400-\U0001d7ff]")  # ①, ㎏, Ａ, 𝐀
_CIRCLED = re.compile("[\u24eb-\u24ff\u2776-\u2793]")  # ❶
_SUPERSCRIPTS = str.maketrans("⁰¹⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", "01456789" + "0123456789")
_RAISED_DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_RAISED = re.compile("(?<=[\\w)])(?:⁻[⁰¹²³⁴-⁹]+|[⁰¹²³⁴-⁹]{2,}|[⁰¹⁴-⁹])")
_TIDY = (
    (re.compile(r"([!?])[!?]{2,}"), r"\1"),
    (re.compile(r"([!?,;:])\1+"), r"\1"),
    (re.compile(r"\.{4,}"), "..."),
    (re.compile(r"-{2,}"), " - "),
    (re.compile(r"\(\s*\)"), ""),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" +(?=[,.;!?](?:\s|$|[,.;!?]))"), ""),
    (re.compile(r",(?=\s?[,.;:!?])"), ""),
    (re.compile(r"(?m)^ | $"), ""),
    (re.compile(r"(?m)^[,;] ?"), ""),
)


def spoken(text: str, language: str = "en") -> str:
    """Give `text` as it is said: numbers, dates, money, abbreviations and the like as words, without markup.

    `spoken` of what it gave gives the same again. `language` is a tag such as en, en-GB or de; only English is read as
    a whole, of other languages numbers. Raises `ParameterError` for a language whose numbers are not known.
    """
    if not isinstance(text, str):
        raise ParameterError("text", f"{type(text).__name__} is not text; give a str")
    read = _reader(language)
    for _ in range(MAX_PASSES):
        before, text = text, read(text)
        if text == before:
            break
    return text


def _known_language(language: str) -> str:
    """Give the tag whose rules are used for a language. Raises `ParameterError` for one that has none."""
    from s1_mini.text.numbers import languages

    if isinstance(language, str) and re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8}){0,3}", language):
        first, _, rest = language.replace("-", "_").partition("_")
        for tag in (f"{first.lower()}_{rest}", first.lower()):
            if tag in languages() or tag == "en":
                return tag
    raise ParameterError("language", f"{str(language)[:20]!r} is not known; there are {', '.join(sorted(languages()))}")


def _reader(language: str) -> Callable[[str], str]:
    tag = _known_language(language)
    if tag.partition("_")[0] == "en":
        return _read_english
    from s1_mini.text.other import read

    return lambda text: _tidy(read(_prepare(text), tag))


def _read_english(text: str) -> str:
    from s1_mini.text.english import read

    return _tidy(read(_prepare(text)))


def _prepare(text: str) -> str:
    """Take out markup, and write what has several forms in one: digits, spaces, quotation marks, fractions."""
    from s1_mini.text.markup import read_emoji, read_markup

    text = unicodedata.normalize("NFC", _LINE_ENDS.sub("\n", text).replace("\u2029", "\n\n"))
    if not text.isascii():
        text = _SPACES.sub(" ", text).translate(_MARKS)
        text = _FRACTIONS.sub(_fraction, text)
        text = _RAISED.sub(lambda found: "^" + found.group().translate(_RAISED_DIGITS), text).translate(_SUPERSCRIPTS)
        text = unified(_OTHER_DIGITS.sub(_plain, text))
    text = read_emoji(read_markup(text))
    return text if text.isascii() else without_ornaments(text)


def _fraction(found: re.Match[str]) -> str:
    fraction = unicodedata.normalize("NFKC", found[2]).replace("⁄", "/")
    after = " " * found.string[found.end() : found.end() + 1].isalpha()
    return f"{found[1]}{' ' * bool(found[1])}{fraction}{after}"


def _plain(found: re.Match[str]) -> str:
    """Give a digit of another script as one of ours, and a wide or styled letter as a plain one."""
    character = found.group()
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if _STYLED.match(character):
        return unicodedata.normalize("NFKC", character)
    if _CIRCLED.match(character):
        return str(int(unicodedata.numeric(character)))
    return character


def _tidy(text: str) -> str:
    for pattern, instead in _TIDY:
        text = pattern.sub(instead, text)
    return text.strip()
