"""Splits a text into pieces for one generation each: whole sentences, or clauses of a sentence that is too long.

Sizes are UTF-8 bytes, because a Chinese character takes three bytes and about three times as long to speak as
a Latin letter. Cuts depend on punctuation and abbreviations, but neither on the language nor on tokens. The engine
splits text that `tidied` has returned.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import NamedTuple

from s1_mini.exceptions import ParameterError
from s1_mini.text.stops import SPELT_NUMBERS, UNITS, Kind, is_final, is_numbered, is_spelled, is_street
from s1_mini.text.structure import division_between, split_divisions, stronger, structured
from s1_mini.text.tables import word_set, words
from s1_mini.types import Division, Joined

# Grapheme clusters: the part of UAX 29 that keeps accented letters, emoji with a skin tone and flags in one piece.
_ZERO_WIDTH_JOINER = "\u200d"
_VIRAMA = 9  # canonical combining class: the mark that binds two Indic consonants into one
_FLAG_LETTERS = frozenset(map(chr, range(0x1F1E6, 0x1F200)))
# Extend the preceding character although they are not marks: joiners, Thai and Lao am, halfwidth voicing, tones, tags.
_EXTENDERS = re.compile("[\u200c\u200d\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")


def would_tear(text: str, cut: int) -> bool:
    """Return whether a cut before `text[cut]` divides a grapheme cluster; `text` starts at the start of one."""
    if not 0 < cut < len(text):
        return False
    before, after = text[cut - 1], text[cut]
    return (
        unicodedata.category(after).startswith("M")
        or _EXTENDERS.match(after) is not None
        or before == _ZERO_WIDTH_JOINER
        or unicodedata.combining(before) == _VIRAMA
        or (after in _FLAG_LETTERS and _num_flag_letters(text, cut) % 2 == 1)
    )


def _num_flag_letters(text: str, end: int) -> int:
    """Return the number of letters of flags directly before `end`."""
    start = end
    while start and text[start - 1] in _FLAG_LETTERS:
        start -= 1
    return end - start


PIECE_BYTES = 200  # maximum size of a piece, unless the settings or the checkpoint have another
MAX_REST = 1000  # characters of arriving text that may wait for the end of a sentence
MIN_GROWTH = 16  # an unfinished sentence is looked at again once it is longer by a part in this many
UNREAD_S = 0.1  # or when no text has arrived for this long
MAX_MARKS = 16  # characters of marks and space between two words where an unfinished sentence is cut
MIN_CLAUSE_BYTES = 12  # shortest clause that is spoken early: it lasts most of a second, enough to generate the next

_WIDE_ENDS = "。！？｡"  # end a sentence without a space after them
_ENDS = ".!?…؟۔।॥" + _WIDE_ENDS
_OPENERS = "\"'“‘„«‹»›([{"
_CLOSERS = "\"'”’»›)\\]}）］｝」』】》〉"
_EITHER = "“‘«‹"  # open “so” and « so », close „so“ and »so«
_SENTENCE_END = re.compile(
    rf"(?P<mark>[{_ENDS}]+(?:\s[{_ENDS}]+(?=\s|$))*)"  # also the spaced ". . ."
    rf"(?P<close>(?:[{_CLOSERS}]|[{_EITHER}](?=[\s{_CLOSERS}]|$))*(?:\s[»›)\]]+(?=\s|$))?)"  # also the spaced " »"
    r"(?P<space>\s*)"
)
_CLAUSE_MARKS = ";:,،؛-–—、，；：…"
_CLAUSE_END = re.compile(
    rf"(?P<mark>[;:,،؛][{_CLOSERS}]*(?=\s)|(?<=\s)[-–](?=\s)|—+|[、，；：…]+[{_CLOSERS}]*)"
    r"\s?"
)

_LETTERS = re.compile(r"(?:[A-Za-zÀ-ɏΑ-ωА-я]\.)*+[A-Za-zÀ-ɏΑ-ωА-я]")  # J. and U.S. and e.g.
_NEVER_LAST = word_set(
    "vs cf ca resp incl excl approx e.g i.e z.b d.h bzw ggf evtl inkl zzgl vgl hr fr mme mlle sra srta"
)
_NUMBERED = word_set("no nos nr num p pp vol fig art sec ch abb kap tel ep vv")  # before a number
_KINDS: dict[str, Kind] = {
    **dict.fromkeys(
        words(
            "dr mr mrs ms prof rev hon gen col capt cmdr lt sgt maj gov sen rep pres st mt ft adm amb atty messrs "
            "supt cpl pvt insp"
        ),
        "title",
    ),
    **dict.fromkeys(words("dept est univ intl natl govt assn assoc asst dist bdrm bdrms blk blks"), "part"),
    **dict.fromkeys(words("inc ltd co corp bros jr sr etc usw al esq ave blvd rd hwy pkwy ph.d b.sc m.sc"), "other"),
    **dict.fromkeys(words("a.m p.m"), "half"),
    **dict.fromkeys(words("mon tue tues wed thu thur thurs fri sat sun"), "day"),
    **dict.fromkeys(words("jan feb mar apr jun jul aug sep sept oct nov dec"), "month"),
}
_FULL_NAME = re.compile(r"[A-Z][\w.-]{0,20} [A-Z][\w-]{1,20},? $")
_MEASURED = re.compile(rf"(?:\d[\d.,/]*(?P<hyphen>-)?)?(?:{UNITS})")


# Words that begin a clause, and words that belong to the next word. Other languages are cut at marks and spaces.
_JOINING = re.compile(
    "and|but|or|nor|so|yet|because|although|though|while|when|where|which|who|whom|whose|that|if|unless|until|since|"
    "before|after|as|than|whether|whenever|wherever|whereas"
)
_BINDING = re.compile(
    "an?|the|of|to|in|on|at|by|for|from|with|into|my|your|his|her|its|our|their|this|these|those|no|not|very|"
    "i|you|he|she|it|we|they|is|are|was|were|be|been|am|has|have|had|do|does|did|will|would|can|could|may|might|must|"
    "should|don't|didn't"
)
_COUNTING = SPELT_NUMBERS | word_set("hundred thousand million billion point oh minus degrees per than dot slash dash")
MAX_JOINING = 10  # characters of a word that begins a clause
JOINED, BEFORE_BINDING, BETWEEN_WORDS, TEARING = 0.3, 0.5, 0.6, 1.0  # costs of cuts; 1 is a piece from the best size


def split(text: str, max_bytes: int) -> list[str]:
    """Return the texts of `split_pieces`."""
    return [piece.text for piece in split_pieces(text, max_bytes)]


class Piece(NamedTuple):
    """A text for one generation, and how it is divided from the piece before it."""

    text: str
    division: Division


def split_pieces(text: str, max_bytes: int, *, joins_sentences: bool = True) -> list[Piece]:
    """Cut `text` into pieces of at most `max_bytes` UTF-8 bytes each, in order, trimmed, none empty.

    Pieces hold as many whole sentences as fit; with `joins_sentences=False`, one. Each list item, heading and paragraph
    ends its piece. A sentence too long for one piece is cut into parts of similar size: after clause marks, else before
    English conjunctions and relative pronouns, else at other spaces, else between two characters. Where possible, no
    part is shorter than a quarter of `max_bytes`. Only white space at the cuts is lost.

    Raises `ParameterError` if `max_bytes` is below 4, the size of one character.
    """
    if max_bytes < 4:
        raise ParameterError("max_bytes", f"must be at least 4, the size of one UTF-8 character, not {max_bytes}")
    pieces: list[Piece] = []
    for sentence, before in _divided(text):
        division = before
        for part in _shorten(sentence, max_bytes):
            joined = f"{pieces[-1].text}{part}" if pieces else ""
            may_join = division == "clause" or (division == "sentence" and joins_sentences)
            if joined and may_join and _num_bytes(joined) <= max_bytes:
                pieces[-1] = pieces[-1]._replace(text=joined)
            else:
                pieces.append(Piece(part, division))
            division = "clause"
    return [Piece(piece.text.strip(), piece.division) for piece in pieces]


def cut_arriving(text: str) -> tuple[str, str]:
    """Cut arriving text as `split_arriving` does, but also cut a rest over `MAX_REST` characters at spaces."""
    whole, rest = split_arriving(text)
    while len(rest) > MAX_REST:
        cut = rest.rfind(" ", 1, MAX_REST) + 1 or MAX_REST
        whole, rest = whole + rest[:cut], rest[cut:]
    return whole, rest


def is_due(text: str, num_seen: int) -> bool:
    """Return whether an arriving text, whose first `num_seen` characters have no complete sentence, is to be cut.

    Cutting takes a time proportional to the length, so a text that arrives in tiny pieces is not cut for each of them.
    """
    return len(text) > num_seen + num_seen // MIN_GROWTH


def split_arriving(text: str) -> tuple[str, str]:
    """Cut text that is still arriving into the sentences that are certainly complete, and the rest.

    A sentence, a heading or a list item is certainly complete once text follows it. Either part may be empty; together
    they are the text.
    """
    begins, newline, last = text.rpartition("\n")
    if not any(map(str.isalnum, last)):  # the last line may become a scene break, a heading or a list item
        whole, rest = _cut_last(begins + newline)
        return whole, rest + last
    return _cut_last(text)


def _cut_last(text: str) -> tuple[str, str]:
    """Cut a text before its last sentence."""
    *whole, _ = [""] if not text.strip() else _sentences_of(structured(text))
    num_signs = sum(len("".join(sentence.split())) for sentence in whole)
    cut = 0 if not num_signs else [place for place, sign in enumerate(text) if not sign.isspace()][num_signs]
    return text[:cut], text[cut:]


@dataclass
class Stretches:
    """The stretches of a text that arrives in pieces, each of which is spoken by a request of its own."""

    before: str = ""  # the stretch that was spoken last, and text without anything to speak after it

    def skip(self, text: str) -> None:
        """Note a stretch that is not spoken."""
        self.before = f"{self.before}{text}"[-MAX_REST:] if self.before else ""

    def join(self, text: str, *, continues: bool = False, is_last: bool = False) -> Joined:
        """Note a stretch that is spoken. `continues`: its last sentence goes on in the next stretch."""
        before, self.before = self.before, "" if is_last else text
        if not before:
            return Joined(None, continues, is_last)
        is_sentence = ends_sentence(before[-MAX_REST:])
        division = stronger(division_between(before, text), "sentence" if is_sentence else "clause")
        return Joined(division, continues, is_last)


@dataclass(frozen=True)
class EarlyStart:
    """When to speak the beginning of a sentence before the rest has arrived. By default never."""

    at_clause: bool = False  # after a clause
    num_words: int = 0  # after at least this many words; 0: never
    pause_s: float = 0.0  # when no text has arrived for this long; 0: never

    def cut(self, text: str, *, has_paused: bool = False) -> tuple[str, str]:
        """Return the beginning of a sentence that can be spoken now, and the rest. Either part may be empty.

        Numbers are not cut, because how they are read depends on the words around them.
        """
        if has_paused and ends_sentence(text):
            return text.strip(), ""
        if has_paused and text[-1:] in _CLAUSE_MARKS:
            text += " "
        cut = 0
        if has_paused or self.at_clause:
            ends = (found.end("mark") for found in _CLAUSE_END.finditer(text) if _may_cut(text, found.end("mark")))
            cut = max((end for end in ends if has_paused or _num_bytes(text[:end]) >= MIN_CLAUSE_BYTES), default=0)
        if has_paused or (self.num_words and not cut):
            spaces = [found.start() for found in re.finditer(r"\s+", text) if _may_cut(text, found.start())]
            after = max(spaces, default=0)
            if len(text[:after].split()) >= (1 if has_paused else self.num_words):
                cut = max(cut, after)
        return text[:cut].strip(), text[cut:].lstrip()


def ends_sentence(text: str) -> bool:
    """Return whether a text certainly ends with the end of a sentence, whatever text may follow."""
    line = " ".join(text.split()) + " "
    return any(found.end() == len(line) and _is_sentence_end(line, found) for found in _SENTENCE_END.finditer(line))


def _may_cut(text: str, cut: int) -> bool:
    """Return whether an unfinished sentence may be cut at `cut`: after a word or a clause mark, not at a number."""
    word = text[max(0, cut - MAX_MARKS) : cut].rstrip(_CLAUSE_MARKS + _CLOSERS + " ")
    following = text[cut : cut + MAX_MARKS].lstrip()
    is_known = cut < len(text)  # a mark at the very end may go on
    return is_known and word[-1:].isalpha() and not following[:1].isdigit() and not would_tear(text, cut)


def is_abbreviation(word: str) -> bool:
    """Return whether a word may be an abbreviation, without its full stop."""
    low = word.lower()
    return low in _KINDS or low in _NUMBERED or low in _NEVER_LAST or _LETTERS.fullmatch(low) is not None


def first_sentence(text: str) -> tuple[str, bool]:
    """Return the first sentence of a tidy text, without the space around it, and whether another sentence follows."""
    sentences = [sentence.strip() for sentence, _ in islice(_divided(text), 2)]
    return sentences[0] if sentences else "", len(sentences) > 1


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Return start and stop of each sentence in `text`, which need not be tidy, without the white space around it."""
    places = [place for place, character in enumerate(text) if not character.isspace()]
    spans, first = [], 0
    for sentence in _sentences_of(text):  # which differs from the text only in white space
        after = first + sum(map(len, sentence.split()))
        spans.append((places[first], places[after - 1] + 1))
        first = after
    return spans


