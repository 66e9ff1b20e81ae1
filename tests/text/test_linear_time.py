"""Reading a text takes time in proportion to its length, whatever the text is.

The attack strings come from the patterns themselves: for each repetition in a pattern's parse tree, text that repeats.
CPU time is measured in one thread, and only as a ratio between lengths.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import random
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from operator import itemgetter
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]  # private, but there is no other way to the tree
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest
from starlette.datastructures import Headers

import s1_mini
from s1_mini.alignment.subtitles import blank_markup
from s1_mini.exceptions import TextError
from s1_mini.server.limits import access_key
from s1_mini.text.arriving import ArrivingText
from s1_mini.text.form import TextForm
from s1_mini.text.lexicon import Lexicon
from s1_mini.text.markup import read_marked
from s1_mini.text.reading import spoken
from s1_mini.text.split import EarlyStart, cut_arriving, sentence_spans, split

SOURCES = Path(s1_mini.__file__).parent
PACKAGES = ("text", "alignment", "server", "core", "runtime", "voices", "audio", "sagemaker")  # see client text
SHORT_S = 20e-6  # below this time, nothing is known about growth
SUSPICIOUS_S = 100e-9  # per character: far more than a linear scan needs
LONG = 1000  # characters
SLOW_S = 3e-3  # for at most `LONG` characters; a longer text might take hours
MAX_RATIO = 8.0  # of the times for four times the length: 4 is linear, 16 quadratic
EXAMPLES = {
    "CATEGORY_DIGIT": "05",
    "CATEGORY_SPACE": " \n",
    "CATEGORY_WORD": "aZ0é_",
    "CATEGORY_NOT_DIGIT": "a ,",
    "CATEGORY_NOT_SPACE": "a0,.",
    "CATEGORY_NOT_WORD": " ,.-",
}
MATCHES = ("match", "fullmatch")
REPEATS = (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT)


def cpu_s(work: Callable[[str], object], text: str, times: int = 1) -> float:
    """Return the least CPU time of several runs."""
    taken = []
    for _ in range(times):
        begin = time.thread_time()
        work(text)
        taken.append(time.thread_time() - begin)
    return min(taken)


def grows_too_fast(work: Callable[[str], object], build: Callable[[int], str], length: int) -> bool:
    """Return whether the time for four times the length is far more than four times as long, in three measurements."""
    for _ in range(3):
        short, long = cpu_s(work, build(length), 2), cpu_s(work, build(4 * length))
        if long < MAX_RATIO * max(short, SHORT_S):
            return False
    return True


def patterns() -> dict[str, tuple[re.Pattern[str], Callable[[str], object]]]:
    """Return all patterns of the packages that see client text, by place, each with how it is used.

    These are the patterns in variables of modules and in calls of `re`. If all uses only match the start of a text,
    later places of an attack string are not tried.
    """
    found: dict[tuple[str, int], tuple[str, re.Pattern[str], bool]] = {}

    def add(value: Any, place: str, *, matches: bool, depth: int = 0) -> None:
        if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
            key = value.pattern, value.flags
            found[key] = place, value, matches and found.get(key, (place, value, True))[2]
        elif depth < 4 and isinstance(value, (tuple, list, set, frozenset, dict)):
            for each in value.values() if isinstance(value, dict) else value:
                add(each, place, matches=False, depth=depth + 1)

    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*.py")):
            name = ".".join(("s1_mini", *path.relative_to(SOURCES).with_suffix("").parts)).removesuffix(".__init__")
            tree = ast.parse(path.read_text("utf-8"))
            searched = _searched(tree)
            for attribute, value in vars(importlib.import_module(name)).items():
                add(value, f"{name}.{attribute}", matches=attribute not in searched)
            for pattern, method, line in _written(tree):
                add(pattern, f"{name}:{line}", matches=method in MATCHES)
    from s1_mini.text.multilingual import MULTILINGUAL, _readers

    for tag in sorted(MULTILINGUAL):
        add([each for each, _ in _readers(tag)], f"s1_mini.text.multilingual._readers({tag!r})", matches=False)
    return {
        f"{place} {pattern.pattern[:60]}": (pattern, pattern.match if matches else partial(_search, pattern))
        for place, pattern, matches in found.values()
    }


def _search(pattern: re.Pattern[str], text: str) -> None:
    for _ in pattern.finditer(text):
        pass


def _searched(tree: ast.AST) -> set[str]:
    """Return the names in a module that have uses other than `NAME.match(…)` and `NAME.fullmatch(…)`."""
    matched = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in MATCHES}
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in matched)
    return {node.id for node in names if isinstance(node.ctx, ast.Load)}


def _written(tree: ast.AST) -> Iterator[tuple[re.Pattern[str], str, int]]:
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(ast.Name("re"), str(method)), args=[ast.Constant(str(pattern)), *_]):
                if method != "compile":
                    yield re.compile(pattern), method, node.lineno


def _members(items: Any) -> list[str]:
    """Return a few characters of a set."""
    is_negated, chosen = False, []
    for kind, value in items:
        if kind is codes.NEGATE:
            is_negated = True
        elif kind is codes.LITERAL:
            chosen.append(chr(value))
        elif kind is codes.RANGE:
            chosen += [chr(value[0]), chr(value[1])]
        elif kind is codes.CATEGORY:
            chosen += EXAMPLES[str(value).rpartition(".")[2]]
    if is_negated:
        chosen = [each for each in "aA0 .,-_/\"'(é\n\t" if each not in chosen][:6]
    return chosen or ["a"]


def _parts(kind: Any, value: Any) -> list[Any]:
    """Return the trees directly below a node."""
    if kind is codes.BRANCH:
        return list(value[1])
    if kind is codes.SUBPATTERN:
        return [value[3]]
    if kind in REPEATS:
        return [value[2]]
    if kind is codes.ATOMIC_GROUP:
        return [value]
    if kind in (codes.ASSERT, codes.ASSERT_NOT):
        return [value[1]]
    return [each for each in value[1:] if each] if kind is codes.GROUPREF_EXISTS else []


def _choices(kind: Any, value: Any) -> list[str]:
    """Return a few characters that a node matches; none for a node that is not one character."""
    if kind is codes.LITERAL:
        return [chr(value)]
    if kind in (codes.ANY, codes.NOT_LITERAL):
        return ["b" if value == ord("a") else "a"]
    return _members(value) if kind is codes.IN else []


def _characters(tree: Any) -> Iterator[str]:
    for kind, value in tree:
        yield from _choices(kind, value)[:4]
        for part in _parts(kind, value):
            yield from _characters(part)


def _sample(tree: Any, chance: random.Random, repeated: list[tuple[str, str]]) -> str:
    """Return a text that a tree may match; collect (text before, text repeated) of its repetitions."""
    text, groups = "", {}
    for kind, value in tree:
        if choices := _choices(kind, value):
            text += chance.choice(choices)
        elif kind in REPEATS:
            least, most, part = value
            if most > 4:
                repeated.append((text, _sample(part, chance, [])))
            count = chance.randint(least, min(int(most), least + 2)) if least < 6 else 6
            text += "".join(_sample(part, chance, repeated) for _ in range(count))
        elif kind is codes.GROUPREF:
            text += groups.get(value, "")
        elif parts := _parts(kind, value):
            sample = _sample(chance.choice(parts), chance, repeated)
            groups |= {value[0]: sample} if kind is codes.SUBPATTERN else {}
            is_there = kind is not codes.ASSERT_NOT and (kind is not codes.ASSERT or chance.random() < 0.5)
            text += sample if is_there else ""
    return text


def attacks(pattern: re.Pattern[str]) -> list[tuple[str, str, str]]:
    """Return attack strings as (text before, text that is repeated, text after)."""
    chance, tree = random.Random(pattern.pattern), parser.parse(pattern.pattern, pattern.flags)
    letters = list(dict.fromkeys(_characters(tree)))
    letters = chance.sample(letters, min(16, len(letters)))
    pairs = list(itertools.permutations(letters, 2))
    found = [("", letter, after) for letter in letters for after in ("", "\x00")]
    found += [("", "".join(pair), "") for pair in chance.sample(pairs, min(16, len(pairs)))]
    for _ in range(10):
        repeated: list[tuple[str, str]] = []
        text = _sample(tree, chance, repeated)
        for before, part in chance.sample(repeated, min(4, len(repeated))):
            found += [(before, part, "\x00"), ("", before + 3 * part, ""), ("", part, "\x00")]
        found += [("", each, "") for each in (text, text[:-1], text[1:], text[: len(text) // 2], text + " ")]
    return list(dict.fromkeys(each for each in found if each[1]))


def weakness(pattern: re.Pattern[str], use: Callable[[str], object]) -> str | None:
    """Return an attack string whose time grows faster than its length, None if none was found."""
    slow = []
    for before, part, after in attacks(pattern):

        def build(length: int, before: str = before, part: str = part, after: str = after) -> str:
            return before + part * (length // len(part) + 1) + after

        for length in (16, 24, 36, 54, 80, 120, 180, 270, 400, 630, LONG):  # time may grow exponentially
            if (taken := cpu_s(use, build(length))) > SLOW_S:
                break
        if taken > SUSPICIOUS_S * length + SHORT_S:
            slow.append((taken / length, length // 4 if taken > SLOW_S else 2 * LONG, build))
    slow.sort(key=itemgetter(0), reverse=True)
    return next((build(60) for _, known, build in slow[:4] if grows_too_fast(use, build, known)), None)


def test_the_time_of_every_pattern_grows_with_the_length_of_the_text() -> None:
    weak = {place: found for place, each in patterns().items() if (found := weakness(*each))}
    assert not weak


@pytest.mark.parametrize("written", [r"\s+$", r"\d+(?=x)", r"(?:a|aa)+$", r"<[^>]*>", r"\s*,?\s*;"])
def test_a_pattern_that_backtracks_is_found(written: str) -> None:
    pattern = re.compile(written)
    assert weakness(pattern, partial(_search, pattern))


HONEST = "On May 5, 2024, Dr. Smith paid $5.50 for 3 kg of apples, and the old man from the sea said nothing at all. "
WORDS = TextForm("en")
MANY = TextForm(is_chosen=True)


def _arriving(text: str) -> None:
    arriving = ArrivingText(len(text), read=WORDS.reader("auto"))
    for start in range(0, len(text), 100):
        arriving.add(text[start : start + 100], is_last=False)
    arriving.add("", is_last=True)


def _session(text: str) -> None:
    rest = ""
    for start in range(0, min(len(text), 1000), 20):
        _, rest = cut_arriving(rest + text[start : start + 20])
        EarlyStart(at_clause=True, num_words=50).cut(rest)
        EarlyStart().cut(rest, has_paused=True)


def _respelled(text: str) -> None:
    deque(Lexicon({f"the {word}": "it" for word in "abcdefghijklmnopqrstuvw"}).find(text), maxlen=0)


READERS: dict[str, Callable[[str], object]] = {
    "english": lambda text: WORDS.script(text, len(text)),
    "many languages": lambda text: MANY.script(text, len(text)),
    "german": lambda text: spoken(text, "de"),
    "split": lambda text: split(text, 200),
    "sentences": sentence_spans,
    "arriving": _arriving,
    "session": _session,
    "marks": lambda text: read_marked(text, lambda _: Lexicon({}), ()),
    "lexicon": _respelled,
    "subtitles": lambda text: blank_markup(text, "ssml", ()),
    "polly's header": lambda text: access_key(Headers(raw=[(b"authorization", b"AWS4-HMAC-SHA256 " + text.encode())])),
}
# Found by measuring some thousand random combinations of marks, words and numbers.
UNITS = (
    *("√2", "^2", "∞", "#1", "@<", "<a ", "[a](", "|\t", "- a\n", " - ", " :)", " ； ", "& ", "{", "\\frac{", "\\["),
    *("🇦", "。🇦", "！가", "，?", "👍🏽", "a\u0301", "\u200d", "漢 ", "$5", "1/2 Sun. ", "e.g. 10:30", "№555-10:30"),
    *("a.", "I ", "中。", "か。1", "한1 ", "x! ", "1.234.", "3:05 ", "12h", "第", "1\u202f"),
    *("Dr. J. ", "…", '"', "a.\n\n", "A sentence here. "),
    *("1,", ", ", "the ", " ", "\t", "a", "!a", "<", "[", "Credential=,"),
)


# Worst cases for a backtracking pattern of English and of HTML.
MARKS = (
    *("1", "1-", "$1", "A.", "a@", "**", "# ", "½", "5'", "AB1", "😀\u200d", "->", ")  ", "1/2 ", "é", "/a", "#1-"),
    *("1 N. ", "a - ", "—-", "a*", "x=", " = a / b - c", "b^", "⁻¹", "mc²", "1 000 ", "€1.000", "$", "$$a", "$x_i "),
    *("\n", "\\(", "\\[x", "\\frac", "\\sqrt[", "x^{", "\\begin{align}", "\\text{", "\\alpha |", "07/04 to "),
    *(
        "as/s",
        ".a",
        "A.b",
        "#AIa",
        "QUA",
        "BCDFG",
        "DON'T",
        "▶ ",
        "│",
        '<a "',
        "<a b='",
        "<!--",
        "<![CDATA[",
        "<script>",
    ),
    *("<p hidden>", "<b>", "`<", "<br>\n ", "<td> ", "&#1"),
)


@pytest.mark.parametrize("reader", READERS)
def test_the_time_to_read_a_text_grows_with_its_length(reader: str) -> None:
    def read(text: str) -> None:
        with suppress(TextError):
            READERS[reader](text)

    def build(unit: str, length: int) -> str:
        return "x" + (unit * length)[: length - 1]

    slow = [
        unit
        for unit in (*UNITS, *(MARKS if reader == "english" else ()))
        if cpu_s(read, build(unit, 1200)) > MAX_RATIO * max(SHORT_S, cpu_s(read, build(unit, 300)))
        and grows_too_fast(read, partial(build, unit), 600)
    ]
    assert not slow


def test_no_text_takes_far_longer_than_an_honest_one() -> None:
    def read(text: str) -> None:
        with suppress(TextError):
            WORDS.script(text, 4000)

    honest_s = cpu_s(read, (HONEST * 40)[:4000], 2)
    slow = [unit for unit in UNITS if cpu_s(read, (unit * 4000)[:4000]) > 6 * honest_s]
    assert not slow
