"""HTML in a text, read as a browser shows it: as `innerText`, with Markdown for what only its layout shows.

`without_tags` puts block elements on lines of their own, marks headings, list items and rules as Markdown, and leaves
out scripts, styles and comments. `unescaped` decodes entities, after that. A tag that a sentence only mentions
loses its brackets. All steps take linear time.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from s1_mini.text.structure import ITEM_BREAK, SENTENCE_BREAK
from s1_mini.text.tables import word_set

_TOKEN = re.compile(
    r"(?P<code>`[^`\n]*+`)|(?P<open><!--|<!\[CDATA\[)|<[!?][A-Za-z][^<>]*+>|<(?P<link>(?:https?://|mailto:)[^<>\s]++)>"
    r"|<(?P<close>/?)(?P<name>[A-Za-z][\w:-]*+)(?=[\s/>])(?P<rest>(?:[^<>\"']++|\"[^\"]*+\"|'[^']*+')*+|[^<>]*+)>"
    r"|<(?P<other>[A-Za-z][^<>\n]*+)>"
)
_ENTITY = re.compile(
    r"&(?:#\d{1,7}|#[xX][0-9A-Fa-f]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});|&(?:amp|lt|gt|quot|nbsp|copy|reg)(?![;=\w])"
)
_MENTIONED = re.compile(r"</?([A-Za-z][\w:-]*+)[^<>`]*+>")
_CLOSED = re.compile(r"</([A-Za-z][\w:-]*+)\s*+>")
_IS_HIDDEN = re.compile(
    r"\shidden(?![\w-])|\sstyle\s{0,9}=\s{0,9}[\"'][^\"']*?display\s{0,9}:\s{0,9}none", re.IGNORECASE
)
_NAMED = re.compile(r"<(/?)([A-Za-z][\w:-]*+)(?=[\s/>])[^<>]*+>?")
_ADJACENT = re.compile(r"</(?:a|label)>(?=<(?:a|label)\b)", re.IGNORECASE)
_BEFORE_NOTE = re.compile(r"[.,;:!?\"'”]\Z|[a-z]{4}\Z")
_POWER = re.compile(
    r"(?:met(?:er|re)s?|feet|foot|inch(?:es)?|yards?|miles?|hours?|seconds?|alpha|beta|gamma|delta|epsilon|theta|lambda|"
    r"sigma|omega|force)\Z",
    re.IGNORECASE,
)
_EXPONENT = re.compile(r"(?:\d|\)|(?<![^\W\d_])[A-Za-zµ]{1,2})\Z")


def has_power(before: str) -> bool:
    """Return whether a raised 2 or 3 after this text is a power, and not the number of a note."""
    return _POWER.search(before) is not None


_BLOCKS = word_set(
    "address article aside blockquote body br caption center dd details dialog dir div dl dt fieldset figcaption "
    "figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr html legend li main menu nav ol optgroup option p pre "
    "search section select summary table tbody tfoot thead tr ul"
)
_PARAGRAPHS = word_set("p h1 h2 h3 h4 h5 h6 hr")  # with a blank line before and after them
_HIDDEN = word_set("audio canvas datalist head iframe noframes noscript object rp script style template title video")
_VOID = word_set("area base br col embed hr img input link meta param source track wbr")
_INLINE = word_set(
    "a abbr acronym b bdi bdo big button cite code colgroup data del dfn em fieldset font i ins kbd label map "
    "mark math meter nobr output picture progress q rb rt rtc ruby s samp slot small span strike strong sub sup "
    "svg td textarea th time tt u var"
)
_KNOWN = _BLOCKS | _HIDDEN | _VOID | _INLINE
_MARKS = {f"h{level}": f"{'#' * level} " for level in range(1, 7)} | {"li": "- ", "tr": f"{ITEM_BREAK}\n"}
_BOXES = frozenset(("img", "input", "button", "textarea", "svg"))  # divide words
_INLINE_IN_WORDS = (_INLINE | frozenset(("wbr",))) - _BOXES - frozenset(("td", "th"))
_OPENED = {"<!--": "-->", "<![CDATA[": "]]>"}
FILLER = "\u2060"  # word joiner


def without_tags(text: str) -> str:
    """Return `text` without HTML tags, comments and invisible elements; entities stay. Other text is not changed.

    Block elements become lines that end a sentence, paragraphs and headings have blank lines around them, and a comma
    separates the cells of a table. Headings, list items and rules get the marks of Markdown. A tag in a code span, or
    one that is not HTML (press <Enter>), only loses its brackets.
    """
    if "<" not in text:
        return text
    text = _ADJACENT.sub(r"\g<0> ", text)
    output = _Output()
    for _, stop, tag, shown in _parts(text):
        if tag:
            _lay_out(output, tag, text[stop : stop + 1])
        else:
            output.add(shown)
    return output.text()


def blank_tags(text: str) -> str:
    """Return `text` with `FILLER` for each character of a tag within words, and spaces for other tags and hidden text.

    The result has the length of `text`, so that positions stay the same.
    """
    if "<" not in text:
        return text
    parts = []
    for start, stop, tag, _ in _parts(text):
        filler = FILLER if tag.lstrip("/") in _INLINE_IN_WORDS else " "
        parts.append(filler * (stop - start) if tag else text[start:stop])
    return "".join(parts)


def unescaped(text: str) -> str:
    """Return `text` with its HTML entities decoded."""
    return _ENTITY.sub(lambda found: html.unescape(f"{found.group().rstrip(';')};"), text) if "&" in text else text


def _parts(text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield start, stop, tag and visible text of each part.

    The tag is the name of an element ("/p" where it closes), "!" for what is not visible, and empty for text.
    """
    closed = {name.lower() for name in _CLOSED.findall(text)}
    unclosed: set[str] = set()  # names and marks whose end does not follow
    position = 0
    while (found := _TOKEN.search(text, position)) is not None:
        start = found.start()
        if position < start:
            yield position, start, "", text[position:start]
        if found["open"]:
            position, tag, shown = _section(text, found, unclosed)
        elif found["name"]:
            position, tag, shown = _element(text, found, closed, unclosed)
        else:
            position = found.end()
            shown = found["link"] or found["other"] or _MENTIONED.sub(r"\1", found["code"] or "")
            tag, shown = "" if shown else "!", _apart(text, start, shown.removeprefix("mailto:"))
        yield start, position, tag, shown
    if position < len(text):
        yield position, len(text), "", text[position:]


