"""The store that Spark's options name, and how a task opens it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import msgspec

from opslog.backends import Backend, open_backend
from opslog.errors import UsageError
from opslog.options import check_storage_options

# The options that are not for the storage, in lower case, as Spark passes them.
_OWN = {
    *("path", "paths", "view", "asof", "period", "schema", "splitbytes", "pushdown"),
    *("startingat", "ongap", "maxbytespertrigger"),
    "agent",
}


def url_of(options: Mapping[str, str]) -> str:
    """The store's URL. A directory is an absolute path, because workers may have another working directory.

    :raises UsageError: the options name no store, or several, or one that only this process can see.
    """
    url = options.get("path")
    if not url:
        raise UsageError(
            "name one store: .load(url), or CREATE TEMPORARY VIEW … USING opslog OPTIONS (path '…'). Several stores "
            "are a union of several reads. From Spark a data source in Python learns nothing of a table in the "
            "catalog, not even where it is"
        )
    scheme, separator, _ = url.partition("://")
    if separator and scheme == "memory":
        raise UsageError(f"{url} is in the memory of one process, and Spark reads in others: use a directory or s3://")
    if separator:
        return url
    # SQL gives a path this form.
    return os.path.abspath(url.removeprefix("file:"))


def storage_options(options: Mapping[str, str]) -> dict[str, Any]:
    """The backend's options: all that are not for the data source. Numbers and JSON objects are parsed."""
    return {name: _value(name, text) for name, text in options.items() if name.lower() not in _OWN}


def _value(name: str, text: str) -> Any:
    if text in ("true", "false") or text.startswith("{"):
        return msgspec.json.decode(text)
    return float(text) if name.endswith("_seconds") else int(text) if name.endswith("_bytes") else text


def open_store(url: str, options: Mapping[str, Any]) -> Backend:
    """The storage of a store that exists.

    :raises UsageError: the storage has no such option.
    """
    check_storage_options(url, options, 'the data source "opslog"', _OWN)
    return open_backend(url, create=False, **options)
