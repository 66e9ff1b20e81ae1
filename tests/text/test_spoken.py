"""English text normalization reads text as a careful reader would; the cases are in tests/assets/spoken_en.tsv.

There `{a|b}` means either alternative, as does `|` between whole forms, and \\n is a line break, except in LaTeX. Case
and punctuation are ignored.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from s1_mini.exceptions import ParameterError
from s1_mini.text import spoken

pytestmark = pytest.mark.slow

SENTENCES = Path(__file__).parents[1] / "assets" / "spoken_en.tsv"
NOISE = "0123456789 .,:;/-$€%'\"()[]*_`#@&+=~^abkmsxABDIMVX\n°½²😀é"


def read_sentences() -> list[tuple[str, str, set[str]]]:
    lines = SENTENCES.read_text(encoding="utf-8").splitlines()[1:]
    rows = (line.split("\t") for line in lines)
    return [
        (kind, written if kind == "latex" else written.replace("\\n", "\n"), set(map(key, expand(forms))))
        for kind, written, forms in rows
    ]


def expand(forms: str) -> Iterator[str]:
    """Yield all alternatives of a cell with braces."""
    inner = re.search(r"\{([^{}]*)\}", forms)
    if inner is None:
        yield from forms.split("|")
        return
    for each in inner[1].split("|"):
        yield from expand(forms[: inner.start()] + each + forms[inner.end() :])


def key(text: str) -> str:
    return " ".join(re.sub(r"[^\w\s']", " ", text.lower()).split())


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, str, set[str]]]:
    """A written text, how it is normalized, and how it may be read."""
    return [(written, spoken(written), forms) for _, written, forms in read_sentences()]


def test_text_is_normalized_as_a_careful_reader_would_read_it(rows: list[tuple[str, str, set[str]]]) -> None:
    wrong = [(written, said) for written, said, forms in rows if key(said) not in forms]

    assert len(rows) >= 3000
    assert len(wrong) <= len(rows) // 100, wrong


def test_normalizing_twice_changes_nothing(rows: list[tuple[str, str, set[str]]]) -> None:
    draw = random.Random(5)
    noise = ["".join(draw.choices(NOISE, k=60)) for _ in range(300)]

    changed = [said for said in [*(said for _, said, _ in rows), *map(spoken, noise)] if spoken(said) != said]

    assert not changed


@pytest.mark.parametrize(
    ("language", "written", "said"),
    [
        (
            "de",
            "Es sind -5 Grad und 1.234,5 Liter.",
            "Es sind minus fünf Grad und eintausendzweihundertvierunddreißig Komma fünf Liter.",
        ),
        ("fr-FR", "J'ai **21** ans.", "J'ai vingt-et-un ans."),
        ("ja", "猫が2匹います。", "猫が二匹います。"),
        # A full stop stays only at the end of a sentence.
        ("en", "We left at 6 p.m. The bus was late.", "We left at six P M. The bus was late."),
        ("en", "Bring paper, etc. I have glue.", "Bring paper, et cetera. I have glue."),
        ("en", "Add 1/2 tsp. pepper.", "Add half a teaspoon pepper."),
        ("en", "Leave at Exit 14B. Ferries wait.", "Leave at Exit fourteen B. Ferries wait."),
        ("en", "Wash at 40 °C. Dry flat.", "Wash at forty degrees Celsius. Dry flat."),
        ("en", "It has 1.2 g. Net weight: 3 oz", "It has one point two grams. Net weight: three ounces"),
        ("en", "Buzz 3022\nB: yes", "Buzz three thousand twenty-two\nB: yes"),
        ("en", "Edited by M. O'Neil.", "Edited by M O'Neil."),
        ("en", "In 1776 T. Jefferson wrote.", "In seventeen seventy-six T Jefferson wrote."),
        ("en", "No. 1 S. Williams read one C. S. Lewis book.", "Number one S Williams read one C S Lewis book."),
        ("en", "See you there :)", "See you there"),
        # A dash between words is a pause, a hyphen is not.
        ("en", "My brother - the tall one - is late.", "My brother, the tall one, is late."),
        ("en", "It was late – too late.", "It was late, too late."),
        ("en", "Yes—as I said--no.", "Yes, as I said, no."),
        ("en", "A well-known twenty-one, 3-5.", "A well-known twenty-one, three to five."),
        ("en", "Roses are red / violets are blue.", "Roses are red, violets are blue."),
        ("en", "Open 24 / 7, and / or AC / DC.", "Open twenty-four seven, and or A C D C."),
        ("en", "In his / her car at 60 km / h.", "In his her car at sixty kilometers h."),
        ("en", "- milk\n- eggs", "milk,\neggs"),
        ("en", "1. Mix.\n2. Bake", "one: Mix.\ntwo: Bake."),
        ("en", '"Wait—" he said', '"Wait—" he said'),
        # A formula may span lines; a blank line ends it, and deep braces are ignored.
        ("en", "So\n\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}\nholds.", "So\na equals b, c equals d\nholds."),
        ("en", "It is $x_1\n\nand y_1$.", "It is dollars x one\n\nand y one dollars."),
        ("en", f"${'{' * 40}x{'}' * 40}^2$", "x squared"),
    ],
)
def test_punctuation_and_numbers_of_other_languages_are_normalized_exactly(
    language: str, written: str, said: str
) -> None:
    assert spoken(written, language) == said


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("He left the house.Then she came.", "He left the house. Then she came."),
        ("Sentence one.Sentence two.Third one.", "Sentence one. Sentence two. Third one."),
        ("Hello!How are you?I am fine.", "Hello! How are you? I am fine."),
        ("We don't.They do.", "We don't. They do."),
        ("We met at 5 p.m.Then he left.", "We met at five P M. Then he left."),
        ("Use System.Text here.", "Use System.Text here."),
        ("See example.com/foo?Bar now.", "See example dot com slash foo question mark Bar now."),
    ],
)
def test_sentences_without_a_space_between_them_are_separated(written: str, said: str) -> None:
    assert spoken(written) == said


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ParameterError, match=r"language: must be one of af, .*, not 'tlh'"):
        spoken("Qapla' 5", "tlh")
