"""Whether the full stop of an abbreviation also ends the sentence, judged by the kind of abbreviation and what follows.

`split` asks for text as it was written, `english` while it reads abbreviations, so that both find the same sentences.
All patterns are bounded or possessive.
"""

from __future__ import annotations

import re
from typing import Literal

from s1_mini.text.tables import word_set, words

# "title": before a name; "letters": initials and initialisms; "half": a.m.; "unit": after a
# number; "part": of a name (Dept., Intl.) or before one; "other": all that may end a sentence (Inc., etc., Ph.D.).
Kind = Literal["title", "letters", "half", "day", "month", "unit", "part", "other"]

# Words with which a sentence begins, and a name does not.
_STARTERS = word_set(
    "i i'm i'll i'd i've it it's it'll he he's he'll he'd she she's she'll she'd we we're we'll we've we'd they "
    "they're they've they'll you you're you'll you've the this that that's these those there there's here here's "
    "a an and but so or nor yet if in on at by for from to with without of as after before during since until "
    "till unless while although though because when whenever where wherever whether who who's whose what what's "
    "which why how however then thus hence therefore moreover furthermore meanwhile nevertheless nonetheless "
    "instead otherwise besides also still even just only once now today tonight tomorrow yesterday later soon "
    "finally first second next last afterwards perhaps maybe please my our his her its your their mine yours ours "
    "do does did don't doesn't didn't is isn't are aren't was wasn't were weren't has hasn't have haven't had can "
    "can't could couldn't will won't would wouldn't shall should may might must let let's no not yes yeah ok okay "
    "oh well all any both each every everyone everybody everything few many most much several some someone "
    "somebody something such another other others none nobody nothing neither either one two three four five six "
    "seven eight nine ten hundreds thousands people nobody go come call ask see look take give get put tell try "
    "turn use wait watch keep make bring buy meet read remember think stop add stir mix cook bake pour heat serve "
    "combine place remove drain season sprinkle whisk boil simmer cut chop rest repeat run walk visit start open "
    "close check write thanks thank sorry hello hi goodbye bye great good over under between among across above "
    "below near against despite except including like into through whatever whoever anyway anyone anything almost "
    "nearly about according sometimes often never always again already apparently unfortunately fortunately "
    "luckily sadly surprisingly suddenly obviously clearly actually eventually recently currently initially "
    "originally usually generally additionally similarly likewise consequently"
)
SPELT_NUMBERS = word_set(  # in text that was normalized
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_NAMED_ALIKE = word_set("who no so so-and-so well yes one good great may will like first second")
# Given names: after U.S., where another capitalised word mostly belongs to a name, they begin a sentence.
GIVEN = word_set(
    "Aaron Adam Alan Alex Alice Amanda Amy Andrew Andy Angela Anita Ann Anna Anne Anthony Barbara Ben Beth Betty "
    "Bill Bob Brian Carl Carlos Carol Caroline Catherine Charles Charlie Chris Christine Claire Clara Dan Daniel "
    "Dave David Deborah Dennis Diana Diane Donald Donna Dorothy Edward Elena Elizabeth Ella Ellen Emily Emma Eric "
    "Ethan Eva Eve Frances Frank Fred George Grace Greg Hannah Harry Heather Helen Henry Ian Isabel Jack Jacob "
    "James Jan Jane Janet Jason Jean Jeff Jennifer Jenny Jerry Jessica Jim Joan Joe John Jonathan Jose Joseph "
    "Joshua Juan Judy Julia Julie Justin Karen Kate Katherine Kathy Keith Kelly Ken Kevin Kim Larry Laura Lauren "
    "Leo Liam Linda Lisa Louis Lucas Lucy Luke Marcus Margaret Maria Marie Mark Martha Martin Mary Matt Matthew "
    "Max Megan Mia Michael Michelle Mike Nancy Nathan Nicholas Nick Nicole Nina Noah Nora Oliver Olivia Oscar "
    "Pamela Pat Patricia Patrick Paul Paula Peter Philip Rachel Ralph Rebecca Richard Rick Rob Robert Roger Ron "
    "Rose Ruth Ryan Sally Sam Samantha Samuel Sandra Sara Sarah Scott Sean Sharon Simon Sofia Sophia Sophie "
    "Stephanie Stephen Steve Steven Sue Susan Tara Ted Teresa Thomas Tim Tina Todd Tom Tony Vera Victor Victoria "
    "Vincent Virginia Walter Wendy William Zoe"
)
# What goes on after U.S. and L.A., besides the names of several words.
_INSTITUTIONS = word_set(
    "Senate House Congress Congressman Army Navy Marine Marines Air Coast Supreme District Circuit Court Capitol "
    "Treasury Census Postal Open Attorney President Vice Secretary Senator Senators Rep Sen Gen Representative "
    "Representatives Ambassador Embassy Constitution Government Federal Bureau Department Dept Forest Geological "
    "Olympic Soccer Steel Bank Dollar Route Highway Interstate Customs Immigration Marshal Marshals Patent Trade "
    "Energy Education Defense Justice State States Commerce Agriculture Health Food Drug Environmental Special "
    "Forces Military English Airways Virgin Territory Territories Cavalry Grand Mint News Masters Women's Men's "
    "National Commission Council Charter Security General Parliament Parliamentary Prime Times Lakers Clippers "
    "Dodgers Galaxy Rams Knicks Yankees Giants Metro Police Mayor Chamber Stock Central Fed Federation Civil "
    "Revolutionary Border Homeland Consulate Consul Code Office Securities Surgeon Fish Park Figure Ambassadors "
    "Muslim Jewish Catholic Hispanic Latino Black White Asian Foreign Chief Export Import Strategic Naval"
)
_PLACES = word_set(
    "u.s u.k u.n e.u u.a.e u.s.a u.s.s.r d.c l.a n.y n.y.c n.j n.c s.c n.d s.d n.m n.h r.i w.v b.c a.d b.c.e c.e "
    "p.r d.r s.f k.c"
)
_ORGANISED = word_set("the a an this that our its his her their my your former every no in of from to by at for")
_LABELLED = word_set(  # before a single letter that is not an initial
    "a an the plan vitamin type group class grade section appendix figure part option team point building "
    "terminal gate hall block room wing hepatitis schedule exhibit item step zone level phase category series "
    "model unit line lane route track platform door box bus sector district division pool stage round letter "
    "column row side version table"
)
_BEFORE_THE_PRONOUN = word_set("do did am was were so is than can will would have has should could as nor neither")
_ZONES = frozenset(
    words("Eastern Pacific Central Mountain Atlantic Greenwich London Paris Tokyo Beijing Moscow Alaska Hawaii")
    + words("EST EDT ET PST PDT PT CST CDT CT MST MDT MT GMT BST UTC CET CEST AEST IST JST Local")
)
_HEADS = word_set(  # go on after a company, a person or a street
    "CEO CFO CTO COO CIO Chief Chairman Chairwoman Chair President Vice Founder Co-founder Executive Magazine Day "
    "Boulevard Drive Street Avenue Way High School Stadium Elementary Memorial Library Airport Bridge Station "
    "Journal Apt Suite Ste Unit Room Floor Bldg Ph MD PhD M.D Esq NYSE NASDAQ Nasdaq Inc Ltd Corp Co LLC LLP "
    "Director Shares Spokesman Spokeswoman"
)
_DAYS_OR_MONTHS = re.compile(
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)(?:s|r|rs|nes|ur|urs)?(?:days?)?\b|"
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sept?|Oct|Nov|Dec)(?:uary|ruary|ch|il|e|y|ust|tember|ober|ember)?\b"
)
_MEASURES = (
    r"(?:ft|in|yd|mi|lbs?|oz|pt|qt|gal|tbsp|tsp|cups?|hrs?|mins?|secs?|yrs?|wks?|mos?|days?|h|m|s|km|cm|mm|kg|g|mg|ml|l"
    r"|feet|foot|inch|inches|pounds?|ounces?|hours?|minutes?|seconds?|months?|weeks?|years?|times|x|by|to|and|or|percent)\b"
)
UNITS = (
    "ft|in|yds?|mi|sq|cu|lbs?|oz|pt|qt|gal|tbsp|tsp|hrs?|mins?|secs?|yrs?|wks?|mos?|km|cm|mm|kg|mg|ml|fl|deg|doz|cal|"
    "pct|pkgs?|pkts?"
)

