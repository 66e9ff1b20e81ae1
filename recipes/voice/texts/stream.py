"""The stream of utterances: the sequence of kinds, and how each kind is built from lists, templates and corpora."""

from __future__ import annotations

import functools
import json
import lzma
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import gcd
from pathlib import Path
from string import ascii_uppercase
from typing import Literal, get_args

from s1_mini.text.english.dates import MONTHS

HERE = Path(__file__).parent

Random = random.Random


@functools.cache
def sections(name: str) -> dict[str, list[str]]:
    """Read a file whose sections are opened by ``[name]``."""
    found: dict[str, list[str]] = {}
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = found.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return found


@functools.cache
def word_lists() -> dict[str, list[str]]:
    return {
        name: [word for line in lines for word in line.split(", ")] for name, lines in sections("wordlists.txt").items()
    }


def one(rng: Random, name: str) -> str:
    return rng.choice(word_lists()[name])


@dataclass(frozen=True)
class Corpora:
    """The result of ``prepare``: sentences in a fixed random order, common words by frequency, all words."""

    sentences: list[str]
    common: list[str]
    words: list[str]


@functools.cache
def load(path: Path) -> Corpora:
    return Corpora(**json.loads(lzma.decompress(path.read_bytes())))


def held_out_sentences() -> dict[str, list[str]]:
    """Return the evaluation texts by kind (plain, numbers, names, short, calls, long); `reference` is for cloning."""
    return {name: list(lines) for name, lines in sections("held_out.txt").items()}


def is_held_out(text: str) -> bool:
    """Return whether this is an evaluation text, whatever its case and punctuation."""
    return bare(text) in _bare_held_out()


@functools.cache
def _bare_held_out() -> frozenset[str]:
    """Return all but the most common calls, such as "No.", which every voice should have learnt."""
    return frozenset(
        bare(text) for name, lines in sections("held_out.txt").items() if name != "short" for text in lines
    )


def bare(text: str) -> str:
    """Return a text without case and punctuation."""
    return re.sub(r"[^a-z0-9$£%]+", " ", text.lower()).strip()


def _integer(rng: Random) -> str:
    size = rng.choices([10, 100, 1000, 10_000, 1_000_001], [2, 4, 3, 2, 2])[0]
    number = rng.randrange(size)
    return f"{number:,}" if number >= 10_000 or rng.random() < 0.6 else str(number)


def _year(rng: Random) -> str:
    return str(rng.choice([rng.randint(1900, 2030), rng.randint(1900, 2030), rng.randint(1066, 1899)]))


def _date(rng: Random) -> str:
    month, day, year = rng.randrange(12), rng.randint(1, 28), _year(rng)
    match rng.randrange(6):
        case 0:
            return f"{MONTHS[month]} {_with_suffix(day)}, {year}"
        case 1:
            return f"{month + 1:02d}/{day:02d}/{year}"
        case 2:
            return f"{day} {MONTHS[month]} {year}"
        case 3:
            return f"{MONTHS[month]} {day}"
        case 4:
            return f"{MONTHS[month]} {day}, {year}"
        case _:
            return f"{MONTHS[month]} {_with_suffix(day)}"


def _clock(rng: Random) -> str:
    hour, minute = rng.randint(1, 12), rng.randrange(60)
    match rng.randrange(5):
        case 0:
            return f"{hour} {rng.choice(['am', 'pm', 'a.m.', 'p.m.'])}"
        case 1:
            return f"{hour}:{minute:02d} {rng.choice(['am', 'pm'])}"
        case 2:
            return f"{hour} o'clock"
        case 3:
            return f"{rng.randint(0, 23)}:{minute // 5 * 5:02d}"
        case _:
            return f"{hour}:{minute:02d}"


def _money(rng: Random) -> str:
    sign = rng.choices("$£€", [3, 1, 1])[0]
    match rng.randrange(4):
        case 0:
            return f"{sign}{rng.randint(1, 99)}"
        case 1:
            return f"{sign}{rng.randint(0, 99)}.{rng.randint(1, 99):02d}"
        case 2:
            return f"{sign}{rng.randint(1, 40) * rng.choice([5, 25, 50, 100, 1000]):,}"
        case _:
            return f"{sign}{rng.randint(100, 9999):,}.{rng.randint(1, 99):02d}"


def _ordinal(rng: Random) -> str:
    return _with_suffix(rng.choice([rng.randint(1, 31), rng.randint(1, 100), rng.randint(1, 1000)]))


