"""Object storages through obstore, which takes a fraction of s3fs's time for a request."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import obstore
from obstore.exceptions import AlreadyExistsError as ObjectExists
from obstore.exceptions import BaseError

from opslog.backends import forking
from opslog.backends.contract import Range
from opslog.backends.objects.backend import CONNECT_TIMEOUT, READ_TIMEOUT, Object, Put
from opslog.backends.objects.executor import Executor
from opslog.backends.objects.refusals import NO_CREDENTIALS, no_bucket, no_credentials
from opslog.errors import InvalidNameError, MissingFileError, OpslogError, RetryError, UsageError, WriteFailedError

# The most requests under way at once.
_AT_ONCE = 64
# The most objects in one response to a listing.
_PAGE = 1000
# The limit for a whole request, in case its bytes come one by one.
_TIMEOUT = timedelta(seconds=60)
_UNKNOWN_TO_IT = 501
# obstore's own message for a range behind the end, for storages that answer with a status other than 416.
_BEYOND = "Wanted range starting at"
_STATUS = re.compile(r"status code: (\d{3})")


# The generation of forks (`opslog.backends.forking`) in which this process first used obstore.
_used_in: int | None = None


def is_usable() -> bool:
    """Whether obstore can be used: not in a child that was forked after obstore was used, where it would hang."""
    return _used_in in (None, forking.generation)


@cache
def _pool() -> Executor:
    """The threads that wait for requests that are under way at once. All stores of this process share them."""
    return Executor(_AT_ONCE, "opslog-objects")


class ObstoreDriver:
    """`opslog.backends.objects.backend.Driver` through obstore.

    :param open_store: makes obstore's store from the settings that it is given.
    :param url: the URL of the bucket, for messages.
    :param busy: the HTTP statuses by which this storage says that another request is changing the same object.
    :param delete_at_once: how many objects one request deletes.
    :param connect_timeout: in seconds.
    :param read_timeout: how long to wait for the next byte.
    """

    def __init__(
        self,
        open_store: Callable[..., Any],
        url: str,
        *,
        busy: Collection[int] = (409, 429),
        delete_at_once: int = 1000,
        connect_timeout: float = CONNECT_TIMEOUT,
        read_timeout: float = READ_TIMEOUT,
    ) -> None:
        global _used_in  # noqa: PLW0603  (there is one runtime of obstore in a process, and it does not survive a fork)
        if not is_usable():
            raise UsageError(
                f"{url}: obstore was used by the parent of this process, and cannot be in a forked child: start it "
                "with spawn, or add ?driver=s3fs to an s3:// address"
            )
        _used_in = forking.generation
        self._requests = 0
        self._url = url
        self._busy = busy
        self._delete_at_once = delete_at_once
        self._mutex = threading.Lock()
        self._store = open_store(
            client_options={
                "allow_http": True,
                "connect_timeout": timedelta(seconds=connect_timeout),
                "read_timeout": timedelta(seconds=read_timeout),
                "timeout": _TIMEOUT,
            },
            # No retries: only the caller of a conditional put knows what another attempt means.
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
        )

    @property
    def requests(self) -> int:
        return self._requests

    def put_new(self, key: str, data: bytes) -> Put:
        try:
            self._put(key, data, "create")
        except ObjectExists as error:
            # The status may also mean a conflict with another put under way, and does not say which of the two will
            # win.
            return Put.UNKNOWN if _status(error) in self._busy else Put.EXISTS
        except (BaseError, OSError) as error:
            status = _status(error)
            if status is None or status in self._busy or (status >= 500 and status != _UNKNOWN_TO_IT):
                return Put.UNKNOWN
            raise self._not_written(key, error) from self._refusal(error) or error
        return Put.CREATED

    def put(self, key: str, data: bytes) -> None:
        try:
            self._put(key, data, "overwrite")
        except (BaseError, OSError) as error:
            raise self._not_written(key, error) from self._refusal(error) or error

    def get(self, key: str, start: int, stop: int | None) -> bytes:
        data = self._get(Range(key, start, stop))
        if data is None:
            raise MissingFileError(f"no object {self._url}/{key}", key)
        return data

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        return list(_pool().map(self._get, ranges))

    def list(self, prefix: str, after: str) -> tuple[list[Object], bool]:
        self._count()
        try:
            page = next(iter(obstore.list(self._store, prefix, offset=after or None, chunk_size=_PAGE)), [])
        except (BaseError, OSError) as error:
            raise self._not_read(prefix, error) from error
        found = [Object(one["path"], one["size"], one["last_modified"].timestamp()) for one in page]
        return found, len(found) == _PAGE

    def delete(self, keys: Sequence[str]) -> None:
        groups = [keys[first : first + self._delete_at_once] for first in range(0, len(keys), self._delete_at_once)]
        list(_pool().map(self._delete, groups))

    def _delete(self, keys: Sequence[str]) -> None:
        self._count()
        try:
            obstore.delete(self._store, list(keys))
        except FileNotFoundError:
            # Some storages report this, and may then not have deleted the others.
            for key in keys if len(keys) > 1 else ():
                self._delete([key])
        except (BaseError, OSError) as error:
            raise self._not_written(keys[0], error) from self._refusal(error) or error

    def close(self) -> None:
        """obstore closes its connections when it is collected."""

    def _put(self, key: str, data: bytes, mode: Any) -> None:
        self._count()
        try:
            obstore.put(self._store, key, data, mode=mode, use_multipart=False)
        except ValueError as error:
            raise InvalidNameError(f"no object can have the name {key!r}: {_reason(error)}") from error

    def _get(self, part: Range) -> bytes | None:
        path, start, stop = part
        self._count()
        try:
            if stop is not None and stop > start:
                return bytes(obstore.get_range(self._store, path, start=start, end=stop))
            answer = obstore.get(self._store, path, options={"range": {"offset": start}} if start else None)
            return b"" if stop is not None else bytes(answer.bytes())
        except FileNotFoundError:
            return None
        except (BaseError, OSError) as error:
            if _status(error) == 416 or _BEYOND in str(error):
                return b""  # the object ends before the range begins
            raise self._not_read(path, error) from error

    def _count(self, requests: int = 1) -> None:
        with self._mutex:
            self._requests += requests

    def _not_read(self, key: str, error: Exception) -> OpslogError:
        return self._refusal(error) or RetryError(f"{self._url}/{key} could not be read: {_reason(error)}")

    def _not_written(self, key: str, error: Exception) -> WriteFailedError:
        return WriteFailedError(f"{self._url}/{key} could not be written: {_reason(error)}")

    def _refusal(self, error: Exception) -> UsageError | None:
        if NO_CREDENTIALS in str(error):
            return no_credentials(self._url, NO_CREDENTIALS)
        return no_bucket(self._url, str(error))


def _status(error: Exception) -> int | None:
    """The HTTP status of a refusal; None: there was no response."""
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _reason(error: Exception) -> str:
    """The sentence at the beginning of obstore's report."""
    return str(error).partition("\n")[0]
