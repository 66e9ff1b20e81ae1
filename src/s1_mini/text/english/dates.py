"""Dates, decades, years, times of day, and ratios, which are written like times."""

from __future__ import annotations

import re

from s1_mini.text.english.numerals import APPROXIMATE, cardinal, decade, digits, ordinal, paired, written
from s1_mini.text.stops import is_final
from s1_mini.text.tables import table, text_after, text_before, words

MONTHS = words("January February March April May June July August September October November December")
DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_HALF = r"(?:\s?([AaPp])\.?\s?[Mm]\b(\.?))"
_DASH = re.compile(
    r"(?<![\w.:/-])(\d{1,2}(?::\d\d)?)(\s?[ap]\.?\s?m\b\.?)?\s?[-–—]\s?(?=(\d{1,2}(?::\d\d)?)(\s?[ap]\.?\s?m\b)?)",
    re.IGNORECASE,
)
_WITH_HALF = re.compile(rf"(?<![\w.:,/$£€])(\d{{1,2}})(?:[:.]([0-5]\d))?(?::([0-5]\d))?{_HALF}")
_CLOCK = re.compile(
    r"(?:(?<![\w.:,/$£€])|(?<=:\d\d,))([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?(?:Z\b)?(?![\w:]|\.\d|,\d{3}(?!\d))"
)
_RATIO = re.compile(r"(?<![\w.:/])(\d{1,4}(?:\.\d\d?)?):(\d{1,3}(?:,\d{3})++|\d{1,4})(?![\w:]|,\d{3}(?!\d))")
_PROPORTION = re.compile(  # a ratio that could be a time: mix 1:10, a 1:12 scale
    r"(\b(?:mix|mixed|mixes|dilute|diluted|ratio|ratios|scale|scaled|odds|proportions?)"
    r"(?: (?:it|them|of|is|was|are|were))? )"
    r"(\d{1,4}):(\d{1,4})(?![\w:]|\.\d)|(?<![\w.:/])(\d{1,4}):(\d{1,4})"
    r"(?=[ -](?:ratio|scale|odds|mix|mixture|dilution|slope|model|replica)s?\b)",
    re.IGNORECASE,
)
_STANDARD = re.compile(r"(\b(?:ISO|IEC|EN|DIN|BS) ?\d{2,5}):((?:19|20)\d\d)\b")  # ISO 9001:2015
_DURATION = re.compile(r"(?<![\w.:/])([2-5]\d):([0-5]\d)(?![\w:])")
_LAP = re.compile(r"(?<![\w.:/])(\d{1,2}):([0-5]\d)\.(\d{1,3})(?![\w:]|\.\d)")  # 3:43.13
_MILITARY = re.compile(r"(?:(?<![\w.,:])(?=0)|(?<=\b[Aa]t )|(?<=\bETA ))([0-2]\d[0-5]\d) (?:hours|hrs)\b")  # 0600 hours
_ZONE = re.compile(r"\b(UTC|GMT) ?([-+])0?(\d{1,2})(?::00)?(?!\d)")
BOOKS = table(
    "Gen=Genesis, Ex=Exodus, Exod=Exodus, Lev=Leviticus, Deut=Deuteronomy, Sam=Samuel, Ps=Psalm, Prov=Proverbs, "
    "Isa=Isaiah, Jer=Jeremiah, Ezek=Ezekiel, Dan=Daniel, Matt=Matthew, Mt=Matthew, Mk=Mark, Lk=Luke, Jn=John, "
    "Rom=Romans, Cor=Corinthians, Gal=Galatians, Eph=Ephesians, Phil=Philippians, Col=Colossians, Tim=Timothy, "
    "Thess=Thessalonians, Heb=Hebrews, Jas=James, Pet=Peter, Rev=Revelation"
)
_VERSE = re.compile(
    rf"\b((?:{'|'.join(BOOKS.values())}|Psalms|Job|Acts|(?:First|Second) Kings|Surah|Quran) )"
    r"(\d{1,3}):(?!0)(\d{1,3})(?![\w:-])"
)
_VERSES = re.compile(r"(?<![\w.:/])(\d{1,3}):(\d{1,3})[-–](?=\d{1,3}(?![\w:]))")


