"""Text normalization: `spoken` turns a written text into words and sentence marks.

English is normalized as a whole, by the rules in `english`. In other languages numbers are spelt out by CLDR's rules,
and in the nine of `multilingual` also dates, times or money. In all languages, elongated letters are shortened,
Markdown, HTML and code marks are removed, and emoji are replaced by their names. Normalization does not depend on the
voice; `form` handles characters that a voice does not support.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from s1_mini.exceptions import ParameterError
from s1_mini.text.detection import cut_by_language
from s1_mini.text.multilingual import MINUS, MULTILINGUAL, PERCENT, POINT, read_certain
from s1_mini.text.numbers import MAX_DIGITS, find_rules, languages, spell
from s1_mini.text.split import sentence_spans
from s1_mini.text.structure import (
    BULLETS,
    ITEM_BREAK,
    is_scene_break,
    mark_structure,
    unified_lines,
    without_separators,
)
from s1_mini.text.tables import table, word_set
from s1_mini.text.tags import has_power, unescaped, without_tags

# Languages with a decimal point; all others write a decimal comma, and group digits by dots or spaces.
_POINT = word_set("am cy en fil ga he hi ja ko ms ne sw ta th yue zh zu")
_WITHOUT_SPACES = frozenset(("ja", "zh", "yue", "th", "km", "lo", "my"))
_WITH_COMMA = re.compile(r"(-(?=\d))?(\d{1,3}(?:[. ]\d{3})++(?!\d)|\d++)(?:,(\d+))?(\s?%)?")
_SWISS = re.compile(r"(-(?=\d))?(\d{1,3}(?:'\d{3})++(?!\d)|\d++)(?:\.(\d+))?(\s?%)?")
_WITH_POINT = re.compile(r"(-(?=\d))?(\d{1,3}(?:,\d{3})++(?!\d)|\d++)(?:\.(\d+))?(\s?%)?")


def _read_numbers(text: str, tag: str) -> str:
    """Spell out the numbers of a text that is not English; `tag` is one of `numbers.languages()`."""
    from s1_mini.text.english.spelling import read_stretched

    language = tag.partition("_")[0]
    pattern = _SWISS if tag == "de_CH" else _WITH_POINT if language in _POINT else _WITH_COMMA

    def number(found: re.Match[str]) -> str:
        start, end = found.span()
        is_signed = bool(found[1]) and not text[max(0, start - 1) : start].isalnum()
        whole = re.sub(r"\D", "", found[2])
        is_code = len(whole) > MAX_DIGITS or (len(whole) > 1 and whole[0] == "0")
        said = [MINUS.get(language, "minus")] if is_signed else []
        said += [_digits(whole, tag) if is_code else spell(int(whole), tag)]
        if found[3]:
            said += [POINT.get(language, "," if pattern is _WITH_COMMA else "."), _digits(found[3], tag)]
        if found[4]:
            said = [PERCENT.get(language, "{} %").format(" ".join(said))]
        before, after = text[max(0, start - 1) : start].isalpha(), text[end : end + 1].isalpha()
        if language in _WITHOUT_SPACES:
            before = after = False
        hyphen = "-" if found[1] and not is_signed else ""
        return f"{' ' * before}{hyphen}{' '.join(said)}{' ' * after}"

    return read_stretched(pattern.sub(number, text))


def _digits(number: str, tag: str) -> str:
    return " ".join(spell(int(each), tag) for each in number)


# Emoji in U+2300 to U+2BFF (Unicode 16, emoji-data.txt), except arrows and plain shapes, which count as ornaments.
_BMP_EMOJI = (
    "\u231a\u231b\u2328\u23cf\u23e9-\u23f3\u23f8-\u23fa\u2600-\u2604\u260e\u2611\u2614\u2615\u2618\u261d\u2620\u2622\u2623\u2626"
    "\u262a\u262e\u262f\u2638-\u263a\u2640\u2642\u2648-\u2653\u265f\u2660\u2663\u2665\u2666\u2668\u267b\u267e\u267f"
    "\u2692-\u2697\u2699\u269b\u269c\u26a0\u26a1\u26a7\u26aa\u26ab\u26b0\u26b1\u26bd\u26be\u26c4\u26c5\u26c8\u26ce\u26cf"
    "\u26d1\u26d3\u26d4\u26e9\u26ea\u26f0-\u26f5\u26f7-\u26fa\u26fd\u2702\u2705\u2708-\u270d\u270f\u2712\u2714\u2716\u271d"
    "\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763\u2764\u2795-\u2797\u27a1\u27b0\u27bf"
    "\u2b1b\u2b1c\u2b50\u2b55"
)
_ORNAMENT = re.compile(
    "[\u2190-\u21ff\u2500-\u25ff\u2800-\u297f\u2b00-\u2bff\u3030\u303b\u303d\u3012\u3013\ue000-\uf8ff"
    "\U0001f536-\U0001f539\U0001f650-\U0001f67f\U0001f780-\U0001f8ff\U0001fb00-\U0001fbff"
    rf"·‣⁃∙※]|(?![{_BMP_EMOJI}✓✗✘♡☹♩♭♯])[\u2600-\u27bf]"
)

_SAME = str.maketrans(dict.fromkeys("➔➜➝➞➙➡⟶⟹⇨⇾", "→") | dict.fromkeys("│┃║╎┆┊", "|"))
_BETWEEN_WORDS = re.compile(r"(?<=[\w)]) [▸►▶❯] (?=\w)")
_STARS = re.compile(r"(?<=\d) ?[★⭐](?!\w)")
_ACCIDENTAL = re.compile(r"(?<=\b[A-G]) ?([♯♭])")
_DROPPED = re.compile(f"(?![→←↑↓↔⇒⇐·])(?:{_ORNAMENT.pattern})+")  # not arrows, which `read_arrows` reads


def _unified(text: str) -> str:
    """Unify the forms of arrows and of lines between table cells, and replace stars, ♯ and ♭ by words."""
    text = _BETWEEN_WORDS.sub(", ", text.translate(_SAME))
    return _ACCIDENTAL.sub(lambda found: " sharp" if found[1] == "♯" else " flat", _STARS.sub(" star", text))


def is_ornament(character: str) -> bool:
    """Return whether a character is decoration that is not read."""
    return _ORNAMENT.fullmatch(character) is not None


_FENCE = re.compile(r"^[ \t]{0,3}(?:```|~~~)[^\n`]*$", re.MULTILINE)
_TABLE_RULE = re.compile(r"^[ \t]*+\|?[ \t]*+:?--[-:| \t]*+$\n?", re.MULTILINE)
_HEADING = re.compile(r"^[ \t]{0,3}#{1,6}[ \t]+([^\n]*)$", re.MULTILINE)
_QUOTE = re.compile(r"^[ \t]{0,3}(?:>(?!\d)[ \t]?){1,8}", re.MULTILINE)
_BULLET = f"[{re.escape(BULLETS)}]"
_ITEM = re.compile(rf"^[ \t]{{0,12}}{_BULLET}[ \t]+(?:\[[ xX]\][ \t]+)?(?=\S)([^\n]*)$", re.MULTILINE)
_ITEM_BEGINS = re.compile(rf"\n(?:{ITEM_BREAK}\n)?[ \t]{{0,12}}{_BULLET}[ \t]")
_COUNTED = re.compile(r"^([ \t]{0,12}\d{1,3})[.)][ \t]+(?=\S)([^\n]*)$", re.MULTILINE)
_LINK = re.compile(
    r"!?\[([^\[\]\n]{0,300})\]"
    r"(?:\((?:[^()\s]|\([^()\s]{0,100}\)){0,500}+(?:[ \t]\"[^\"\n]{0,200}\")?\)|\[[^\[\]\n]{0,80}\])"
)
# Asterisks that mean multiplication: between numbers, single letters or brackets, or in an equation.
_PRODUCT = re.compile(
    r"(?<=\b[A-Za-z\d])( ?)\*\1(?=[A-Za-z\d]\b)|(?<=\d) ?\* ?(?=\d)|(?<=\b\w) \* (?=[\d(])|(?<=\)) \* (?=[\d(]|\w\b)"
    r"|(?<=\d) \* (?=\(|\w\b)"
)
_SPACED_STAR = re.compile(r"(?<=\w)(?<!SELECT) \* (?=\w)")
_HOTEL_STARS = re.compile(  # a 5* hotel
    r"(?<![\w.,*])([1-7])\*(?=[ -](?:hotels?|resorts?|restaurants?|hostels?|lodges?|luxury|"
    r"accommodation|rat\w{2,4}|reviews?|service|propert\w{1,3})\b)"
)
_DOUBLE_STAR = re.compile(r"\*++|\n")
_POWER_BEFORE = re.compile(r"(?:\d|\b[A-Za-z]|[)\]])( ?)$")
_CENSORED = re.compile(r"\b[cdfhpst]\*\*[a-z]\b")  # f**k
_POWER_AFTER = re.compile(r"( ?)(?:[-+]?(?:\d++(?:\.\d++)?+|\.\d++)(?!\w)(?!\*\*[A-Za-z])|\(|[A-Za-z](?![A-Za-z*]))")
_ESCAPED = re.compile(r"\\(?=[*_~`])")
_TILDE = re.compile(r"(?<=\d)~(?=\d)")  # a range
_MARKED = re.compile(
    r"(?<![\w=])==(?=[^\s=])([^=\n]{1,200})(?<=\S)==(?![\w=])|(?<![\w:]):([a-z][a-z0-9_+-]{2,30}):(?![\w:])"
)  # ==a==, :smile:
_CUE = re.compile(r"^(?:\d{1,5}\n)?(?:\d\d:){1,2}\d\d[.,]\d{3} --> [^\n]*+\n?", re.MULTILINE)  # of subtitles
_MASKED = re.compile(
    r"(?<![\w*•])(?:(?:\*{4}|•{2,4}|[xX]{4}(?! \d)|(?<=[xX]{4} )[xX]{4})[ -]?){1,4}(\d{4})(?![\w*])"
)  # a card: ****4242
_GROUPED = re.compile(r"(?<=\d)_(?=\d{3}(?!\d))")  # 1_000_000
_EMPHASIS = re.compile(r"\*{1,3}(?=\S)|(?<=\S)\*{1,3}|~~|`+|(?<![\w])_{1,3}(?=\w)|(?<=[\w.,!?])_{1,3}(?!\w)")

_PICTURES = (
    "\U0001f000-\U0001f1e5\U0001f200-\U0001f3fa\U0001f400-\U0001f535\U0001f53a-\U0001f64f\U0001f680-\U0001f77f"
    f"\U0001f900-\U0001faff✓✗✘♡☹{_BMP_EMOJI}"
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
_COUNTRIES = table(
    "US=the United States, GB=the United Kingdom, CA=Canada, AU=Australia, DE=Germany, FR=France, IT=Italy, "
    "ES=Spain, PT=Portugal, UA=Ukraine, JP=Japan, CN=China, IN=India, BR=Brazil, MX=Mexico, EU=the European Union"
)
_WORDLESS = re.compile(r" (?:sign|symbol)$|^(?:heavy|white heavy|black) (?=\w+ \w)")
_SMILEY = re.compile(r"(?<![ \t])[ \t]*+(?<!\S)[:;]-?[()DPp](?!\S)")
_ANGLED = re.compile(r"<([\w.+-]{1,64}@[\w.-]{1,255})>")  # Tom <tom@site.org>
_HEART = re.compile(r"(?<!\S)<3+(?!\S)")
_ZERO_WIDTH = re.compile("[\u200b-\u200f\ufe0e\ufe0f\u2060\ufeff\u00ad\u202a-\u202e]")


# Marks of footnotes and references: "It ended.[1]", "the war¹", Markdown's [^1]; none of them is read.
_NOTE = re.compile(
    r"(?<=[.,;:!?\"'”])(?:\[(?:\d{1,3}(?:[,–-] ?\d{1,3}){0,5}|citation needed)\](?!\()|[⁰¹²³⁴-⁹]++(?!\w))++"
    r"|(?<=[a-z]{4})[⁰¹²³⁴-⁹]++(?!\w)|^\[\^\w{1,30}\]:[ \t]*+|^\[[^\[\]\n]{1,80}\]:[ \t]++https?://[^\n]*+|(?<=\S)\[\^\[?\w{1,30}\]{1,2}|\[\^\d{1,3}\]",
    re.MULTILINE,
)


def _without_note(found: re.Match[str]) -> str:
    """Drop a note, but not a power such as the one in meters²."""
    is_power = found[0] in ("²", "³") and has_power(found.string[max(0, found.start() - 16) : found.start()])
    return found[0] if is_power else ""


def read_html(text: str) -> str:
    """Return the visible text of HTML, with marks of Markdown; text without tags and entities stays as it is."""
    return unescaped(without_tags(text))


def read_markup(text: str) -> str:
    """Replace Markdown marks by the separators of `structure`.

    Headings and list items become sentences; a comma separates bulleted items.
    """
    text = _SMILEY.sub("", text) if ":" in text or ";" in text else text
    text = _ESCAPED.sub("", text) if "\\" in text else text
    if "<" in text:
        text = _ANGLED.sub(r"\1", _HEART.sub("❤", text))
    text = mark_structure(_CUE.sub("", text) if "-->" in text else text)
    if "`" in text or "~" in text:
        text = _TILDE.sub("-", _FENCE.sub("", text))
    if "[" in text:
        text = _LINK.sub(r"\1", _LINK.sub(r"\1", text))  # twice: an image may be the text of a link
    if "|" in text:
        text = "\n".join(map(_without_edges, _TABLE_RULE.sub("", text).split("\n")))
    text = "\n".join("" if is_scene_break(line) else line for line in text.split("\n"))
    text = _MASKED.sub(lambda found: " ".join(found[1]), text)
    text = _HEADING.sub(lambda found: _sentence(found[1].rstrip(" \t#"), "."), text)
    text = _QUOTE.sub("", text) if ">" in text else text
    text = _ITEM.sub(_item, text)
    if "\n" in text or text[:1].isdecimal():
        text = _COUNTED.sub(lambda found: f"{found[1].strip()}: {_sentence(found[2], '.')}", text)
    if "*" in text:
        text = _HOTEL_STARS.sub(r"\1 star", text)
        text = _read_double_stars(text) if "**" in text else text
        text = _PRODUCT.sub(" ⋅ ", text)
        text = _SPACED_STAR.sub(" ⋅ ", text) if " = " in text else text
    text = _MARKED.sub(lambda found: found[1] or found[2], text) if "==" in text or ":" in text else text
    text = _GROUPED.sub("", text) if "_" in text else text
    return _EMPHASIS.sub(_without_mark, text) if re.search("[*_`~]", text) else text


def _read_double_stars(text: str) -> str:
    """Write `**` as `^` where it is a power: between numbers, single letters or brackets, and not an end of bold."""
    parts, done, is_bold = [], 0, False
    for found in _DOUBLE_STAR.finditer(text):
        if found.group() != "**":
            is_bold = False  # a line break, or another number of asterisks
        elif is_bold:
            is_bold = False
        else:
            before = _POWER_BEFORE.search(text, max(0, found.start() - 2), found.start())
            after = _POWER_AFTER.match(text, found.end())
            is_censored = _CENSORED.match(text, max(0, found.start() - 1)) is not None
            if before and after and before[1] == after[1] and not is_censored:
                parts += [text[done : before.start(1)], "^"]
                done = after.end(1)
            else:
                is_bold = True
    return "".join([*parts, text[done:]])


def _without_mark(found: re.Match[str]) -> str:
    """Remove a mark; where it separates two numbers, or is the end of words that are struck out, put a space."""
    before, after = found.string[max(0, found.start() - 1) : found.start()], found.string[found.end() : found.end() + 1]
    is_between = before.isalnum() and (after.isalnum() or unicodedata.category(after or "a") == "Sc")
    is_joint = (before.isdecimal() and not after.isalpha()) or found.group() == "~~"
    return " " if is_between and is_joint else ""


def _without_edges(line: str) -> str:
    """Remove the lines at the left and the right of a table, with the space around them."""
    bare = line.lstrip(" \t")
    line = bare[1:].lstrip(" \t") if bare.startswith("|") else line
    bare = line.rstrip(" \t")
    return bare[:-1].rstrip(" \t") if bare.endswith("|") else line


def _item(found: re.Match[str]) -> str:
    """End a list item with a comma before another item, with a full stop before other text; add nothing at the end."""
    after = found.string[found.end() : found.end() + 16]
    return _sentence(found[1], "" if not after.strip() else "," if _ITEM_BEGINS.match(after) else ".")


def _sentence(line: str, mark: str) -> str:
    return line if not line or line.rstrip(" \t*_~`")[-1:] in ".,;:!?" else line.rstrip() + mark


def read_emoji(text: str) -> str:
    """Replace emoji by their names, repeated ones by one name, and remove invisible characters."""
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
        code = "".join(chr(ord(letter) - 0x1F1E6 + ord("A")) for letter in emoji[:2])
        return f"flag of {_COUNTRIES.get(code) or ' '.join(code)}"
    names = (
        _NAMES.get(letter) or _unicode_name(letter) for letter in emoji if not "\U0001f3fb" <= letter <= "\U0001f3ff"
    )
    return " ".join(name for name in names if name)


def _unicode_name(letter: str) -> str:
    if not unicodedata.category(letter).startswith("S"):
        return ""
    return _WORDLESS.sub("", unicodedata.name(letter, "").lower()).replace("-", " ")


MAX_PASSES = 4  # maximum number of passes; a pass that changes nothing is the last, so the result is stable

_SPACES = re.compile("[\u00a0\u2000-\u200a\u202f\u205f\u3000]")
_MARKS = str.maketrans("’‘ʼ′“”„«»″−‐‑⁄∕＄％", "'" * 4 + '"' * 6 + "---//$%") | {
    ord("…"): "...",
    ord("―"): "—",
    ord("‒"): "–",
}
_MINUS = re.compile(  # 220 − age; between two numbers it may be a dash
    r"(?<=[\d)²³]) \u2212 (?=[a-z]{2,12}\b(?! [a-z])|[A-Za-z]\b|\()"
    r"|(?:(?<=[)²³])|(?<=\b[a-z])) \u2212 (?=[\d(]|[A-Za-z]\b)"
)
_CHARGE = re.compile(r"[²³](?=[⁺⁻](?![⁰¹²³⁴-⁹]))")  # of an ion: Ca²⁺
_FRACTIONS = re.compile(r"(\d?)([¼-¾⅐-⅞])")
_OTHER_DIGITS = re.compile(r"[^\x00-\x7f]")
_STYLED = re.compile("[ℂℍℕℙℚℝℤℓ\u2460-\u24ea\u3371-\u33df\uff01-\uff5e\U0001d400-\U0001d7ff]")  # ①, ㎏, Ａ, 𝐀
_CIRCLED = re.compile("[\u24eb-\u24ff\u2776-\u2793]")  # ❶
_SUPERSCRIPTS = str.maketrans("⁰¹⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉", "01456789" + "0123456789")
_RAISED_DIGITS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_RAISED = re.compile("(?<=[\\w)])(?:⁻[⁰¹²³⁴-⁹]+|[⁰¹²³⁴-⁹]{2,}|[⁰¹⁴-⁹])")
_TIDY = (
    (re.compile(r"([!?])[!?]{2,}"), r"\1"),
    (re.compile(r"([!?,;:])\1+"), r"\1"),
    (re.compile(r"\.{4,}"), "..."),
    (re.compile(r"-{2,}"), " - "),
    (re.compile(r"\(\s*\)"), ""),
    (re.compile(r"\)(?=\()"), ") "),
    (re.compile(r"[ \t]+"), " "),
    (re.compile(r" (?=[,.;!?](?:\s|$|[,.;!?]))"), ""),
    (re.compile(r",(?=\s?[,.;:!?])"), ""),
    (re.compile(r"(?m)^ | $"), ""),
    (re.compile(r"(?m)^[,;] ?"), ""),
)


PART = 2000  # characters that are read at once, so that long work can be watched
Watch = Callable[[int], None]  # called between parts with the number of characters that were added; may raise


def unwatched(num_added: int) -> None:
    """Watch nothing."""


def spoken(text: str, language: str = "en", watch: Watch = unwatched, *, keeps_structure: bool = False) -> str:
    """Return `text` as it is spoken: numbers, dates, money and abbreviations as words, without markup.

    Normalizing the result again changes nothing. `language` is a tag such as en, en-GB or de; in languages other than
    English, only numbers, markup, emoji and elongated letters are normalized, and in those of `multilingual` also
    dates, times or money. With `keeps_structure`, the result has the separators of `structure` on lines of their own.
    Raises `ParameterError` for an unsupported language, or a text that is not a str.
    """
    if not isinstance(text, str):
        raise ParameterError("text", f"must be a str, not {type(text).__name__}")
    read = _reader(language)
    for _ in range(MAX_PASSES):
        before, text = text, read(text, watch)
        if text == before:
            break
    return text if keeps_structure else without_separators(text)


def spoken_certain(text: str, language: str | None, watch: Watch = unwatched, *, keeps_structure: bool = False) -> str:
    """Return `text` for a model that reads digits itself: only unambiguous text is rewritten, except in English.

    `language` is a tag; with None, the language of each sentence is identified. English is read as `spoken` reads it.
    In the languages of `multilingual`, numbers with one reading become words, and markup is removed. Text in other
    languages stays as written. `keeps_structure` is that of `spoken`.
    """
    said = _certain(mark_structure(unified_lines(text)) if keeps_structure else text, language, watch)
    return said if keeps_structure else without_separators(said)


def _certain(text: str, language: str | None, watch: Watch) -> str:
    if language is None:
        said, num_read = "", 0
        for run, tag in cut_by_language(text):
            num_before = len(said) - num_read
            said += _certain(run, tag or "", lambda num_added: watch(num_before + num_added))  # noqa: B023
            num_read += len(run)
            watch(len(said) - num_read)
        return said
    tag = re.split("[-_]", language)[0].lower()
    if tag == "en":
        return text[: len(text) - len(text.lstrip())] + spoken(text, language, watch, keeps_structure=True)
    return read_certain(read_markup(read_html(unified_lines(text))), tag) if tag in MULTILINGUAL else text


def _known_language(language: str) -> str:
    """Return the tag whose rules apply to a language. Raises `ParameterError` if there are none."""
    is_tag = isinstance(language, str) and re.fullmatch(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{1,8}){0,3}", language)
    if is_tag and (tag := find_rules(language)):
        return tag
    raise ParameterError("language", f"must be one of {', '.join(sorted(languages()))}, not {str(language)[:20]!r}")


def _reader(language: str) -> Callable[[str, Watch], str]:
    tag = _known_language(language)
    if tag.partition("_")[0] == "en":
        return _read_english
    return lambda text, watch: _tidy(
        _by_parts(lambda part: _read_numbers(read_certain(part, tag), tag), _prepare(text, watch), watch)
    )


def _read_english(text: str, watch: Watch) -> str:
    from s1_mini.text.english import read
    from s1_mini.text.english.latex import read_latex

    formulas = read_latex(text)
    watch(len(formulas) - len(text))
    return _tidy(_by_parts(read, _prepare(formulas, watch), watch))


def _by_parts(read: Callable[[str], str], text: str, watch: Watch) -> str:
    """Read a text without markup in parts of at most `PART` characters: whole sentences, if they are not longer."""
    said: list[str] = []
    start = num_added = 0
    while start < len(text):
        end = _end_of_part(text, start)
        said.append(read(text[start:end]))
        num_added += len(said[-1]) - (end - start)
        if end < len(text):
            watch(num_added)
            is_within_word = text[end - 1].isalnum() and text[end].isalnum()
            said.append(" " if said[-1][-1:].isalnum() and not is_within_word else "")
        start = end
    return "".join(said)


def _end_of_part(text: str, start: int) -> int:
    if len(text) - start <= PART:
        return len(text)
    window = text[start : start + PART]
    ends = [begin for begin, _ in sentence_spans(window)[1:-1]]  # the last sentence may go on after the window
    return start + (max(ends, default=0) or window.rfind(" ") + 1 or PART)


def _prepare(text: str, watch: Watch) -> str:
    """Remove markup, and unify the forms of digits, spaces, quotation marks and fractions."""
    text = _NOTE.sub(_without_note, unicodedata.normalize("NFC", read_html(unified_lines(text))))
    if not text.isascii():
        text = _MINUS.sub(" minus ", _SPACES.sub(" ", text)).translate(_MARKS)
        text = _CHARGE.sub(lambda found: f" {unicodedata.normalize('NFKC', found[0])}", text)
        text = _FRACTIONS.sub(_fraction, text)
        text = _RAISED.sub(lambda found: "^" + found.group().translate(_RAISED_DIGITS), text).translate(_SUPERSCRIPTS)
        text = _unified(_OTHER_DIGITS.sub(_plain, text))
    bare = read_markup(text)
    text = read_emoji(bare)
    watch(len(text) - len(bare))
    text = _GLUED.sub(_separate, text)
    return text if text.isascii() else _DROPPED.sub(" ", text)


# The end of a sentence without a space before the next one, as language models write after a tool call.
_GLUED = re.compile(r"(?:(?<=[a-zß-öø-ÿ'][a-zß-öø-ÿ])|(?<=[ap]\.m))[.!?](?=[A-ZÀ-ÖØ-Þ][a-zß-öø-ÿ']*+(?:[\s.,;:!?]|$))")
_IN_NAMES = frozenset("._/\\@:#0123456789")
_MAX_WORD = 40  # characters of a word before such an end


def _separate(found: re.Match[str]) -> str:
    """Put a space after the end of a sentence, but not into an address or a name such as System.Text."""
    before = found.string[max(0, found.start() - _MAX_WORD) : found.start()].split()[-1]
    is_name = not _IN_NAMES.isdisjoint(before) or (found.group() == "." and not before.islower())
    return found.group() if is_name and before not in ("a.m", "p.m") else f"{found.group()} "


def _fraction(found: re.Match[str]) -> str:
    fraction = unicodedata.normalize("NFKC", found[2]).replace("⁄", "/")
    after = " " * found.string[found.end() : found.end() + 1].isalpha()
    return f"{found[1]}{' ' * bool(found[1])}{fraction}{after}"


def _plain(found: re.Match[str]) -> str:
    """Convert a digit of another script to ASCII, and a wide or styled letter to a plain one."""
    character = found.group()
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if _STYLED.match(character):
        return unicodedata.normalize("NFKC", character)
    if _CIRCLED.match(character):
        return str(int(unicodedata.numeric(character)))
    return character


def _tidy(text: str) -> str:
    for pattern, instead in _TIDY:
        text = pattern.sub(instead, text)
    return text.strip()
