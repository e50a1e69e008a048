"""S3 through s3fs, which takes every possible setting.

Three settings are fixed here: no listing cache (it hides what others write); no instance cache (instances are shared
between threads and do not survive a fork); and no retries by s3fs beyond botocore's connection handling, because only
the caller of a conditional put knows what a retry means (`opslog.backends.objects.backend`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import fsspec.asyn
import s3fs
from aiobotocore.session import AioSession
from aiohttp import ClientError as ConnectionFailure
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.handlers import add_expect_header

from opslog.backends import forking
from opslog.backends.contract import Range
from opslog.backends.objects.backend import CONNECT_TIMEOUT, READ_TIMEOUT, Object, Put
from opslog.backends.objects.executor import Executor
from opslog.backends.objects.refusals import no_bucket, no_credentials
from opslog.errors import MissingFileError, OpslogError, RetryError, UsageError, WriteFailedError

T = TypeVar("T")

# The errors that botocore raises before it sends anything.
_NO_CREDENTIALS = (NoCredentialsError, PartialCredentialsError, ProfileNotFound)

# The most requests under way at once.
_AT_ONCE = 64
# The most keys in one request.
_DELETE_AT_ONCE = 1000

_DEFAULTS: dict[str, Any] = {
    "config_kwargs": {
        "max_pool_connections": _AT_ONCE,
        "connect_timeout": CONNECT_TIMEOUT,
        "read_timeout": READ_TIMEOUT,
        "retries": {"mode": "standard", "total_max_attempts": 1},
    }
}

_EXISTS, _BUSY, _UNKNOWN_TO_IT = 412, (409, 429), 501


class S3fsDriver:
    """`opslog.backends.objects.backend.Driver` through s3fs."""

    def __init__(self, bucket: str, options: dict[str, Any]) -> None:
        self._requests = 0
        self._bucket = bucket
        self._mutex = threading.Lock()
        config = {**_DEFAULTS["config_kwargs"], **options.get("config_kwargs", {})}
        profile = options.get("profile")
        variables = frozenset((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
        self._fs = s3fs.S3FileSystem(
            **{
                "session": _session(profile, variables, forking.generation),
                **{name: value for name, value in options.items() if name != "profile"},
                "config_kwargs": config,
                "use_listings_cache": False,
                "skip_instance_cache": True,
            }
        )
        self._fs.retries = 1
        _set_executor(self._fs.loop)

    @property
    def requests(self) -> int:
        return self._requests

    def put_new(self, key: str, data: bytes) -> Put:
        try:
            self._run(self._call("put_object", Key=key, Body=data, IfNoneMatch="*"))
        except Exception as error:
            status = _status(error)
            if status == _EXISTS:
                return Put.EXISTS
            if status is None or status in _BUSY or (status >= 500 and status != _UNKNOWN_TO_IT):
                if status is None and not _is_connection_failure(error):
                    raise
                return Put.UNKNOWN
            raise WriteFailedError(f"s3://{self._bucket}/{key} could not be written: {error}") from error
        return Put.CREATED

    def put(self, key: str, data: bytes) -> None:
        self._write(self._call("put_object", Key=key, Body=data), key)

    def get(self, key: str, start: int, stop: int | None) -> bytes:
        data = self._read(self._get(key, start, stop), key)
        if data is None:
            raise MissingFileError(f"no object s3://{self._bucket}/{key}", key)
        return data

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        async def get_all() -> list[bytes | None]:
            slots = asyncio.Semaphore(_AT_ONCE)

            async def get_one(part: Range) -> bytes | None:
                async with slots:
                    return await self._get(*part)

            return await asyncio.gather(*map(get_one, ranges))

        return self._read(get_all(), ranges[0].path if ranges else "")

    def list(self, prefix: str, after: str) -> tuple[list[Object], bool]:
        start = {"StartAfter": after} if after else {}
        page = self._read(self._call("list_objects_v2", Prefix=prefix, **start), prefix)
        found = page.get("Contents", ())
        return [Object(one["Key"], one["Size"], one["LastModified"].timestamp()) for one in found], page["IsTruncated"]

    def delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _DELETE_AT_ONCE):
            named = {"Objects": [{"Key": key} for key in keys[first : first + _DELETE_AT_ONCE]], "Quiet": True}
            answer = self._write(self._call("delete_objects", Delete=named), keys[first])
            for failed in answer.get("Errors", ()):
                raise WriteFailedError(
                    f"s3://{self._bucket}/{failed.get('Key')} could not be deleted: {failed.get('Message')}; deleting "
                    "again is safe"
                )

    def close(self) -> None:
        """s3fs closes its connections when it is collected."""

    async def _get(self, key: str, start: int, stop: int | None) -> bytes | None:
        if stop is not None and stop <= start:
            stop = start + 1  # an empty range cannot be requested, but the response must show whether the object exists
            empty = True
        else:
            empty = False
        whole = start == 0 and stop is None
        wanted = {} if whole else {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
        try:
            answer = await self._call("get_object", Key=key, **wanted)
            async with answer["Body"] as body:
                data: bytes = await body.read()
        except Exception as error:
            status = _status(error)
            if status == 404:
                return None
            if status == 416:
                return b""  # the object ends before the range begins
            raise
        return b"" if empty else data

    async def _call(self, method: str, **arguments: Any) -> Any:
        with self._mutex:
            self._requests += 1
        # The public method blocks, so bodies could not be read in parallel. The client below it would ignore the
        # caller's settings.
        return await self._fs._call_s3(method, Bucket=self._bucket, **arguments)  # noqa: SLF001

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        async def run() -> T:
            return await work

        result: T = fsspec.asyn.sync(self._fs.loop, run)
        return result

    def _read(self, work: Coroutine[Any, Any, T], key: str) -> T:
        try:
            return self._run(work)
        except OpslogError:
            raise
        except Exception as error:
            failed = RetryError(f"s3://{self._bucket}/{key} could not be read: {_reason(error)}")
            raise self._refusal(error) or failed from error

    def _write(self, work: Coroutine[Any, Any, T], key: str) -> T:
        try:
            return self._run(work)
        except Exception as error:  # noqa: BLE001  (it becomes one of ours)
            cause = self._refusal(error) or error
            raise WriteFailedError(f"s3://{self._bucket}/{key} could not be written: {_reason(error)}") from cause

    def _refusal(self, error: BaseException) -> UsageError | None:
        url = f"s3://{self._bucket}"
        if any(isinstance(cause, _NO_CREDENTIALS) for cause in (error, error.__cause__)):
            return no_credentials(url, _reason(error))
        return no_bucket(url, _reason(error))


@lru_cache(maxsize=8)
def _session(profile: str | None, variables: frozenset[tuple[str, str]], generation: int) -> AioSession:
    """The session that clients are made from. Callers with equal settings share one: making it takes a third of a
    second."""
    session = AioSession(profile=profile)
    # By default a put first asks whether the server will accept its body, which would cost a second round trip.
    session.unregister("before-call.s3", add_expect_header)
    return session


@lru_cache(maxsize=8)
def _set_executor(loop: asyncio.AbstractEventLoop) -> None:
    """Give an event loop an executor that works until the process ends, once. aiohttp resolves names in it before each
    new connection. All filesystems of fsspec share one loop."""
    loop.set_default_executor(Executor())


def _status(error: BaseException) -> int | None:
    """The HTTP status of a refusal; None: there was no response. s3fs wraps botocore's errors in Python's own."""
    for cause in (error, error.__cause__):
        if isinstance(cause, ClientError):
            return int(cause.response["ResponseMetadata"]["HTTPStatusCode"])
    return None


def _is_connection_failure(error: BaseException) -> bool:
    kinds = (BotoCoreError, ConnectionFailure, TimeoutError, ConnectionError)
    return any(isinstance(cause, kinds) for cause in (error, error.__cause__))


def _reason(error: BaseException) -> str:
    return str(error.__cause__ or error) or type(error).__name__