def _minutes(minute: int) -> str:
    return f"oh {cardinal(minute)}" if minute < 10 else cardinal(minute)


def _dash(found: re.Match[str]) -> str:
    """Read a dash between two numbers as `to` if it is clear that they are times."""
    is_time = found[2] or found[4] or ":" in found[3]
    return f"{found[1]}{found[2] or ''} to " if is_time else found.group()


def _with_half(found: re.Match[str]) -> str:
    hour = int(found[1])
    if not 0 <= hour <= 24:
        return found.group()
    minute = f" {_minutes(int(found[2]))}" if found[2] and int(found[2]) else ""
    second = f" and {cardinal(int(found[3]))} seconds" if found[3] else ""
    is_dotted = "." in found.group()[found.end(4) - found.start() : -1]  # p.m., whose dot may be its own
    is_end = found[5] and (not is_dotted or is_final(found.string, found.start(4), found.end(), "half"))
    stop = "." if is_end else ""
    return f"{cardinal(hour)}{minute}{second} {found[4].upper()} M{stop}"


def _clock(found: re.Match[str]) -> str:
    hour, minute = int(found[1]), int(found[2])
    second = f" and {cardinal(int(found[3]))} seconds" if found[3] and int(found[3]) else ""
    if minute or second:
        return f"{cardinal(hour)} {_minutes(minute)}{second}"
    if hour in (0, 24):
        return "midnight"
    return f"{cardinal(hour)} o'clock" if hour <= 12 else f"{cardinal(hour)} hundred"


def _proportion(found: re.Match[str]) -> str:
    first, last = (int(part) for part in (found[2] or found[4], found[3] or found[5]))
    return f"{found[1] or ''}{cardinal(first)} to {cardinal(last)}"


def read_times(text: str) -> str:
    text = _ZONE.sub(lambda found: f"{found[1]} {APPROXIMATE[found[2]]}{found[3]}", text)
    text = _MILITARY.sub(lambda found: f"{'oh ' * (found[1][0] == '0')}{paired(int(found[1]))} hours", text)
    text = _WITH_HALF.sub(_with_half, _DASH.sub(_dash, text))
    if ":" not in text:
        return text
    text = _VERSES.sub(lambda found: " ".join(cardinal(int(part)) for part in found.groups()[:2]) + " to ", text)
    text = _VERSE.sub(lambda found: f"{found[1]}{cardinal(int(found[2]))} {cardinal(int(found[3]))}", text)
    text = _LAP.sub(lambda found: f"{cardinal(int(found[1]))} {_minutes(int(found[2]))} point {digits(found[3])}", text)
    text = _PROPORTION.sub(_proportion, text)
    text = _CLOCK.sub(_clock, _STANDARD.sub(lambda found: f"{found[1]} {_year(found[2])}", text))
    text = _DURATION.sub(lambda found: f"{cardinal(int(found[1]))} {_minutes(int(found[2]))}", text)
    return _RATIO.sub(lambda found: f"{written(found[1])} to {written(found[2])}", text)