def _num_bytes(text: str) -> int:
    return len(text.rstrip().encode())


def _sentences_of(text: str) -> list[str]:
    """Return all sentences, each followed by a space."""
    return [sentence for sentence, _ in _divided(text)]


def _divided(text: str) -> Iterator[tuple[str, Division]]:
    """Yield all sentences, each followed by a space, with the division before them."""
    division: Division = "clause"
    for before, part in split_divisions(text):
        division = stronger(division, before)
        line = " ".join(part.split())
        if line:
            line += " "
            ends = (found.end() for found in _SENTENCE_END.finditer(line) if _is_sentence_end(line, found))
            for start, end in pairwise(chain([0], ends, [len(line)])):
                if start < end:
                    yield line[start:end], division
                    division = "sentence"
            division = "clause"


def _is_sentence_end(line: str, found: re.Match[str]) -> bool:
    mark, following = found["mark"].replace(" ", ""), line[found.end() : found.end() + 1]
    if any(wide in mark for wide in _WIDE_ENDS):
        return not would_tear(line, found.end())
    if not found["space"]:  # 3.14, 10.30, example.com
        return False
    if following.islower() and (found["close"] or mark.endswith(("..", "…"))):  # "Stop!" he said … and left.
        return False
    return mark != "." or not _is_abbreviated(line, found.start(), following)


def _is_abbreviated(line: str, dot: int, following: str) -> bool:
    """Return whether a full stop only belongs to an abbreviation."""
    start = line.rfind(" ", 0, dot) + 1
    word = line[start:dot].lstrip(_OPENERS)
    before, start = line[max(0, start - 2) : max(0, start - 1)], dot - len(word)
    low = word.lower()
    if low.isdecimal() and len(low) <= 2:  # the number of a list item
        return not before or before in _ENDS
    if (
        low in _NUMBERED
        and (following.isdecimal() or (low == "tel" and following in "+("))
        and is_numbered(line, start, dot + 1)
    ):
        return True
    kind = _kind(word, before, line, start)
    if kind is None:
        return low in _NEVER_LAST
    if not following:
        return True  # text that is still arriving may go on with a name
    return not is_final(line, start, dot + 1, kind)


def _kind(word: str, before: str, line: str, start: int) -> Kind | None:
    """Return the kind of an abbreviation after the character `before`; None for other words."""
    low = word.lower()
    measured = _MEASURED.fullmatch(low)
    if measured and (before.isdecimal() or word[0].isdecimal()):
        return "part" if measured["hyphen"] else "unit"
    if low in _NEVER_LAST:
        return None
    kind = _KINDS.get(low)
    if low == "sr" and not _FULL_NAME.search(line[max(0, start - 45) : start]):
        kind = "title"  # Señor
    elif low in ("st", "dr") and is_street(line, start):
        kind = "other"
    if kind in ("day", "month") and word.islower() and low in ("sat", "sun", "mar", "mon", "wed"):
        return None
    if kind is None and _LETTERS.fullmatch(word.rpartition("-")[2]) and not is_spelled(line, start):
        return "letters"
    return kind