def _with_suffix(number: int) -> str:
    suffix = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{suffix}"


def _letters(rng: Random) -> str:
    return "".join(rng.choice(ascii_uppercase) for _ in range(rng.randint(2, 4)))


def _label(rng: Random) -> str:
    letters, number = _letters(rng)[: rng.randint(1, 3)], str(rng.randint(1, rng.choice([9, 99, 999, 9999])))
    return rng.choice([f"{letters}{number}", f"{letters}-{number}", f"{number}{letters[0]}", f"{letters} {number}"])


def _score(rng: Random) -> str:
    return f"{rng.randint(0, rng.choice([6, 6, 120]))}-{rng.randint(0, rng.choice([6, 6, 120]))}"


def _span(rng: Random) -> str:
    first = rng.randint(1, 90)
    return f"{first}{rng.choice(['-', '–'])}{first + rng.randint(1, 60)}"


def _sum(rng: Random) -> str:
    x, y = rng.choice("abcnptxyz"), rng.choice("abcnptxyz")
    first, second = rng.randint(2, 99), rng.randint(2, 20)
    return rng.choice([
        f"{first} + {second} = {first + second}", f"{first} - {second} = {first - second}",
        f"{second} × {first} = {first * second}", f"{second}{x} + {first} = {y}", f"{x}² - {y}² = {first}",
        f"{x} > {second}", f"{x} < {second}", f"10^{second} + {y}", f"√{first} + {x}", f"{x}/{second} = {y}",
    ])  # fmt: skip


def _zoned(rng: Random) -> str:
    return f"{_clock(rng)} {rng.choice(['GMT', 'UTC', 'EST', 'PST', 'CET', 'Pacific time', 'Eastern time'])}"


FIGURES: dict[str, Callable[[Random], str]] = {
    "integer": _integer,
    "small": lambda rng: str(rng.randint(1, rng.choice([20, 100, 999]))),
    "big": lambda rng: (
        f"{rng.randint(1, 999) * rng.choice([1000, 1000, 100]) + rng.choice([0, 0, rng.randrange(100)]):,}"
    ),
    "age": lambda rng: str(rng.randint(1, 99)),
    "signed": lambda rng: rng.choice(["", "-"]) + str(rng.randint(1, 45)),
    "decimal": lambda rng: f"{rng.randint(0, rng.choice([9, 99]))}.{rng.randint(1, rng.choice([9, 99]))}",
    "percent": lambda rng: f"{rng.randint(0, 100)}{rng.choice(['', '', f'.{rng.randint(1, 9)}'])}%",
    "ordinal": _ordinal,
    "year": _year,
    "date": _date,
    "clock": _clock,
    "money": _money,
    "code": lambda rng: " ".join(str(rng.randrange(10)) for _ in range(rng.randint(3, 6))),
    "phone": lambda rng: f"{rng.randint(200, 999)}-{rng.randint(1000, 9999)}",
    "letters": _letters,
    "letter": lambda rng: rng.choice(ascii_uppercase),
    "initial": lambda rng: rng.choice([one(rng, "initial"), one(rng, "initial"), _letters(rng)]),
    "label": _label,
    "result": _score,
    "span": _span,
    "sum": _sum,
    "zoned": _zoned,
    "domain": lambda rng: rng.choice(["com", "org", "net", "io", "co.uk", "de", "edu"]),
    "ending": lambda rng: rng.choice(["pdf", "txt", "csv", "py", "json", "docx", "zip", "png", "md"]),
    "mobile": lambda rng: f"0{rng.randint(1000, 9999)} {rng.randint(100000, 999999)}",
    "title": lambda rng: rng.choice(["Mr.", "Mrs.", "Ms.", "Dr.", "Mr.", "Mrs.", "Prof.", "Capt."]),
}


SENTENCES = tuple(
    name for name in sections("templates.txt") if name not in {"number", "list", "plural", "call", "ending", "initials"}
)


def template(rng: Random, kind: str) -> str:
    return rng.choice(sections("templates.txt")[kind])


def filled(rng: Random, template: str, corpora: Corpora) -> str:
    """Fill the gaps of a template, ``{noun}`` and the like."""

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name == "word":
            return rng.choice(corpora.words if rng.random() < 0.5 else corpora.common)
        if name in FIGURES:
            return FIGURES[name](rng)
        return one(rng, name)

    text = re.sub(r"\{(\w+)\}", fill, template)
    return re.sub(r"\b([Aa]) (?=[aeiou])(?!one\b|uni|use|eu)", r"\1n ", text)


def sentence_of(text: str) -> str:
    """Return the text with a capital at its beginning and a punctuation mark at its end."""
    start = 1 if text[0] == '"' else 0
    text = text[:start] + text[start : start + 1].upper() + text[start + 1 :]
    text = re.sub(r'"([a-z])', lambda match: f'"{match[1].upper()}', text)
    return text if text[-1] in '.!?"' else text + "."


MAX_CHARACTERS = 220

# Number of utterances of each kind in every block of forty, for a new voice and for its further training. A third are
# natural sentences. Word salads teach spelling, which an earlier voice, overfitted to 28,000 sentences, did not learn.
# The rest covers texts that people type; in the further training, more of those that the voice misread.
WEIGHTS = {
    "natural": (14, 9),  # sentences of the corpus; each is used once before any is repeated
    "salad": (6, 4),  # arbitrary word pairs, to learn spelling
    "template": (7, 4),  # statements, questions, commands, service and technical talk, names
    "number": (4, 3),  # digits, years, dates, times, money, units
    "short": (5, 10),  # one to three words; small voices may not stop on these
    "long": (2, 2),  # several clauses up to 220 characters
    "list": (2, 1),  # commas
    "joined": (0, 3),  # several clauses without commas
    "ending": (0, 2),  # sentences that end with "no", with letters, or with a word that is also an abbreviation
    "initials": (0, 2),  # abbreviations that are read letter by letter, in sentences
}
Mix = Literal["new", "further"]
BLOCK = 40


def utterances(seed: int, corpora: Corpora | None = None, start: int = 0, mix: Mix = "new") -> Iterator[str]:
    """Yield utterances without end, from the ``start``-th; the i-th depends on seed, corpora, mix and i alone.

    Without corpora, sentences come from the templates and words from the word lists. Held-out sentences are never
    yielded.
    """
    corpora = corpora or _small_corpora()
    i = start
    while True:
        kind, ordinal = _kind(seed, i, mix)
        for attempt in range(100):
            rng = Random(f"{seed}/{i}/{attempt}")
            natural = kind == "natural"
            text = _natural(rng, corpora, seed, ordinal, attempt) if natural else _KINDS[kind](rng, corpora)
            if 0 < len(text) <= MAX_CHARACTERS and not is_held_out(text):
                yield text
                break
        i += 1