_MONTH = f"(?:{'|'.join(MONTHS)})"
_DAY = r"(?:3[01]|[12]\d|0?[1-9])"
_YEAR = r"(?:1\d|20|21)\d\d"
_ISO = re.compile(r"(?<![\w-])(\d{4})([-/.])(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])(?:T(?=\d)|(?![\w-]))")
_SLASHED = re.compile(r"(?<![\w/.-])(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d{2})(?![\w/-]|\.\d)")
_SHORT_DATE = re.compile(
    r"(?<![\w/.,$£€-])(\d{1,2})/(\d{1,2})(?:( ?[-–] ?| to | through | and )(\d{1,2})/(\d{1,2}))?"
    r"(?![\w/%]|[.,]\d|-\d| of\b)"
)
_DATED = re.compile(rf"\b(?:{'|'.join(DAYS)})(?:,|s?(?: [-–—])?) $")
_HEADING_DATE = re.compile(  # 3/25 - Palm Sunday, Edit (5/13): fixed
    r"(?:^|\n)\d{1,2}/(?:1|6|7|9|1[1-9]|2\d|3[01])(?= [-–—] [A-Z])|\(\d{1,2}/(?:1[37-9]|2[1-9]|3[01])\)"
)
_TO_MONTH = re.compile(rf"(?<=\d)( ?)[-–]\1(?=(?:(?:{'|'.join(DAYS)}), )?(?:{'|'.join(MONTHS)}) \d)")
_MONTH_OF_YEAR = re.compile(
    r"(?<![\w/.,$£€-])(?:(0?[1-9]|1[0-2])/|(0[1-9]|1[0-2])-(?!2000))((?:19|20)\d\d)(?![\w/%]|[.,]\d|-\d)"
)
_DASHED = re.compile(
    rf"(?<![\w.,/-])({_DAY})-({'|'.join(month[:3] for month in MONTHS)})[a-z]{{0,6}}-({_YEAR}|\d\d)(?![\w-])",
    re.IGNORECASE,
)
_YEAR_MONTH = re.compile(r"(?<![\w/.,$£€-])((?:1[7-9]|20)\d\d)([-/])(0[1-9]|1[0-2])(?![\w/%]|[.,]\d|-\d)")
_MONTH_JOINED = re.compile(rf"(?<![\w-])({_MONTH}|Sept|{'|'.join(month[:3] for month in MONTHS)})-(?=(?:19|20)\d\d\b)")
_BETWEEN_DATES = re.compile(r"(?<=\d-\d\d)(?:\s?[–—]\s?|\s-\s)(?=\d{4}-\d\d(?!\d))")
_SAYS_MONTH = re.compile(
    r"\b(?:dated?|released?|published|updated|created|issued?|expires|month|version|as of|until|till|"
    r"since|[12]\d{3}-(?:0[1-9]|1[0-2]) ?"
    r"(?:to|until|[-–]))(?::| in| on)? ?$",
    re.IGNORECASE,
)
_UNTIL_MONTH = re.compile(r" (?:to|until|through) (?:19|20)(\d\d)-(0[1-9]|1[0-2])(?![\w/%]|[.,]\d|-\d)")
_SEASON = re.compile(
    r" (?:[a-z]{1,20} )?(?:seasons?|campaign|school|academic|fiscal|budget|winter|term|tour|financial)\b"
)
_MONTH_DAY = re.compile(
    rf"\b({_MONTH}) (?:the )?({_DAY})(?:st|nd|rd|th)?"
    rf"(?:\s?(?:-|–|to|(&|and(?= \d{{1,2}}(?:[;.,)]|$))))\s?({_DAY})(?:st|nd|rd|th)?)?"
    rf"(?:,? ({_YEAR})\b)?(?!\w|%|[:.,]\d|\s?[ap]\.?m)"
)
_DAY_MONTH = re.compile(
    rf"(?<![\w.,/-])(the )?({_DAY})(?:st|nd|rd|th)?(?:\s?[-–]\s?({_DAY})(?:st|nd|rd|th)?)?"
    rf"( of)? ({_MONTH})\b(?:,? ({_YEAR})\b)?",
    re.IGNORECASE,
)
_MONTH_YEAR = re.compile(rf"\b({_MONTH}),? ({_YEAR})(?![\w:%]|[.,-]\d)")
_DECADE = re.compile(rf"(?<![\w.,])(?<![GR]TX )(?:'|\b(?=\d\d'?s|{_YEAR}'?s))(\d0|(?:1[1-9]|20|21)\d0)('?)s\b")
_SECONDS = re.compile(r"(?<![\w.,'])(?<![A-Z]-)([2-9]0|10(?!s of\b))s\b")
_LONG = re.compile(r" (?:long|later|ago|timeouts?|delays?|intervals?)\b")
_LASTS = re.compile(r"(?i:\b(?:took|takes?|for|after|within|every|wait|waits|in|of|lasts?) |[~<>≈] ?)$")
_SHORT = re.compile(r"(?<![\w'])'(\d\d)(?![\w'])")
_ERA = re.compile(r"(?<![\w.,])(\d{1,4})\s?(BCE?|AD|CE)\b")
_ERA_BEFORE = re.compile(r"\bAD (\d{1,4})\b")
_SPAN = re.compile(rf"(?<![\w.,/$£€-])({_YEAR})\s?([-–—/]|to)\s?({_YEAR}|\d\d)(?![\w%]|[.,/-]\d)")
_ALONE = re.compile(r"(?<![\w.,:/$£€+-])(1[01]\d\d|1[2-9]\d\d|20\d\d)(?=('s)?)(?![\w%°]|[.,:/-]\d)")
_SAYS_YEAR = re.compile(
    r"\b(?:in|since|until|till|year|of|from|by|before|after|summer|winter|spring|autumn|fall)\s$", re.IGNORECASE
)
_SAYS_COUNT = re.compile(
    r"\b(?:about|over|than|nearly|almost|only|around|cost|costs|exactly|some|all|least|most|to|has|have|"
    r"had|made|with|another|every|of|needs?|takes?|weighs?|room|number|times|plus|minus)\s$",
    re.IGNORECASE,
)
_FUNCTION = (
    "and|or|was|were|is|are|to|when|while|with|the|a|an|in|at|on|as|for|by|but|he|she|it|they|we|you|i|has|had|have|after|"
    "before|until|because|so|that|who|which|will|would|did|does|from|if|then|there|this|us|its|his|too|also|versus|vs"
)
_COUNTED = "people|men|women|children|others?|more|fish|sheep|percent|dead|staff|police|cattle|students|feet|miles|of"
_GOES_ON = re.compile(
    rf"\s(?:(?!(?:{_FUNCTION})\b)[a-z][a-z-]{{0,20}}\s)?(?:(?:{_COUNTED})|(?!(?:{_FUNCTION})\b)[a-z-]{{2,20}}(?<!s)(?<!risi|lysi|basi)(?<![^n]u)s)\b"
)


