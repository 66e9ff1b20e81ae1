"""Symbols that are read as words (arithmetic, trade, Greek), and equations, powers and rates without a number."""

from __future__ import annotations

import re

from s1_mini.text.english.measures import UNITS, plural
from s1_mini.text.stops import SPELT_NUMBERS, is_final
from s1_mini.text.tables import signs, text_after, text_before, word_set, words

_NAMES = signs(
    "&=and, @=at, %=percent, ‰=per mille, +=plus, ==equals, <=less than, >=greater than, ≤=less than or equal to, "
    "≥=greater than or equal to, ≠=is not equal to, ≈=about, ±=plus or minus, ×=times, ⋅=times, ÷=divided by, √=the "
    "square root of, ∞=infinity, ²=squared, ³=cubed, °=degrees, ←=from, ⇒=so, §=section, ¶=paragraph, $=dollars, "
    "£=pounds, €=euros, ¥=yen, ₹=rupees, ¢=cents, #=number, ∑=sum, ∏=product, ∫=integral, ∂=partial, ∆=delta, ∈=in, "
    "∉=not in, ∀=for all, ∃=there exists, ∪=union, ∩=intersection, ⊂=subset of, ⊆=subset of, ∧=and, ∨=or, ¬=not, "
    "∴=therefore, ∵=because, ∝=proportional to, ≡=identical to, ∇=del, ∅=the empty set, №=number, Ω=ohm, µ=micro, "
    "∠=angle, ♩=quarter note, ⁺=plus, ⁻=minus, ℃=degrees Celsius, ℉=degrees Fahrenheit, ‱=per ten thousand"
)
_GREEK = dict(
    zip(
        "αβγδεζηθικλμνξοπρστυφχψω",
        words(
            "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon "
            "phi chi psi omega"
        ),
        strict=True,
    )
)
_GREEK |= {letter.upper(): name.capitalize() for letter, name in _GREEK.items()}
_ARROW = r"(?:→|(?<![-=–—])[-=–—]++>)"
_TO = re.compile(rf"(?<=[\w)\"'%°])[ \t]*{_ARROW}[ \t]*(?=[\w(\"'$£€¥#@+-])")
_PAUSE = re.compile(f"<?{_ARROW}")
_MENU = re.compile(r"(?:(?<=[A-Za-z]{2})|(?<=[a-z]\")) > (?=\"?[A-Z][a-z])")  # Settings > Privacy
_CHOICE = r"\"?[A-Z]\w*(?: (?:(?:and|of|to|for|&) )?[A-Z]\w*){0,4}\"?"
_MENUS = re.compile(  # a verb or the name of a menu, and the path so far
    rf"(?:\b(?i:open|go to|select|choose|click|tap|press)(?: (?:on|the|your)){{0,2}} (?:\"?[a-z]+\"?|{_CHOICE})"
    r"|\b(?:Settings|Preferences|Options|Menu|File|Edit|View|Tools|Help)\"?)"
    rf"(?: > {_CHOICE}){{0,4}}$"
)
# A dash between words is read as a comma, because voices read "-" as part of a word. Without spaces around the dash,
# only — and -- are matched.
_DASH = re.compile(r"(?<=[\w.!?)\"”'’%])(?:[ \t]++[-–—]++[ \t]++|[ \t]*+(?:—++|--++)[ \t]*+)(?=[\w(“‘]|[\"']\w)")
_BOUND = re.compile(  # for ≥30 minutes, a price ↑5%
    r"(?:^|(?<=[a-z]{2} )|(?<=[a-z], )|(?<=\())([≥≤>])(?=\d)|([↑↓]) ?(?=[\d$£€])", re.MULTILINE
)
_BOUNDS = {"≥": "at least ", "≤": "at most ", ">": "more than ", "↑": "up ", "↓": "down "}
_PLUS_PLUS = re.compile(r"(?<=\w)\+\+|(?<=\b[CG])\+(?=\+)")
_NAMED = re.compile(f"[{re.escape(''.join(_NAMES))}]")
_SIGN_ITSELF = re.compile(r" (?:sign|symbol|key|button|character)\b")
_LETTER = re.compile(f"(?<![^\\W\\d_])[{''.join(_GREEK)}](?![^\\W\\d_a-zA-Z]|[a-zA-Z]{{2}})")
_CAPITALS = re.compile(r"(?<=\b[A-Z])/(?=[A-Z]\b)|(?<=[A-Z]{2})/(?=[A-Z]{2})")  # A/B, CI/CD
_SLASH = re.compile(r"(?<=\w)/(?=\w)")
_BETWEEN = re.compile(r"(?<=\w)\|(?=\w)| \| |(?<=[A-Za-z]{3}) / (?=[A-Za-z]{3})")
_WHOLE = SPELT_NUMBERS | word_set(  # words at a slash without a pause: his / her, miles / hour
    "his her hers him she and not hour day week month year second minute person liter litre gallon kilogram meter mile "
    "hundred thousand million billion"
)
_UNDERSCORE = re.compile(r"_+")
_SILENT = re.compile(r"[*~^`|\\/{}<>\[\]©®™†‡•·¦¯´¨¸ªº←↑↓↔▪■□●○◦‣⁃\u00ad]+")


