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

ROOMS = ("s1_mini.server", "s1_mini.sagemaker", "s1_mini.remote")  # whose steps a person is told of


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON; `extra={"fields": {...}}` becomes its fields. Names the replica, if it is one."""

    def __init__(self, replica: str | None = None) -> None:
        super().__init__()
        self._replica = replica

    def format(self, record: logging.LogRecord) -> str:
        """Give the line."""
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
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """A record as a person reads it: the time of day, the replica, what happened, and a traceback below it."""

    def __init__(self, replica: str | None = None) -> None:
        super().__init__()
        self._who = "" if replica is None else f"replica {replica}: "

    def format(self, record: logging.LogRecord) -> str:
        """Give the line, or several with a traceback."""
        level = "" if record.levelno == logging.INFO else f"{record.levelname.lower()}: "
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        fields = getattr(record, "fields", {})
        if fields.get("event") == "start_failed" and not self._who:  # as any other verb fails
            lines = f"s1-mini: {fields['reason']}".splitlines()
        else:
            lines = [f"{moment} {level}{self._who}{_sentence(record.getMessage(), fields)}"]
        lines += self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return "\n".join(_printable(line) for line in lines)


def set_up_logging(log_format: LogFormat = "auto", stream: TextIO | None = None, replica: str | None = None) -> None:
    """Send all log lines to `stream`, or stderr, with the name of the replica that writes them.

    Called once, by the program and never by the library.
    """
    is_text = sys.stderr.isatty() if log_format == "auto" else log_format == "text"
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(TextFormatter(replica) if is_text else JsonFormatter(replica))
    handler.addFilter(_is_news)
    if is_text:
        handler.addFilter(_is_for_a_person)
    logging.basicConfig(level="INFO", handlers=[handler], force=True)


def _sentence(message: str, fields: dict[str, Any]) -> str:
    if message == "request":
        told = [f"{fields['method']} {fields['route']} {fields['status']} in {fields['total_ms'] / 1000:.2f} s"]
        told += [f"{fields['audio_s']:.1f} s of sound"] if fields.get("audio_s") else []
        told += [fields["code"]] if "code" in fields else []
        return ", ".join(told)
    match fields.get("event"):
        case "loading":
            return f"loading {fields['checkpoint']} ..."
        case "ready" if "url" not in fields:  # a replica: the address is that of all
            return f"ready on {fields['device']} after {fields['seconds']:.1f} s"
        case "ready":
            place = f"{fields['url']}, a page to speak from; the API: {fields['url']}docs"
            return f"ready at {place}. On {fields['device']}, after {fields['seconds']:.1f} s. Ctrl+C stops it."
        case "draining":
            return f"stopping; requests to finish first: {fields['requests']}"
    told = [f"{name}={value}" for name, value in fields.items() if name != "event"]
    return f"{message} ({', '.join(told)})" if told else message


def _printable(line: str) -> str:
    """Write what would steer a terminal as an escape: paths and names are what clients make them."""
    return "".join(it if it.isprintable() else it.encode("unicode_escape").decode() for it in line)


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out uvicorn's own steps, and what our own line of the same request, or connection, tells better."""
    if record.name.startswith("uvicorn") and record.levelno <= logging.INFO:
        return False
    said = record.getMessage()
    return not any(words in said for words in TOLD_BETTER)


def _is_for_a_person(record: logging.LogRecord) -> bool:
    """Leave out the steps of what lies below the server: `/health` tells what was chosen."""
    is_step = record.name.startswith("s1_mini.") and not record.name.startswith(ROOMS)
    fields = getattr(record, "fields", {})
    return record.levelno > logging.INFO or not (is_step or fields.get("event") == "listening")