def _year(number: str) -> str:
    return paired(int(number))


def _full(month: str, day: str, year: str | None) -> str:
    return f"{month} {ordinal(int(day))}" + (f", {_year(year)}" if year else "")


def _iso(found: re.Match[str]) -> str:
    return _full(MONTHS[int(found[3]) - 1], found[4], found[1]) + (" at " if found.group().endswith("T") else "")


def _slashed(found: re.Match[str]) -> str:
    """Read month/day/year if that is a valid date; otherwise, and with dots, day/month/year."""
    first, second = int(found[1]), int(found[3])
    month, day = (second, first) if (found[2] == "." and second <= 12) or first > 12 else (first, second)
    if not (1 <= month <= 12 and 1 <= day <= 31) or (found[2] == "." and len(found[4]) == 2):
        return found.group()
    year = found[4] if len(found[4]) == 4 else f"{'20' if int(found[4]) < 50 else '19'}{found[4]}"
    return _full(MONTHS[month - 1], str(day), year)


def _short_date(found: re.Match[str]) -> str:
    """Read 07/04 (no fraction has a leading zero), 3/4 after a weekday, and 3/25 before a dash, as month and day."""
    month, day, to, last_month, last_day = found.groups()
    is_padded = any(each is not None and each[0] == "0" for each in (month, day, last_month, last_day))
    is_heading = _HEADING_DATE.match(found.string, max(0, found.start() - 1))
    if not (is_padded or is_heading or _DATED.search(text_before(found, 14))):
        return found.group()
    days = [(int(month), int(day))] + ([(int(last_month), int(last_day))] if to else [])
    if not all(1 <= m <= 12 and 1 <= d <= 31 for m, d in days):
        return found.group()
    joint = f" {to.strip() if to.strip() in ('through', 'and') else 'to'} " if to else ""
    return joint.join(f"{MONTHS[m - 1]} {ordinal(d)}" for m, d in days)


def _year_month(found: re.Match[str]) -> str:
    """Read 2024-06 as a month, but 2010-12, which may be a span of years, only if the words before say so."""
    year, mark, month = found.groups()
    may_span = int(month) > int(year[2:]) and not (mark == "/" and int(month) > int(year[2:]) + 1)
    is_season = _SEASON.match(found.string, found.end()) is not None
    until = _UNTIL_MONTH.match(found.string, found.end())
    says_month = _SAYS_MONTH.search(text_before(found, 20)) or (until and int(until[2]) <= int(until[1]))
    if may_span and (is_season or not says_month):
        return f"{_year(year)} to {_year(year[:2] + month)}" if month[0] == "0" and mark == "-" else found.group()
    return f"{MONTHS[int(month) - 1]} {_year(year)}"


