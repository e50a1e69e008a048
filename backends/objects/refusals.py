"""Errors of an object storage that retrying does not change. Each says what is missing, and what to do."""

from __future__ import annotations

from opslog.errors import UsageError

NO_CREDENTIALS = "no AWS credentials were found"

# The error codes for a bucket that does not exist: S3, Azure, Google.
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "specified bucket does not exist")


def no_credentials(url: str, reason: str) -> UsageError:
    """The error for a request that could not be sent for want of credentials."""
    return UsageError(
        f"{url}: {reason}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a profile of ~/.aws (AWS_PROFILE, "
        "or profile=), or give key= and secret=; for a public bucket, anon=True"
    )


def no_bucket(url: str, answer: str) -> UsageError | None:
    """The error to raise if this response says that the bucket does not exist; None if it says something else."""
    if any(words in answer for words in _NO_BUCKET):
        return UsageError(f"{url}: there is no such bucket: create it, or check its name and the endpoint")
    return None
