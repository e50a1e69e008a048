"""The checker of transactions finds every violation."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.transactions_checker import ACCOUNTS, Attempt, History, check

Document = dict[str, Any]
INFINITE = float("inf")


def line(clock: int, token: str, id: str, **fields: object) -> Document:
    author = token.partition(":")[0]
    data = {"token": token, **fields}
    return {"agent": "transactions", "by": author, "clock": clock, "op": "set", "id": id, "data": data}


FREE = line(1000, "f:0", "task-0", owner=None)
CLAIMED = line(2000, "a:0", "task-0", owner="a:0", was="f:0")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([FREE, line(3000, "b:0", "task-0", owner="b:0", was="f:0"), CLAIMED], "goes back"),
        ([FREE, CLAIMED, line(3000, "a:0", "task-0", owner="a:0", was="f:0")], "applied twice"),
        ([FREE, CLAIMED, line(3000, "b:0", "task-0", owner="b:0", was="f:0")], "where a:0 is"),
        ([FREE, CLAIMED, line(3000, "b:0", "task-0", owner="b:0", was="a:0")], "claimed twice"),
        ([FREE, line(2000, "a:0", "task-0", owner="a:0", was="f:0", balance=-1)], "overdrawn"),
        (
            [line(1000 * n + 1000, f"f:{n}", f"account-{n}", balance=99) for n in range(ACCOUNTS)],
            "all accounts have 495",
        ),
    ],
)
def test_logs_that_are_no_serial_history(lines: list[Document], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        History(lines)


def attempt(token: str, start: float, end: float, outcome: str) -> Attempt:
    return Attempt(token, "claim", 0, start, end, outcome)


@pytest.mark.parametrize(
    ("tried", "message"),
    [
        ([attempt("a:0", 1, 2, "done"), attempt("b:0", 1, 2, "done")], "is lost"),
        ([attempt("a:0", 1, 2, "refused")], "is in the log"),
        ([attempt("a:0", 3, 4, "done"), attempt("b:0", 1, 2, "refused")], "began after it"),
    ],
)
def test_outcomes_that_the_log_does_not_say(tried: list[Attempt], message: str) -> None:
    check(History([FREE, CLAIMED]), [attempt("a:0", 1, INFINITE, "unknown")])
    with pytest.raises(AssertionError, match=message):
        check(History([FREE, CLAIMED]), tried)


def test_an_order_that_is_not_that_of_real_time() -> None:
    lines = [FREE, line(2000, "a:0", "x"), line(3000, "b:0", "y")]
    with pytest.raises(AssertionError, match="was over before"):
        check(
            History(lines),
            [Attempt("a:0", "plain", 0, 3, 4, "done"), Attempt("b:0", "plain", 0, 1, 2, "done")],
        )
