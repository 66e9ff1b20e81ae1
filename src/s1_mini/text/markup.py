"""Marks that shape a text and are not said: Markdown, HTML, code. And emoji, which are said by their names."""

from __future__ import annotations

import html
import re
import unicodedata

from s1_mini.text.ornaments import BMP_EMOJI, BULLETS
from s1_mini.text.tables import table

_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)[^\n`]*$", re.MULTILINE)
_RULE = re.compile(r"^[ \t]{0,3}([-*_=])[ \t]?(?:\1[ \t]?){2,80}$", re.MULTILINE)
_TABLE_RULE = re.compile(r"^[ \t]*\|?[ \t]*:?-{2,}[-:| \t]*$", re.MULTILINE)
_TABLE_EDGE = re.compile(r"^[ \t]*\|[ \t]*|[ \t]*\|[ \t]*$", re.MULTILINE)
_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+([^\n]*)$", re.MULTILINE)
_QUOTE = re.compile(r"^[ \t]{0,3}(?:>(?!\d)[ \t]?){1,8}", re.MULTILINE)
_BULLET = f"[{re.escape(BULLETS)}]"
_ITEM = re.compile(rf"^[ \t]{{0,12}}{_BULLET}[ \t]+(?:\[[ xX]\][ \t]+)?(?=\S)([^\n]*)$", re.MULTILINE)
_ITEM_BEGINS = re.compile(rf"\n[ \t]{{0,12}}{_BULLET}[ \t]")
_COUNTED = re.compile(r"^([ \t]{0,12}\d{1,3})[.)][ \t]+(?=\S)([^\n]*)$", re.MULTILINE)
_LINK = re.compile(
    r"!?\[([^\[\]\n]{0,300})\]"
    r"(?:\((?:[^()\s]|\([^()\s]{0,100}\)){0,500}+(?:[ \t]\"[^\"\n]{0,200}\")?\)|\[[^\[\]\n]{0,80}\])"
)
_ANGLED = re.compile(r"<((?:https?://|mailto:)[^<>\s]{1,500})>")
_TAG = re.compile(r"</?[A-Za-z][^<>\n]{0,300}>|<!--[^<>]{0,300}-->")
# Stars that multiply: between numbers, single letters or brackets, or where the line is an equation.
_PRODUCT = re.compile(
    r"(?<=\b[A-Za-z\d])( ?)\*\1(?=[A-Za-z\d]\b)|(?<=\d) ?\* ?(?=\d)|(?<=\b\w) \* (?=[\d(])|(?<=\)) \* (?=[\d(]|\w\b)"
    r"|(?<=\d) \* (?=\(|\w\b)"
)
_SPACED_STAR = re.compile(r"(?<=\w) \* (?=\w)")
_EMPHASIS = re.compile(r"\*{1,3}(?=\S)|(?<=\S)\*{1,3}|~~|`+|(?<![\w])_{1,3}(?=\w)|(?<=[\w.,!?])_{1,3}(?!\w)")

_PICTURES = (
    "\U0001f000-\U0001f1e5\U0001f200-\U0001f3fa\U0001f400-\U0001f535\U0001f53a-\U0001f64f\U0001f680-\U0001f77f"
    f"\U0001f900-\U0001faff✓✗✘♡☹{BMP_EMOJI}"
)
_EMOJI = re.compile(
    f"(?:[\U0001f1e6-\U0001f1ff]{{2}}|[0-9#*]\ufe0f?\u20e3|[{_PICTURES}])"
    f"(?:[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]|\u200d[{_PICTURES}])*+"
)
_RUN = re.compile(f"(?:{_EMOJI.pattern})(?:[ \t]?(?:{_EMOJI.pattern}))*+")
_LOVES = re.compile(r"\b(?:I|We|we|You|you|They|they) $")
_NAMES = table(
    "❤=red heart, 👍=thumbs up, ✅=check mark, ✔=check mark, ✓=check mark, ⭐=star, ☀=sun, ☺=smiling face, 💯=hundred "
    "points, 🙏=folded hands, ⚠=warning, ❗=exclamation mark, ❓=question mark, ✗=cross mark, ✘=cross mark, "
    "☎=telephone, ✉=envelope, ♥=heart, ♡=heart, ☹=frowning face"
)
_WORDLESS = re.compile(r" (?:sign|symbol)$|^(?:heavy|white heavy|black) (?=\w+ \w)")
_SMILEY = re.compile(r"(?<![ \t])[ \t]*+(?<!\S)[:;]-?[()DPp](?!\S)")
_HEART = re.compile(r"(?<!\S)<3+(?!\S)")
_ZERO_WIDTH = re.compile("[\u200b-\u200f\ufe0e\ufe0f\u2060\ufeff\u00ad\u202a-\u202e]")


def read_markup(text: str) -> str:
    """Give a text without the marks of Markdown and HTML; headings and items of lists become sentences."""
    if "&" in text:
        text = html.unescape(text)
    text = _SMILEY.sub("", text) if ":" in text or ";" in text else text
    if "<" in text:
        text = _HEART.sub("❤", text)
        text = _TAG.sub("", _ANGLED.sub(r"\1", text))
    if "`" in text or "~" in text:
        text = _FENCE.sub("", text)
    if "[" in text:
        text = _LINK.sub(r"\1", text)
    if "|" in text:
        text = _TABLE_EDGE.sub("", _TABLE_RULE.sub("", text))
    text = _RULE.sub("", text)
    text = _HEADING.sub(lambda found: _sentence(found[1].rstrip(" \t#"), "."), text)
    text = _QUOTE.sub("", text) if ">" in text else text
    text = _ITEM.sub(_item, text)
    if "\n" in text or text[:1].isdecimal():
        text = _COUNTED.sub(lambda found: f"{found[1].strip()}. {_sentence(found[2], '.')}", text)
    if "*" in text:
        text = _PRODUCT.sub(" ⋅ ", text)
        text = _SPACED_STAR.sub(" ⋅ ", text) if " = " in text else text
    return _EMPHASIS.sub("", text) if re.search("[*_`~]", text) else text


def _item(found: re.Match[str]) -> str:
    """Let an item end with a comma before another, else as a sentence."""
    after = found.string[found.end() : found.end() + 16]
    return _sentence(found[1], "" if not after.strip() else "," if _ITEM_BEGINS.match(after) else ".")


def _sentence(line: str, mark: str) -> str:
    return line if not line or line.rstrip()[-1:] in ".,;:!?" else line.rstrip() + mark


def read_emoji(text: str) -> str:
    """Say emoji by their names, those that follow each other once; then drop what is invisible."""
    if text.isascii():
        return text
    return _ZERO_WIDTH.sub("", _RUN.sub(_run, text))


def _run(found: re.Match[str]) -> str:
    text, (start, end) = found.string, found.span()
    each = dict.fromkeys(_name(emoji) for emoji in _EMOJI.findall(found.group()))
    before = text[max(0, start - 6) : start]
    if next(iter(each)) == "red heart" and len(each) == 1 and _LOVES.search(before):
        return "love"
    names = ", ".join(name for name in each if name)
    bare = before.rstrip()
    lead = "" if not before else ", " if bare[-1:].isalnum() else " " * (before == bare)
    rest = text[end : end + 2].lstrip()
    return f"{lead}{names}" + (("," if text[end : end + 1] == " " else ", ") if rest[:1].isalnum() else "")


def _name(emoji: str) -> str:
    if "\u20e3" in emoji:
        return emoji[0]
    if "\U0001f1e6" <= emoji[0] <= "\U0001f1ff":
        return "flag of " + " ".join(chr(ord(letter) - 0x1F1E6 + ord("A")) for letter in emoji[:2])
    names = (
        _NAMES.get(letter) or _unicode_name(letter) for letter in emoji if not "\U0001f3fb" <= letter <= "\U0001f3ff"
    )
    return " ".join(name for name in names if name)


def _unicode_name(letter: str) -> str:
    if not unicodedata.category(letter).startswith("S"):
        return ""
    return _WORDLESS.sub("", unicodedata.name(letter, "").lower()).replace("-", " ")
