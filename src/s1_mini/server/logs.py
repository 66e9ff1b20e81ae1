"""Log lines on stderr: for a person on a terminal, elsewhere JSON objects, which a log collector reads untaught."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal, TextIO

LogFormat = Literal["auto", "json", "text"]


# What uvicorn says of a stream that was broken off, of a WebSocket that was refused, and of what is no HTTP.
TOLD_BETTER = ("without completing", "connection rejected", "Invalid HTTP request")


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; `extra={"fields": {...}}` becomes its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A record as a person reads it: the time of day, what happened, and a traceback below it."""

    def format(self, record: logging.LogRecord) -> str:
        """Give the line, or several with a traceback."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        lines = [f"{moment} {level}{_sentence(record.getMessage(), getattr(record, 'fields', {}))}"]
        lines += self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return "\n".join(_printable(line) for line in lines)


def set_up_logging(log_format: LogFormat = "auto", level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send all log lines to `stream`, or stderr; called once, by the program and never by the library."""
    is_text = sys.stderr.isatty() if log_format == "auto" else log_format == "text"
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(TextFormatter() if is_text else JsonFormatter())
    handler.addFilter(_is_news)
    if is_text:
        handler.addFilter(_is_ours)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _sentence(message: str, fields: dict[str, Any]) -> str:
    if message == "request":
        told = [f"{fields['method']} {fields['route']} {fields['status']} in {fields['total_ms'] / 1000:.2f} s"]
        told += [f"{fields['audio_s']:.1f} s of sound"] if fields.get("audio_s") else []
        told += [fields["code"]] if "code" in fields else []
        return ", ".join(told)
    if message == "listening":
        return (
            f"s1-mini serves at {fields['url']}, a page to speak from; the API: {fields['url']}docs. Ctrl+C stops it."
        )
    told = [f"{name}={value}" for name, value in fields.items() if name != "event"]
    return f"{message} ({', '.join(told)})" if told else message


def _printable(line: str) -> str:
    """Write what would steer a terminal as an escape: paths and names are what clients make them."""
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in line)


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what our own line of the same request, or connection, tells better."""
    said = record.getMessage()
    return not any(words in said for words in TOLD_BETTER)


def _is_ours(record: logging.LogRecord) -> bool:
    """Leave out uvicorn's own steps, which are no news to a person."""
    return record.levelno > logging.INFO or not record.name.startswith("uvicorn")
