"""Subtitles from word times: SubRip (.srt) and WebVTT (.vtt)."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterable, Sequence
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
        return found.group() if is_read else " " * len(found.group())

    return MARKUP[text_type].sub(blank, text) if text_type in MARKUP else text


def find_cues(text: str, words: Sequence[Word]) -> list[Cue]:
    """Divide a text into cues: after sentences, at pauses, and where a cue would exceed two lines or seven seconds."""
    cues: list[Cue] = []
    first = 0
    for number, word in enumerate(words):
        following = words[number + 1] if number + 1 < len(words) else None
        if following is None or _ends(text, words[first], word, following):
            start = _with_signs_before(text, words[first].start)
            stop = len(text) if following is None else _with_signs_before(text, following.start)
            cues.append(Cue(" ".join(text[start:stop].replace(JOINER, "").split()), words[first].start_s, word.end_s))
            first = number + 1
    return cues


def format_subtitles(cues: Iterable[Cue], suffix: str) -> str:
    """Return the content of a file with this suffix."""
    is_vtt = suffix.lower() == ".vtt"
    blocks = ["WEBVTT\n"] if is_vtt else []
    for number, cue in enumerate(cues, 1):
        text = "\n".join(textwrap.wrap(cue.text, LINE_LENGTH))
        start, end = (_clock(seconds, "." if is_vtt else ",") for seconds in (cue.start_s, cue.end_s))
        blocks.append(f"{number}\n{start} --> {end}\n{html.escape(text, quote=False) if is_vtt else text}\n")
    return "\n".join(blocks)


def _ends(text: str, first: Word, word: Word, following: Word) -> bool:
    if following.start_s - word.end_s > PAUSE_S or following.end_s - first.start_s > MAX_CUE_S:
        return True
    if SENTENCE_END.search(text[word.stop : following.start]) and following.start_s > word.end_s:
        return True
    longer = " ".join(text[first.start : following.stop].split())
    return len(textwrap.wrap(longer, LINE_LENGTH)) > MAX_LINES


def _with_signs_before(text: str, start: int) -> int:
    """Return the start of the punctuation attached to the front of a word, such as an opening quote."""
    while start and not text[start - 1].isspace():
        start -= 1
    return start


def _clock(seconds: float, mark: str) -> str:
    ms = round(seconds * 1000)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"
