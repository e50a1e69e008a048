"""Logs of a running server: lines for people, or one JSON object per line for programs."""

from __future__ import annotations

import logging
import sys

import orjson

from opslog.doors.access import named
from opslog.environment import format_ts

_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


class JsonLines(logging.Formatter):
    """``{"ts":…,"level":…,"logger":…,"message":…}``, the fields in `extra` of the call, and the traceback, if there is
    one."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "ts": format_ts(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields.update((name, value) for name, value in vars(record).items() if name not in _USUAL)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(fields, default=str).decode()


class Lines(logging.Formatter):
    """The message, and `extra` as name=value. A value with spaces or unprintable characters is in quotes."""

    def format(self, record: logging.LogRecord) -> str:
        extra = "".join(f" {name}={_plain(value)}" for name, value in vars(record).items() if name not in _USUAL)
        text = f"{format_ts(record.created)} {record.levelname.lower()} {record.getMessage()}{extra}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _plain(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and " " not in text else repr(text)


def configure(level: str, *, json: bool) -> None:
    """Send the logs of opslog to stderr. Each line has the id of its request.

    uvicorn and the SDK of MCP log only warnings and errors, whatever the level, because below that they log what
    clients send.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json else Lines())
    handler.addFilter(named)
    for name in ("opslog", "uvicorn", "mcp"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.propagate = False
    logging.getLogger("opslog").setLevel(level.upper())
    for name in ("uvicorn", "mcp"):
        logging.getLogger(name).setLevel("ERROR" if level == "error" else "WARNING")
