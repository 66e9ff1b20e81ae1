"""Signs that are words: of arithmetic, of trade, of Greek, and what has no sound at all."""

from __future__ import annotations

import re

from s1_mini.text.tables import signs, words

_NAMES = signs(
    "&=and, @=at, %=percent, ‰=per mille, +=plus, ==equals, <=less than, >=greater than, ≤=less than or equal to, "
    "≥=greater than or equal to, ≠=is not equal to, ≈=about, ±=plus or minus, ×=times, ⋅=times, ÷=divided by, √=the "
    "square root of, ∞=infinity, ²=squared, ³=cubed, °=degrees, ←=from, ⇒=so, §=section, ¶=paragraph, $=dollars, "
    "£=pounds, €=euros, ¥=yen, ₹=rupees, ¢=cents, #=number, ∑=sum, ∏=product, ∫=integral, ∂=partial, ∆=delta, ∈=in, "
    "∉=not in, ∀=for all, ∃=there exists, ∪=union, ∩=intersection, ⊂=subset of, ⊆=subset of, ∧=and, ∨=or, ¬=not, "
    "∴=therefore, ∵=because, ∝=proportional to, ≡=identical to, ∇=del, ∅=the empty set, №=number, Ω=ohm, µ=micro, "
    "℃=degrees Celsius, ℉=degrees Fahrenheit, ‱=per ten thousand"
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
# Between words, as a comma: voices read "-" as part of a word. One without spaces is long, or two short ones.
_DASH = re.compile(r"(?<=[\w.!?)\"”'’%])(?:[ \t]++[-–—]++[ \t]++|[ \t]*+(?:—++|--++)[ \t]*+)(?=[\w(“‘]|[\"']\w)")
_PLUS_PLUS = re.compile(r"(?<=\w)\+\+|(?<=\b[CG])\+(?=\+)")
_NAMED = re.compile(f"[{re.escape(''.join(_NAMES))}]")
_LETTER = re.compile(f"(?<![^\\W\\d_])[{''.join(_GREEK)}](?![^\\W\\d_a-z]|[a-z]{{2}})")
_CAPITALS = re.compile(r"(?<=\b[A-Z])/(?=[A-Z]\b)|(?<=[A-Z]{2})/(?=[A-Z]{2})")  # A/B, CI/CD
_SLASH = re.compile(r"(?<=\w)/(?=\w)")
_BETWEEN = re.compile(r"(?<=\w)\|(?=\w)| \| ")
_UNDERSCORE = re.compile(r"_+")
_SILENT = re.compile(r"[*~^`|\\/{}<>\[\]©®™†‡•·¦¯´¨¸ªº←↑↓↔▪■□●○◦‣⁃\u00ad]+")
_MINUS = re.compile(r"(?<![\w.,!?)'\"-])-(?=[a-z]\b)")


def _name(found: re.Match[str]) -> str:
    text, (start, end) = found.string, found.span()
    before = "" if start == 0 or text[start - 1].isspace() else " "
    after = "" if end == len(text) or not (text[end].isalnum() or text[end] in _NAMES) else " "
    return f"{before}{_NAMES[found.group()]}{after}"


def _greek(found: re.Match[str]) -> str:
    return _GREEK[found.group()] + " " * found.string[found.end() : found.end() + 1].isalpha()


def read_arrows(text: str) -> str:
    """Say arrows between words, drawn or of signs, as "to", let others be pauses, and write >= and <= as one sign."""
    return _PAUSE.sub(", ", _TO.sub(" to ", text)).replace(">=", "≥").replace("<=", "≤")


def read_dashes(text: str) -> str:
    """Let dashes between words be pauses."""
    return _DASH.sub(", ", text)


def read_pairs(text: str) -> str:
    """Drop slashes between letters and acronyms, which are spelt."""
    return _CAPITALS.sub(" ", text) if "/" in text else text


def read_symbols(text: str) -> str:
    """Say signs by their names, and take out those that have none."""
    if text.isascii() and not re.search(r"[^\w\s.,!?;:'\"()-]|_", text):
        return text
    text = _PLUS_PLUS.sub(" plus plus", text)
    text = _NAMED.sub(_name, text)
    text = _LETTER.sub(_greek, text)
    text = _SLASH.sub(" slash ", text)
    text = _BETWEEN.sub(", ", text)
    return _SILENT.sub(" ", _UNDERSCORE.sub(" ", text))
