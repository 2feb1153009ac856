"""Logging of the server: plain lines on a terminal, else lines of JSON.

Bodies and tokens are never logged.
"""

import json
import logging
import re
import sys
from datetime import UTC, datetime
from typing import Any

_ACCESS_FIELDS = (
    "request_id",
    "method",
    "path",
    "route",
    "project",
    "queue",
    "client",
    "status",
    "milliseconds",
    "caller_request_id",
    "trace_id",
    "span_id",
)

_UNPRINTED = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069]")
"""Characters that end a line, control a terminal, or change the direction of text."""


def escaped(text: str) -> str:
    """Escape control characters as JSON does, so that one record stays one line of text."""
    return _UNPRINTED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class JsonFormatter(logging.Formatter):
    """Write a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Render time, level, logger, message, the fields of an access line, and a traceback."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in _ACCESS_FIELDS:
            if hasattr(record, name):
                line[name] = getattr(record, name)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return escaped(json.dumps(line, ensure_ascii=False))


class AccessFormatter(logging.Formatter):
    """Write a record as a plain line, followed by the fields of an access line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Render the line."""
        fields = " ".join(
            f"{name}={getattr(record, name)}" for name in _ACCESS_FIELDS if hasattr(record, name)
        )
        return escaped(f"{super().formatMessage(record)} {fields}".rstrip())

    def formatException(self, ei: Any) -> str:  # noqa: N802, ANN401 - logging's
        """Render a traceback; its line ends are kept."""
        return "\n".join(map(escaped, super().formatException(ei).split("\n")))


def configure(level: str = "info") -> None:
    """Send all logs to standard error: plain lines to a terminal, else lines of JSON.

    `level` is the lowest level that is logged. Debug lines of libraries are never logged.
    """
    handler = logging.StreamHandler(sys.stderr)
    if sys.stderr.isatty():
        handler.setFormatter(AccessFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    else:
        handler.setFormatter(JsonFormatter())
    # Leave out uvicorn's lines about a failure: our own line before them says why.
    handler.addFilter(lambda record: "startup failed" not in record.getMessage())
    handler.addFilter(lambda record: "shutdown failed" not in record.getMessage())
    ours = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(ours, logging.INFO), handlers=[handler], force=True)
    logging.getLogger("zaqar_lite").setLevel(ours)
    for noisy in ("httpx", "swiftclient", "pika", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(max(ours, logging.WARNING))
