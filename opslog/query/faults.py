"""What is wrong with a question, and where: with a caret below the text, or with the path in the mapping. Pure."""

from __future__ import annotations

import unicodedata

from opslog.errors import QueryError

# How much of a long text is shown on each side of the fault.
_SHOWN = 50


class Fault(Exception):
    """Found while a question is read; becomes a `QueryError` where the whole of it is known.

    :ivar at: where in a text, counted in characters.
    """

    def __init__(self, reason: str, at: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at

    def in_text(self, text: str, place: str = "") -> QueryError:
        """The error about this place in a text.

        :param place: where in a mapping the text is.
        """
        shown, before = _excerpt(text, self.at)
        reason = f"{place}: {self.reason}" if place else self.reason
        return QueryError(f"{reason}\n  {shown}\n  {' ' * _columns(before)}^", self.at, place)

    def in_values(self, place: str) -> QueryError:
        """The error about this place in a mapping."""
        return QueryError(f"{place}: {self.reason}", None, place)


def _excerpt(text: str, at: int) -> tuple[str, str]:
    """The text around a place on one line, and what of it is before that place."""
    shown = "".join(" " if unicodedata.category(sign) in ("Cc", "Cf", "Zl", "Zp", "Cs") else sign for sign in text)
    first, last = max(0, at - _SHOWN), at + _SHOWN
    begin = "…" if first else ""
    return begin + shown[first:last] + ("…" if last < len(shown) else ""), begin + shown[first:at]


def _columns(text: str) -> int:
    """How wide a text is in a font of one width."""
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )
