"""Locks on an object storage: leases whose content nobody can read."""

from __future__ import annotations

import pytest

from opslog.backends.objects.backend import ObjectBackend
from opslog.errors import LockedError
from tests.support.bucket import Bucket

LEASE = "locks/compaction.lease"


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b'{"holder":1,"nonce":"2"}', b'{"holder":"\xff","nonce":"2"}', b'{"x":' + b"[" * 100_000],
    ids=["empty", "cut off", "of another type", "with a field of another type", "not UTF-8", "deep"],
)
def test_a_lease_with_any_content_lasts_for_its_time_and_no_longer(content: bytes) -> None:
    bucket = Bucket()
    backend = ObjectBackend(bucket, "bucket://leases", "")
    bucket.objects[LEASE] = content, bucket.now()
    with (
        pytest.raises(LockedError, match="is held by an unknown process: try again when it is done, or"),
        backend.lock("compaction"),
    ):
        pass
    bucket.objects[LEASE] = content, bucket.now() - 61
    with backend.lock("compaction"):
        assert bucket.objects[LEASE][0] != content
    assert LEASE not in bucket.objects
