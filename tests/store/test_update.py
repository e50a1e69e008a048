"""`Store.update` is one batch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import opslog

_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"memory://update-{next(_numbers)}"


@pytest.mark.parametrize("argument", [{"x": {"n": 1}, "y": {"n": 2}}, [("x", {"n": 1}), ("y", {"n": 2})]], ids=type)
def test_update_is_one_batch(url: str, argument: Any) -> None:
    with opslog.open(url, agent="a") as store:
        store.update(argument, z={"n": 3})
        assert [commit.op for commit in store.ops()] == ["batch"]
        assert sorted(store) == ["x", "y", "z"]
        assert store.undo()
        assert len(store) == 0


def test_an_update_that_fails_has_set_nothing(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        with pytest.raises(opslog.InvalidDocumentError):
            store.update({"x": {"n": 1}, "y": {"n": {2}}})
        assert len(store) == 0
        with store.batch():
            store.update({"x": {}})
            store.update(other={})
        assert [commit.op for commit in store.ops()] == ["batch"]