def _name(found: re.Match[str]) -> str:
    text, (start, end) = found.string, found.span()
    before = "" if start == 0 or text[start - 1].isspace() or text[start - 1] in "([" else " "
    after = "" if end == len(text) or not (text[end].isalnum() or text[end] in _NAMES) else " "
    name = _NAMES[found.group()]
    is_itself = found.group() in "$£€₹¢" and _SIGN_ITSELF.match(text, end)  # the $ sign
    return f"{before}{name.removesuffix('s') if is_itself else name}{after}"


def _between(found: re.Match[str]) -> str:
    if "/" not in found.group():
        return ", "
    near = re.split(r"\W", text_before(found, 20))[-1], re.split(r"\W", text_after(found, 20))[0]
    return " " if any(each.lower() in _WHOLE for each in near) else ", "


def read_arrows(text: str) -> str:
    """Read arrows between words as "to", replace other arrows by pauses, and write >= and <= as one sign."""
    text = _MENU.sub(lambda found: ", " if _MENUS.search(text_before(found, 60)) else found.group(), text)
    text = _PAUSE.sub(", ", _TO.sub(" to ", text)).replace(">=", "≥").replace("<=", "≤")
    return _BOUND.sub(lambda found: _BOUNDS[found[1] or found[2]], text)


def read_dashes(text: str) -> str:
    return _DASH.sub(", ", text)


def read_pairs(text: str) -> str:
    return _CAPITALS.sub(" ", text) if "/" in text else text


def read_symbols(text: str) -> str:
    """Replace signs by their names, and remove those that have none."""
    if text.isascii() and not re.search(r"[^\w\s.,!?;:'\"()-]|_", text):
        return text
    text = _PLUS_PLUS.sub(" plus plus", text)
    text = _NAMED.sub(_name, text)
    text = _LETTER.sub(lambda found: _GREEK[found.group()] + " " * text_after(found, 1).isalpha(), text)
    text = _SLASH.sub(" slash ", text)
    text = _BETWEEN.sub(_between, text)
    return _SILENT.sub(" ", _UNDERSCORE.sub(" ", text))


NEAR = 40  # an operator belongs to an equation if an equals sign is within this many characters

