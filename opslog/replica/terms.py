"""Arguments of conditional writes: the condition, and the number of attempts; and the check of a predicate.

They have a module of their own because only programs that write conditionally load `opslog.replica.transaction` and
`opslog.replica.deciding`.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from opslog.errors import UsageError
from opslog.format.commits import Stamp


class Never(Enum):
    """Stands for a condition that was not given."""

    GIVEN = "given"


NO_CONDITION: Final = Never.GIVEN

# The stamp that a document must have, or its text; None: there must be no document.
Condition = Stamp | tuple[int, str] | str | None

# How often a function is called, unless the caller says otherwise. After each failed attempt, another writer has
# succeeded.
ATTEMPTS = 100


def check_attempts(attempts: int) -> int:
    """:raises UsageError: the number is below 1."""
    if attempts < 1:
        raise UsageError(f"a transaction takes one attempt at least, not {attempts!r}")
    return attempts


def check_predicate(predicate: object) -> None:
    """:raises UsageError: it is no function; `find` takes conditions."""
    if not callable(predicate):
        raise UsageError(
            f"filter takes a function of a document, not {predicate!r:.60}; find takes conditions, as in "
            "find('status = \"active\"')"
        )
