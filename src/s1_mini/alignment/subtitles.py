"""Subtitles from word times: SubRip (.srt) and WebVTT (.vtt)."""

from __future__ import annotations

import html
import re
import textwrap
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from s1_mini.alignment.written import JOINER
from s1_mini.exceptions import ParameterError
from s1_mini.types import Word

LINE_LENGTH, MAX_LINES = 42, 2  # from the guidelines of Netflix and the BBC
MAX_CUE_S = 7.0
PAUSE_S = 0.6  # a longer pause ends a cue
SENTENCE_END = re.compile(r"[.!?…]")
SUFFIXES = (".srt", ".vtt")
LINE_MARKS = re.compile(r"\n[ \t]*+(?:[#>|*•+-]{1,6}+[ \t]++)++")  # of list items and quotations
MARKUP = {"ssml": re.compile(r"<[^<>]*>"), "marked": re.compile(r"\[[^\[\]\n]*\]")}  # by `TTSRequest.text_type`


class Cue(NamedTuple):
    """A text on the screen from start to end, in seconds."""

    text: str
    start_s: float
    end_s: float


def check_suffix(path: Path) -> None:
    """Raise `ParameterError` for a file that is neither .srt nor .vtt."""
    if path.suffix.lower() not in SUFFIXES:
        raise ParameterError("subtitles", f"{path} must end in .srt or .vtt")


def blank_markup(text: str, text_type: str, words: Sequence[Word]) -> str:
    """Replace markup by spaces, so that words keep their positions; brackets that are read aloud are kept."""

    def blank(found: re.Match[str]) -> str:
        is_read = any(found.start() < word.stop and word.start < found.end() for word in words)
        is_paragraph = text_type == "ssml" and found.group().strip("</> ") == "p"
        return found.group() if is_read else ("\n\n" if is_paragraph else "").ljust(len(found.group()))

    return MARKUP[text_type].sub(blank, text) if text_type in MARKUP else text


def find_cues(text: str, words: Sequence[Word], breaks: Sequence[int] = ()) -> list[Cue]:
    """Divide a text into cues: after sentences, at pauses, and where a cue would exceed two lines or seven seconds.

    No cue crosses one of the `breaks`, positions where paragraphs and headings begin. The last word before a break is
    no cue of its own if it fits with the words before it.
    """
    firsts: list[int] = []  # numbers of the first words of the cues
    for number, word in enumerate(words):
        last = words[number - 1]
        if not number or _breaks(last, word, breaks):
            _join_last_word(text, words[:number], firsts, breaks)
            firsts.append(number)
        elif _ends(text, words[firsts[-1]], last, word):
            firsts.append(number)
    _join_last_word(text, words, firsts, breaks)
    cues = []
    for first, stop in pairwise([*firsts, len(words)]):
        start = _with_signs_before(text, words[first].start)
        end = len(text) if stop == len(words) else _with_signs_before(text, words[stop].start)
        after = words[stop - 1].stop
        rest = text[after:end].partition("\n")[0]  # what follows on lines of its own, such as ***, is not spoken
        said = LINE_MARKS.sub("\n", f"{text[start:after]}{rest}".replace(JOINER, ""))
        cues.append(Cue(" ".join(said.split()), words[first].start_s, words[stop - 1].end_s))
    return cues


def format_subtitles(cues: Iterable[Cue], suffix: str, note: str = "") -> str:
    """Return the content of a file with this suffix; `note` is a comment of one line, which only .vtt can have."""
    is_vtt = suffix.lower() == ".vtt"
    blocks = ["WEBVTT\n"] if is_vtt else []
    blocks += [f"NOTE {note}\n"] if is_vtt and note else []
    for number, cue in enumerate(cues, 1):
        text = "\n".join(textwrap.wrap(cue.text, LINE_LENGTH))
        start, end = (_clock(seconds, "." if is_vtt else ",") for seconds in (cue.start_s, cue.end_s))
        blocks.append(f"{number}\n{start} --> {end}\n{html.escape(text, quote=False) if is_vtt else text}\n")
    return "\n".join(blocks)


def _breaks(word: Word, following: Word, breaks: Sequence[int]) -> bool:
    is_divided = bisect_right(breaks, word.start) < bisect_right(breaks, following.start)
    return is_divided or following.start_s - word.end_s > PAUSE_S


def _ends(text: str, first: Word, word: Word, following: Word) -> bool:
    if SENTENCE_END.search(text[word.stop : following.start]) and following.start_s > word.end_s:
        return True
    return not _fits(text, first, following)


def _fits(text: str, first: Word, last: Word) -> bool:
    """Return whether the words from `first` to `last` fit into one cue."""
    lines = textwrap.wrap(" ".join(text[first.start : last.stop].split()), LINE_LENGTH)
    return len(lines) <= MAX_LINES and last.end_s - first.start_s <= MAX_CUE_S


def _join_last_word(text: str, words: Sequence[Word], firsts: list[int], breaks: Sequence[int]) -> None:
    """If the last cue of `words` has one word, join it with the cue before, or move words of that cue to it."""
    if len(firsts) < 2 or firsts[-1] != len(words) - 1 or _breaks(words[-2], words[-1], breaks):
        return
    before = firsts[-2]
    if _fits(text, words[before], words[-1]):
        firsts.pop()
    elif not SENTENCE_END.search(text[words[-2].stop : words[-1].start]):
        firsts[-1] = before + (len(words) - before + 1) // 2


def _with_signs_before(text: str, start: int) -> int:
    """Return the start of the punctuation attached to the front of a word, such as an opening quote."""
    while start and not text[start - 1].isspace():
        start -= 1
    return start


def _clock(seconds: float, mark: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"
