"""English normalization: each module spells out a few kinds of notation, and `read` applies their functions in order.

Each function returns the text with its own notation replaced and everything else unchanged. Patterns are bounded or
possessive, so that time grows linearly with the length of the text.
"""

from __future__ import annotations

import re

from s1_mini.text.english.abbreviations import read_abbreviations
from s1_mini.text.english.dates import read_dates, read_times, read_years
from s1_mini.text.english.equations import (
    read_arrows,
    read_bare_units,
    read_dashes,
    read_equations,
    read_pairs,
    read_symbols,
)
from s1_mini.text.english.measures import read_fractions, read_measures
from s1_mini.text.english.money import read_money
from s1_mini.text.english.numerals import read_grouped, read_joined, read_plain, read_ranges, read_roman
from s1_mini.text.english.spelling import (
    read_acronyms,
    read_identifiers,
    read_labels,
    read_links,
    read_phones,
    read_stretched,
)

_IMPERIAL = "lbs?|oz|st|ft|feet|in|inches|mi|miles|yds?|yards|mph|gal|gallons|pints?|cups?"
_IN_PARTS = (  # books of the Bible, some of which are also names, before a verse or a time
    r"(?:(?:Kings|Chronicles|Cor|Corinthians|Thess|Thessalonians)\.? \d{1,3}:\d"
    r"|(?:Sam|Tim|Pet|Jn)\. \d{1,3}:\d"
    r"|(?:Sam|Samuel|Tim|Timothy|Pet|Peter|Jn|John) \d{1,3}:(?:\d(?!\d)|\d\d[-–]\d\d(?![\d:])))"
)
_AFTER_YEAR = r"(?:[,;)–-]| (?:BCE?|AD|CE)\b)"
_METRIC = "k?g|[kcm]?m|[mc]?[lL]|km/h|kph"
# Notations that are first written in a form which the functions read: in all texts, and in those with digits.
_REWRITTEN = [
    (re.compile(pattern), form)
    for pattern, form in (
        (r"(?<=°[CF]) ?/ ?(?=-?\d|[Gg]as)", ", "),  # 180 °C/350 °F
        (r"(?<=\b[Aa] [A-DF])[-–](?=[.,;:!?)\s]|$)(?! (?:and|or|to)\b)", " minus"),  # a B-
        (r"(?<![\w.'-])ed\.(?= by\b)", "edited"),
        (r"\b(Lt|Maj|Brig)\.-(?=(?:Cmdr|Col|Gen|Gov)\b)", r"\1. "),
        (r"\s?&&(?=\s)", " and"),
        (r"§§", "sections "),
        (r"\^[({](\w{1,12}) ?[-−] ?(\w{1,12})[)}]", r" to the power of \1 minus \2"),  # 2^(n-1)
        (r"\^\(([\w ×/]{1,20})\)", r" to the power of \1"),
        (r"(?<=\bSELECT )\*", "star"),
    )
]
_REWRITTEN_DIGITS = [
    (re.compile(pattern), form)
    for pattern, form in (
        (r"(?<=\d:[0-5]\d)([AaPp])(?!\w|\.\w)", r"\1m"),  # 6:15a
        (r"(?<=\d) ?h ?(\d{1,2}) ?m(?!\w)", r" h \1 min"),  # 3h 25m 10s
        (r"(?<=\d)(?<!\d{3}) ?m(?:in)? ?(\d{1,2}) ?s(?!\w)", r" min \1 s"),
        (r"(?<=\d)\.(\d?)(?=[1-9](?:st|nd|rd|th)\b)", r" point \1 "),  # 99.9th
        (r"(?<![\w.,])802\.(?=\d)", "eight oh two dot "),
        (r"\b1s and 0s\b", "ones and zeros"),
        (rf"(\d ?(?:{_IMPERIAL})\.?) ?/ ?(?=\d[\d.,]*+ ?(?:{_METRIC})(?![\w/]))", r"\1, "),  # 50 lbs/23 kg
        (rf"(\d ?(?:{_METRIC})) ?/ ?(?=\d[\d.,]*+ ?(?:{_IMPERIAL})(?![\w/]))", r"\1, "),
        (  # 10–15s; 20–30s might be decades
            r"(?:(?<=\bfor )|(?<=\b[Hh]old )|(?<=\b[Ww]ait )|(?<=\b[Rr]est )|(?<![\w.,'–-])(?![2-9]0.[2-9]0s)"
            r"(?<!ged |ges )(?<!he |is |er |ir |my ))(\d{1,3}[-–]\d{1,3})s(?!\w)",
            r"\1 seconds",
        ),
        (r"\b(\d{1,3}[A-Z]|FY ?\d\d)–(?=(?:FY ?)?\d{1,3}[A-Z]?\b)", r"\1 to "),  # seats 14A–14B, FY24–25
        (r"(?<=\d)[-–]#(?=\d)", "–"),  # #490–#495
        (r"(?<![\w./])([4-9][05])/([1-4][05])/([1-4][05])(?![\w./])", r"\1 \2 \3"),  # 40/30/30
        (r"(?<=\d )lg\.(?= [a-z])", "large"),
        (r"(?<=\d )sm\.(?= [a-z])", "small"),
        (r"(?<=\d )med\.(?= [a-z])(?! (?:s|techs))", "medium"),
        (r"(?<![\w.'-])s\. ?(?=\d{1,3}[A-Z]?\()", "section "),
        (rf"(?<=\()b\. (?=(?:c\. )?\d{{3,4}}(?:{_AFTER_YEAR}| in\b))", "born "),
        (r"(?:(?<=\()|(?<=\d, ))d\. (?=(?:c\. )?\d{3,4}\))", "died "),
        (rf"(?<=\()r\. (?=(?:c\. )?\d{{3,4}}{_AFTER_YEAR})", "reigned "),
        (r"(?<=\d(?:st|nd|rd|th) )c\.(?! [A-Z][a-z])", "century"),
        (rf"\b1 (?={_IN_PARTS})", "First "),
        (rf"\b2 (?={_IN_PARTS})", "Second "),
        (r"\bM[-–]F(?=,? \d{1,2}(?::\d\d| ?[ap]\.?m\b|[-–]\d\b| to \d))", "Monday to Friday"),
        (r"(?:(?<=\bQ[1-4])|(?<=\bFY))'(?=\d\d(?!\w))", " "),  # Q1'25
        (r"(?<=\d)/(?=1[KkM] )", " per "),  # $0.002/1K tokens
        (r"(?<=\dV)/(?=\d)", ", "),
        (r"(?<=\b[12]\d\d\d)–(?=\d\d? [A-Z][a-z]{2})", " to "),  # 1 Jan. 2025–31 Dec. 2026
        (r"(?<=\^\d)/L\b", " per liter"),  # 10^9/L
        (r"(?<=:\d\d)/(?=(?:km|mi)\b)", " per "),  # a pace of 5:30/km
        (r"(?<![\w.,$£€])(\d\d?)m(?= (?:late|early)(?:[.,;:!?)]|$))", r"\1 minutes"),
        (r"\b(Apt|Ste|Suite|Unit|Rm|Room|Bldg)(\.?) #(?=\d)", r"\1\2 "),
        (r"(?<=\d)#(?!\w)", " hash"),  # a key of a telephone
        (
            r"(?<![\w.,/])1/(?=\d{1,3},\d{3} (?:adults|babies|births|cases|children|men|patients|people|women)\b)",
            "1 in ",
        ),
        (
            r"\b(Biology|Chemistry|Cooking|Econ|Economics|English|Finance|History|Marketing|Math|Parenting|Physics|"
            r"Psych|Psychology|Sleep|Sociology) 101(?=[\"'.,!?:;)]|$)",
            r"\1 one oh one",
        ),
        (r"(?<=\d) M (?=(?:HCl|HNO|H2SO|KCl|KOH|NaCl|NaOH|EDTA|Tris)\b)", " molar "),
        (r"\bFed\. R\. Civ\. P\. (?=\d)", "Federal Rule of Civil Procedure "),
        (r"(?<=[A-Za-z])~(?=\d)", " tilde "),  # HEAD~1
        (r"(?<=\d)[$£€]([-–])(?=\d[\d.,]*+[$£€])", r"\1"),  # 10€-20€
        (r"(?<![\w.,])([$£€])-(?=\d)", r"-\1"),
        (r"([$£€])\((\d[\d.,]*+)\)", r"-\1\2"),  # a loss
    )
]
_NAMED = (read_grouped, read_joined, read_dates, read_times, read_phones, read_labels, read_money)
_WITH_DIGITS = (*_NAMED, read_fractions, read_measures, read_ranges, read_years, read_identifiers, read_plain)


def read(text: str) -> str:
    """Spell out a text without markup in English words."""
    for pattern, form in (*_REWRITTEN, *(_REWRITTEN_DIGITS if re.search(r"\d", text) else ())):
        text = pattern.sub(form, text)
    text = read_roman(read_abbreviations(read_bare_units(read_equations(read_links(read_arrows(text))))))
    if re.search("[0-9]", text):
        for each in _WITH_DIGITS:
            text = each(text)
    text = read_pairs(text)
    return read_stretched(read_symbols(read_acronyms(read_dashes(text))))