_AFTER = re.compile(
    r"(?P<close>[\"')\]}”’»*_]{0,4}+)(?P<space>\s*+)(?P<open>[\"'(\[“‘«„*_-]{0,4}+)"
    r"(?P<word>[^\W\d_]++(?:['’][^\W\d_]++)?|\d[\d,.:/]*+)?"
)
_COUNT = re.compile(  # a number that counts something
    r"(?<![\d,])\d[\d,]*+(?:\.\d++)?(?! (?:and|through|the|for|until|till|noon|hours|was|with|from|near|are|were|has|"
    r"had|will|can)\b) [a-z]{3,}"
)
_PERSONS = re.compile(
    r"(?<![\d,])\d[\d,]*+ (?:[a-z]{1,20} )?(?:people|persons|men|women|children|students|others|guests|years|days)\b"
)
_MEASURE = re.compile(
    rf"\d[\d,./]*+(?: \d{{1,3}}/\d{{1,3}})?[ -]?(?:{_MEASURES}|[%\"'″′])|\d[\d,./]*+\W*+$|\d[\d,./]*+\s?[,;:)]"
)
_DATE = re.compile(
    r"\d{1,2}(?:st|nd|rd|th)?,? (?:of )?(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)|\d{1,4}[-/]\d"
)
_INTRODUCED = re.compile(
    r"(?:^|[.!?]\s{1,3}|\n)(?:At|On|In|By|During|Through|From|Around|About|Since|Until|Before|After|Every|Last|Next|This|Late|Early)\s"
    r"(?:(?:about|around|exactly|nearly|early|late|the|morning|of|night)\s){0,2}[\d:.]{0,5}\s?\S{0,6}$"
)
_INGREDIENT = re.compile(r"(?:tbsp|tsp|oz|lbs?|k?g|ml|pt|qt|gal)$", re.IGNORECASE)
_RECIPE = re.compile(
    r"(?:^|[\n:;•*-]|[.,](?!\d)|\b(?:and|or|add|with|plus|of))\s{0,3}(?:\d[\d./]{0,5} )?[\d./]{1,6}\s?\S{0,6}$",
    re.IGNORECASE,
)


