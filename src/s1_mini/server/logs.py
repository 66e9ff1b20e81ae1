"""Log lines on stderr: text on a terminal, elsewhere JSON objects for log collectors."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Literal, TextIO

LogFormat = Literal["auto", "json", "text"]

# uvicorn's messages about truncated streams, refused WebSockets and malformed HTTP, which our own log lines cover
REDUNDANT = ("without completing", "connection rejected", "Invalid HTTP request")
SHOWN_AS_TEXT = ("s1_mini.server", "s1_mini.sagemaker", "s1_mini.remote")  # packages whose INFO records are shown


class JsonFormatter(logging.Formatter):
    """One JSON object per record, with `extra={"fields": {...}}` and the replica's name as fields."""

    def __init__(self, replica: str | None = None) -> None:
        super().__init__()
        self._replica = replica

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self._replica is not None:
            line["replica"] = self._replica
        line |= getattr(record, "fields", {})
        if traceback := _traceback(record):
            line["traceback"] = traceback
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A readable line: time of day, replica, message and fields, with a traceback below it."""

    def __init__(self, replica: str | None = None) -> None:
        super().__init__()
        self._who = "" if replica is None else f"replica {replica}: "

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = getattr(record, "fields", {})
        if fields.get("event") == "start_failed" and not self._who:  # the format in which other commands print errors
            lines = f"s1-mini: {fields['reason']}".splitlines()
        else:
            lines = [f"{moment} {level}{self._who}{_sentence(record.getMessage(), fields)}"]
        lines += _traceback(record).splitlines()
        return "\n".join(_printable(line) for line in lines)


def set_up_logging(log_format: LogFormat = "auto", stream: TextIO | None = None, replica: str | None = None) -> None:
    """Send all log lines to `stream` (default: stderr). Called once by the program, never by the library."""
    is_text = sys.stderr.isatty() if log_format == "auto" else log_format == "text"
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(TextFormatter(replica) if is_text else JsonFormatter(replica))
    handler.addFilter(_is_relevant)
    if is_text:
        handler.addFilter(_is_shown_as_text)
    logging.basicConfig(level="INFO", handlers=[handler], force=True)


def _traceback(record: logging.LogRecord) -> str:
    """Return the traceback of a record, which a record from another process has as text."""
    return logging.Formatter().formatException(record.exc_info) if record.exc_info else record.exc_text or ""


def _sentence(message: str, fields: dict[str, Any]) -> str:
    if message == "request":
        parts = [f"{fields['method']} {fields['route']} {fields['status']} in {fields['total_ms'] / 1000:.2f} s"]
        parts += [f"{fields['audio_s']:.1f} s of audio"] if fields.get("audio_s") else []
        parts += [fields["code"]] if "code" in fields else []
        parts += [f"trace {fields['trace_id']}"] if "trace_id" in fields else []
        return ", ".join(parts)
    match fields.get("event"):
        case "loading":
            return f"loading {fields['checkpoint']} ..."
        case "ready" if "url" not in fields:  # a replica: all replicas have the same address
            return f"ready on {fields['device']} after {fields['seconds']:.1f} s"
        case "ready":
            place = f"{fields['url']} (web page; API reference at {fields['url']}docs)"
            return f"ready at {place} on {fields['device']} after {fields['seconds']:.1f} s. Press Ctrl+C to stop."
        case "draining":
            return f"stopping; requests to finish first: {fields['requests']}"
    values = ", ".join(f"{name}={value}" for name, value in fields.items() if name != "event")
    return f"{message} ({values})" if values else message


def _printable(line: str) -> str:
    """Escape control characters, because paths and names come from clients and could control a terminal."""
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in line)


def _is_relevant(record: logging.LogRecord) -> bool:
    is_step = record.name.startswith(("uvicorn", "httpx2")) and record.levelno <= logging.INFO
    return not is_step and not any(words in record.getMessage() for words in REDUNDANT)


def _is_shown_as_text(record: logging.LogRecord) -> bool:
    """Return False for INFO records of modules outside `SHOWN_AS_TEXT`, because `/health` has their information."""
    is_below = record.name.startswith("s1_mini.") and not record.name.startswith(SHOWN_AS_TEXT)
    is_listening = getattr(record, "fields", {}).get("event") == "listening"
    return record.levelno > logging.INFO or not (is_below or is_listening)
