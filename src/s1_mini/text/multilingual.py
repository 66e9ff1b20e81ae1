"""Numbers, dates, times and money in nine languages as words, where the reading is the same in every sentence.

How a number is spelt out may depend on gender, case, or the word that it counts (German 1, Russian 5, Korean 3). CLDR
has all forms, but not the grammar that chooses one. A number becomes words only if its forms are the same, or if its
notation decides (a decimal, cents); otherwise the digits stay, for the model or `reading` to read, and only signs and
the notation of times and dates around the digits become words. English has rules of its own, in `english`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

from s1_mini.text.numbers import MAX_DIGITS, forms, spell
from s1_mini.text.tables import table, word_set, words

# These three tables also have languages of which only numbers are read, by `reading`.
POINT = table(
    "de=Komma, fr=virgule, es=coma, it=virgola, pt=vírgula, nl=komma, sv=komma, da=komma, no=komma, nb=komma, "
    "fi=pilkku, pl=przecinek, tr=virgül, ja=点, zh=点, ko=점, hi=दशमलव, ru=запятая, uk=кома, ar=فاصل, he=נקודה, "
    "cs=celá"
)
MINUS = table("fr=moins, es=menos, pt=menos, it=meno, nl=min, ja=マイナス, ko=마이너스, zh=负")
PERCENT = table(
    "de={} Prozent, fr={} pour cent, es={} por ciento, it={} per cento, pt={} por cento, nl={} procent, "
    "sv={} procent, da={} procent, pl={} procent, fi={} prosenttia, ja={}パーセント, ko={} 퍼센트, zh=百分之{}"
)
_TIME = table(  # hour | minute
    "de={} Uhr| {}, fr={} heures| {}, es={}| y {}, it={}| e {}, pt={} horas| e {}, zh={}点|{}分, ja={}時|{}分, "
    "ko={}시| {}분"
)
_DATE = table(  # day, month, year
    "de={}. {} {}, fr={} {} {}, es={} de {} de {}, it={} {} {}, pt={} de {} de {}, ru={} {} {} года, "
    "zh={2}年{1}月{0}日, ja={2}年{1}月{0}日, ko={2}년 {1}월 {0}일"
)
_RUSSIAN_YEAR = re.compile(r"[ \u00a0\u202f]?(?:г\.|год\w*)")  # after a date; `_DATE` adds the same word
_FIRST = table("fr=premier, it=primo, pt=primeiro")  # day of a month
_MONTHS = {
    "de": words("Januar Februar März April Mai Juni Juli August September Oktober November Dezember"),
    "fr": words("janvier février mars avril mai juin juillet août septembre octobre novembre décembre"),
    "es": words("enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"),
    "it": words("gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre"),
    "pt": words("janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro"),
    "ru": words("января февраля марта апреля мая июня июля августа сентября октября ноября декабря"),
}
_MONEY = {  # one unit | several; CLDR has the long names of price lists, such as "dollars des États-Unis"
    "de": table("€=Euro, $=Dollar, £=Pfund"),
    "fr": table("€=euro|euros, $=dollar|dollars, £=livre|livres"),
    "es": table("€=euro|euros, £=libra|libras"),  # $ is also a peso
    "it": table("€=euro, $=dollaro|dollari, £=sterlina|sterline"),
    "pt": table("€=euro|euros, $=dólar|dólares, £=libra|libras, R$=real|reais"),
    "zh": table("€=欧元, $=美元, £=英镑, ¥=元"),
    "ja": table("€=ユーロ, $=ドル, £=ポンド, ¥=円"),
    "ko": table("€=유로, $=달러, £=파운드, ₩=원"),
}
_CENTS = table("de=, fr=, es=con , it=e , pt=e ")  # before cents; the other languages read decimals
MULTILINGUAL = frozenset(_DATE)

MAX_BARE_DIGITS = 4  # without separators; longer numbers are often codes
MAX_CHINESE_DIGITS = 2  # because 911 and 110 are read digit by digit
MAX_DECIMALS = 9
_PHONE = re.compile(r"\d{3}[. \u00a0\u202f]\d{3}[. \u00a0\u202f](?!000)\d{3}")  # also codes, such as the French SIREN
_CHINESE_YEARS = ("年", "后", "後", "级", "届", "折")  # 98年, 80后, 95折 are read digit by digit
_WIDE = str.maketrans("＄￥￡￦％", "$¥£₩%")
_SPACE = "[ \u00a0\u202f]"
_SIGNS = "$€£¥₩＄￥￡￦"
_SIGN = rf"R\$|[{_SIGNS}]"
# After such a word, as in "$5 million" and ¥5元, the sign before the amount is not read.
_SCALE = "(?i:mi|mrd|ml[dn]|md\\b|bi|tri|tsd|tausend|[km]\\b|[十百千万萬亿億兆십백천만억조元圆円원])"
# A model reads two decimals before or behind such a name as cents.
_CURRENCY = (
    r"(?i:eur(?:os?)?|usd|gbp|chf|brl|d[oóò]l+ar\w*|pfund|livres?|libras?|sterlin\w+|franken|francs?|franchi|reais"
    r"|reales)"
)
_COUNTED = re.compile(rf"{_SPACE}?{_CURRENCY}(?!\w)")
_NAMED = re.compile(rf"(?<!\w){_CURRENCY}{_SPACE}?\Z")
# Words before a time whose hour has one digit. Without such a word, 3:16 may be a score, a verse or a duration.
_AT = {
    "fr": words("à dès vers jusqu'à"),
    "es": words("la las"),
    "it": words("alle dalle le ore"),
    "pt": words("às as das"),
    "zh": words("上午 下午 早上 晚上 中午 凌晨 今早 今晚 明早 明晚"),
    "ja": words("午前 午後 朝 夜"),
    "ko": words("오전 오후 아침 저녁 새벽 밤"),
}
# Words before ordinals with a bare º, which is also written for degrees.
_ARTICLES = {
    "es": words("el del al"),
    "it": words("il del al dal nel sul"),
    "pt": words("o do no ao pelo"),
}
# Days in Korean history, which are written with a point.
_KOREAN_DAYS = word_set("3.1 4.3 4.19 5.16 5.18 6.10 6.25 6.29 8.15 9.11 10.26 12.12")
# The model reads a number together with its unit.
_UNIT = r"(?:(?:[kcdmµμ]?[mglL][²³23]?|t|[kMGT]?(?:Hz|Wh?|V|A|B)|k?cal|ha|h|s|min|mph|dB|[CF])(?![\w'’])|[°℃℉‰]|º[CF])"


def read_certain(text: str, tag: str) -> str:
    """Return `text` with the certain readings of its numbers, if `tag` is in `MULTILINGUAL`; keeps all other text."""
    for pattern, read in _readers(tag) if tag in MULTILINGUAL else ():
        text = pattern.sub(lambda found: read(found, tag) or found.group(), text)  # noqa: B023
    return text


def _date(found: re.Match[str], tag: str) -> str | None:
    day, month = int(found["d"]), int(found["m"])
    if tag == "ru" and _RUSSIAN_YEAR.match(found.string, found.end()):
        return None
    if not (1 <= day <= 31 and 1 <= month <= 12):
        return None
    name = _MONTHS[tag][month - 1] if tag in _MONTHS else month
    return _DATE[tag].format(_FIRST.get(tag, day) if day == 1 else day, name, found["y"])


def _time(found: re.Match[str], tag: str) -> str | None:
    hour, minute = int(found[1]), int(next(filter(None, found.groups()[1:]), 0))
    template, _, minutes = _TIME[tag].partition("|")
    is_bare = re.fullmatch(r"\d[:：]\d\d", found.group()) is not None
    if hour > 24 or (is_bare and tag in _AT and not _follows(found, _AT[tag])):
        return None
    zero = "零" if tag == "zh" and minute < 10 else ""
    said = template.replace("s", "" if hour < 2 else "s").format(_certain(hour, tag))  # heure, heures
    return said + minutes.format(zero + _certain(minute, tag)) if minute else said


def _follows(found: re.Match[str], listed: Sequence[str]) -> bool:
    """Whether one of these words is before a match."""
    before = found.string[max(0, found.start() - 12) : found.start()].rstrip().lower()
    return any(re.search(rf"(?<![a-zß-ÿ]){word}\Z", before) for word in listed)


def _ordinal(found: re.Match[str], tag: str) -> str | None:
    if not found[1].isdecimal():
        return found[1] + _spelt(int(found[2]), tag)
    if found[2] in ("nd", "nde"):
        return {"2nd": "second", "2nde": "seconde"}.get(found.group())
    if found[2] == "º" and "." not in found.group() and not _follows(found, _ARTICLES.get(tag, ())):
        return None
    said = forms(int(found[1]), tag, "ORDINAL", "masculine" if found[2] in ("er", "º") else "feminine")
    return next(iter(said)) if len(said) == 1 else None


def _number(found: re.Match[str], tag: str) -> str | None:
    """Read a number, and the percent sign or the currency next to it."""
    written, part = found["whole"], found["part"] or ""
    bare = MAX_CHINESE_DIGITS if tag == "zh" and not found.string.startswith("年", found.end()) else MAX_BARE_DIGITS
    sign, digits = (found["sign"] or found["unit"] or "").translate(_WIDE), re.sub(r"\D", "", written)
    if (
        len(digits) > (MAX_DIGITS if sign or part or digits != written else bare)
        or len(part) > MAX_DECIMALS
        or (int(written[0]) == 0 and len(written) > 1)
        or (found["sign"] and found["unit"])
        or sign not in ("", "%", *_MONEY[tag])
        or (tag == "es" and len(part) == 3)  # 1,234 is a thousand in parts of America
        or (not sign and not part and _PHONE.fullmatch(written))
        or (tag == "ko" and f"{written}.{part}" in _KOREAN_DAYS and not sign)
        or (len(part) == 2 and tag in _CENTS and not sign and _is_money(found))
        or (tag == "zh" and len(written) == 2 and found.string.startswith(_CHINESE_YEARS, found.end()))
        or (sign in _MONEY[tag] and tag in _CENTS and digits[1:].endswith("000000"))  # "un million d'euros"
    ):
        return None
    amount, has_cents = int(digits), sign in _MONEY[tag] and tag in _CENTS and len(part) == 2
    if part and not has_cents:
        said = _decimal(amount, part, tag)
    elif sign and tag not in _CENTS:
        said = _spelt(amount, tag)
    elif tag == "zh" and len(digits) == len(written) == 4:  # a year
        said = "".join(spell(int(digit), tag) for digit in written)
    else:
        said = _certain(amount, tag, written, is_year=not sign and len(written) == 4 and tag != "ja")
    gap = "" if tag in ("zh", "ja") else " "
    if sign in _MONEY[tag]:
        name = _MONEY[tag][sign].split("|")[0 if amount == 1 and (has_cents or not part) else -1]
        said = f"{said}{gap}{name}" + (f" {_CENTS[tag]}{_spelt(int(part), tag)}" if has_cents and int(part) else "")
    elif sign:
        said = PERCENT[tag].format(said)
    return f"{MINUS.get(tag, 'minus')}{gap}{said}" if found["minus"] else said


def _is_money(found: re.Match[str]) -> bool:
    """Whether the name of a currency is next to a number."""
    before = found.string[max(0, found.start() - 20) : found.start()]
    return bool(_COUNTED.match(found.string, found.end()) or _NAMED.search(before))


def _decimal(amount: int, part: str, tag: str) -> str:
    """Read a decimal: in Romance languages, two decimals as a number, otherwise digit by digit."""
    is_number = tag in _CENTS and tag != "de" and len(part) == 2 and part[0] != "0"
    said = (_spelt(amount, tag), POINT[tag], *(_spelt(int(each), tag) for each in ([part] if is_number else part)))
    return (" " if tag in _CENTS else "").join(said)


def _spelt(number: int, tag: str) -> str:
    """Spell out a number that counts nothing."""
    return spell(number, tag).replace("〇", "零")


def _certain(number: int, tag: str, otherwise: str = "", *, is_year: bool = False) -> str:
    """Spell out a number if all its forms (with `is_year`, also as a year) are the same; else return the digits."""
    found = forms(number, tag, "CARDINAL") | (forms(number, tag, "YEAR") if is_year else frozenset())
    return next(iter(found)).replace("〇", "零") if len(found) == 1 else otherwise or str(number)


@cache
def _readers(tag: str) -> list[tuple[re.Pattern[str], Callable[[re.Match[str], str], str | None]]]:
    """Return patterns of dates, times, ordinals and numbers in a language, each with the function that reads them."""
    is_cjk = tag in ("zh", "ja", "ko")
    letter = r"\dA-Za-z_·・" if is_cjk else r"\w"
    before = rf"(?<![{letter}.,:;/\\@#^=×*~°+–−√．：／－٫٬{_SIGNS}%&-])(?<![\d{_SIGNS}+×⋅/=*<>–−-]{_SPACE})"
    before += rf"(?<!\d，)(?<!\d{_SPACE}x{_SPACE})"
    # "(11) 1234", 3.º, 2.x and 3,- are not numbers
    after = rf"(?![{letter}/\\@#^=×*~+–−'’\"″′：／－٫٬-])(?![.,:．，]\d|\.[A-Za-zºª]|[.,]-|\){_SPACE}?\d)"
    # not followed by the rest of a range, a formula or a telephone number, or by a unit
    alone = rf"{after}(?!{_SPACE}?(?:[%％{_SIGNS}–−+×⋅/=*<>-]|{_UNIT}))(?!{_SPACE}(?:x{_SPACE})?\d)"
    if tag == "de":
        alone += rf"(?(sign)|(?(part)|(?!\.| (?:{'|'.join(_MONTHS[tag])})\b)))"  # not 3. Mai
    # Spaces also group telephone numbers in Spanish, Italian and Portuguese; 1.234 is a decimal in parts of America.
    group, point = (",", ".") if is_cjk else ({"de": rf"(?:\.|{_SPACE})", "fr": _SPACE}.get(tag, r"\."), ",")
    whole = rf"\d{{1,3}}(?:{group}\d{{3}}){{{2 if tag == 'es' else 1},}}+(?!\d)|\d++"
    # 3:16 may be a score or a verse
    clock = rf"{'[:：]' if is_cjk else ':'}([0-5]\d)(?:{_SPACE}?(?:Uhr|h)(?!\w)){'' if tag == 'de' else '?'}"
    if tag in ("fr", "pt"):
        clock = rf"(?:{clock}|{_SPACE}?h(?:{_SPACE}?([0-5]\d))?)"
    ordinal = rf"{before}(\d{{1,2}})\.?([ºª])(?!\w|{_SPACE}?[CF]\b)"
    if tag == "fr":
        ordinal = rf"{before}(1(?=er|[eè]?re)|(?!1\D)\d{{1,3}}(?=[eè]|nd))(er|[eè]?re|[eè]me|e|nde?){after}"
    elif is_cjk:
        ordinal = rf"(?<![가-힣])([第제])([1-9]\d{{0,3}}){after}"
    dmy = rf"{before}(?P<d>\d\d?)([./-])(?P<m>\d\d?)\2(?P<y>\d{{4}}){after}"
    ymd = rf"{before}(?P<y>\d{{4}})({'[./-]' if is_cjk else '-'})(?P<m>\d\d?)\2(?P<d>\d\d?){after}"
    time = rf"{before}(?<![～〜])(\d\d?){clock}{after}(?![～〜])"
    number = (
        rf"{before}(?:(?P<sign>{_SIGN}){_SPACE}?(?=[\d.,]++(?!{_SPACE}?{_SCALE})))?(?:(?<![^\s(\[„“«])(?P<minus>[-−]))?"
        rf"(?P<whole>{whole})(?:[{point}](?P<part>\d++))?(?:{_SPACE}?(?P<unit>[%％]|{_SIGN}){after}|{alone})"
    )
    dates = [(ymd, _date)] if is_cjk else [(dmy, _date), (ymd, _date)]
    others = [] if tag == "ru" else [(time, _time), (ordinal, _ordinal), (number, _number)]  # Russian has six cases
    return [(re.compile(pattern), read) for pattern, read in (*dates, *others)]
