"""English numbers: cardinals, ordinals, ranges, signs, scales, and Roman numerals.

The words of numbers below a thousand are CLDR's (`s1_mini.text.numbers`). Roman numerals are those of rulers, chapters,
wars and centuries; the pronoun I stays a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from s1_mini.text.numbers import spell
from s1_mini.text.tables import table, text_after, text_before

# A number as written, without its sign: 1,234.5 or 12 or .5.
NUMBER = r"(?:\d{1,3}(?:,\d{3})++(?!\d)(?:\.\d++)?|\d++(?:\.\d++)?|\.\d++)"
# Signs before a number.
APPROXIMATE = {"-": "minus ", "+": "plus ", "±": "plus or minus ", "~": "about ", "≈": "about "}
MAX_SAID = 36  # digits; longer numbers are spelt digit by digit

_THOUSANDS = (
    " thousand million billion trillion quadrillion quintillion sextillion septillion octillion nonillion decillion"
)
# How scales are written, in lower case.
SCALES = table(
    "k=thousand, m=million, mn=million, mm=million, mio=million, b=billion, bn=billion, t=trillion, tn=trillion, "
    "trn=trillion, hundred=hundred, thousand=thousand, million=million, billion=billion, trillion=trillion, "
    "lakh=lakh, crore=crore"
)


@cache
def _below_thousand(number: int) -> str:
    return spell(number, "en")


@cache
def _ordinal_below_thousand(number: int) -> str:
    return spell(number, "en", is_ordinal=True)


def cardinal(number: int) -> str:
    """Spell out a whole number, at least 0."""
    if number < 1000:
        return _below_thousand(number)
    if number >= 10**MAX_SAID:
        return digits(str(number))
    parts = []
    for scale in _THOUSANDS.split(" "):
        number, group = divmod(number, 1000)
        if group:
            parts.append(f"{_below_thousand(group)} {scale}".strip())
        if not number:
            break
    return " ".join(reversed(parts))


def ordinal(number: int) -> str:
    """Spell out a whole number above 0 as an ordinal."""
    before, last = divmod(number, 1000)
    if not before:
        return _ordinal_below_thousand(last)
    return f"{cardinal(before * 1000)} {_ordinal_below_thousand(last)}" if last else f"{cardinal(number)}th"


def digits(text: str) -> str:
    """Spell out the digits of a text one by one; other characters are dropped."""
    return " ".join(_below_thousand(int(each)) for each in text if each.isdecimal())


def written(text: str) -> str:
    """Spell out a number that `NUMBER` matches.

    Read digit by digit: numbers with a leading zero such as 007, numbers over `MAX_SAID` digits, and numbers of ten or
    more digits without commas that are not whole millions.
    """
    whole, point, decimals = text.replace(",", "").partition(".")
    is_code = len(whole) > 1 and whole[0] == "0"
    is_code = is_code or (len(whole) >= 10 and "," not in text and not whole.endswith("000000"))
    said = digits(whole) if is_code or len(whole) > MAX_SAID else cardinal(int(whole)) if whole else ""
    return f"{said} point {digits(decimals)}".strip() if point else said


def paired(number: int) -> str:
    """Spell out up to four digits in pairs, as in years and rooms: nineteen eighty-four, three oh four."""
    if number < 100 or number > 9999 or 2000 <= number < 2010 or number % 1000 == 0:
        return cardinal(number)
    before, last = divmod(number, 100)
    if not last:
        return f"{_below_thousand(before)} hundred"
    return f"{_below_thousand(before)} {'oh ' if last < 10 else ''}{_below_thousand(last)}"


def parts_of(number: int) -> str:
    """Spell out a denominator above 1, in the plural: halves, thirds, quarters."""
    return {2: "halves", 4: "quarters"}.get(number) or part_of(number) + "s"


def part_of(number: int) -> str:
    """Spell out a denominator above 1, in the singular."""
    return {2: "half", 4: "quarter"}.get(number) or ordinal(number).removeprefix("one ")


def plural_number(said: str) -> str:
    """Return the plural of a number as words: fifty-twos, sixes, nineties."""
    return f"{said[:-1]}ies" if said.endswith("y") else f"{said}es" if said.endswith("x") else f"{said}s"


def decade(number: int) -> str:
    """Spell out a decade by its first year: nineties, nineteen nineties, two thousands."""
    before, last = divmod(number, 100)
    tens = f"{_below_thousand(last)}s" if last == 10 else f"{_below_thousand(last)[:-1]}ies"
    if not before:
        return tens
    if last:
        return f"{_below_thousand(before)} {tens}"
    return "two thousands" if number == 2000 else f"{_below_thousand(before)} hundreds"


_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}
_VALID = re.compile(r"M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})")
_RULERS = (
    "Louis|Henry|Elizabeth|Charles|George|James|Edward|Richard|William|John|Paul|Pius|Benedict|Francis|Leo|Gregory|"
    "Napoleon|Catherine|Peter|Nicholas|Alexander|Philip|Ferdinand|Frederick|Wilhelm|Ivan|Mary|Ramses|Ramesses|Ptolemy|"
    "Xerxes|Darius|Cyrus|Otto|Urban|Innocent|Clement|Boniface|Robert|Margaret|Margrethe|Christian|Gustav|Olaf|Haakon|"
    "Harald|Carl|Karl|Victor|Emmanuel|Umberto|Carlos|Alfonso|Felipe|Pedro|Mehmed|Murad|Selim|Suleiman|Stephen|Albert|"
    "Leopold|Baldwin|Joseph|Maximilian|Rudolf|Rudolph|Sigismund|Constantine|Theodosius|Justinian|Amenhotep|Thutmose|Seti"
)
_NUMBERED = (
    "Chapter|Part|Volume|Book|Act|Scene|Section|Article|Appendix|Phase|Type|Level|Grade|Class|Title|War|Bowl|Episode|"
    "Stage|Round|Vol|Figure|Table|Division|Group|Schedule|Unit|Step|Canto|Psalm|Sonata|Symphony|Mark|Apollo|Olympiad"
)
_RULER = re.compile(rf"\b((?:{_RULERS})) ([IVX]{{1,6}})\b(?!'(?!s\b)|\.\w)")
_PART = re.compile(
    rf"\b((?:{_NUMBERED})s?) ([IVXLC]{{1,9}})([AB]?)\b(?!'\w|\.[A-Za-z]|(?<= I) [DMPQT]\b)", re.IGNORECASE
)
_PERSON = re.compile(r" (?:am|was|have|had|think|will|would|do|did|see)\b")
_CENTURY = re.compile(r"\b([IVX]{1,6})(?:th|st)?(?=[- ][Cc]entur)|(?<=\b[Tt]he )([IVX]{2,6})(?:th|st)?\b(?! [a-z])")
_AFTER_NAME = re.compile(r"(?<=[a-z] )([IVX]{2,6})\b(?!['.]\w)")
_STRAY = re.compile(r"(?<![\w.'&-])(?!XXX\b)(II|[IVX]{3,6}|(?<!.)[IVX]{2}(?!.))\b(?![&-])")
_SPAN = re.compile(r"(?<![\w.'&-])([IVX]{1,6})\s?[-–]\s?([IVX]{2,6})\b(?![&'-])")
_YEAR = re.compile(r"(?<![\w.])(M{1,3}[MCDLXVI]{3,12})(?!\w|\.\w)")
_SMALL = re.compile(  # (vi) and vi), and ii or viii anywhere
    r"(?<![\w'./@-])(?:(?!x+\))[ivx]{2,5}(?=\))|(?:x{0,3}v?iii?|x{1,3}iv)(?!['\w/-]|\.\w))"
    r"|(?<![^\n])(?!x+\.)[ivx]{2,5}(?=\.\s)"
)
_LISTED = re.compile(r"(?<!\w)(?:i{1,3}|i?v|viii?|i?x)\)")  # another numeral than vi


def _value(letters: str) -> int | None:
    if not _VALID.fullmatch(letters):
        return None
    values = [_VALUES[letter] for letter in letters]
    return sum(-each if each < after else each for each, after in zip(values, [*values[1:], 0], strict=True))


def _ruler(found: re.Match[str]) -> str:
    value = _value(found[2])
    if value is None or (found[2] == "I" and _PERSON.match(text_after(found, 10))):
        return found.group()
    return f"{found[1]} the {ordinal(value)}"


def _part(found: re.Match[str]) -> str:
    numeral, letter = found[2], found[3]
    if numeral.endswith("IIC"):  # stage IIC
        numeral, letter = numeral[:-1], "C"
    value = _value(numeral.upper() if numeral.islower() and len(numeral) > 1 else numeral)
    if found.group().isupper() and numeral + letter == "VIA":
        return found.group().replace("VIA", "via")  # PART VIA MAIL
    if value is None or letter.islower() or numeral in "CL" or (found[1][0].islower() and numeral == "I"):
        return found.group()
    return f"{found[1]} {cardinal(value)} {letter}".rstrip()


def _spell(found: re.Match[str], numeral: str, say: Callable[[int], str]) -> str:
    value = _value(numeral)
    return found.group() if value is None else say(value)


def _after_name(found: re.Match[str]) -> str:
    """Read the numeral after a capitalised name: Rocky III."""
    before = text_before(found, 30).split()
    return _spell(found, found[1], cardinal) if before and before[-1][0].isupper() else found.group()


def _span(found: re.Match[str]) -> str:
    first, last = _value(found[1]), _value(found[2])
    return found.group() if first is None or last is None else f"{cardinal(first)} to {cardinal(last)}"


def read_roman(text: str) -> str:
    """Spell out letters that are certainly Roman numerals."""
    text = re.sub(r"\bWW(?=I{1,2}\b|[12]\b)", "World War ", text)
    keeps_vi = _LISTED.search(text) is None  # (vi) alone is more often the editor than a numeral
    text = _SMALL.sub(
        lambda found: "vi" if keeps_vi and found[0] == "vi" else _spell(found, found[0].upper(), cardinal), text
    )
    if not re.search(r"\b(?:[IVXLCM]+[AB]?|[ivx]{2,5})\b", text):
        return text
    text = _SPAN.sub(_span, text)
    text = _PART.sub(_part, _RULER.sub(_ruler, text))
    text = _CENTURY.sub(lambda found: _spell(found, found[1] or found[2], ordinal), text)
    text = _STRAY.sub(lambda found: _spell(found, found[1], cardinal), _AFTER_NAME.sub(_after_name, text))
    return _YEAR.sub(lambda found: _spell(found, found[1], str), text)


_ORDINAL = re.compile(r"(?<![\w.,])(\d{1,3}(?:,\d{3}){1,4}|\d{1,20})(?:st|nd|rd|th)\b")
# Digits in groups of three. A hyphen may follow before another grouped number or a noun: 10 000-metre.
_SPACED = re.compile(
    r"(?<![\w.,+/:'])(?:(?<!\w-)|(?<= \d{3}-))(?<!\d )(?<!\d\) )(?<!/ )"
    r"[1-9]\d{0,2}(?: \d{3})++(,\d\d?(?!\d))?(?! ?\d|,\d|[A-Z]{0,4}s\b|-\d(?!\d{0,2} \d{3}))"
)
# A decimal comma before a scale, a percentage or a unit: 2,3 million, 37,5 °C.
_COMMA = re.compile(
    r"(?<![\w.,/:$£€-])(\d{1,3}),(\d{1,2})(?=\s?(?:[mbtr]{1,2}illion|percent|%|°[CF]?|km|kg|cm|mm|mg|ml|m|g|l|L|kWh|kW|GB|MB)(?![\w/]))"
)
_PACKS = re.compile(  # 2 x 400g tins, 2 x T-shirts
    r"(?<![\w.,/])(\d{1,2})(?: ?[x×] ?(?=\d[\d.,]*+ ?(?:k?g|m?l|oz|lbs?)\b)"
    r"|(?:(?<=[,;:•] \d)|(?<=\band \d)) x (?=[A-Z][a-z'-]{2}))"
)
_APOSTROPHES = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:'\d{3})++(?!\d)")
_NOT_GROUPED = re.compile(
    r"\b(?:call|phone|tel|telephone|ring|dial|text|fax|mobile|number|gate|flight|bus|route|line|platform|group|team|size|"
    r"aged|version|type|item|game|round|set|lap|year|hour|zone|district|act|book|chapter|page|room|section|step|day|week|level|figure|"
    r"table|part|episode|season|volume|unit|phase|question|lesson|grade|jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec|"
    r"january|february|march|april|june|july|august|september|october|november|december|"
    r"(?:code|pin|id|passcode|password)(?: is)?)[.:]? $",
    re.IGNORECASE,
)
_DOTS = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.])")
_CHAIN = re.compile(r"(?<![\w.,-])\d{1,8}(?:-\d{1,8}){2,8}(?![\w-]|[.,]\d)")
_RANGE = re.compile(rf"(?<![\w.,-])({NUMBER})(\s?)(?:-|–|—)(\s?)(?=({NUMBER})(?:(?:[kKMB]|[bmt]n)\b)?(?![\w-]))")
_SCALED = re.compile(
    rf"(?:(?<![\w)\]%°])([-+±~≈])\s?)?(?<![\w.,])(?<![A-Za-z\d]-)({NUMBER})(?: ?(?!K))?(k|K|M|B|bn|mn|tn)(?![\w'-])"
)
_POWER = re.compile(rf"(?<=[\w)])\s?\^\s?([-+]?)({NUMBER})")
_SIGN = re.compile(r"(?<![\w)\]%°])([-+±~≈])\s?(?=\.?\d)")
_NUMBER = re.compile(rf"(?<![.,\d]){NUMBER}|\d++")


def _range(found: re.Match[str]) -> str:
    """Read a dash between two numbers as `to`, and as `minus` in a subtraction."""
    is_spaced = bool(found[2] and found[3]) and "-" in found.group()
    falls = float(found[4].replace(",", "")) < float(found[1].replace(",", ""))
    is_subtraction = is_spaced and (falls or "=" in text_after(found, 20))
    is_code = re.match(r"0\d", found[4]) is not None and found[1][0] != "0"
    is_code |= text_before(found, 7).lower() == "number " and max(len(found[1]), len(found[4])) > 2
    is_code &= "–" not in found.group()
    is_code |= falls and len(found[1]) == 4 and len(found[4]) == 2 and found[1].isdecimal()
    if not is_subtraction and (found[1] == found[4] or is_code or _is_split(found)):
        return f"{found[1]} "  # fifty-fifty, a 2-2 draw, a 70-30 split, part 1234-05
    return f"{found[1]} {'minus' if is_subtraction else 'to'} "


_SPLIT_BEFORE = re.compile(r"\b(?:an?|the|this|that|our|your|their) $", re.IGNORECASE)
_SPLIT_AFTER = re.compile(r"\d{1,3} [a-z]")
_SPLIT_NOUN = re.compile(r"\d{1,3} (?:rule|principle|split|mix|blend|ratio|chance|basis)\b")
_PLAY = re.compile(r"[1-9] (?:punch|combo|combination|defen[cs]e|formation|zone|press|pick)\b")  # a 3-4 defense


def _is_split(found: re.Match[str]) -> bool:
    """Return whether two numbers are the parts of a hundred, as an adjective."""
    parts = found[1], found[4]
    is_hundred = all(map(str.isdecimal, parts)) and sum(map(int, parts)) == 100 and not found[2]
    is_named = _SPLIT_NOUN.match(found.string, found.end(3)) is not None
    is_adjective = _SPLIT_AFTER.match(found.string, found.end(3)) is not None
    if _PLAY.match(found.string, found.end(3)) is not None:
        return True
    return is_hundred and (is_named or (is_adjective and _SPLIT_BEFORE.search(text_before(found, 6)) is not None))


def _chain(found: re.Match[str]) -> str:
    parts = found.group().split("-")
    say = digits if sum(len(part) for part in parts) > 8 else written
    return ", ".join(say(part) for part in parts)


def _power(found: re.Match[str]) -> str:
    """Spell out an exponent: "squared" or "cubed" after a letter, otherwise as a power."""
    is_letter = found.string[found.start() - 1 : found.start()].isalpha()
    if is_letter and not found[1] and found[2] in ("2", "3"):
        return " squared" if found[2] == "2" else " cubed"
    return f" to the power of {'minus ' if found[1] == '-' else ''}{written(found[2])}"


def _scaled(found: re.Match[str]) -> str:
    sign, number, scale = found.groups()
    is_letter = scale == "B" and "." not in number  # exit 14B, a 7B model
    is_letter |= scale == "K" and (number in ("2", "4", "5", "8") or text_after(found, 4) in (" rac", " run"))
    return f"{APPROXIMATE.get(sign, '')}{written(number)} {scale if is_letter else SCALES[scale.lower()]}"


# Lower-case words between numbers: 3-to-1, 1-on-1, 2-by-4s, 7-out-of-10.
_WORD_BETWEEN = re.compile(
    r"(?<![\w.,/-])(\d{1,4})-(?!(?:jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)-)([a-z]{2,7}(?:-of)?|ON|TO|FOR|BY)-"
    r"(\d{1,4})(s|ers?)?(?!\w|[.,]\d)"
)
_NOTES = re.compile(r"[$£€](\d{1,4})s(?!\w)")  # in $20s
_IN_A = re.compile(r"(?<![\w.,/-])(\d{1,4})-(in|to|for|per|of)-(an?-(?=[a-z])|(?=[$£€]\d))")  # 1-in-a-million, 2-for-$5

_COUNTED_NUMBERS = re.compile(  # two 5s, size 10s, 43 Embraer 175s
    r"(\b(?:two|three|four|five|six|seven|eight|nine|ten|several|many|straight|sizes?|"
    r"Glock|Mark|Pixel|Mazda|Galaxy|Type|Nexus|lucky|double|triple|\d{1,3} (?-i:[A-Z])[a-z]{1,20}) )"
    r"(\d{1,3})s(?:( and | or )(\d{1,3})s)?(?!\w)",
    re.IGNORECASE,
)


def read_joined(text: str) -> str:
    """Replace the hyphens around a word between two numbers by spaces, and spell out numbers that are counted."""
    text = _COUNTED_NUMBERS.sub(_counted_numbers, text)
    text = _NOTES.sub(lambda found: plural_number(cardinal(int(found[1])).removeprefix("one ")), text)
    if "-" not in text:
        return text
    text = _IN_A.sub(lambda found: f"{found[1]} {found[2]} {found[3].replace('-', ' ')}", text)
    return _WORD_BETWEEN.sub(_joined, text)


def _counted_numbers(found: re.Match[str]) -> str:
    last = f"{found[3]}{plural_number(paired(int(found[4])))}" if found[3] else ""
    return f"{found[1]}{plural_number(paired(int(found[2])))}{last}"


def _joined(found: re.Match[str]) -> str:
    last, ending = cardinal(int(found[3])), found[4] or ""
    last = f"{last.removesuffix('e')}{ending}" if "er" in ending else plural_number(last) if ending else found[3]
    return f"{found[1]} {found[2].lower().replace('-', ' ')} {last}"


def read_ranges(text: str) -> str:
    """Spell out ordinals, ranges, chains of numbers, powers and numbers such as 5k, and remove grouping by dots."""
    text = _DOTS.sub(lambda found: found.group().replace(".", ""), text)
    text = _ORDINAL.sub(lambda found: ordinal(int(found[1].replace(",", ""))), text)
    text = _CHAIN.sub(_chain, text)
    text = _RANGE.sub(_range, text)
    text = _POWER.sub(_power, text)
    return _SCALED.sub(_scaled, text)


def read_grouped(text: str) -> str:
    """Write digits that are grouped by spaces or apostrophes with commas."""
    text = _PACKS.sub(lambda found: f"{cardinal(int(found[1]))} ", text)
    if "'" in text:
        text = _APOSTROPHES.sub(lambda found: found.group().replace("'", ","), text)
    text = _COMMA.sub(r"\1.\2", text) if "," in text else text
    return _SPACED.sub(_grouped, text)


_COUNTED = re.compile(
    r"[ -]?(?:mg|g|ml|mL|MB|GB|TB|W|V|lb|kg|oz)[ -]"
    r"(?:tablet|capsule|pill|bottle|can|bag|dose|drive|card|bulb|pack|stick)s?\b"
)  # 1 500 mg tablet


def _grouped(found: re.Match[str]) -> str:
    is_adjective = re.match(r"-[A-Za-z]", text_after(found, 2)) and not found.group().endswith("000")
    if is_adjective or _COUNTED.match(text_after(found, 20)) or _NOT_GROUPED.search(text_before(found, 12)):
        return found.group()
    whole = found.group().removesuffix(found[1] or "").replace(" ", ",")
    return whole + (found[1] or "").replace(",", ".")


def _number(found: re.Match[str]) -> str:
    """Spell out a number, separated by spaces from letters that touch it."""
    before, after = text_before(found, 1), text_after(found, 1)
    return f"{' ' * before.isalpha()}{written(found.group())}{' ' * (after.isalpha() or after == '(')}"


def read_plain(text: str) -> str:
    text = _SIGN.sub(lambda found: APPROXIMATE[found[1]], text)
    return _NUMBER.sub(_number, text)