def is_final(text: str, start: int, stop: int, kind: Kind) -> bool:
    """Return whether the full stop before `text[stop]`, of the abbreviation at `text[start]`, ends a sentence."""
    after = _AFTER.match(text, stop)
    assert after is not None
    space, word = after["space"], after["word"] or ""
    if kind == "half" and space and text[after.end() : after.end() + 1] in tuple("$£€"):
        return True  # 7 p.m. $15
    if not space or space.count("\n") > 1 or not word:
        return after.end() == len(text) or space.count("\n") > 1
    if word[0].islower():
        return word in SPELT_NUMBERS and kind in ("letters", "other") and _is_before_name(text, start, after, kind)
    if "\n" in space and kind not in ("title", "letters", "part") and not (kind == "month" and word[0].isdecimal()):
        return True
    if word[0].isdecimal():
        return "-" not in after["open"] and _is_before_number(text[after.start("word") : after.end() + 30], kind)
    return _is_before_capital(text, start, after, kind)


def _is_before_capital(text: str, start: int, after: re.Match[str], kind: Kind) -> bool:
    word = after["word"]
    is_starter = word.lower() in _STARTERS and (len(word) == 1 or not word.isupper() or "'" in word)
    if "(" in after["open"] or "[" in after["open"]:
        return is_starter and kind != "title"
    if len(word) == 1 and word != "I" and text.startswith(".", after.end()):  # an initial
        return kind in ("half", "day", "month", "unit")
    if is_starter:
        before = text[max(0, start - 50) : after.start("close") - 1]
        if re.fullmatch("I(?:['’].*)?", word) and _INTRODUCED.search(before):
            return False  # On Mon. I worked
        return kind != "title" or word.lower() not in _NAMED_ALIKE
    return _is_before_name(text, start, after, kind)


def _is_before_number(following: str, kind: Kind) -> bool:
    if kind == "unit":
        return _MEASURE.match(following) is None and _COUNT.match(following) is not None
    if kind == "half":
        return _DATE.match(following) is None
    return (_PERSONS if kind in ("month", "part") else _COUNT).match(following) is not None


