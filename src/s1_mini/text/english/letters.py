"""Words in capitals, which are spelt, said or only shout, and letters that are drawn out."""

from __future__ import annotations

import re
from itertools import product

from s1_mini.text.english.lexicon import AMBIGUOUS, DOUBLED, SAID, SHORT, SPELT
from s1_mini.text.tables import table

_MIXED = re.compile(r"\b(?:PhD|iOS|BSc|MSc|LaTeX|IoT|PaaS|SaaS|IaaS)(?=s?\b)")
_MIXED_SAID = table(
    "PhD=P H D, iOS=i O S, BSc=B S C, MSc=M S C, IoT=I O T, SaaS=sass, PaaS=pass, IaaS=I A A S, LaTeX=lah-tech"
)
_JOINED = re.compile(r"(?<![\w&])([A-Z]{1,4}(?:&[A-Z]{1,4}){1,3})(?![\w&])")
_CAPITALS = re.compile(r"(?<![\w'])([A-Z]{2,})(s|'s|ed|ing)?(?![\w])(?:-(?=[A-Z]\b))?")
_NEXT = re.compile(r"[^\w]{1,3}([A-Z]{2,20})\b")
_BEFORE = re.compile(r"\b([A-Z]{2,20})[^\w]{1,3}$")
_VOWEL = re.compile("[AEIOUY]")
_DRAWN = re.compile(r"([A-Za-z])\1\1")
_WORD = re.compile(r"[A-Za-z]++")
_RUN = re.compile(r"([A-Za-z])\1{2,}", re.IGNORECASE)
_MAX_RUNS = 4


def _is_shouted(word: str) -> bool:
    return word not in SAID and word not in SPELT and (word in SHORT or (len(word) > 3 and bool(_VOWEL.search(word))))


def _spell(word: str, ending: str) -> str:
    return " ".join(word) + ending


def _capitals(found: re.Match[str]) -> str:
    word, ending = found[1], found[2] or ""
    if word in SAID or len(word) > 20:
        return found.group()
    if word in AMBIGUOUS:
        before = found.string[max(0, found.start() - 25) : found.start()]
        near = [_NEXT.match(found.string, found.end()), _BEFORE.search(before)]
        if word == "OK":
            return "okay" + ending
        shouted = any(each and _is_shouted(each[1]) for each in near)
        return word.lower() + ending if shouted else _spell(word, ending)
    if word not in SPELT and _is_shouted(word):
        return word.lower() + ending
    return _spell(word, ending) + (" " if found.group().endswith("-") else "")


def read_acronyms(text: str) -> str:
    """Spell what is spelt, and write small what only shouts."""
    text = _MIXED.sub(lambda found: _MIXED_SAID[found.group()], text)
    text = _JOINED.sub(lambda found: " and ".join(" ".join(part) for part in found[1].split("&")), text)
    return _CAPITALS.sub(_capitals, text)


def _stretched(found: re.Match[str]) -> str:
    word = found.group()
    if not _DRAWN.search(word):
        return word
    runs = list(_RUN.finditer(word))
    for lengths in product((2, 1), repeat=min(_MAX_RUNS, len(runs))):
        shortened = _shorten(word, runs, lengths)
        if shortened.lower() in DOUBLED:
            return shortened
    return _shorten(word, runs, ())


def _shorten(word: str, runs: list[re.Match[str]], lengths: tuple[int, ...]) -> str:
    """Give a word with so many letters of each run, and one of those for which no length is given."""
    parts, end = [], 0
    for number, each in enumerate(runs):
        parts += [word[end : each.start()], each.group()[: lengths[number] if number < len(lengths) else 1]]
        end = each.end()
    return "".join(parts) + word[end:]


def read_stretched(text: str) -> str:
    """Give words without letters that are drawn out: sooooo is so, goooood is good."""
    return _WORD.sub(_stretched, text) if _DRAWN.search(text) else text
