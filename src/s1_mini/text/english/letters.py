"""Words in capitals (acronyms, abbreviations, shouting) and repeated letters."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product

from s1_mini.text.english.lexicon import AMBIGUOUS, CODAS, DOUBLED, ONSETS, SAID, SHORT, SPELT
from s1_mini.text.english.measures import UNITS, plural
from s1_mini.text.tables import table, text_before

_MIXED = re.compile(r"\b(?:PhD|iOS|BSc|MSc|LaTeX|IoT|PaaS|SaaS|IaaS)(?=s?\b)")
_MIXED_SAID = table(
    "PhD=P H D, iOS=i O S, BSc=B S C, MSc=M S C, IoT=I O T, SaaS=sass, PaaS=pass, IaaS=I A A S, LaTeX=lah-tech"
)
_ENDS_SMALL = re.compile(r"(?<![\w'])[A-Z]{2,5}[a-rt-z](?!\w)")  # NVMe, PCIe
_CONTRACTED = re.compile(r"(?<![\w'])([A-Z]{1,12})'(T|RE|VE|LL|D|M|S)(?!\w)")
_CLUSTER = re.compile("QU|(?:(?!QU)[B-DF-HJ-NP-TV-XZ]|^Y)+(?:QU)?")
_HARD_VOWELS = re.compile("^(?:[AIOU]{3}|AA|IA|IE|II|OE|UE|UI|UO|UU)|(?<!Q)[AEIOU]{4}|(?<!Q)UU|II(?!$)")
_JOINED = re.compile(r"(?<![\w&])([A-Z]{1,4}(?:&[A-Z]{1,4}){1,3})(?![\w&])")
_CAPITALS = re.compile(r"(?<![\w'])([A-Z]{2,})(s|'s|ed|ing)?(?![\w])(?:-(?=[A-Z]\b))?")
_NEXT = re.compile(r"[^\w]{1,3}([A-Z]{2,20})\b")
_BEFORE = re.compile(r"\b([A-Z]{2,20})[^\w]{1,3}$")
_VOWEL = re.compile("[AEIOUY]")
_DRAWN = re.compile(r"([A-Za-z])\1\1")
_WORD = re.compile(r"[A-Za-z]++")
_RUN = re.compile(r"([A-Za-z])\1{2,}", re.IGNORECASE)
_MAX_RUNS = 4


@lru_cache(maxsize=4096)
def _is_pronounceable(word: str) -> bool:
    """Return whether English words have these clusters of letters: MANUAL has, MMLU and OECD have not."""
    if _HARD_VOWELS.search(word) or not _VOWEL.search(word):
        return False
    clusters = [(found.start(), found.group()) for found in _CLUSTER.finditer(word)]
    return all(_is_cluster(each, start == 0, start + len(each) == len(word)) for start, each in clusters)


def _is_cluster(letters: str, is_first: bool, is_last: bool) -> bool:
    if len(letters) == 1:
        return True
    if is_first:
        return letters in ONSETS
    if is_last:
        return letters in CODAS or (letters[-1] == "S" and (len(letters) == 2 or letters[:-1] in CODAS))
    splits = ((letters[:cut], letters[cut:]) for cut in range(len(letters) + 1))
    return any((len(a) < 2 or a in CODAS) and (len(b) < 2 or b in ONSETS) for a, b in splits)


def _is_shouted(word: str) -> bool:
    if word in SAID or word in SPELT:
        return False
    if word in SHORT:
        return True
    is_long = len(word) > 7 and len(_VOWEL.findall(word)) > 1  # no acronym
    return 3 < len(word) <= 20 and (is_long or _is_pronounceable(word.removeprefix("MC")))


def _spell(word: str, ending: str) -> str:
    return " ".join(word) + ending


def _capitals(found: re.Match[str]) -> str:
    word, ending = found[1], found[2] or ""
    tail = " " if found.group().endswith("-") else ""
    if word in SAID or len(word) > 20:
        return found.group()
    if word in AMBIGUOUS:
        before = text_before(found, 25)
        near = [_NEXT.match(found.string, found.end()), _BEFORE.search(before)]
        if word == "OK":
            return f"okay{ending}{tail}"
        shouted = any(each and _is_shouted(each[1]) for each in near)
        return (word.lower() + ending if shouted else _spell(word, ending)) + tail
    if word not in SPELT and _is_shouted(word):
        return word.lower() + ending + tail
    return _spell(word, ending) + tail


def _ends_small(found: re.Match[str]) -> str:
    unit = UNITS.get(found.group())
    return plural(unit) if unit else " ".join(found.group())


def _contracted(found: re.Match[str]) -> str:
    word, ending = found[1], found[2]
    is_word = ending != "S" or word in AMBIGUOUS or _is_shouted(word)
    return f"{word if word == 'I' else word.lower()}'{ending.lower()}" if is_word else f"{word}'s"


def read_acronyms(text: str) -> str:
    """Spell what is spelt, and write small what only shouts."""
    text = _CONTRACTED.sub(_contracted, text) if "'" in text else text
    text = _MIXED.sub(lambda found: _MIXED_SAID[found.group()], text)
    text = _ENDS_SMALL.sub(_ends_small, text)
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
    """Return a word with its runs of a letter shortened to `lengths`, those without a length to one."""
    parts, end = [], 0
    for number, each in enumerate(runs):
        parts += [word[end : each.start()], each.group()[: lengths[number] if number < len(lengths) else 1]]
        end = each.end()
    return "".join(parts) + word[end:]


def read_stretched(text: str) -> str:
    """Return words without letters that are drawn out: sooooo is so, goooood is good."""
    return _WORD.sub(_stretched, text) if _DRAWN.search(text) else text
