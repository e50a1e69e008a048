"""What callers say of a write that takes effect only in a certain case: on which condition, and how often it is tried;
and the check of a function that chooses documents.

Apart from `opslog.replica.transaction` and `opslog.replica.deciding`, which only those load who write so.
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

# How often a function is called, unless the caller says otherwise. Each time somebody else has got on.
ATTEMPTS = 100


def check_attempts(attempts: int) -> int:
    """:raises UsageError: no function can be called so often."""
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
