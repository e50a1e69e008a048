"""Appends to a log with many writers on an object storage, when a response is lost or somebody else was first."""

from __future__ import annotations

import pytest

from opslog.backends import Position
from opslog.backends.objects.backend import ObjectBackend
from opslog.backends.testing_turns import line
from opslog.environment import Environment
from opslog.errors import CommitUnknownError, WriteFailedError
from tests.backends.test_shared_log import FIRST, START, log
from tests.support.bucket import Bucket, Fault, Request


def no_sleep() -> Environment:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return Environment(monotonic=lambda: now[0], sleep=sleep)


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def objects(bucket: Bucket) -> ObjectBackend:
    backend = ObjectBackend(bucket, "bucket://shared", "", environment=no_sleep())
    backend.create("probed", b"")
    bucket.asked.clear()
    return backend


def asked(bucket: Bucket) -> list[tuple[str, str]]:
    return [(request.method, request.key) for request in bucket.asked]


def test_an_append_is_one_request_and_a_lost_race_two(bucket: Bucket, objects: ObjectBackend) -> None:
    assert objects.append_at("shared", START, line(1)) == START
    assert asked(bucket) == [("put_new", FIRST)]
    assert objects.append_at("shared", START, line(2)) is None
    assert asked(bucket)[1:] == [("put_new", FIRST), ("get", FIRST)]


@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_is_resolved_by_the_same_request(bucket: Bucket, objects: ObjectBackend, done: bool) -> None:
    faults = iter([Fault("unknown", done), Fault("unknown", done)])
    with bucket.failing(lambda request: next(faults, None) if request.method == "put_new" else None):
        assert objects.append_at("shared", START, line(1)) == START
    assert log(objects) == line(1)
    assert {method for method, _ in asked(bucket)} <= {"put_new", "get", "list"}
    assert {key for method, key in asked(bucket) if method == "put_new"} == {FIRST}


def test_after_a_lost_answer_the_bytes_that_are_there_decide(bucket: Bucket, objects: ObjectBackend) -> None:
    def fault(request: Request) -> Fault | None:
        if request.method == "put_new" and FIRST not in bucket.objects:
            bucket.objects[FIRST] = (line("other"), 0.0)
            return Fault("unknown")
        return None

    with bucket.failing(fault):
        assert objects.append_at("shared", START, line(1)) is None
    assert log(objects) == line("other")


@pytest.mark.parametrize("done", [True, False])
def test_an_append_that_is_never_answered_is_unknown(bucket: Bucket, objects: ObjectBackend, done: bool) -> None:
    """Also if the number is still free, because the request may still arrive."""
    with (
        bucket.failing(lambda request: Fault("unknown", done)),
        pytest.raises(CommitUnknownError, match=r"00001\.jsonl may or may not"),
    ):
        objects.append_at("shared", START, line(1))


def test_a_refused_append_is_not_in_the_log(bucket: Bucket, objects: ObjectBackend) -> None:
    with bucket.failing(lambda request: Fault("refused")), pytest.raises(WriteFailedError):
        objects.append_at("shared", START, line(1))
    assert list(bucket.objects) == ["probed"]
    answers = iter([Fault("unknown"), Fault("refused")])
    with (
        bucket.failing(lambda request: next(answers, None) if request.method == "put_new" else None),
        pytest.raises(CommitUnknownError, match="a first try had no answer"),
    ):
        objects.append_at("shared", START, line(1))


def test_an_end_within_a_segment_is_not_the_end_of_a_log(bucket: Bucket, objects: ObjectBackend) -> None:
    assert objects.append_at("shared", Position(1, 5), line(1)) is None
    assert asked(bucket) == []
