"""Errors in a query, with their place: a caret below the text, or the path in the mapping. Pure."""

from __future__ import annotations

import unicodedata

from opslog.errors import QueryError

# How much of a long text is shown on each side of the fault.
_SHOWN = 50


class Fault(Exception):
    """An error found while a part of a query is parsed. The caller that knows the whole text or mapping makes a
    `QueryError` of it.

    :ivar at: its offset in the text, in characters.
    """

    def __init__(self, reason: str, at: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at

    def in_text(self, text: str, place: str = "") -> QueryError:
        """The `QueryError` for a fault in a text.

        :param place: the path to the text, if it is in a mapping.
        """
        shown, before = _excerpt(text, self.at)
        reason = f"{place}: {self.reason}" if place else self.reason
        return QueryError(f"{reason}\n  {shown}\n  {' ' * _columns(before)}^", self.at, place)

    def in_values(self, place: str) -> QueryError:
        """The `QueryError` for a fault at this place in a mapping."""
        return QueryError(f"{place}: {self.reason}", None, place)


def _excerpt(text: str, at: int) -> tuple[str, str]:
    """The text around an offset, on one line; and the part of it before the offset."""
    shown = "".join(" " if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp", "Cs") else sign for sign in text)
    first, last = max(0, at - _SHOWN), at + _SHOWN
    begin = "…" if first else ""
    return begin + shown[first:last] + ("…" if last < len(shown) else ""), begin + shown[first:at]


def _columns(text: str) -> int:
    """The width of a text in a monospaced font, in columns."""
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )
