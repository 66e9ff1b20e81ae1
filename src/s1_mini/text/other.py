"""What is read in languages other than English: numbers, as CLDR's rules say them, with the signs of the language."""

from __future__ import annotations

import re

from s1_mini.text.english.letters import read_stretched
from s1_mini.text.numbers import MAX_DIGITS, spell
from s1_mini.text.tables import table, words

# Of decimals; all others write a comma there, and group by a dot.
_POINT = frozenset(words("am cy en fil ga he hi ja ko ms ne sw ta th yue zh zu"))
_WITHOUT_SPACES = frozenset(("ja", "zh", "yue", "th", "km", "lo", "my"))
_POINT_WORDS = table(
    "de=Komma, fr=virgule, es=coma, it=virgola, pt=vírgula, nl=komma, sv=komma, da=komma, no=komma, nb=komma, "
    "fi=pilkku, pl=przecinek, tr=virgül, ja=点, zh=点, ko=점, hi=दशमलव, ru=запятая, uk=кома, ar=فاصل, he=נקודה, "
    "cs=celá"
)
_MINUS_WORDS = table("fr=moins, es=menos, pt=menos, it=meno, nl=min, ja=マイナス, zh=负")
_PERCENT_WORDS = table(
    "de=Prozent, fr=pour cent, es=por ciento, it=per cento, pt=por cento, nl=procent, sv=procent, da=procent, "
    "pl=procent, fi=prosenttia, ja=パーセント, zh=百分比"
)
_WITH_COMMA = re.compile(r"(-(?=\d))?(\d{1,3}(?:[. ]\d{3})++(?!\d)|\d++)(?:,(\d+))?(\s?%)?")
_SWISS = re.compile(r"(-(?=\d))?(\d{1,3}(?:'\d{3})++(?!\d)|\d++)(?:\.(\d+))?(\s?%)?")
_WITH_POINT = re.compile(r"(-(?=\d))?(\d{1,3}(?:,\d{3})++(?!\d)|\d++)(?:\.(\d+))?(\s?%)?")


def read(text: str, tag: str) -> str:
    """Say the numbers of a text; `tag` is one of `numbers.languages()`."""
    language = tag.partition("_")[0]
    pattern = _SWISS if tag == "de_CH" else _WITH_POINT if language in _POINT else _WITH_COMMA

    def number(found: re.Match[str]) -> str:
        start, end = found.span()
        is_signed = bool(found[1]) and not text[max(0, start - 1) : start].isalnum()
        whole = re.sub(r"\D", "", found[2])
        is_code = len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0")
        said = [_MINUS_WORDS.get(language, "minus")] if is_signed else []
        said += [_digits(whole, tag) if is_code else spell(int(whole), tag)]
        if found[3]:
            said += [_POINT_WORDS.get(language, "," if pattern is _WITH_COMMA else "."), _digits(found[3], tag)]
        if found[4]:
            said += [_PERCENT_WORDS.get(language, "%")]
        before, after = text[max(0, start - 1) : start].isalpha(), text[end : end + 1].isalpha()
        if language in _WITHOUT_SPACES:
            before = after = False
        hyphen = "-" if found[1] and not is_signed else ""
        return f"{' ' * before}{hyphen}{' '.join(said)}{' ' * after}"

    return read_stretched(pattern.sub(number, text))


def _digits(number: str, tag: str) -> str:
    return " ".join(spell(int(each), tag) for each in number)
