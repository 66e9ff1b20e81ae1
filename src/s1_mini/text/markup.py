"""Markup of a request's text: SSML as in Amazon Polly, and marks in brackets, which are easier to type.

Both become segments: text with one voice, speed and loudness, and the pause before it. Each character of a segment
is mapped to the characters of the source that it stands for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from s1_mini.exceptions import MarkupError
from s1_mini.text.lexicon import Lexicon
from s1_mini.text.say_as import say_as
from s1_mini.text.split import ends_sentence
from s1_mini.text.structure import LINE_SEPARATOR, division_between, stronger
from s1_mini.text.tidy import is_speakable
from s1_mini.text.xml_reader import error_at, read_xml
from s1_mini.types import MAX_PAUSE_S, MIN_GAIN_DB, Division

MAX_WORD = 100  # characters at the end of a segment that show whether a sentence ends
MAX_TOTAL_PAUSE_S = 300.0  # per request, because silence also takes memory
MAX_NAMED = 3  # names in a warning
MAX_SEGMENTS = 500  # also the maximum number of marks

STRENGTHS = {"none": None, "x-weak": None, "weak": 0.1, "medium": 0.25, "strong": 0.5, "x-strong": 0.8}
RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.5}
VOLUMES = {"x-soft": -12.0, "soft": -6.0, "medium": 0.0, "default": 0.0, "loud": 6.0, "x-loud": 12.0}
VOLUMES["silent"] = MIN_GAIN_DB

ELEMENTS = ("speak", "break", "say-as", "sub", "p", "s", "prosody", "voice", "phoneme", "mark", "lang", "emphasis")
TEXT_ONLY = frozenset({"sub", "say-as"})
EMPTY = frozenset({"break", "mark"})
WITHOUT_EFFECT = ("phoneme", "emphasis", "amazon:")  # their text is spoken, with a warning

_TIME = re.compile(r"\+?(\d{1,9}(?:\.\d{0,9})?|\.\d{1,9})\s?(ms|s)")
_RATE = re.compile(r"([+-]?)(\d{1,6}(?:\.\d{0,6})?)(%?)")
_VOLUME = re.compile(r"([+-]\d{1,6}(?:\.\d{0,6})?)dB", re.IGNORECASE)
_SSML_STARTS = ("<speak", "<?xml")
_DOCUMENT_END = re.compile(r"(?s:<!--.*?(?:-->|\Z)|<!\[CDATA\[.*?(?:\]\]>|\Z))|(?P<end></speak\s*>)")
_END_TAG = re.compile(r"</speak\s*+>")
_BRACKETS = re.compile(r"\[(?:pause ([^\[\]\n]{1,24})|([A-Za-z0-9][A-Za-z0-9_-]{0,63}))\](?!\()")
_LINE_NAME = re.compile(r"^[^\S\n]*+\[([A-Za-z][A-Za-z0-9_-]{0,63})\](?!\()", re.MULTILINE)

# Punctuation at the start of a segment that ends a sentence whose words are in the previous segment.
_LEFTOVER = re.compile(r"\A\s*+[.,;:!?)\]\"'”’]{1,8}+(?=\s)")


LexiconOf = Callable[[str | None], Lexicon]  # lexicon by the voice that the markup names; None: the request's voice


class Mark(NamedTuple):
    """A named position in the text of a segment. Its element is characters start … stop of the source."""

    name: str
    position: int
    start: int
    stop: int
    pause_s: float = 0.0  # explicit pause between the mark and the text after it


@dataclass(frozen=True)
class Segment:
    """Text with one voice, and what is before it. Character i stands for starts[i] … stops[i] of the source."""

    text: str
    voice: str | None = None  # None: the voice of the request
    speed: float = 1.0
    gain_db: float = 0.0
    pause_before_s: float | None = None  # None: as usual at this division of a text
    division: Division = "clause"
    marks: tuple[Mark, ...] = ()
    starts: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()


class Markup(NamedTuple):
    """The segments of a text and a warning about ignored markup; a final pause or mark is in an empty last segment."""

    segments: tuple[Segment, ...]
    warning: str | None = None


class _Style(NamedTuple):
    voice: str | None = None
    speed: float = 1.0
    gain_db: float = 0.0


@dataclass
class _Run:
    """Text with the characters of the source that each of its characters stands for."""

    parts: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    stops: list[int] = field(default_factory=list)
    is_fixed: bool = False  # exempt from the lexicon: the markup determines how it is read

    def add(self, text: str, starts: Iterable[int], stops: Iterable[int]) -> None:
        self.parts.append(text)
        self.starts.extend(starts)
        self.stops.extend(stops)


def is_ssml(source: str) -> bool:
    """Return whether all of a text is one `<speak>` element."""
    text = source.strip()
    if text.startswith("<?xml"):
        declaration, _, text = text.partition("?>")
        if "<" in declaration[1:] or ">" in declaration:
            return False
        text = text.lstrip()
    begins = text.startswith("<speak") and (text[6:7] == ">" or text[6:7].isspace())
    return begins and text.endswith(">") and text[:-1].rstrip().endswith("</speak")


def begins_ssml(text: str) -> bool:
    """Return whether a text that is still arriving begins as SSML does."""
    return text.lstrip().startswith(_SSML_STARTS)


def may_begin_ssml(text: str) -> bool:
    """Return whether a text that is still arriving may turn out to begin as SSML does."""
    bare = text.lstrip()
    return any(start.startswith(bare) for start in _SSML_STARTS)


def cut_documents(text: str) -> tuple[list[str], str]:
    """Cut SSML that is still arriving: the documents that are complete, and the rest."""
    documents, begin = [], 0
    for found in _DOCUMENT_END.finditer(text):
        if found["end"]:
            documents.append(text[begin : found.end()].lstrip())  # white space may not precede an XML declaration
            begin = found.end()
    return documents, text[begin:]


def may_end_document(rest: str, text: str) -> bool:
    """Return whether `text`, which arrives after `rest`, may complete an SSML document."""
    return _END_TAG.search(rest[max(0, rest.rfind("<")) :] + text) is not None


def last_voice(text: str, voices: Container[str]) -> str | None:
    """Return the name in the last `[voice]` of a text that names one of `voices`, or None."""
    names = [found[2].lower() for found in _BRACKETS.finditer(text) if found[2]]
    return next((name for name in reversed(names) if name in voices), None)


def read_text(source: str, lexicon_of: LexiconOf) -> Markup:
    """Return a text without markup as a segment, with the respellings of a lexicon."""
    builder = _Builder(source, lexicon_of)
    builder.add(source, 0)
    return builder.finish()


def read_marked(source: str, lexicon_of: LexiconOf, voices: Container[str]) -> Markup:
    """Return the segments of a text with `[pause 0.5s]` and `[voice]`. Raises `MarkupError`.

    Other brackets, and names that are not in `voices`, stay text; such a name at the start of a line causes a warning.
    """
    builder, end = _Builder(source, lexicon_of), 0
    for found in _BRACKETS.finditer(source):
        pause, name = found.groups()
        if pause is not None:
            if _TIME.fullmatch(pause) is None:
                continue
        elif name.lower() not in voices:
            continue
        builder.add(source[end : found.start()], end)
        end = found.end()
        if pause is not None:
            builder.pause(_seconds(pause, source, found.start()), found.start())
        else:
            builder.style = _Style(name.lower())
    builder.add(source[end:], end)
    unknown = dict.fromkeys(f"[{name}]" for name in _LINE_NAME.findall(source) if name.lower() not in voices)
    if not unknown:
        return builder.finish()
    named = ", ".join(list(unknown)[:MAX_NAMED]) + (" …" if len(unknown) > MAX_NAMED else "")
    verb = "are not voices and were" if len(unknown) > 1 else "is not a voice and was"
    return builder.finish()._replace(
        warning=f"{named} {verb} read as text; `s1-mini voices list` and GET /v1/voices list the voices."
    )


def read_ssml(source: str, lexicon_of: LexiconOf, language: str | None = None) -> Markup:
    """Return the segments of an SSML document; `language` is that of numbers in `<say-as>`. Raises `MarkupError`."""
    reader = _SsmlReader(source, lexicon_of, language)
    read_xml(source, reader)
    return reader.builder.finish(reader.ignored)


class _Builder:
    """Collects runs of text into segments; a new one begins where the style changes or a pause is added."""

    def __init__(self, source: str, lexicon_of: LexiconOf) -> None:
        self.style = _Style()
        self._source, self._lexicon_of = source, lexicon_of
        self._segments: list[Segment] = []
        self._runs: list[_Run | Mark] = []
        self._run_style = self.style
        self._pause_s: float | None = None  # explicit pause before the next text
        self._begins_paragraph = False
        self._total_s, self._num_marks = 0.0, 0

    def add(self, text: str, start: int, stop: int | None = None, *, is_fixed: bool = False) -> None:
        """Add `text`: the characters of the source from `start` or, with `stop`, a replacement for start … stop."""
        if not text:
            return
        if self._run_style != self.style:
            self._flush()
            self._run_style = self.style
        last = self._runs[-1] if self._runs else None
        if not isinstance(last, _Run) or last.is_fixed or is_fixed:
            last = _Run(is_fixed=is_fixed)
            self._runs.append(last)
        end = start + len(text)
        if stop is None:
            last.add(text, range(start, end), range(start + 1, end + 1))
        else:
            last.add(text, [start] * len(text), [stop] * len(text))

    def mark(self, name: str, start: int, stop: int) -> None:
        self._num_marks += 1
        if self._num_marks > MAX_SEGMENTS:
            raise error_at(self._source, start, f"more than {MAX_SEGMENTS} marks; send several requests")
        self._runs.append(Mark(name, 0, start, stop, -(self._pause_s or 0.0)))

    def pause(self, seconds: float, offset: int) -> None:
        self._flush()
        self._pause_s = (self._pause_s or 0.0) + seconds
        self._total_s += seconds
        if self._total_s > MAX_TOTAL_PAUSE_S:
            reason = f"the pauses add up to more than {MAX_TOTAL_PAUSE_S:g} s; send several requests"
            raise error_at(self._source, offset, reason)

    def paragraph(self) -> None:
        self._flush()
        self._begins_paragraph = True

    def finish(self, ignored: Iterable[str] = ()) -> Markup:
        self._flush()
        marks = tuple(self._placed(each, 0) for each in self._runs if isinstance(each, Mark))
        if self._pause_s or marks or not self._segments:
            self._segments.append(Segment("", pause_before_s=self._pause_s, marks=marks))
        warning = f"Ignored markup that this engine does not support: {', '.join(ignored)}." if ignored else None
        return Markup(tuple(self._segments), warning)

    def _placed(self, mark: Mark, position: int) -> Mark:
        """Return a mark with its position, and with the pause after it as `pause_s`.

        Until now, `pause_s` was the negative of the part of the pause that is before the mark.
        """
        return mark._replace(position=position, pause_s=mark.pause_s + (self._pause_s or 0.0))

    def _flush(self) -> None:
        """End the segment; a segment with only punctuation and white space is dropped."""
        spelt, lexicon, marks = _Run(), self._lexicon_of(self._run_style.voice), []
        for run in self._runs:
            if isinstance(run, Mark):
                marks.append(run._replace(position=len(spelt.starts)))
                continue
            text, begin = "".join(run.parts), 0
            for match in () if run.is_fixed else lexicon.find(text):
                spelt.add(text[begin : match.start], run.starts[begin : match.start], run.stops[begin : match.start])
                size, begin = len(match.respelling), match.stop
                spelt.add(match.respelling, [run.starts[match.start]] * size, [run.stops[match.stop - 1]] * size)
            spelt.add(text[begin:], run.starts[begin:], run.stops[begin:])
        self._runs, text = [], "".join(spelt.parts)
        if not is_speakable(text):
            self._runs = list(marks)
            return
        leftover = _LEFTOVER.match(text) if self._segments else None
        begin = leftover.end() if leftover else 0
        division = self._division(text) if self._segments else "clause"
        placed = tuple(self._placed(mark, max(0, mark.position - begin)) for mark in marks)
        places = tuple(spelt.starts[begin:]), tuple(spelt.stops[begin:])
        segment = Segment(text[begin:], *self._run_style, self._pause_s, division, placed, *places)
        if len(self._segments) == MAX_SEGMENTS:
            raise error_at(self._source, segment.starts[0], f"more than {MAX_SEGMENTS} parts; send several requests")
        self._segments.append(segment)
        self._pause_s, self._begins_paragraph = None, False

    def _division(self, text: str) -> Division:
        """Return how `text` is divided from the segment before it."""
        before, leftover = self._segments[-1].text, _LEFTOVER.match(text)
        is_sentence = ends_sentence(f"{before[-MAX_WORD:]}{leftover.group() if leftover else ''}")
        division = stronger(division_between(before, text), "sentence" if is_sentence else "clause")
        return stronger(division, "paragraph") if self._begins_paragraph else division


@dataclass
class _Element:
    name: str
    attributes: dict[str, str]
    offset: int
    outer: _Style  # style of the element around it
    content: str = ""  # of elements whose text is replaced
    start: int | None = None  # start of the content
    stop: int = 0


class _SsmlReader:
    """Turns the elements of an SSML document into calls of a builder."""

    def __init__(self, source: str, lexicon_of: LexiconOf, language: str | None) -> None:
        self.builder = _Builder(source, lexicon_of)
        self.ignored: dict[str, None] = {}  # in order
        self._source, self._language = source, language
        self._open: list[_Element] = []

    def start(self, name: str, attributes: dict[str, str], offset: int) -> None:
        element = _Element(name, attributes, offset, self.builder.style)
        around = self._open[-1].name if self._open else None
        if (around is None) != (name == "speak"):
            reason = (
                f"<{name[:40]}> is the outermost element" if around is None else "<speak> is inside another element"
            )
            raise self._error(offset, f"{reason}; the document must be one <speak> element")
        if around in TEXT_ONLY or around in EMPTY:
            raise self._error(offset, f"<{name[:40]}> is not allowed in <{around}>")
        if name not in ELEMENTS and not name.startswith("amazon:"):
            allowed = ", ".join(ELEMENTS)
            raise self._error(offset, f"<{name[:40]}> is not supported; use one of {allowed} and amazon:…")
        if name.startswith(WITHOUT_EFFECT):
            self.ignored[f"<{name[:40]}>"] = None
        match name:
            case "break":
                self._break(element)
            case "p":
                self.builder.paragraph()
            case "s":
                self.builder.add(LINE_SEPARATOR, offset, offset, is_fixed=True)
            case "prosody":
                self._prosody(element)
            case "voice":
                self._voice(element)
        self._open.append(element)

    def text(self, data: str, start: int, stop: int) -> None:
        element = self._open[-1]
        if element.name in TEXT_ONLY:
            element.content += data
            element.start = start if element.start is None else element.start
            element.stop = stop
        elif element.name not in EMPTY:
            is_same = self._source[start:stop] == data
            self.builder.add(data, start, None if is_same else stop)
        elif data.strip():
            raise self._error(start, f"<{element.name}> must be empty")

    def end(self, name: str, offset: int) -> None:
        element = self._open.pop()
        start, stop = (offset, offset) if element.start is None else (element.start, element.stop)
        if name == "sub":
            self.builder.add(self._required(element, "alias"), start, stop, is_fixed=True)
        elif name == "say-as":
            kind = self._required(element, "interpret-as").strip().lower()
            form = element.attributes.get("format", "").strip().lower()
            self.builder.add(say_as(element.content, kind, form, self._language), start, stop, is_fixed=True)
        elif name == "s":
            self.builder.add(LINE_SEPARATOR, offset, offset, is_fixed=True)
        elif name == "p":
            self.builder.paragraph()
        elif name == "mark":
            is_one_tag = self._source.endswith("/>", 0, offset)  # `offset` is after <mark/>, or before </mark>
            stop = offset if is_one_tag else self._source.index(">", offset) + 1
            self.builder.mark(self._required(element, "name"), element.offset, stop)
        self.builder.style = element.outer

    def _break(self, element: _Element) -> None:
        time, strength = element.attributes.get("time"), element.attributes.get("strength", "medium")
        if strength not in STRENGTHS:
            reason = f"<break strength={strength[:20]!r}>: must be one of {', '.join(STRENGTHS)}"
            raise self._error(element.offset, reason)
        seconds = STRENGTHS[strength] if time is None else _seconds(time, self._source, element.offset)
        if seconds is None:
            self.builder.add(" ", element.offset, element.offset)  # still between two words
        else:
            self.builder.pause(seconds, element.offset)

    def _prosody(self, element: _Element) -> None:
        voice, speed, gain_db = self.builder.style
        if (rate := element.attributes.get("rate")) is not None:
            speed *= self._rate(rate.strip(), element.offset)
        if (volume := element.attributes.get("volume")) is not None:
            gain_db += self._volume(volume.strip(), element.offset)
        for name in sorted(element.attributes.keys() - {"rate", "volume"}):
            self.ignored[f"{name[:40]} of <prosody>"] = None
        self.builder.style = _Style(voice, speed, gain_db)

    def _rate(self, rate: str, offset: int) -> float:
        found = _RATE.fullmatch(rate)
        if rate in RATES or found is None:
            if rate not in RATES:
                forms = "a percentage (80%), a factor (0.8), a change (+20%, -20%, +0.2, -0.2)"
                reason = f"<prosody rate={rate[:20]!r}>: must be {forms}, or one of {', '.join(RATES)}"
                raise self._error(offset, reason)
            return RATES[rate]
        value = float(found[2]) / (100 if found[3] else 1)
        return {"": value, "+": 1 + value, "-": max(0.0, 1 - value)}[found[1]]

    def _volume(self, volume: str, offset: int) -> float:
        found = _VOLUME.fullmatch(volume)
        if found is None and volume not in VOLUMES:
            reason = f"<prosody volume={volume[:20]!r}>: must be such as +6dB or -6dB, or one of {', '.join(VOLUMES)}"
            raise self._error(offset, reason)
        return VOLUMES[volume] if found is None else float(found[1])

    def _voice(self, element: _Element) -> None:
        self.builder.style = self.builder.style._replace(voice=self._required(element, "name"))

    def _required(self, element: _Element, name: str) -> str:
        if not (value := element.attributes.get(name, "").strip()):
            raise self._error(element.offset, f'<{element.name}> needs an attribute: {name}="…"')
        return value

    def _error(self, offset: int, reason: str) -> MarkupError:
        return error_at(self._source, offset, reason)


def _seconds(time: str, source: str, offset: int) -> float:
    found = _TIME.fullmatch(time.strip())
    seconds = float("inf") if found is None else float(found[1]) / (1000 if found[2] == "ms" else 1)
    if seconds > MAX_PAUSE_S:
        reason = f"the pause is {time[:20]!r}; use 0s to {MAX_PAUSE_S:g}s, or in ms. Several pauses add up."
        raise error_at(source, offset, reason)
    return seconds
