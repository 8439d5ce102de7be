"""Structured logs on standard error: one line a record, text on a terminal, JSON otherwise."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

# What every record has; anything else was passed as `extra` and is part of the message.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def set_up(level: str) -> None:
    """Sends the records of this process to standard error.

    Args:
        level: "debug", "info", "warning" or "error".
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if sys.stderr.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("mindeval").setLevel(level.upper())


def _extras(record: logging.LogRecord) -> dict[str, Any]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD and not key.startswith("_")}


class JsonFormatter(logging.Formatter):
    """One JSON object a record: time (seconds since 1970), level, logger, message, the extras, the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        fields: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class TextFormatter(logging.Formatter):
    """For people: time, level, message, then the extras as key=value."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a traceback follows on lines of its own."""
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        extras = "".join(f" {key}={value}" for key, value in _extras(record).items())
        message = record.getMessage().replace("\n", "\\n")
        line = f"{clock} {record.levelname[0]} {message}{extras}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line
