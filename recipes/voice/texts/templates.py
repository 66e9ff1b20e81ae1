"""Fill the gaps of templates with words, digits, years, dates, times and money."""

from __future__ import annotations

import re
from collections.abc import Callable
from string import ascii_uppercase

from recipes.voice.texts.lists import Corpora, Random, one, sections

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


SENTENCES = tuple(name for name in sections("templates.txt") if name not in {"number", "list", "plural"})


def template(rng: Random, kind: str) -> str:
    """Choose a template of a kind."""
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
    """Begin with a capital and end with a mark."""
    start = 1 if text[0] == '"' else 0
    text = text[:start] + text[start : start + 1].upper() + text[start + 1 :]
    text = re.sub(r'"([a-z])', lambda match: f'"{match[1].upper()}', text)
    return text if text[-1] in '.!?"' else text + "."
