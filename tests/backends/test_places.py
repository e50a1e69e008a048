"""Whether two URLs name one place."""

from __future__ import annotations

import pytest

from opslog.backends.places import overlap


@pytest.mark.parametrize(
    ("one", "other", "are_one"),
    [
        ("s3://bucket/x", "s3://bucket/x/", True),
        ("s3://bucket/x?driver=s3fs", "s3://bucket/x/y", True),
        ("s3://bucket", "s3://bucket/y", True),
        ("s3://bucket/x", "s3://bucket/xy", False),
        ("s3://bucket/x", "/bucket/x", False),
        ("memory://a", "memory://a", True),
        ("/tmp/store", "/tmp/store-2", False),
    ],
)
def test_which_places_are_one(one: str, other: str, are_one: bool) -> None:
    assert overlap(one, other) is overlap(other, one) is are_one