def _section(text: str, found: re.Match[str], unclosed: set[str]) -> tuple[int, str, str]:
    """Return end, tag and visible text of a comment or a CDATA section; without its end, of the mark alone."""
    mark = found["open"]
    end = -1 if mark in unclosed else text.find(_OPENED[mark], found.end())
    if end < 0:
        unclosed.add(mark)
        return found.end(), "!", ""
    shown = "" if mark == "<!--" else text[found.end() : end]
    return end + 3, "" if shown else "!", shown


def _element(text: str, found: re.Match[str], closed: set[str], unclosed: set[str]) -> tuple[int, str, str]:
    """Return end, tag and visible text of what looks like a tag; its end includes the content if that is hidden."""
    name, rest = found["name"].lower(), found["rest"].strip()
    if len(name) == 1 and rest.strip("/") and "=" not in rest and rest != "hidden":
        return found.end(), "", found.group()  # x <y and y> z
    if not _is_html(name, rest, is_closed=bool(found["close"]) or name in closed):
        return found.end(), "", _apart(text, found.start(), found.group()[1:-1])
    if not found["close"] and (end := _end_of_hidden(text, found, unclosed)):
        return end, f"!{name}", ""
    return found.end(), f"{found['close']}{name}", ""


def _apart(text: str, start: int, shown: str) -> str:
    return f" {shown}" if shown and shown[0].isalnum() and text[max(0, start - 1) : start].isalnum() else shown


