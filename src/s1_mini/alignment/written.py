"""Maps the words of a written text to the spoken words that they are read as.

Most words are the same in both texts, in the same order. Between them are runs of words that are read differently, such
as numbers. A run is divided where its two sides, read separately, give the same words as the whole run; otherwise the
run stays one group: "Dr. Smith" may be two groups, "10:05 am" is one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import NamedTuple

from s1_mini.alignment.times import WORD

MAX_WRITTEN, MAX_SPOKEN = 12, 60  # maximum number of words of a run that is read differently
MAX_DIVIDED = 40  # maximum number of words of a run that is divided
NUM_AROUND = 2  # context: words on each side of a run that are read together with it
WRITTEN_WORD = re.compile(r"\S+")
JOINER = "\u2060"  # word joiner, which is invisible; `text.tags` puts it in the place of a tag within a word
OPENING, CLOSING = f"\"'“”‘’«»([{{<*_~`{JOINER}", f"\"'“”‘’«»)]}}>*_~`,.;:!?…{JOINER}"

SIGNS = frozenset("*•·|>…‣◦▪■●○_~^#=⁂❦❧☙◆◇✦❖")  # like dashes, they are not read where they stand alone

Read = Callable[[str], str]  # returns the spoken form of a text


class Group(NamedTuple):
    """A run of written words and the spoken words that they are read as, by number."""

    first: int  # first written word
    stop: int
    first_spoken: int
    stop_spoken: int


class WrittenWord(NamedTuple):
    """A word as written: characters start … stop of the text, without quotes, brackets and punctuation around it."""

    start: int
    stop: int


def find_written(text: str) -> list[WrittenWord]:
    """Return the words of a text, which white space separates."""
    words = []
    for found in WRITTEN_WORD.finditer(text):
        word = found.group()
        core = word.lstrip(OPENING)
        start = found.start() + len(word) - len(core)
        core = core.rstrip(CLOSING)
        if core:
            words.append(WrittenWord(start, start + len(core)))
    return words


def keys(text: str) -> list[str]:
    """Return the words of a text in the form in which they are compared."""
    return [
        word.lower().replace("’", "'") for word in WORD.findall(unicodedata.normalize("NFC", text.replace(JOINER, "")))
    ]


def find_groups(text: str, words: Sequence[WrittenWord], spoken: Sequence[str]) -> list[Group]:
    """Return groups that together cover all spoken words (in the form of `keys`), in order. `divide` divides them."""
    written: list[str] = []
    owners: list[int] = []
    for number, word in enumerate(words):
        parts = keys(text[word.start : word.stop]) or [""]
        written += parts
        owners += [number] * len(parts)
    pairs, at, said = [], 0, 0
    while at < len(written) and said < len(spoken):
        if written[at] == spoken[said]:
            pairs.append((at, at + 1, said, said + 1))
            at, said = at + 1, said + 1
            continue
        found = _find_same(written[at : at + MAX_WRITTEN + 2], spoken[said : said + MAX_SPOKEN + 2])
        num_written, num_spoken = found or (len(written) - at, len(spoken) - said)
        pairs.append((at, at + num_written, said, said + num_spoken))
        at, said = at + num_written, said + num_spoken
    if pairs and said < len(spoken):
        pairs.append((len(written), len(written), said, len(spoken)))
    return _joined(pairs, owners)


def without_signs(group: Group, text: str, words: Sequence[WrittenWord]) -> Group:
    """Return a group without dashes and other signs that stand alone at its ends, unless it has only such signs."""
    spoken = [number for number in range(group.first, group.stop) if not _is_sign(text[slice(*words[number])])]
    return group._replace(first=spoken[0], stop=spoken[-1] + 1) if spoken else group


def _is_sign(word: str) -> bool:
    return all(character in SIGNS or unicodedata.category(character) == "Pd" for character in word)


def divide(group: Group, text: str, words: Sequence[WrittenWord], spoken: Sequence[str], read: Read) -> list[Group]:
    """Divide a group of several written words where both sides, read separately, give the words of the whole."""
    if not 2 <= group.stop - group.first <= MAX_DIVIDED:  # each cut reads the whole run
        return [group]
    low, high = max(0, group.first - NUM_AROUND), min(len(words), group.stop + NUM_AROUND)

    def read_words(first: int, stop: int) -> list[str]:
        if first == stop:
            return []
        end = words[stop].start if stop < len(words) else len(text)
        return keys(read(text[words[first].start : end].rstrip()))

    around_before, whole = len(read_words(low, group.first)), read_words(low, high)
    expected = list(spoken[group.first_spoken : group.stop_spoken])
    if whole[around_before : around_before + len(expected)] != expected:
        return [group]
    divided, first, first_spoken = [], group.first, group.first_spoken
    for cut in range(group.first + 1, group.stop):
        left = read_words(low, cut)
        count = group.first_spoken + len(left) - around_before
        if first_spoken < count < group.stop_spoken and left + read_words(cut, high) == whole:
            divided.append(Group(first, cut, first_spoken, count))
            first, first_spoken = cut, count
    return [*divided, Group(first, group.stop, first_spoken, group.stop_spoken)]


def _find_same(written: Sequence[str], spoken: Sequence[str]) -> tuple[int, int] | None:
    """Return how many written and spoken words to skip until the next two (or the last one) are the same in both.

    Returns None if that never happens.
    """
    for total in range(1, MAX_WRITTEN + MAX_SPOKEN):
        for num_written in range(min(total, MAX_WRITTEN) + 1):
            num_spoken = total - num_written
            rest, said = written[num_written : num_written + 2], spoken[num_spoken : num_spoken + 2]
            if num_spoken <= min(MAX_SPOKEN, len(spoken)) and num_written <= len(written) and list(rest) == list(said):
                return num_written, num_spoken
    return None


def _joined(pairs: Sequence[tuple[int, int, int, int]], owners: Sequence[int]) -> list[Group]:
    """Return groups of whole written words; spoken words without a written one belong to the group before."""
    groups: list[Group] = []
    for at, stop, said, stop_said in pairs:
        if at == stop:
            first = last = owners[max(0, min(at, len(owners)) - 1)]
        else:
            first, last = owners[at], owners[stop - 1]
        if groups and first < groups[-1].stop:
            before = groups.pop()
            groups.append(Group(before.first, max(before.stop, last + 1), before.first_spoken, stop_said))
        else:
            groups.append(Group(first, last + 1, said, stop_said))
    return groups
