"""`opslog verify` on stores with transactions: the rules of the shared log, and authors in logs and snapshots."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.format.commits import decode_commits
from opslog.format.layout import segment_path
from opslog.testing import invariants
from tests.test_verify import bytes_of, check, found


def shared(clock: int, by: str = "b", tx: str | None = None, **fields: Any) -> bytes:
    author = {"by": by, "tx": f"nonce{clock}" if tx is None else tx}
    fields = {"op": "set", "id": f"id-{clock}", "data": {}} | fields if "op" not in fields else fields
    line = {"ts": "2026-11-24T12:00:00.000000Z", "clock": clock, "agent": "transactions", **author, **fields}
    return json.dumps(line).encode()


def plain(clock: int, **fields: Any) -> bytes:
    """As opslog 0.1 wrote it under that name, or a seal."""
    line = {"ts": "2026-11-24T12:00:00.000000Z", "clock": clock, "agent": "transactions", "op": "seal", **fields}
    return json.dumps(line).encode()


@pytest.mark.parametrize(
    ("lines", "wrong"),
    [
        ([shared(1000), shared(2000, by="c"), shared(4500)], None),
        ([shared(1000), shared(2000, op="undo", target=1000)], None),
        ([shared(1000), plain(1001), shared(2001)], None),
        ([plain(1, op="set", id="x", data={}), plain(2, op="undo", target=1), shared(1002)], None),
        ([shared(1000), shared(1999)], "at least 1000 above"),
        ([shared(1000), plain(1001), shared(2000)], "at least 1000 above"),
        ([shared(1000), shared(2000, ts="2026-11-24T11:59:59.999999Z")], "it never goes back"),
        ([shared(1000), plain(1001, ts="2026-11-24T11:00:00.000000Z"), shared(2001)], None),
        ([shared(1000, tx="n"), shared(2000, tx="n")], "that of an earlier transaction"),
        ([shared(1000, by="../b")], "by: "),
        ([shared(1000, by="transactions")], "no agent is called"),
        ([shared(1000, tx="")], "a transaction has both"),
        ([shared(1000, by="")], "a transaction has both"),
        ([shared(1000), plain(2000, op="set", id="x", data={})], "no author"),
        ([shared(1000), shared(2000, by="c", op="undo", target=1000)], "by 'b', and the undo by 'c'"),
    ],
)
def test_each_transaction_keeps_the_rules_of_the_shared_log(
    tmp_path: Path, lines: list[bytes], wrong: str | None
) -> None:
    with opslog.open(tmp_path, agent="b", settings=opslog.Settings(undo_window=4)) as store:
        store["b"] = {}
    path = segment_path("transactions", 1)
    (tmp_path / path).parent.mkdir()
    (tmp_path / path).write_bytes(b"".join(line + b"\n" for line in lines))
    report = check(tmp_path)
    decoded = decode_commits(b"".join(line + b"\n" for line in lines), path, 0)
    if wrong is None:
        assert report.ok, list(map(str, report.problems))
        invariants.transactions_keep_their_order(decoded)
    else:
        (error,) = found(report, path)
        assert wrong in error.message
        assert error.offset == sum(len(line) + 1 for line in lines[:-1])
        in_order, undo = invariants.transactions_keep_their_order, partial(invariants.undo_is_exact, window=4)
        with pytest.raises(invariants.ViolationError):
            (undo if "undo" in wrong else in_order)(decoded)
    before = bytes_of(tmp_path)
    check(tmp_path, repair=True)
    assert bytes_of(tmp_path) == before, "a log is never repaired"


def test_only_transactions_have_an_author(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="b") as store:
        for number in range(4):
            store[f"{number}"] = {}
    path = segment_path("b", 1)
    lines = (tmp_path / path).read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"agent":"b"', b'"agent":"b","by":"a","tx":"n"')
    (tmp_path / path).write_bytes(b"".join(lines))
    (error,) = found(check(tmp_path), path)
    assert error.offset == sum(map(len, lines[:3]))
    assert "only transactions" in error.message
    invariants.transactions_keep_their_order(decode_commits(b"".join(lines[:3]), path, 0))
    with pytest.raises(invariants.ViolationError, match="only transactions"):
        invariants.transactions_keep_their_order(decode_commits(b"".join(lines), path, 0))


def test_a_store_with_transactions_verifies_at_every_compaction(tmp_path: Path) -> None:
    settings = opslog.Settings(undo_window=2)
    with opslog.open(tmp_path, agent="a", settings=settings) as a, opslog.open(tmp_path, agent="c") as c:
        for number in range(6):
            a.create(f"a{number}", {"number": number})
            c.refresh()
            c[f"a{number}"] = {"by": "c"}
            if number % 2:
                c.delete(f"a{number}")
            if number == 3:
                assert c.undo()
            a.compact(full=number == 5)
            assert check(tmp_path).problems == []
        assert a.record("a4") is not None
        path = next(path for path in bytes_of(tmp_path) if path.startswith("snapshots/") and path.endswith("jsonl"))
    data = (tmp_path / path).read_bytes()
    assert b'"by":"c","tx":"' in data, "records in snapshots keep them"
    (tmp_path / path).write_bytes(data.replace(b'"by":"c"', b'"by":"-"', 1))
    assert any("by: " in error.message for error in found(check(tmp_path), path))