def _shorten(sentence: str, max_bytes: int) -> list[str]:
    parts, num_bytes = [], _num_bytes(sentence)
    while num_bytes > max_bytes:
        cut = _cut_of(sentence, num_bytes, max_bytes)
        parts.append(sentence[:cut])
        num_bytes -= len(sentence[:cut].encode())
        sentence = sentence[cut:]
    return [*parts, sentence]


def _cut_of(sentence: str, num_bytes: int, max_bytes: int) -> int:
    """Return where a sentence of `num_bytes` is cut: at a natural place near the end of the first of equal parts."""
    target = num_bytes / math.ceil(num_bytes / (max_bytes - max_bytes // 12))  # words rarely fill a part
    limit, crumb = _num_characters(sentence, max_bytes), max_bytes // 4
    places: list[tuple[bool, float, int]] = []
    for place, cost in _places(sentence, limit).items():
        size = _num_bytes(sentence[:place])
        if size >= crumb:
            places.append((num_bytes - size < crumb, cost + abs(size - target) / max_bytes, place))
    if places:
        return min(places)[2]
    near = _num_characters(sentence, math.ceil(target))
    space = sentence.rfind(" ", 0, limit + 1) + 1
    whole = space or _after_character(sentence, near) or _after_character(sentence, limit)
    return whole or limit  # a grapheme cluster longer than a piece is divided rather than refused


def _places(sentence: str, limit: int) -> dict[int, float]:
    """Return where a sentence can be cut within its first `limit` characters, and what a cut there costs."""
    places, start = {}, 0
    while place := sentence.find(" ", start, limit + 1) + 1:
        before, after = (_bare(word) for word in (sentence[start:place], sentence[place : place + MAX_JOINING + 3]))
        is_name = sentence[start].isupper() and sentence[place : place + 1].isupper()
        if is_name or _JOINING.fullmatch(before) or _BINDING.fullmatch(before):
            places[place] = TEARING
        else:
            num_numbers = sum(each.partition("-")[0] in _COUNTING for each in (before, after))
            usual = BEFORE_BINDING if _BINDING.fullmatch(after) else BETWEEN_WORDS
            may_join = sentence.startswith("(", place) or _JOINING.fullmatch(after)
            places[place] = JOINED if may_join else usual + num_numbers * TEARING
        start = place
    for mark in _CLAUSE_END.finditer(sentence, 0, limit + 1):  # includes the space after a mark
        if mark.end("mark") <= limit and not would_tear(sentence, mark.end()):
            places[mark.end()] = 0.0
    return places


def _bare(text: str) -> str:
    """Return the first word of a text in lower case, without marks."""
    return text.lstrip(_OPENERS).partition(" ")[0].rstrip(_CLOSERS + ",").lower()


def _num_characters(text: str, num_bytes: int) -> int:
    return len(text[:num_bytes].encode()[:num_bytes].decode(errors="ignore"))


def _after_character(sentence: str, limit: int) -> int:
    cut = limit
    while cut and would_tear(sentence, cut):
        cut -= 1
    return cut
