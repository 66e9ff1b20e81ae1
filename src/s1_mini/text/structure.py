"""The structure of a text: where its sentences, list items, paragraphs, headings and scenes are divided.

`mark_structure` writes a separator on a line of its own at each division that the lines of a plain text or of Markdown
show. Separators are control characters that clients cannot send and that count as white space, so that they pass
through normalization.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import get_args

from s1_mini.types import Division

DIVISIONS: tuple[Division, ...] = get_args(Division)

PARAGRAPH_BREAK = "\n\n"
SENTENCE_BREAK, ITEM_BREAK, HEADING_BREAK, SCENE_BREAK = "\x1e", "\x1f", "\x1d", "\x1c"
SEPARATORS: dict[str, Division] = {
    SENTENCE_BREAK: "sentence",
    ITEM_BREAK: "item",
    PARAGRAPH_BREAK: "paragraph",
    HEADING_BREAK: "heading",
    SCENE_BREAK: "scene",
}
LINE_SEPARATOR = "\u2028"  # ends a sentence that has no end mark
BULLETS = "-*+•‣◦⁃∙▪▫■□▶►▸▹●○◆◇◉★☆➤➜➔❖✦✧※"

_SEPARATOR = re.compile(f"[\x1c-\x1f]|{PARAGRAPH_BREAK}")
_OWN_LINE = re.compile("[\x1c-\x1f]\n?")
_WHITE_SPACE = re.compile(r"\s+")
_LINE_END = re.compile("\r\n?|[\v\f\x85]")
_SENTENCE_LINE = re.compile(f"\n?{SENTENCE_BREAK}\n?")
_ANY_LINE_END = re.compile("\r\n|[\r\v\f\x85\u2028\u2029]")
_LINE_BREAK = re.compile("\r\n|[\n\v\r\u2028\u2029]")
_FENCES = ("```", "~~~")
_RULE_SIGNS, _SCENE_SIGNS = frozenset("*-_=•·◆◇✦❖"), frozenset("⁂❦❧☙#")
MIN_RULE = 3  # signs of a line that is a scene break
_COUNTED = re.compile(r"\d{1,3}[.)][ \t]")
_SECTION = re.compile(  # 2.1 Methods, but not a quantity or a version
    r"\d{1,2}(?:\.\d{1,2}){1,3}\.?[ \t]+(?!(?:Uhr|Euros?|Dollars?|Cents?|Franken|Pfund|Hundred|Thousand|Tausend|"
    r"(?:[MBT]r?illi|Kilo|Mega|Giga|[KMG]b)\w*|Mio|Mrd|Lakh|Crore|Prozent|Percent|Grad|Meter|Liter|Gramm|Tonnen|Zoll|"
    r"Punkte?|Jahre?|Monate?|Wochen?|Tage?|Stunden?|Minuten?|Sekunden?|Alpha|Beta)\b)[A-Z][a-z]{2}"
)
_LINE_CLOSERS = "\"'”’»)]*_ "
_UNFINISHED = re.compile(
    r"(?i:\b(?:nos?|nr|fig|sec|art|ch|ca|cf|vs?|e\.g|i\.e|z\. ?b|approx|vol|pp?|abb|kap|resp|bzw)\.)$"
)
_SPACES = (" ", "\t")
_MARKS = ".!?…:;,"


def separator_of(white: str) -> str:
    """Return the strongest separator in a run of white space; a space if there is none."""
    white = _SENTENCE_LINE.sub(SENTENCE_BREAK, white)
    breaks = _LINE_BREAK.findall(without_separators(white))
    is_paragraph = PARAGRAPH_BREAK in white or len(breaks) > 1 or "\u2029" in breaks
    found = [each for each in white if each in SEPARATORS] + [PARAGRAPH_BREAK] * is_paragraph
    return max(found, key=_strength, default=" ")


def stronger(one: Division, other: Division) -> Division:
    return max(one, other, key=_rank)


def split_divisions(text: str) -> list[tuple[Division, str]]:
    """Return the parts of a tidy text between its separators, each with the division before it."""
    found = [*_SEPARATOR.finditer(text)]
    starts, stops = [0, *(each.end() for each in found)], [*(each.start() for each in found), len(text)]
    before: list[Division] = ["clause", *(SEPARATORS[each.group()] for each in found)]
    return [(each, text[start:stop]) for each, start, stop in zip(before, starts, stops, strict=True)]


def without_separators(text: str) -> str:
    """Return a text without the lines that `mark_structure` has added."""
    return _OWN_LINE.sub("", text)


def in_paragraphs(text: str) -> str:
    """Return a tidy text with separators as it is shown to users."""
    return _SEPARATOR.sub(lambda found: " " if found.group() == ITEM_BREAK else PARAGRAPH_BREAK, text)


def unified_lines(text: str) -> str:
    r"""Return `text` with \n as its only line end; a paragraph separator becomes a blank line."""
    text = _LINE_END.sub("\n", text).replace("\u2029", PARAGRAPH_BREAK)
    return text.replace(LINE_SEPARATOR, f"\n{SENTENCE_BREAK}\n")


def mark_structure(text: str) -> str:
    r"""Return `text`, whose lines end in \n, with a line for each separator that its lines show.

    Nothing else changes. A blank line is a separator itself. Headings and scene breaks have separators on both sides,
    so that they also divide a text that begins or ends with one. Marking the result again changes nothing.
    """
    lines = text.split("\n")
    kinds = _kinds(lines)
    if not any(kinds):
        return text
    marked: list[str] = []
    edges = [("", ""), *zip(lines, kinds, strict=True), ("", "")]
    for (line, kind), (following, next_kind) in pairwise(edges):
        marked.append(line)
        separator = max(kind, next_kind, key=_strength)
        continues = kind == ITEM_BREAK and not next_kind and following[:1] in (" ", "\t") and following.strip()
        is_marked = any(each == separator for each in (line, following))
        if separator and not is_marked and not continues:
            marked.append(separator)
    return "\n".join(marked[1:])


def structured(text: str) -> str:
    """Return a text of any form with a separator or a space for each run of white space; nothing else changes."""
    return _WHITE_SPACE.sub(lambda run: separator_of(run.group()), mark_structure(unified_lines(text)))


def division_between(before: str, after: str) -> Division:
    """Return how two consecutive parts of a text are divided by their lines; a clause if they are not."""
    head, tail = mark_structure(unified_lines(before)), mark_structure(unified_lines(after))
    white = head[len(head.rstrip()) :] + tail[: len(tail) - len(tail.lstrip())]
    return SEPARATORS.get(separator_of(white), "clause")


def find_breaks(text: str) -> list[int]:
    """Return the positions of the lines in `text` that begin a paragraph, heading or scene."""
    lines = _ANY_LINE_END.sub(lambda found: "\n".rjust(len(found.group())), text).split("\n")
    kinds = _kinds(lines)
    breaks, position, is_due = [], 0, False
    for line, kind in zip(lines, kinds, strict=True):
        is_due |= not line.strip() or kind in (HEADING_BREAK, SCENE_BREAK)
        if is_due and line.strip():
            breaks.append(position)
            is_due = kind in (HEADING_BREAK, SCENE_BREAK)
        position += len(line) + 1
    return breaks


def is_scene_break(line: str) -> bool:
    """Return whether a line consists only of signs that stand for a change of scene, such as * * *."""
    signs = set(line) - {" ", "\t"}
    if len(signs) == 1 and signs <= _RULE_SIGNS:
        return sum(map(line.count, signs)) >= MIN_RULE
    return bool(signs) and signs <= _SCENE_SIGNS


def _rank(division: Division) -> int:
    return DIVISIONS.index(division)


def _strength(separator: str) -> int:
    return _rank(SEPARATORS[separator]) if separator else -1


def _kinds(lines: Sequence[str]) -> list[str]:
    """Return the separator that each line has on both sides, or an empty string."""
    kinds: list[str] = []
    fence = ""
    for number, line in enumerate(lines):
        bare = line.strip(" \t")
        if fence or bare.startswith(_FENCES):
            fence = "" if fence and bare.startswith(fence) else fence or bare[:3]
            kinds.append("")
        elif _is_underline(bare) and _is_title(lines, kinds, number):
            kinds[-1:] = [HEADING_BREAK, HEADING_BREAK]
        elif _is_underline(bare) and number and lines[number - 1] == HEADING_BREAK:  # of a title that is marked
            kinds.append(HEADING_BREAK)
        else:
            is_item = _is_row(lines, kinds, number) or _is_section(lines, kinds, number)
            kinds.append(_kind(bare) or ITEM_BREAK * is_item)
    return kinds


def _kind(bare: str) -> str:
    """Return the separator of a line that does not depend on other lines."""
    if bare in SEPARATORS:
        return bare
    if is_scene_break(bare):
        return SCENE_BREAK
    rest = bare.lstrip("#")
    if len(bare) - 6 <= len(rest) < len(bare) and rest[:1] in _SPACES:
        return HEADING_BREAK
    is_item = bare[:1] in BULLETS and bare[1:2] in _SPACES
    return ITEM_BREAK if is_item or _COUNTED.match(bare) or bare.startswith("|") else ""


def _is_row(lines: Sequence[str], kinds: Sequence[str], number: int) -> bool:
    """Return whether a line is a row of a table without a line at its left edge."""
    if "|" not in lines[number]:
        return False
    goes_on = bool(kinds) and kinds[-1] == ITEM_BREAK and "|" in lines[number - 1]
    return goes_on or any(map(is_table_rule, lines[number : number + 2]))


def _is_section(lines: Sequence[str], kinds: Sequence[str], number: int) -> bool:
    """Return whether a line begins with a number such as 2.1 and a title, rather than with the rest of a sentence."""
    following = lines[number + 1] if number + 1 < len(lines) else ""
    if not _SECTION.match(lines[number].strip(" \t")) or (following[:1].islower() and "|" not in following):
        return False
    before = lines[number - 1].strip() if number else ""
    if not before or (kinds[-1] and (lines[number][0] not in _SPACES or before[0].isdecimal())):
        return True
    return before.rstrip(_LINE_CLOSERS)[-1:] in (*".!?…:",) and not _UNFINISHED.search(before)


def _is_underline(bare: str) -> bool:
    return len(bare) >= 3 and set(bare) in ({"="}, {"-"})


def _is_title(lines: Sequence[str], kinds: Sequence[str], number: int) -> bool:
    """Return whether the line below which a rule stands is a title: a paragraph of one line without an end mark."""
    title = lines[number - 1].strip() if number else ""
    begins = number < 2 or not lines[number - 2].strip() or bool(kinds[-2])
    return begins and bool(title) and not kinds[-1] and title[-1] not in _MARKS and "|" not in title


def is_table_rule(line: str) -> bool:
    """Return whether a line divides the head of a table from its rows."""
    return "--" in line and "|" in line and set(line.strip()) <= set("-:| \t")
