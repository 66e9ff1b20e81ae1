"""Log lines as JSON objects, one a line, on stderr: what a log collector reads without being taught."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any


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


def set_up_logging(level: str = "INFO") -> None:
    """Send all log lines to stderr as JSON; called once, by the program and never by the library."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(_is_news)
    logging.basicConfig(level=level, handlers=[handler], force=True)


def _is_news(record: logging.LogRecord) -> bool:
    """Leave out what our own line of the same request tells better: uvicorn sees a stream that was broken off."""
    return "without completing response" not in record.getMessage()
