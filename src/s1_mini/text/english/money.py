"""Sums of money, with the sign or the code of a currency."""

from __future__ import annotations

import re

from s1_mini.text.english.numerals import APPROXIMATE, NUMBER, SCALES, cardinal, written
from s1_mini.text.tables import table, text_after, text_before


def _currencies(text: str) -> dict[str, tuple[str, ...]]:
    """Read a table of currencies; an underscore is a space."""
    return {sign: tuple(names.replace("_", " ") for names in each.split()) for sign, each in table(text).items()}


SCALE = r"(?:[ -]?(hundred|lakh|crore|thousand|million|billion|trillion|mio|mn|mm|bn|trn|tn|[kKmMbBtT])(?![\w']))?"
# For each currency: singular and plural of the unit, then of the subunit.
_SIGNED = _currencies(
    "$=dollar dollars cent cents, £=pound pounds penny pence, €=euro euros cent cents, ₹=rupee rupees paisa paise, "
    "¥=yen yen sen sen, ₩=won won jeon jeon, ₽=ruble rubles kopeck kopecks, ₺=lira lira kurus kurus, ₪=shekel shekels "
    "agora agorot, ฿=baht baht satang satang, ₫=dong dong xu xu, ₴=hryvnia hryvnias kopiyka kopiykas, ₦=naira naira "
    "kobo kobo, ₱=peso pesos centavo centavos, ₿=bitcoin bitcoins satoshi satoshis, ¢=cent cents"
)
_COUNTRIES = table(
    "US=U S, A=Australian, AU=Australian, C=Canadian, CA=Canadian, NZ=New Zealand, HK=Hong Kong, S=Singapore, NT=New "
    "Taiwan"
)
_CODES = table("USD=$, EUR=€, GBP=£, JPY=¥, INR=₹, Rs=₹, 円=¥, KRW=₩, RUB=₽, TRY=₺, ILS=₪, euro=€, euros=€")
_NAMED = _currencies(
    "CHF=Swiss_franc Swiss_francs centime centimes, CAD=Canadian_dollar Canadian_dollars cent cents, "
    "AUD=Australian_dollar Australian_dollars cent cents, NZD=New_Zealand_dollar New_Zealand_dollars cent cents, "
    "CNY=yuan yuan fen fen, SEK=Swedish_krona Swedish_kronor ore ore, NOK=Norwegian_krone Norwegian_kroner ore ore, "
    "R$=real reais centavo centavos, MX$=Mexican_peso Mexican_pesos centavo centavos, "
    "kr=krona kronor ore ore, zł=zloty zlotys grosz groszy, Kč=koruna koruna haler halers, Ft=forint forints, "
    "SFr=Swiss_franc Swiss_francs centime centimes, Fr=Swiss_franc Swiss_francs centime centimes, "
    "DKK=Danish_krone Danish_kroner ore ore, PLN=zloty zlotys grosz groszy, ZAR=rand rand cent cents, "
    "BTC=bitcoin bitcoins satoshi satoshis"
)
_ALL = _SIGNED | {code: _SIGNED[sign] for code, sign in _CODES.items()} | _NAMED
_SIGN = f"[{''.join(sign for sign in _SIGNED if sign != '¢')}]"
_CODE = "|".join(map(re.escape, [*_CODES, *_NAMED]))
_MINUS = r"(?<![\w)\]%°.-])(?:((?<!\w )-|-(?=\S)|[+~≈±])\s?)?"
TO = r"\s?(?:-|–|—|to)\s?"
EACH = (  # what a price or a rate is for
    "month|year|week|day|hour|night|minute|second|quarter|season|semester|session|shift|person|user|child|adult|head|guest|"
    "student|employee|member|player|family|household|team|share|seat|ticket|ride|trip|visit|class|lesson|game|event|move|"
    "unit|piece|item|box|bag|bottle|pack|pair|dozen|dose|serving|tablet|capsule|slice|cup|plate|pint|gallon|liter|litre|"
    "barrel|mile|yard|inch|foot|meter|pound|ounce|acre|page|word|token|request|call|message|image|device|license|vehicle|car|room"
)
_PER = (
    r"(?:\s?/\s?(mo|yr|wk|day|hr|h|pc|kg|lb|min|gal|bbl|ton|m²|sq ft|mi|oz|yd|GB|"
    rf"{EACH})\b(?:\.(?= [a-z]|[;,)]))?)?"
)
_PER_NAMES = table(
    "mo=month, yr=year, wk=week, hr=hour, h=hour, lb=pound, kg=kilogram, min=minute, gal=gallon, mi=mile, oz=ounce, "
    "yd=yard, GB=gigabyte, bbl=barrel, pc=piece, m²=square meter, sq ft=square foot"
)
_MONEY = re.compile(
    rf"{_MINUS}(?<![A-Za-z])(US|AU?|CA?|NZ|HK|NT|S)?({_SIGN})\s?({NUMBER}){SCALE}"
    rf"(?:{TO}(?:\3)?({NUMBER}){SCALE})?{_PER}(?!\w)"
)
_MONEY_BEFORE = re.compile(
    rf"(?<!\w)(?!INR \d\.\d(?!\d))({_CODE})\.?\s?({NUMBER}){SCALE}(?:[-–]({NUMBER}){SCALE})?(){_PER}(?!\w)"
)
_MONEY_AFTER = re.compile(
    rf"{_MINUS}(?<![\w.,])({NUMBER}){SCALE}(?:{TO}({NUMBER}){SCALE})?\s?({_SIGN}|¢|(?:{_CODE}))(?!\w){_PER}"
)
# Numbers in continental European notation, next to a currency: 1.000,50 and 1 000,50 and 1'000.50, 12,50 and 99,-.
_FOREIGN = "|".join(map(re.escape, [*"€₺₽₴円", *(code for code in _CODES if len(code) == 3), *_NAMED]))
_GROUPED = r"[1-9]\d{0,2}(?:[.' ]\d{3}){1,5}(?:,\d{1,2}|\.\d\d)?(?!,?\d|\.\d)|\d{1,9},(?:\d{1,2}(?!\d|,\d)|[-–](?!\d))"
_FOREIGN_SUM = re.compile(
    rf"(?<![\w.,])((?:{_FOREIGN})\.?[ ]?)({_GROUPED})"
    rf"|(?<![\w.,€$£])(?<!\d |= )({_GROUPED})(?=[ ]?(?:(?:Mio|Mrd)\.? )?(?:{_FOREIGN}|euros?)(?!\w))"
)
_MILLIONS = re.compile(r"(?<=\d )(Mio|Mrd)\.?(?= ?(?:€|EUR))")
_MIL = re.compile(r"([$£€] ?\d[\d.,]{0,12}+ ?)mil\b(?:\.(?= [a-z]))?")
_MIXED = re.compile(rf"({_SIGN})(\d{{1,4}})[ –-](\d/\d\d?) ((?:m|b|tr)illion|thousand)\b")  # $1-1/2 million
_LAKHS = re.compile(r"(?:(?<=₹)|(?<=₹ )|(?<=\bRs )|(?<=\bRs\. ))\d{1,2}(?:,\d\d)+,\d{3}(?![\d,])")
_RAND = re.compile(r"(?<![\w.,$])R ?(\d{1,3}(?:[, ]\d{3})++(?!\d)|\d[\d.]{0,8}+(?= ?(?:million|billion|trillion)\b))")
_PRICED = re.compile(
    r" (?:acquisition|bailout|bid|bill|bond|bonus|budget|coin|contract|deal|deficit|donation|fee|fine|fund|grant|home|"
    r"house|investment|lawsuit|loan|mansion|merger|note|offer|package|plan|prize|program|project|ransom|scheme|settlement|"
    r"stake|surplus|takeover|ticket|tip|voucher)s?\b|-(?!ish\b)[a-z]"
)
_PENCE = re.compile(rf"(?<![\w.,£])(\d{{1,2}}|\d{{1,3}}\.\d)p\b{_PER}")


