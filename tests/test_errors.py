"""Errors: the tree is as drawn, and errors can be sent between processes."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest

from opslog import errors

CLASSES = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, errors.OpslogError)
]


def test_the_tree_is_as_it_is_drawn() -> None:
    text = errors.__doc__ or ""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for line in text.splitlines():
        match = re.match(r"([│├└─ ]*)(\w+Error)\b(?: \((\w+)\))?", line)
        if match:
            depth = len(match[1]) // 4
            path = [*path[:depth], match[2]]
            drawn[match[2]] = path[-2] if depth else "Exception"
            if match[3]:
                builtin = {"ValueError": ValueError, "KeyError": KeyError}[match[3]]
                assert issubclass(getattr(errors, match[2]), builtin)
    assert drawn == {one.__name__: one.__bases__[0].__name__ for one in CLASSES}


ATTRIBUTES: dict[type[errors.OpslogError], dict[str, Any]] = {
    errors.InvalidDocumentError: {"place": "$.a[1]"},
    errors.QueryError: {"offset": 3, "place": "where['a']"},
    errors.MissingStoreError: {"url": "/data/tasks"},
    errors.MissingFileError: {"path": "ops/a/1"},
    errors.AgentBusyError: {"agent": "a", "holder": "pid 1"},
    errors.LockedError: {"lock": "compaction", "holder": "pid 1"},
    errors.AgentFencedError: {"path": "ops/a/1"},
    errors.AlreadyExistsError: {"path": "manifests/1"},
    errors.ConflictError: {"id": "x", "record": None},
    errors.ExistsError: {"id": "x", "record": None},
    errors.LeaseLostError: {"id": "lease/x", "record": None},
    errors.WriteFailedError: {"durable": 7},
    errors.SealedError: {"durable": 0},
    errors.CorruptError: {"path": "ops/a/1", "offset": 42},
    errors.FormatVersionError: {"needed": 2},
    errors.SchemaVersionError: {"id": "x", "version": 3},
    errors.SchemaMismatchError: {"id": "x", "version": 1},
    errors.HistoryGoneError: {"oldest": 12},
}


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_pickling_keeps_attributes(kind: type[errors.OpslogError]) -> None:
    attributes = ATTRIBUTES.get(kind, {})
    error = kind("what happened, and 'what' to do", **attributes)
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is kind
    assert str(arrived) == str(error) == "what happened, and 'what' to do"
    assert vars(arrived) == vars(error) == attributes
    assert str(BaseException.__new__(kind)) == kind.__name__


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_they_keep_their_attributes_under_another_message(kind: type[errors.OpslogError]) -> None:
    attributes = ATTRIBUTES.get(kind, {})
    reworded = kind("disk full", **attributes).reworded("commit 7: disk full")
    assert type(reworded) is kind
    assert str(reworded) == "commit 7: disk full"
    assert vars(reworded) == attributes