def _kind(seed: int, i: int, mix: Mix) -> tuple[str, int]:
    """Return the kind of the i-th utterance, and how many of this kind came before it."""
    kinds = _block(seed, i // BLOCK, mix)
    kind = kinds[i % BLOCK]
    return kind, i // BLOCK * kinds.count(kind) + kinds[: i % BLOCK].count(kind)


@functools.lru_cache(maxsize=8)
def _block(seed: int, block: int, mix: Mix) -> list[str]:
    place = get_args(Mix).index(mix)
    kinds = [kind for kind, weights in WEIGHTS.items() for _ in range(weights[place])]
    Random(f"{seed}/block/{block}").shuffle(kinds)
    return kinds


def _natural(rng: Random, corpora: Corpora, seed: int, ordinal: int, attempt: int) -> str:
    num = len(corpora.sentences)
    stride = next(step for step in range(int(num * 0.618) + seed % 97 + 1, 3 * num + 100) if gcd(step, num) == 1)
    sentence = corpora.sentences[((ordinal + attempt * 7919) * stride + seed) % num]
    if ordinal < num:
        return sentence
    return _embedded(rng, sentence)  # the corpus is used up: put the sentence into direct speech


def _embedded(rng: Random, sentence: str) -> str:
    who = one(rng, "first") if rng.random() < 0.5 else f"the {one(rng, 'person')}"
    verb = rng.choice(["said", "asked", "replied", "whispered", "answered", "wrote", "thought", "shouted"])
    return sentence_of(f'{who} {verb} {one(rng, "when")}, "{sentence}"')


def _salad(rng: Random, corpora: Corpora) -> str:
    words = [rng.choice(corpora.common if rng.random() < 0.4 else corpora.words) for _ in range(rng.randint(3, 8))]
    if rng.random() < 0.25:
        words[rng.randrange(len(words) - 1)] += ","
    text = " ".join(words)
    if rng.random() < 0.85:
        text = text[0].upper() + text[1:]
    return text + rng.choices(["", ".", "?", "!"], [15, 65, 12, 8])[0]


def _template(rng: Random, corpora: Corpora) -> str:
    return sentence_of(filled(rng, template(rng, rng.choice(SENTENCES)), corpora))


def _number(rng: Random, corpora: Corpora) -> str:
    return sentence_of(filled(rng, template(rng, "number"), corpora))


def _short(rng: Random, corpora: Corpora) -> str:
    mark = rng.choices([".", "!", "?", "", "..."], [55, 20, 15, 8, 2])[0]
    match rng.randrange(9):
        case 0 | 1:
            text = one(rng, "phrase")
        case 2:
            text = f"{one(rng, 'phrase')}, {one(rng, 'first')}"
        case 3:
            text = rng.choice(corpora.common)
        case 4:
            text = rng.choice(corpora.words)
        case 5:
            text = f"{one(rng, 'adjective')} {one(rng, 'noun')}"
        case 6:
            text = rng.choice([one(rng, "first"), one(rng, "place"), f"{one(rng, 'first')} {one(rng, 'last')}"])
        case 7:
            text = filled(rng, template(rng, "call"), corpora)
        case _:
            figures = [FIGURES[name](rng) for name in ("integer", "clock", "money", "ordinal")]
            text = rng.choice([*figures, f"{rng.randint(0, 100)}%"])
    if text.endswith("."):  # "11 p.m."
        mark = mark.removeprefix(".")
    return text[0].upper() + text[1:] + mark


def _long(rng: Random, corpora: Corpora) -> str:
    opening = rng.choice(corpora.sentences)
    if rng.random() < 0.4:
        return f"{opening} {_template(rng, corpora)}"
    clauses = [filled(rng, template(rng, "statement"), corpora) for _ in range(rng.randint(2, 3))]
    if rng.random() < 0.5:
        clauses.insert(0, opening.rstrip(".!?;:"))
    joint = rng.choice([", and ", ", but ", ", so ", ", because ", ", while ", "; "])
    return sentence_of(", ".join(clauses[:-1]) + joint + clauses[-1])


def _joined(rng: Random, corpora: Corpora) -> str:
    clauses = [filled(rng, template(rng, "statement"), corpora) for _ in range(rng.randint(3, 5))]
    joint = [" and ", " but ", " so ", " because ", " while ", " when ", " before ", " until ", " although "]
    whole = "".join(clause + rng.choice(joint) for clause in clauses[:-1]) + clauses[-1]
    return sentence_of(whole.replace(",", ""))


def _ending(rng: Random, corpora: Corpora) -> str:
    return sentence_of(filled(rng, template(rng, "ending"), corpora))


def _initials(rng: Random, corpora: Corpora) -> str:
    return sentence_of(filled(rng, template(rng, "initials"), corpora))


def _list(rng: Random, corpora: Corpora) -> str:
    match rng.randrange(4):
        case 0:
            items = [f"{rng.choice(['a', 'the', 'my'])} {one(rng, 'noun')}" for _ in range(rng.randint(3, 6))]
        case 1:
            items = [f"{rng.randint(2, 30)} {template(rng, 'plural')}" for _ in range(rng.randint(2, 5))]
        case 2:
            items = [one(rng, rng.choice(["first", "place"])) for _ in range(rng.randint(3, 6))]
        case _:
            items = [f"a {one(rng, 'adjective')} {one(rng, 'noun')}" for _ in range(rng.randint(2, 4))]
    listed = ", ".join(items[:-1]) + rng.choice([", and ", " and ", ", or "]) + items[-1]
    return sentence_of(filled(rng, template(rng, "list").replace("*", listed), corpora))


_KINDS: dict[str, Callable[[Random, Corpora], str]] = {
    "salad": _salad,
    "template": _template,
    "number": _number,
    "short": _short,
    "long": _long,
    "list": _list,
    "joined": _joined,
    "ending": _ending,
    "initials": _initials,
}


def _small_corpora() -> Corpora:
    lists = word_lists()
    words = sorted({word for name in ("noun", "adjective", "verb", "adverb", "technical") for word in lists[name]})
    rng = Random(0)
    nothing = Corpora([], words, words)
    return Corpora([_template(rng, nothing) for _ in range(1000)], words, words)