def scaled(number: str, scale: str | None) -> str:
    """Spell out a number and its scale, such as 2.5 and bn."""
    return written(number) + (f" {SCALES[scale.lower()]}" if scale else "")


def _amount(number: str, scale: str | None, names: tuple[str, ...], *, is_adjective: bool = False) -> str:
    one, many, cent, cents = (*names, "", "")[:4]
    whole, point, rest = number.replace(",", "").partition(".")
    if not scale and point and len(rest) == 2 and cent:
        small = f"{cardinal(int(rest))} {cent if int(rest) == 1 else cents}"
        if not int(whole or 0):
            return small if int(rest) else f"zero {many}"
        large = f"{cardinal(int(whole))} {one if int(whole) == 1 else many}"
        return f"{large} and {small}" if int(rest) else large
    is_one = not scale and not point and whole == "1"
    return f"{scaled(number, scale)} {one if is_one or is_adjective else many}"


def _foreign(found: re.Match[str]) -> str:
    """Rewrite a sum in English notation: 1000.50."""
    number = found[2] or found[3]
    whole, decimals = number, ""
    if last := re.search(r"(?:,(\d{1,2}|[-–])|\.(\d\d))$", number):
        whole, decimals = number[: last.start()], (last[1] or last[2]).strip("-–")
    digits = re.sub(r"\D", "", whole)
    return (found[1] or "") + (f"{digits}.{decimals}" if decimals else digits)


