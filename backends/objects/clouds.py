"""Stores on Google Cloud Storage, ``gs://bucket/prefix``, and Azure Blob Storage, ``az://container/prefix``.

Both have put-if-absent, so they are the same class of store as S3 (`opslog.backends.objects.backend`), through obstore.
Settings are keywords of `opslog.open`: those of `obstore.store.GCSStore` and `obstore.store.AzureStore`. Settings that
are not given come from the environment, as their documentation says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from obstore.store import AzureStore, GCSStore

from opslog.backends.objects.backend import DEADLINE_SECONDS, LEASE_SECONDS, ObjectBackend
from opslog.backends.objects.obstore_driver import ObstoreDriver
from opslog.backends.objects.urls import split_url
from opslog.errors import InvalidNameError


def open_gs(url: str, **options: Any) -> ObjectBackend:
    """The backend of ``gs://bucket/prefix``; `options` as of `obstore.store.GCSStore`, and as of `open_url` of S3."""
    return _open(url, GCSStore, busy=(409, 429), delete_at_once=1, **options)


def open_az(url: str, **options: Any) -> ObjectBackend:
    """The backend of ``az://container/prefix``; `options` as of `obstore.store.AzureStore`, and as of `open_url` of
    S3."""
    return _open(url, AzureStore, busy=(429,), delete_at_once=256, **options)  # 409: the object exists


def _open(
    url: str,
    store: Callable[..., Any],
    *,
    busy: Collection[int],
    delete_at_once: int,
    create: bool = True,
    deadline_seconds: float = DEADLINE_SECONDS,
    lease_seconds: float = LEASE_SECONDS,
    **options: Any,
) -> ObjectBackend:
    location = split_url(url)
    if location.query:
        raise InvalidNameError(f"{url!r}: nothing may stand after the prefix; settings are keywords of opslog.open")
    return ObjectBackend(
        ObstoreDriver(
            partial(store, location.bucket, **options), location.bucket_url, busy=busy, delete_at_once=delete_at_once
        ),
        location.url,
        location.prefix,
        deadline_seconds=deadline_seconds,
        lease_seconds=lease_seconds,
    )
