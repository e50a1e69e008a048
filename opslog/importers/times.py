"""Foreign timestamps, in the one form that imported commits have: ``2026-11-20T12:00:00.123456Z``."""

from __future__ import annotations

from datetime import UTC, datetime


def from_seconds(seconds: int) -> str:
    """:raises ValueError: outside the years 1 to 9999."""
    try:
        return _text(datetime.fromtimestamp(seconds, UTC))
    except (OverflowError, OSError) as error:
        raise ValueError(f"{seconds} seconds since 1970 is outside the years 1 to 9999") from error


def from_text(text: str) -> str:
    """From ISO 8601 with an offset or ``Z``.

    :raises ValueError: anything else.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"the timestamp {text!r} names no time zone; end it with Z or an offset")
    try:
        return _text(moment.astimezone(UTC))
    except OverflowError as error:
        raise ValueError(f"the timestamp {text!r} is outside the years 1 to 9999 of UTC") from error


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