def _is_html(name: str, rest: str, *, is_closed: bool) -> bool:
    if name in _HIDDEN:
        return is_closed or "=" in rest or rest.endswith("/")
    return is_closed or name in _KNOWN or "=" in rest or rest.endswith("/") or ":" in name or "-" in name


def _end_of_hidden(text: str, found: re.Match[str], unclosed: set[str]) -> int:
    """Return the end of an element that is not visible; 0 for other elements, and for one that is never closed."""
    name, rest = found["name"].lower(), found["rest"]
    is_hidden = name in _HIDDEN or (name in _KNOWN - _VOID and _IS_HIDDEN.search(rest))
    if not is_hidden or name in unclosed or rest.endswith("/"):
        return 0
    depth = 1
    for each in _NAMED.finditer(text, found.end()):
        if each[2].lower() == name and (each[1] or name not in _HIDDEN):
            depth += -1 if each[1] else 1
            if depth == 0:
                return each.end()
    unclosed.add(name)
    return 0


@dataclass
class _Output:
    """Text that grows by parts, with line breaks that are written only once text follows them."""

    parts: list[str] = field(default_factory=list)
    num_breaks: int = 0
    mark: str = ""  # of the next line
    is_block: bool = False  # whether the next line begins or follows a block element

    def add(self, text: str) -> None:
        if self.num_breaks:
            bare = text.lstrip()
            self._break(2 if text[: len(text) - len(bare)].count("\n") > 1 else 0)
            if not bare:
                return
            breaks = "\n" * self.num_breaks if self.parts else ""
            ends_sentence = self.is_block and breaks == "\n" and not self.mark
            text = f"{breaks}{f'{SENTENCE_BREAK}{breaks}' if ends_sentence else self.mark}{bare}"
            self.num_breaks, self.mark, self.is_block = 0, "", False
        self.parts.append(text)

    def break_line(self, num_breaks: int, mark: str | None) -> None:
        self._break(num_breaks)
        if mark is not None and not self.mark.startswith("***"):
            self.mark = mark
        elif mark:
            self.mark = f"***\n\n{mark}"

    def end_cell(self) -> None:
        if self.parts and not self.num_breaks:
            self._trim()
            self.parts.append(" " if not self.parts or self.parts[-1][-1] in ",.;:!?" else ", ")

    def last(self) -> str:
        return self.parts[-1][-16:] if self.parts and not self.num_breaks else ""

    def text(self) -> str:
        return "".join(self.parts)

    def _break(self, num_breaks: int) -> None:
        if num_breaks:
            self.num_breaks = max(self.num_breaks, num_breaks)
            self._trim()

    def _trim(self) -> None:
        while self.parts:
            last = self.parts.pop()
            bare = last.rstrip()
            if last[len(bare) :].count("\n") > 1 and self.num_breaks:
                self.num_breaks = 2
            if bare:
                self.parts.append(bare)
                break


def _lay_out(output: _Output, tag: str, following: str) -> None:
    name = tag.lstrip("/!")
    if name == "br":
        output.break_line(min(2, output.num_breaks + 1), None)
    elif name == "hr":
        output.break_line(2, "***\n\n")
    elif name in _BLOCKS:
        opened = "" if tag.startswith(("/", "!")) else _MARKS.get(name)
        output.break_line(2 if name in _PARAGRAPHS else 1, opened)
        output.is_block = True
    elif tag in ("td", "th"):
        output.end_cell()
    elif name in _BOXES and output.last()[-1:].isalnum() and following.isalnum():
        output.add(" ")
    elif (
        tag == "sup"
        and following.isdecimal()
        and (_EXPONENT.search(output.last()) or (following in ("2", "3") and has_power(output.last())))
    ):
        output.add("^")  # 10<sup>6</sup> is a power, not 106
    elif tag == "sup" and not following.isalpha() and _BEFORE_NOTE.search(output.last()):
        output.add("[^")  # a footnote, in Markdown
    elif tag == "/sup" and output.parts[-2:-1] == ["[^"]:
        output.add("]")