_EXPONENT = re.compile(r"(?<![\w.,])(\d{1,3}(?:\.\d{1,30})?)[eE]([+-]?)0{0,2}(\d{1,3})(?!\w)")  # 1.5e-3
_COMPARISON = re.compile(r"(?<=[\w)\]]) ?(!=|==)=? ?(?=[\w(\"'-])")
_ASSIGNMENT = re.compile(r"(?<=\w) ([-+*/])= (?=\w)")
_ASSIGNED = {"-": "minus", "+": "plus", "*": "times", "/": "divided by"}
_FUNCTION = re.compile(r"(?<![\w.])([fghFGO])('?)\(([^()\n]{1,20})\)")  # f(x), O(n)
_FACTORIAL = re.compile(r"(?<=\d)!(?= ?[=*/+-])")
_MINUS = re.compile(r"(?<=[\w)²³]) [-–−] (?=[\w(])")
_MINUS_OF_LETTERS = re.compile(r"(?<=\b[a-z]) [-–−] (?=[a-z\d]\b)|(?<=\(\d) [-–−] (?=\d{0,3}[a-z]\b)")
_OVER = re.compile(r"(?<=[\w)²³]) ?/ ?(?=[\w(])")
_OVER_OF_LETTERS = re.compile(r"(?<=\b\w) / (?=\w\b)|(?<=[\da-z]\)) ?/ ?(?=\d)")
_OUT_OF = re.compile(r"(?<=\d) / (?=(?:5|10|20|50|100)(?![\w/]|[.,]\d| ?[=/]))")
_POWER = re.compile(r"(?<=[\w)]) ?\^ ?[({]?([-−]?)([A-Za-z])[)}]?(?!\w)")
_NEGATIVE = re.compile(r"(?<=[=(+*/] )-(?=[a-z]\b)")
_EQUALS = re.compile(r"(?<![=<>!\w])\s?=(?![=>])|(?<=\w)=(?=[\w-])")
_PRODUCT_ENDS = r"(?=[²³^]| [-+*/]|\s?$|[.,;]\s)"
_PRODUCT_OF_LETTERS = re.compile(  # F = ma, PV = nRT
    r"(?<=\b[A-Za-z] = )(?!(?:no|on|if|is|in|it|one|two|six|ten|not|yes|off|the|any|all)\b)[A-Za-z]{2,3}"
    rf"{_PRODUCT_ENDS}|(?<=\b[A-Z]{{2}} = )[A-Za-z]{{2,3}}{_PRODUCT_ENDS}",
    re.MULTILINE,
)
_SQUARED_LETTERS = re.compile(r"(?<![A-Za-z.@#])([a-z]{2})(?=([²³])(?!\w))")  # mc²
_SETTING = re.compile(r"(?<![\w.])[bcdfghjklmnpqrstvwxz]{2,3}(?==[\d.-])")  # lr=3e-4

_RATED = words("km m mi cm mm kB KB MB GB TB Mbit Gbit W kW J N kg g mg l L mol")
_RATE = re.compile(
    rf"(?<![\w./\\-])(?<!\d )({'|'.join(sorted(_RATED, key=len, reverse=True))})"
    r"/(s²|s|h|hr|min|m²|m³|kg|l|L|day)(?![\w/\\]|\.\w)"
)
_COUNT_RATE = re.compile(
    r"(?:(?<=[a-z]s)/(s|sec|second|min|minute|h|hr|hour|day|week|month|year|(?P<of>person|user|team|game|page|request))"
    r"|(?<=\w)(?<!day|ght|ate|ime)(?<!hour|week|year|term)(?<!month)(?<!minute|second|season|decade)(?<!quarter)"
    r"(?<!weekend)(?<!semester)/(hour|day|week|month|year|capita)"
    r"|(?<=\d)/(min|hr|km²|mi²|m²|cm²)(?:\.(?= [a-z]|[,;)]))?|(?<=req|tok|img)/(s|sec))(?![\w/\\]|\.\w)"
)
_COUNTED = re.compile(r"(?<![\w.,])\d[\w.,]*+ (?:[A-Za-z-]{1,20} )?[A-Za-z]{1,20}$")  # 5 active users
_AREA = re.compile(r"(?<![\w./\\-])(?<!\d )(km|dm|cm|mm|ft|in|mi|m)([²³])(?![\w/])")
_ONE_UNIT = re.compile(
    r"(?<=\bper )(?P<per>lb|oz|gal|kg|km|mi|hr|yd|cm|mm|ml|mg|sec)\b(?!/)\.?"
    rf"|\b(?P<number>(?i:an?|one|few|several|{'|'.join(SPELT_NUMBERS - {'zero', 'one'})})) "
    r"(?P<unit>lbs?|oz|gal|hrs?|yds?|mi|ft|pt|qt|tsp|tbsp|pkg|pkt)\.(?!\w)"
)
_OTHER_UNITS = {"s²": "second squared", "N": "newton", "Mbit": "megabit", "Gbit": "gigabit"}