def _dashed(found: re.Match[str]) -> str:
    month = next(month for month in MONTHS if month[:3].lower() == found[2].lower())
    return f"{int(found[1])} {month} {found[3] if len(found[3]) == 4 else '20' + found[3]}"


def _month_day(found: re.Match[str]) -> str:
    said = _full(found[1], found[2], None)
    said += f" {'and' if found[3] else 'to'} {ordinal(int(found[4]))}" if found[4] else ""
    return said + (f", {_year(found[5])}" if found[5] else "")


def _day_month(found: re.Match[str]) -> str:
    if found[5] == "may" or not found[5][0].isupper():
        return found.group()
    the = found[1] or "the "
    until = f" to {ordinal(int(found[3]))}" if found[3] else ""
    return f"{the}{ordinal(int(found[2]))}{until} of {found[5]}" + (f", {_year(found[6])}" if found[6] else "")


def _seconds(found: re.Match[str]) -> str:
    before = text_before(found, 8)
    is_ten = found[1] == "10" and not before.endswith("the ")
    is_time = is_ten or _LASTS.search(before) or _LONG.match(found.string, found.end())
    return f"{cardinal(int(found[1]))} seconds" if is_time else found.group()


def _span(found: re.Match[str]) -> str:
    first, last = found[1], found[3]
    if len(last) == 2:
        if first.endswith("99") and last == "00" and found[2] != "to":
            return f"{_year(first)} to {paired(int(first) + 1)}"
        if found[2] == "to" or int(last) <= int(first[2:]):
            return found.group()
        return f"{_year(first)} to {cardinal(int(last))}"
    if found[2] == "/":
        return f"{_year(first)} {_year(last)}" if int(last) == int(first) + 1 else found.group()
    if int(last) <= int(first):
        return found.group()
    return f"{_year(first)} to {_year(last)}"


def read_dates(text: str) -> str:
    text = _TO_MONTH.sub(" to ", _BETWEEN_DATES.sub(" to ", text))
    text = _SLASHED.sub(_slashed, _ISO.sub(_iso, text))
    text = _DASHED.sub(_dashed, _YEAR_MONTH.sub(_year_month, text))
    if "/" in text:
        text = _SHORT_DATE.sub(_short_date, text)
    text = _MONTH_OF_YEAR.sub(lambda found: f"{MONTHS[int(found[1] or found[2]) - 1]} {_year(found[3])}", text)
    text = _MONTH_JOINED.sub(lambda found: next(month for month in MONTHS if month[:3] == found[1][:3]) + " ", text)
    text = _DAY_MONTH.sub(_day_month, _MONTH_DAY.sub(_month_day, text))
    text = _MONTH_YEAR.sub(lambda found: f"{found[1]} {_year(found[2])}", text)
    text = _SHORT.sub(lambda found: "oh " * (found[1][0] == "0") + cardinal(int(found[1])), text)
    text = _SECONDS.sub(_seconds, text)
    text = _DECADE.sub(lambda found: decade(int(found[1])), text)
    text = _ERA.sub(lambda found: f"{_year(found[1])} {' '.join(found[2])}", text)
    text = _ERA_BEFORE.sub(lambda found: f"A D {_year(found[1])}", text)
    return _SPAN.sub(_span, text)


def _alone(found: re.Match[str]) -> str:
    number = int(found[1])
    before = text_before(found, 15)
    after = text_after(found, 45)
    is_counted = _GOES_ON.match(after) is not None and re.search("(?:[Tt]he|this|Q[1-4]) $", before) is None
    says_year = _SAYS_YEAR.search(before) is not None
    if is_counted or (_SAYS_COUNT.search(before) and not says_year) or (number < 1100 and not says_year):
        return found.group()
    return _year(found[1])


def read_years(text: str) -> str:
    """Spell out numbers of four digits as years unless they count something."""
    return _ALONE.sub(_alone, text)
