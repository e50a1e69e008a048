"""Valid agent names for foreign writers: every writer gets one, and no two writers share one.

Names are given in order of first appearance, so importing a longer history later gives the same writers the same names.
Two names that differ only in case count as the same, because stores are copied to case-insensitive file systems.
"""

from __future__ import annotations

import re
import unicodedata
from itertools import count

from opslog.errors import InvalidNameError
from opslog.format.layout import TRANSACTIONS, check_name

_LONGEST = 128


class AgentNames:
    """The names given so far in one import."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken = {TRANSACTIONS}  # no agent may have this name

    def name(self, identity: str, *wishes: str) -> str:
        """The agent name of the writer with this `identity`.

        :param wishes: texts to derive the name from, best first; a valid name is taken unchanged.
        """
        if identity not in self._names:
            self._names[identity] = self._free(next(filter(None, map(_clean, wishes)), "unnamed"))
        return self._names[identity]

    def _free(self, wish: str) -> str:
        for number in count(1):
            suffix = f"-{number}" if number > 1 else ""
            name = wish[: _LONGEST - len(suffix)] + suffix
            if name.lower() not in self._taken:
                self._taken.add(name.lower())
                return name
        raise AssertionError("count() never ends")


def _clean(text: str) -> str:
    """The nearest valid name, or nothing: accents are dropped, and any other invalid character becomes a hyphen."""
    try:
        return check_name(text, "agent")
    except InvalidNameError:
        ascii_text = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
        return re.sub(r"[^A-Za-z0-9._-]+", "-", ascii_text).lstrip("._-").rstrip("-")
