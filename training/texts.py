"""Write the texts that the teacher speaks: a practically endless, deterministic stream of English utterances.

``utterances`` mixes sentences of books and dictionaries, templates, numbers and dates, word salads and short calls.
``held_out_sentences`` are for evaluation and never part of the stream. Nothing here knows about sound.

Sources, read by ``prepare`` from the files of Debian packages (nothing of them is in the repository or the package):
wordnet-base (glosses and quoted examples; WordNet 3.0 licence, free use with its notice), bible-kjv-text (public
domain), fortunes and fortunes-min (BSD; quotations of their authors), wamerican (word list; SCOWL, free use with its
notice). ``wordlists.txt`` and ``held_out.txt`` were written for this project.
"""

import argparse
import functools
import json
import lzma
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path

HERE = Path(__file__).parent
MAX_CHARACTERS = 220
MIN_WORDS, MAX_WORDS = 2, 25  # of a natural sentence

Random = random.Random


@dataclass(frozen=True)
class Corpora:
    """What ``prepare`` gathered: sentences in a fixed random order, common words by frequency, all words."""

    sentences: list[str]
    common: list[str]
    words: list[str]


# ---- the stream -----------------------------------------------------------------------------------------------------

# Kinds in every block of forty utterances. The prototype overfitted 28,000 sentences and needed its salads for
# spelling, so there are some, and a third is natural; the rest covers what people type to a voice.
WEIGHTS = {
    "natural": 14,  # how English goes on; each is used once before any comes again
    "salad": 6,  # how English is spelt: any word beside any other
    "template": 7,  # statements, questions, commands, service and technical talk, names
    "number": 4,  # digits, years, dates, times, money, units
    "short": 5,  # one or two words: where small voices run away
    "long": 2,  # several clauses up to 220 characters
    "list": 2,  # commas
}
BLOCK = sum(WEIGHTS.values())


def utterances(seed: int, corpora: Corpora | None = None, start: int = 0) -> Iterator[str]:
    """Yield utterances without end, from the ``start``-th; the i-th depends on seed, corpora and i alone.

    Without corpora the templates' words stand in for them. Held-out sentences never come.
    """
    corpora = corpora or _small_corpora()
    i = start
    while True:
        kind, ordinal = _kind(seed, i)
        for attempt in range(100):
            rng = Random(f"{seed}/{i}/{attempt}")
            natural = kind == "natural"
            text = _natural(rng, corpora, seed, ordinal, attempt) if natural else _KINDS[kind](rng, corpora)
            if 0 < len(text) <= MAX_CHARACTERS and not is_held_out(text):
                yield text
                break
        i += 1


