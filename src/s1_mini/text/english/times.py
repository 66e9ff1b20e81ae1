"""Times of day, and ratios, which are written alike."""

from __future__ import annotations

import re

from s1_mini.text.english.words import cardinal

_HALF = r"(?:\s?([AaPp])\.?\s?[Mm]\b(\.?))"
_DASH = re.compile(
    r"(?<![\w.:/-])(\d{1,2}(?::\d\d)?)(\s?[ap]\.?\s?m\b\.?)?\s?[-–—]\s?(?=(\d{1,2}(?::\d\d)?)(\s?[ap]\.?\s?m\b)?)",
    re.IGNORECASE,
)
_WITH_HALF = re.compile(rf"(?<![\w.:,/$£€])(\d{{1,2}})(?:[:.]([0-5]\d))?(?::([0-5]\d))?{_HALF}")
_CLOCK = re.compile(r"(?<![\w.:,/$£€])([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d))?(?:Z\b)?(?![\w:]|\.\d)")
_RATIO = re.compile(r"(?<![\w.:/])(\d{1,4}):(\d{1,4})(?![\w:])")
_DURATION = re.compile(r"(?<![\w.:/])([2-5]\d):([0-5]\d)(?![\w:])")
_VERSES = re.compile(r"(?<![\w.:/])(\d{1,3}):(\d{1,3})[-–](?=\d{1,3}(?![\w:]))")
_ENDS = re.compile(r"\s*$|\s*\n|\s+[\"']?[A-Z](?![A-Z]+\b)")


def _minutes(minute: int) -> str:
    return f"oh {cardinal(minute)}" if minute < 10 else cardinal(minute)


def _dash(found: re.Match[str]) -> str:
    """Say `to` between two times; one of them must show that it is one."""
    is_time = found[2] or found[4] or (":" in found[1] and ":" in found[3])
    return f"{found[1]}{found[2] or ''} to " if is_time else found.group()


def _with_half(found: re.Match[str]) -> str:
    hour = int(found[1])
    if not 0 <= hour <= 24:
        return found.group()
    minute = f" {_minutes(int(found[2]))}" if found[2] and int(found[2]) else ""
    second = f" and {cardinal(int(found[3]))} seconds" if found[3] else ""
    stop = "." if found[5] and _ENDS.match(found.string, found.end()) else ""
    return f"{cardinal(hour)}{minute}{second} {found[4].upper()} M{stop}"


def _clock(found: re.Match[str]) -> str:
    hour, minute = int(found[1]), int(found[2])
    second = f" and {cardinal(int(found[3]))} seconds" if found[3] and int(found[3]) else ""
    if minute or second:
        return f"{cardinal(hour)} {_minutes(minute)}{second}"
    if hour in (0, 24):
        return "midnight"
    return f"{cardinal(hour)} o'clock" if hour <= 12 else f"{cardinal(hour)} hundred"


def read_times(text: str) -> str:
    """Say times and ratios."""
    text = _WITH_HALF.sub(_with_half, _DASH.sub(_dash, text))
    if ":" not in text:
        return text
    text = _VERSES.sub(lambda found: " ".join(cardinal(int(part)) for part in found.groups()[:2]) + " to ", text)
    text = _CLOCK.sub(_clock, text)
    text = _DURATION.sub(lambda found: f"{cardinal(int(found[1]))} {_minutes(int(found[2]))}", text)
    return _RATIO.sub(lambda found: f"{cardinal(int(found[1]))} to {cardinal(int(found[2]))}", text)