def _per(unit: str | None) -> str:
    return f" per {_PER_NAMES.get(unit, unit)}" if unit else ""


def is_adjective(found: re.Match[str]) -> bool:
    """Return whether the words around an amount make it an adjective, as in "a five dollar bill"."""
    if _PRICED.match(text_after(found, 14)):
        return True
    follows_article = re.search(r"(?:^|\W)an? $", text_before(found, 4).lower()) is not None
    return follows_article and re.match(r" [a-z]", text_after(found, 2)) is not None


def _money(found: re.Match[str]) -> str:
    minus, country, sign, number, scale, last, last_scale, per = found.groups()
    names = _SIGNED[sign]
    if country:
        names = (f"{_COUNTRIES[country]} {names[0]}", f"{_COUNTRIES[country]} {names[1]}", *names[2:])
    if last and " - " in found.group() and "=" in text_after(found, 12):
        ends = _amount(number, scale, names), _amount(last, last_scale, names)
        return f"{APPROXIMATE.get(minus, '')}{' minus '.join(ends)}{_per(per)}"
    has_cents = last and number[-3:-2] == "." and not (scale or last_scale)
    first = _amount(number, scale, names) if has_cents else scaled(number, scale)
    said = f"{first} to " if last else ""
    said += _amount(last or number, last_scale or (None if last else scale), names, is_adjective=is_adjective(found))
    return f"{APPROXIMATE.get(minus, '')}{said}{_per(per)}"


def _with_code(found: re.Match[str]) -> str:
    first, number, scale, last, last_scale, sign, per = found.groups()  # first: a sign, or a currency before it
    said = APPROXIMATE.get(first, "") + (f"{scaled(number, scale)} to " if last else "")
    scale = last_scale if last else scale
    return said + _amount(last or number, scale, _ALL[sign or first], is_adjective=is_adjective(found)) + _per(per)


def read_money(text: str) -> str:
    text = re.sub(r"(?<!\w)\$(US|CA|AU|NZ) ?(?=\d)", r"\1$", text)
    text = _LAKHS.sub(lambda found: found.group().replace(",", ""), _FOREIGN_SUM.sub(_foreign, text))
    text = _RAND.sub(lambda found: f"ZAR {found[1].replace(' ', '')}", text)
    text = _MIXED.sub(lambda found: f"{found[2]} {found[3]} {found[4]} {_SIGNED[found[1]][1]}", text)
    text = _MILLIONS.sub(lambda found: "million" if found[1] == "Mio" else "billion", text)
    text = _MONEY.sub(_money, _MIL.sub(r"\1million", text))
    text = _MONEY_BEFORE.sub(_with_code, text)
    text = _MONEY_AFTER.sub(_with_code, text)
    return _PENCE.sub(lambda found: _amount(found[1], None, ("penny", "pence")) + _per(found[2]), text)