def _kind(seed: int, i: int) -> tuple[str, int]:
    """Name the kind of the i-th utterance and count how many of this kind came before it."""
    kinds = _block(seed, i // BLOCK)
    kind = kinds[i % BLOCK]
    return kind, i // BLOCK * WEIGHTS[kind] + kinds[: i % BLOCK].count(kind)


@functools.lru_cache(maxsize=8)
def _block(seed: int, block: int) -> list[str]:
    kinds = [kind for kind, weight in WEIGHTS.items() for _ in range(weight)]
    Random(f"{seed}/block/{block}").shuffle(kinds)
    return kinds


def _natural(rng: Random, corpora: Corpora, seed: int, ordinal: int, attempt: int) -> str:
    num = len(corpora.sentences)
    stride = next(step for step in range(int(num * 0.618) + seed % 97 + 1, 3 * num + 100) if gcd(step, num) == 1)
    sentence = corpora.sentences[((ordinal + attempt * 7919) * stride + seed) % num]
    if ordinal < num:
        return sentence
    return _embedded(rng, sentence)  # the corpus is used up: let somebody say it


def _embedded(rng: Random, sentence: str) -> str:
    who = _one(rng, "first") if rng.random() < 0.5 else f"the {_one(rng, 'person')}"
    verb = rng.choice(["said", "asked", "replied", "whispered", "answered", "wrote", "thought", "shouted"])
    return _sentence(f'{who} {verb} {_one(rng, "when")}, "{sentence}"')


def _salad(rng: Random, corpora: Corpora) -> str:
    words = [rng.choice(corpora.common if rng.random() < 0.4 else corpora.words) for _ in range(rng.randint(3, 8))]
    if rng.random() < 0.25:
        words[rng.randrange(len(words) - 1)] += ","
    text = " ".join(words)
    if rng.random() < 0.85:
        text = text[0].upper() + text[1:]
    return text + rng.choices(["", ".", "?", "!"], [15, 65, 12, 8])[0]


def _template(rng: Random, corpora: Corpora) -> str:
    return _sentence(_filled(rng, rng.choice(_TEMPLATES[rng.choice(_TEMPLATE_ROOMS)]), corpora))


def _number(rng: Random, corpora: Corpora) -> str:
    return _sentence(_filled(rng, rng.choice(_NUMBER_TEMPLATES), corpora))


def _short(rng: Random, corpora: Corpora) -> str:
    mark = rng.choices([".", "!", "?", "", "..."], [55, 20, 15, 8, 2])[0]
    match rng.randrange(8):
        case 0 | 1:
            text = _one(rng, "phrase")
        case 2:
            text = f"{_one(rng, 'phrase')}, {_one(rng, 'first')}"
        case 3:
            text = rng.choice(corpora.common)
        case 4:
            text = rng.choice(corpora.words)
        case 5:
            text = f"{_one(rng, 'adjective')} {_one(rng, 'noun')}"
        case 6:
            text = rng.choice([_one(rng, "first"), _one(rng, "place"), f"{_one(rng, 'first')} {_one(rng, 'last')}"])
        case _:
            text = rng.choice([_integer(rng), _clock(rng), _money(rng), _ordinal(rng), f"{rng.randint(0, 100)}%"])
    return text[0].upper() + text[1:] + mark


def _long(rng: Random, corpora: Corpora) -> str:
    opening = rng.choice(corpora.sentences)
    if rng.random() < 0.4:
        return f"{opening} {_template(rng, corpora)}"
    clauses = [_filled(rng, rng.choice(_TEMPLATES["statement"]), corpora) for _ in range(rng.randint(2, 3))]
    if rng.random() < 0.5:
        clauses.insert(0, opening.rstrip(".!?;:"))
    joint = rng.choice([", and ", ", but ", ", so ", ", because ", ", while ", "; "])
    return _sentence(", ".join(clauses[:-1]) + joint + clauses[-1])


def _list(rng: Random, corpora: Corpora) -> str:
    match rng.randrange(4):
        case 0:
            items = [f"{rng.choice(['a', 'the', 'my'])} {_one(rng, 'noun')}" for _ in range(rng.randint(3, 6))]
        case 1:
            items = [f"{rng.randint(2, 30)} {rng.choice(_PLURALS)}" for _ in range(rng.randint(2, 5))]
        case 2:
            items = [_one(rng, rng.choice(["first", "place"])) for _ in range(rng.randint(3, 6))]
        case _:
            items = [f"a {_one(rng, 'adjective')} {_one(rng, 'noun')}" for _ in range(rng.randint(2, 4))]
    listed = ", ".join(items[:-1]) + rng.choice([", and ", " and ", ", or "]) + items[-1]
    return _sentence(_filled(rng, rng.choice(_LIST_TEMPLATES).replace("*", listed), corpora))


_KINDS: dict[str, Callable[[Random, Corpora], str]] = {
    "salad": _salad,
    "template": _template,
    "number": _number,
    "short": _short,
    "long": _long,
    "list": _list,
}

_PLURALS = ["apples", "books", "chairs", "tickets", "eggs", "nails", "candles", "boxes", "cups", "keys", "coins"]
_PLURALS += ["letters", "pencils", "potatoes", "stamps", "shirts", "batteries", "cables", "screws", "lamps", "stones"]

_LIST_TEMPLATES = [
    "*", "we need *", "{first} bought *", "please bring *", "I packed *", "they found * {where}", "do you want *",
    "the {person} asked for *", "there were * {where}", "remember *", "* are {adjective}",
]  # fmt: skip

_TEMPLATES = {
    "statement": [
        "the {adjective} {person} {past} the {noun} {where}",
        "{first} {adverb} {past} a {adjective} {noun}",
        "{when} the {person} {past} my {noun}",
        "there is a {adjective} {noun} {where}",
        "I {past} the {noun} {when}",
        "we {past} a {noun} and a {adjective} {noun} {where}",
        "the {noun} was {adjective} and the {noun} was {adjective}",
        "{first} says that the {noun} is too {adjective}",
        "nobody {past} the {adjective} {noun} {when}",
        "my {person} never {past} a {noun} {where}",
        "the {person} who {past} the {noun} is {adjective}",
        "{word} is a word that the {person} likes",
        "it was {adjective} {where} {when}",
        "the {word} {noun} is {where}",
        "a {person} from {place} {past} our {noun}",
        "they wanted to {verb} the {noun}, but it was {adjective}",
        "if you {verb} the {noun}, the {person} will {verb} it too",
        "{first} would rather {verb} a {noun} than {verb} a {noun}",
        "her {noun} is more {adjective} than his {noun}",
        "the {noun} {where} belongs to {title} {last}",
    ],
    "question": [
        "did the {person} {verb} the {noun} {when}?",
        "who {past} my {adjective} {noun}?",
        "where did {first} {verb} the {noun}?",
        "why is the {noun} so {adjective}?",
        "can you {verb} this {noun} for me?",
        "is there a {adjective} {noun} {where}?",
        "have you ever been to {place}?",
        "how do I {verb} a {noun}?",
        "what does {word} mean?",
        "when will {first} {last} {verb} the {noun}?",
        "would you like a {noun} or a {noun}?",
        "could you please spell {word}?",
        "which {noun} do you {verb}?",
    ],
    "command": [
        "please {verb} the {noun} {where}",
        "{verb} the {adjective} {noun} and {verb} the {noun}!",
        "do not {verb} that {noun}!",
        "{first}, {verb} your {noun}!",
        "let us {verb} the {noun} {when}",
        "{adverb} {verb} the {noun}",
        "never {verb} a {adjective} {noun}",
        "tell {first} to {verb} the {noun} {when}",
        "put the {noun} {where}, please",
    ],
    "talk": [
        'the {person} said, "I {past} your {noun}."',
        '"{verb} the {noun}!" {first} shouted',
        '"Is it {adjective}?" asked the {person}',
        "well, I think {first} is {adverb} {adjective}",
        "oh, it's only a {noun}",
        "I don't know, {first}, I haven't seen the {noun}",
        "that's the {adjective} {noun} we've been looking for",
        "sorry, {first}, I can't {verb} the {noun} {when}",
        "good morning, {title} {last}, your {noun} is ready",
        "hello, this is {first} {last} from {place}",
        "hi {first}, it's {first}, please call me back {when}",
        "you'll never guess what {first} {past} {when}",
        "thank you for the {adjective} {noun}",
        "what a {adjective} {noun}!",
        "it's {adjective}, isn't it?",
        "let's meet {where} {when}",
        "I'd like to {verb} a {noun}, please",
        "happy birthday, {first}!",
    ],
    "names": [
        "{first} {last} was born in {place}",
        "{title} {last} lives in {place} with {first} and {first}",
        "{first}, {first} and {first} are moving to {place}",
        "we flew from {place} to {place} {when}",
        "have you met {title} {last} from {place}?",
        "{first} {last} works for {acronym} in {place}",
        "please ask for {first} {last} {where}",
        "{title} {last} teaches at the university of {place}",
        "the {last} family {past} a {noun} in {place}",
        "the train from {place} to {place} is {adjective}",
    ],
    "service": [
        "your {thing} has been {done}",
        "your {thing} was {done} {when}",
        "we are sorry, but your {thing} could not be {done}",
        "would you like to have your {thing} {done}?",
        "please confirm your {thing}",
        "thank you for calling, how can I help you with your {thing}?",
        "please hold while I check your {thing}",
        "I can see that your {thing} and your {thing} have been {done}",
        "to change your {thing}, say yes or press one",
        "is there anything else I can help you with, {first}?",
        "your {thing} will be {done} {when}",
        "we will send you an e-mail as soon as your {thing} is {done}",
        "{title} {last}, your {thing} is waiting {where}",
        "our office in {place} is closed {when}",
    ],
    "technical": [
        "the {technical} {fails}",
        "the {technical} of the {technical} {fails}",
        "check the {technical} before you restart the {technical}",
        "every {technical} needs its own {technical}",
        "{when} the {adjective} {technical} {fails}",
        "why has the {technical} {fails}?",
        "connect the {technical} to the {technical}",
        "the new {technical} is {adjective}, e.g. for a {technical}",
        "the {technical} sends a {technical} to the {technical}",
        "{acronym} and {acronym} are {adjective}",
        "how large is the {technical} of {acronym}?",
        "open the {technical}, select the {technical}, and wait until the {technical} {fails}",
    ],
}
_TEMPLATE_ROOMS = list(_TEMPLATES)

_NUMBER_TEMPLATES = [
    "{integer}",
    "{integer} {unit}",
    "the answer is {integer}",
    "I counted {integer} {unit}",
    "it is {decimal} {unit} long",
    "there are {integer} {unit} in this {noun}",
    "{percent} of the {unit} are {adjective}",
    "only {percent} agreed, and {percent} said no",
    "the {ordinal} {noun} is {adjective}",
    "{first} finished in {ordinal} place",
    "turn to page {small}",
    "my room number is {small}",
    "call extension {small}",
    "it happened in {year}",
    "{first} {last} was born in {year}",
    "between {year} and {year}, {first} lived in {place}",
    "the {noun} was built in {year}",
    "{year} was a {adjective} year",
    "the meeting is on {date}",
    "{date}",
    "your {thing} was {done} on {date}",
    "on {date}, the {person} {past} the {noun}",
    "see you at {clock}",
    "{clock}",
    "the train to {place} leaves at {clock}",
    "we open at {clock} and close at {clock}",
    "it is {clock} in {place}",
    "your {thing} is at {clock} on {date}",
    "it costs {money}",
    "the {noun} costs {money}",
    "{money}",
    "that will be {money}, please",
    "the price rose from {money} to {money}",
    "{first} paid {money} for a {adjective} {noun}",
    "was it {money} or {money}?",
    "the temperature is {signed} degrees",
    "version {decimal} of the {technical} {fails}",
    "{small} plus {small} is {small}",
    "add {integer} and {integer}",
    "the code is {code}",
    "dial {phone}",
    "flight {small} to {place} departs at {clock}",
    "chapter {small}",
    "who has {integer} {unit}?",
    "{integer}, {integer}, {integer}",
    "it is {decimal} {unit} to {place}",
    "{first} lives at {small} {last} St. in {place}",
    "the {technical} uses {decimal} {unit}",
    "about {big} people live in {place}",
    "we sold {big} copies {when}",
    "is it the {ordinal} or the {ordinal}?",
    "your {thing} number {small} has been {done}",
    "my {person} is {age} years old",
    "the score was {age} to {age}",
]


@functools.cache
def _sections(name: str) -> dict[str, list[str]]:
    """Read a file whose sections are opened by ``[name]``."""
    sections: dict[str, list[str]] = {}
    for line in (HERE / name).read_text().splitlines():
        if line.startswith("["):
            lines = sections.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return sections


@functools.cache
def _word_lists() -> dict[str, list[str]]:
    return {
        name: [word for line in lines for word in line.split(", ")]
        for name, lines in _sections("wordlists.txt").items()
    }


def _small_corpora() -> Corpora:
    lists = _word_lists()
    words = sorted({word for name in ("noun", "adjective", "verb", "adverb", "technical") for word in lists[name]})
    rng = Random(0)
    nothing = Corpora([], words, words)
    return Corpora([_template(rng, nothing) for _ in range(1000)], words, words)


def _one(rng: Random, name: str) -> str:
    return rng.choice(_word_lists()[name])


def _filled(rng: Random, template: str, corpora: Corpora) -> str:
    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name == "word":
            return rng.choice(corpora.words if rng.random() < 0.5 else corpora.common)
        if name in _FIGURES:
            return _FIGURES[name](rng)
        return _one(rng, name)

    text = re.sub(r"\{(\w+)\}", fill, template)
    return re.sub(r"\b([Aa]) (?=[aeiou])(?!one\b|uni|use|eu)", r"\1n ", text)


def _sentence(text: str) -> str:
    """Begin with a capital and end with a mark."""
    start = 1 if text[0] == '"' else 0
    text = text[:start] + text[start : start + 1].upper() + text[start + 1 :]
    text = re.sub(r'"([a-z])', lambda match: f'"{match[1].upper()}', text)
    return text if text[-1] in '.!?"' else text + "."


# ---- figures --------------------------------------------------------------------------------------------------------

MONTHS = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November"]
MONTHS += ["December"]


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


_FIGURES: dict[str, Callable[[Random], str]] = {
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
    "title": lambda rng: rng.choice(["Mr.", "Mrs.", "Ms.", "Dr.", "Mr.", "Mrs.", "Prof.", "Capt."]),
}


# ---- held out -------------------------------------------------------------------------------------------------------


def held_out_sentences() -> dict[str, list[str]]:
    """Return the evaluation texts: plain, numbers, names, short and long; and those of references for cloning."""
    return {name: list(lines) for name, lines in _sections("held_out.txt").items()}


def is_held_out(text: str) -> bool:
    """Tell whether this is an evaluation text, whatever its case and punctuation."""
    return _bare(text) in _bare_held_out()


@functools.cache
def _bare_held_out() -> frozenset[str]:
    return frozenset(_bare(text) for lines in _sections("held_out.txt").values() for text in lines)


def _bare(text: str) -> str:
    return re.sub(r"[^a-z0-9$£%]+", " ", text.lower()).strip()


# ---- preparation ----------------------------------------------------------------------------------------------------

_WORDNET = Path("/usr/share/wordnet")
_FORTUNES = Path("/usr/share/games/fortunes")
_WORDS = Path("/usr/share/dict/american-english")
_LEFT_OUT = {
    "art",
    "ascii-art",
    "definitions",
    "perl",
    "songs-poems",
    "zippy",
    "knghtbrd",
    "linux",
    "computers",
    "drugs",
}
_LEFT_OUT |= {"men-women", "ethnic", "limerick", "translate-me", "debian", "linuxcookie", "startrek"}
# Slurs and obscenities of the dictionaries: a voice does not need them.
_UNWANTED = re.compile(
    r"\b(nigg|fag|kike|spic\b|chink|gook|wop\b|coon|darky|dyke|fuck|shit|cunt|cock|whore|slut|rape)", re.I
)
_ALLOWED = re.compile(r"[A-Za-z][A-Za-z ,.'!?;:\"-]*")


def prepare(output: Path) -> None:
    """Gather the corpora from Debian's files into one compressed file."""
    gathered = {
        "examples": _examples(),
        "glosses": _glosses(),
        "verses": _verses(),
        "fortunes": _fortunes(),
    }
    kept: dict[str, str] = {}
    for name, raw in gathered.items():
        before = len(kept)
        for text in raw:
            clean = _cleaned(text)
            if clean and not is_held_out(clean):
                kept.setdefault(_bare(clean), clean)
        _say(f"{name}: {len(kept) - before:,} sentences")
    sentences = list(kept.values())
    Random(0).shuffle(sentences)
    counts = Counter(word for sentence in sentences for word in re.findall(r"[a-z]+(?:'[a-z]+)?", sentence))
    words = sorted(
        {word for word in _words() if re.fullmatch(r"[A-Za-z][a-z]{1,17}", word) and not _UNWANTED.match(word)}
    )
    known = set(words)
    common = [word for word, count in counts.most_common(12_000) if count > 2 and (word in known or "'" in word)]
    content = {"sentences": sentences, "common": common, "words": words}
    output.write_bytes(lzma.compress(json.dumps(content).encode(), preset=9))
    _say(f"{len(sentences):,} sentences, {len(common):,} common words, {len(words):,} words")
    _say(f"{output}: {output.stat().st_size / 1e6:.1f} MB")


@functools.cache
def load(path: Path) -> Corpora:
    """Read what ``prepare`` wrote."""
    return Corpora(**json.loads(lzma.decompress(path.read_bytes())))


def _wordnet_lines() -> Iterator[str]:
    for part in ("noun", "verb", "adj", "adv"):
        for line in (_WORDNET / f"data.{part}").read_text("latin-1").splitlines():
            if "|" in line and not line.startswith(" "):
                yield line.split("|", 1)[1].strip()


def _examples() -> Iterator[str]:
    for gloss in _wordnet_lines():
        yield from re.findall(r'"([^"]+)"', gloss)


def _glosses() -> Iterator[str]:
    for gloss in _wordnet_lines():
        plain = re.sub(r"\([^)]*\)", " ", re.sub(r'"[^"]*".*', "", gloss))
        yield from (part for part in plain.split(";") if part.count(" ") > 3)


def _verses() -> Iterator[str]:
    text = subprocess.run(
        ["/usr/bin/bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True, text=True
    ).stdout
    for line in text.splitlines():
        yield line.partition(" ")[2]


def _fortunes() -> Iterator[str]:
    for path in sorted(_FORTUNES.iterdir()):
        if path.suffix or path.name in _LEFT_OUT:
            continue
        for entry in path.read_text("utf-8", errors="replace").split("\n%\n"):
            body = re.sub(r"\n\s*--.*", "", entry, flags=re.DOTALL)
            yield from re.split(r"(?<=[.!?]) +", " ".join(body.split()))


def _words() -> Iterator[str]:
    yield from _WORDS.read_text().split()
    for part in ("noun", "verb", "adj", "adv"):
        for line in (_WORDNET / f"index.{part}").read_text("latin-1").splitlines():
            if not line.startswith(" "):
                yield line.split(" ", 1)[0]


def _cleaned(text: str) -> str | None:
    """Make a sentence of a piece of text, or nothing if it holds what cannot be read aloud."""
    text = " ".join(text.replace("`", "'").replace("--", ", ").replace(" ,", ",").split()).strip(" ;:,-")
    num_words = len(text.split())
    if not (MIN_WORDS <= num_words <= MAX_WORDS and len(text) < MAX_CHARACTERS and _ALLOWED.fullmatch(text)):
        return None
    if text.count('"') % 2 or _UNWANTED.search(text):
        return None
    if re.search(r"[A-Z]{3}|\.\.|[,;:]{2}|'{2}|\b(?!Mr|Dr|St|Mrs)[A-Za-z]{1,3}\.[A-Za-z ]", text):
        return None
    return _sentence(text)


def _say(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m training.texts prepare …`` or ``… show``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("prepare", help="gather the corpora from Debian's files")
    verb.add_argument("--output", type=Path, required=True)
    verb = verbs.add_parser("show", help="print utterances")
    verb.add_argument("--texts", type=Path)
    verb.add_argument("--seed", type=int, default=0)
    verb.add_argument("--count", type=int, default=40)
    given = parser.parse_args(arguments)
    if given.verb == "prepare":
        prepare(given.output)
        return 0
    stream = utterances(given.seed, load(given.texts) if given.texts else None)
    for _ in range(given.count):
        _say(next(stream))
    return 0


if __name__ == "__main__":
    sys.exit(main())