def read_equations(text: str) -> str:
    if re.search("[0-9]", text):
        text = _EXPONENT.sub(r"\1 times 10^\2\3", text)
    if "^" in text:
        text = _POWER.sub(lambda found: f" to the power of {'minus ' * bool(found[1])}{found[2]}", text)
    if "(" in text:
        text = _FUNCTION.sub(lambda found: f"{found[1]}{' prime' * bool(found[2])} of {found[3]}", text)
    if "/" in text:
        text = _OUT_OF.sub(lambda found: found.group() if _is_in_equation(found) else "/", text)
        text = _OVER_OF_LETTERS.sub(" over ", text)
    if "²" in text or "³" in text:
        text = _SQUARED_LETTERS.sub(_squared, text)
    text = _MINUS_OF_LETTERS.sub(" minus ", text)
    return _read_equals(text) if "=" in text else text


def _read_equals(text: str) -> str:
    text = _COMPARISON.sub(lambda found: " ≠ " if found[1] == "!=" else " = ", text)
    text = _ASSIGNMENT.sub(lambda found: f" {_ASSIGNED[found[1]]} = ", text)
    text = _FACTORIAL.sub(" factorial", text)
    text = _MINUS.sub(lambda found: " minus " if _is_in_equation(found) else found.group(), text)
    text = _OVER.sub(lambda found: " over " if _is_division(found) else found.group(), text)
    text = _NEGATIVE.sub("minus ", text)
    return _SETTING.sub(_letters, _PRODUCT_OF_LETTERS.sub(_letters, text))


def _is_in_equation(found: re.Match[str]) -> bool:
    """Return whether an equals sign is near, on the same line."""
    start, end = found.span()
    before = found.string[max(0, start - NEAR) : start].rpartition("\n")[2]
    after = found.string[end : end + NEAR].partition("\n")[0]
    return _EQUALS.search(f"{before} {after}") is not None


def _is_division(found: re.Match[str]) -> bool:
    """Return whether a slash means division, and is not part of a fraction or a path or between two words."""
    start, end = found.span()
    before, after = found.string[max(0, start - 12) : start], found.string[end : end + 12]
    above, below = re.search(r"(?<![\w.])\d+$", before), re.match(r"(\d+)(?!\w)( ?=)?", after)
    if above and below and not (below[2] and int(above[0]) >= int(below[1])):
        return False
    is_rate = re.search(r"\d ?[A-Za-zµ]{1,3}$", before) and re.match(r"[A-Za-z]{1,3}[²³^]?(?!\w)", after)
    if (
        is_rate
        or "://" in before
        or before.endswith(" w")
        or (found.group() == "/" and re.search(r"[A-Za-z]{2}$", before))
    ):
        return False
    return _is_in_equation(found)


def _letters(found: re.Match[str]) -> str:
    return " ".join(found.group())


def _squared(found: re.Match[str]) -> str:
    """Put a silent dot into letters such as mc², unless they are a unit; after a space, c² might be read as a unit."""
    is_unit = found[1] in UNITS or found[1] + found[2] in UNITS
    return found[1] if is_unit else "·".join(found[1])


def _count_rate(found: re.Match[str]) -> str:
    if found["of"] and not _COUNTED.search(text_before(found, 40)):
        return found.group()
    return f" per {_unit(found.group()[1:].rstrip('.'))}"


def read_bare_units(text: str) -> str:
    """Spell out rates and areas without a number: km/h, W/m², tokens/s, km²."""
    if "/" in text:
        text = _RATE.sub(lambda found: f"{plural(_unit(found[1]))} per {_unit(found[2])}", text)
        text = _COUNT_RATE.sub(_count_rate, text)
    text = _ONE_UNIT.sub(_one_unit, text)
    return _AREA.sub(lambda found: plural(UNITS[found.group()]), text)


def _one_unit(found: re.Match[str]) -> str:
    is_end = found.group().endswith(".") and is_final(found.string, found.start(), found.end(), "unit")
    name, number = UNITS[found["per"] or found["unit"]], found["number"]
    is_one = number is None or number.lower() in ("a", "an", "one")
    return f"{number or ''}{' ' * bool(number)}{name if is_one else plural(name)}{'.' * is_end}"


def _unit(unit: str) -> str:
    return _OTHER_UNITS.get(unit) or UNITS.get(unit, unit)