def _is_before_name(text: str, start: int, after: re.Match[str], kind: Kind) -> bool:
    word = after["word"]
    before = text[max(0, start - 50) : after.start("close") - 1]
    if kind in ("title", "part"):
        return kind == "part" and word in GIVEN
    if kind == "letters":
        return _is_after_letters(text, start, after)
    if kind in ("half", "day", "month"):
        goes_on = word in _ZONES or _DAYS_OR_MONTHS.match(word) or _INTRODUCED.search(before)
        return bool(after["open"]) or not goes_on
    if kind == "unit":
        return word in GIVEN or not (_INGREDIENT.search(before) and _RECIPE.search(before))
    return word not in _HEADS


def _is_after_letters(text: str, start: int, after: re.Match[str]) -> bool:
    word, following = after["word"], text[after.end() : after.end() + 30]
    letters = text[start : after.start("close") - 1].lower()
    before = text[max(0, start - 15) : start].split()
    previous = before[-1].lower() if before else ""
    if letters == "i":
        return previous in _BEFORE_THE_PRONOUN
    if not (letters in _PLACES or previous in (_LABELLED if len(letters) == 1 else _ORGANISED)):
        return False
    if word in _INSTITUTIONS:
        return False
    if word in GIVEN or (len(letters) == 1 and word.lower() in _LABELLED):
        return True
    return len(word) > 1 and not word.isupper() and re.match(r" (?!of\b)[a-z]", following) is not None


_STREET = re.compile(r"\b(?:on|at|down|up|along|\d{1,5}\w?)\s(?:[NSEW]\.?\s|St\. )?(?:[A-Z]\w{0,20}\s){1,3}$")
_NEXT_WORD = re.compile(r"\.\s([A-Z][\w']{0,20})")
_CAPITALISED = re.compile(r"[a-z]\s[A-Z][a-z]{1,20}\s$")
_SAINT_BEFORE = re.compile(r"\b(?:St|Saint)\.?\s$")
_NOUNS = word_set("pop arts app fig art sec ref op para ext")  # abbreviations that are also words after an article
_SAYS_NO = word_set(
    "is was said says say saying answer answered replied or yes a firm flat clear simple no means meant be voted"
)
_DETERMINERS = word_set("a an the this that my his her its our their your any some good bad of")
_PLURAL = re.compile(
    r"(?!1\b)\d[\d,]*+ (?:[a-z]{1,20} )?(?:people|men|women|children|others|more|of|[a-z]{2,20}(?<!s)s)\b"
)


def is_street(text: str, start: int) -> bool:
    """Return whether "St" or "Dr" at `text[start]` follows the name of a street: 12 Elm St., not St. John."""
    before = text[max(0, start - 60) : start]
    following = _NEXT_WORD.match(text, start + 2)
    is_last = following is not None and following[1].lower() in _STARTERS - _NAMED_ALIKE
    is_last = is_last and _CAPITALISED.search(before) is not None  # He moved to Main St. Nobody knows why.
    return (is_last or _STREET.search(before) is not None) and _SAINT_BEFORE.search(before) is None


def is_numbered(text: str, start: int, stop: int) -> bool:
    """Return whether a word such as no. at `text[start]` belongs to the number at `text[stop]`, as in no. 5.

    In "He said no. 5 men left." it does not.
    """
    word, before = text[start:stop].rstrip(". ").lower(), text[max(0, start - 12) : start].split()
    number = text[stop : stop + 50].lstrip()
    if word in ("no", "nos"):
        is_said = bool(before) and before[-1].lower().strip(",:\"'") in _SAYS_NO
        return not (_PERSONS.match(number) or (is_said and _PLURAL.match(number)))
    if word in ("cat", "tab", "ep") and (text[start].islower() or _PLURAL.match(number)):
        return False  # also words
    if word == "c":
        return re.match(r"\d{3,4}\b|\d{1,3},\d{3}", number) is not None
    if word == "sec" and before and before[-1].isdecimal():
        return (
            re.search(r"(?:[Aa]rt|[Cc]h|[Tt]itle|[Aa]rticle|[Cc]hapter)\.? \S{1,5} $", text[max(0, start - 20) : start])
            is not None
        )
    is_word = word in _NOUNS and text[start].islower()
    return not (is_word and (_PERSONS.match(number) or (before and before[-1].lower() in _DETERMINERS)))


def is_spelled(text: str, start: int) -> bool:
    """Return whether the letter at `text[start]` ends an initialism that is spelt out: the O of "C E O"."""
    return re.search(r"(?<![\w.'-])[A-Z] $", text[max(0, start - 3) : start]) is not None
