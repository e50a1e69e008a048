"""A store on S3: ``s3://bucket/prefix``.

`opslog.open("s3://bucket/prefix")` takes credentials, regions and endpoints from the same places as the AWS tools, and
reads fsspec's configuration. Everything else is a keyword: ``endpoint_url=`` for MinIO, Ceph, R2 and the like,
``key=``, ``secret=``, ``profile=``, ``client_kwargs=``, and every parameter of `s3fs.S3FileSystem`.

Two drivers send the requests: obstore, if it is installed and understands the settings (it costs a fraction of the
time), and s3fs; ``?driver=s3fs`` asks for one of them. The guarantees of a store are made above them, in
`opslog.backends.objects.backend`, so both give the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl

import fsspec.config

from opslog.backends.objects.backend import DEADLINE_SECONDS, LEASE_SECONDS, Driver, ObjectBackend
from opslog.backends.objects.refusals import NO_CREDENTIALS, no_credentials
from opslog.backends.objects.urls import split_url
from opslog.errors import InvalidNameError, RetryError, UsageError

# The settings that obstore can be given: the place of the bucket, the credentials, and the timeouts.
UNDERSTOOD = {"endpoint_url", "key", "secret", "token", "anon", "profile", "client_kwargs", "config_kwargs"}

# Of these, the settings in `client_kwargs`.
_PLACE = {"region_name", "endpoint_url"}

# Of these, the settings in `config_kwargs`.
_PATIENCE = {"connect_timeout", "read_timeout"}


def open_url(
    url: str,
    *,
    create: bool = True,
    deadline_seconds: float = DEADLINE_SECONDS,
    lease_seconds: float = LEASE_SECONDS,
    **options: Any,
) -> ObjectBackend:
    """The backend of ``s3://bucket/prefix``.

    :param create: has no effect: an empty prefix is a store that does not exist, and costs nothing to open.
    :param deadline_seconds: how long to try to find out the outcome of a put, before a `CommitUnknownError`.
    :param lease_seconds: how long the lock of a compaction that crashed delays the next one.
    :param options: as of `s3fs.S3FileSystem`.
    """
    location = split_url(url)
    asked = dict(parse_qsl(location.query, keep_blank_values=True))
    driver = asked.pop("driver", None)
    if asked or driver not in (None, *_DRIVERS):
        raise InvalidNameError(
            f"{url!r}: nothing may stand after the prefix but ?driver=s3fs or ?driver=obstore; settings are keywords "
            "of opslog.open"
        )
    options = {**fsspec.config.conf.get("s3", {}), **fsspec.config.conf.get("s3a", {}), **options}
    return ObjectBackend(
        _DRIVERS[driver or _fastest(options)](location.bucket, options),
        location.url,
        location.prefix,
        deadline_seconds=deadline_seconds,
        lease_seconds=lease_seconds,
    )


def _fastest(options: dict[str, Any]) -> str:
    """The name of the driver: obstore if it is installed, usable, and understands all settings; otherwise s3fs."""
    if _not_understood(options) or find_spec("obstore") is None:
        return "s3fs"
    from opslog.backends.objects import obstore_driver

    return "obstore" if obstore_driver.is_usable() else "s3fs"


def _not_understood(options: dict[str, Any]) -> list[str]:
    """The settings that obstore does not understand."""
    inner = {"client_kwargs": _PLACE, "config_kwargs": _PATIENCE}
    unknown = [f"{name}[{key!r}]" for name in inner for key in sorted(options.get(name, {}).keys() - inner[name])]
    return sorted(options.keys() - UNDERSTOOD) + unknown


def _open_s3fs(bucket: str, options: dict[str, Any]) -> Driver:
    from opslog.backends.objects.s3fs_driver import S3fsDriver

    return S3fsDriver(bucket, options)


def _open_obstore(bucket: str, options: dict[str, Any]) -> Driver:
    if find_spec("obstore") is None:
        raise InvalidNameError("driver=obstore needs the module obstore. Install it with: pip install 'opslog[fast]'")
    if unknown := _not_understood(options):
        raise UsageError(
            f"driver=obstore does not understand the setting {unknown[0]}: leave it out, or use driver=s3fs"
        )
    from obstore.store import S3Store

    from opslog.backends.objects.obstore_driver import ObstoreDriver

    patience = options.get("config_kwargs", {})
    return ObstoreDriver(partial(S3Store, bucket, **_settings(options)), f"s3://{bucket}", **patience)


_DRIVERS: dict[str, Callable[[str, dict[str, Any]], Driver]] = {"obstore": _open_obstore, "s3fs": _open_s3fs}


def _settings(options: dict[str, Any]) -> dict[str, Any]:
    """The settings of s3fs, translated into those of obstore."""
    client, session = options.get("client_kwargs", {}), _session(options)
    region = client.get("region_name") or session.get_config_variable("region")
    settings: dict[str, Any] = {"region": region or "us-east-1"}
    endpoint = (
        options.get("endpoint_url")
        or client.get("endpoint_url")
        or os.environ.get("AWS_ENDPOINT_URL_S3")
        or os.environ.get("AWS_ENDPOINT_URL")
        or session.get_scoped_config().get("endpoint_url")
    )
    if endpoint:
        settings["endpoint"] = endpoint
    if options.get("anon"):
        settings["skip_signature"] = True
    elif options.get("key"):
        settings |= {"access_key_id": options["key"], "secret_access_key": options.get("secret", "")}
        settings |= {"session_token": options["token"]} if options.get("token") else {}
    else:
        settings["credential_provider"] = _provider(session)
    return settings


def _provider(session: Any) -> Callable[[], Any]:
    def credentials() -> dict[str, Any]:
        found = session.get_credentials()
        if found is None:
            raise RetryError(NO_CREDENTIALS)  # obstore quotes it
        frozen = found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": getattr(found, "_expiry_time", None),
        }

    return credentials


def _session(options: dict[str, Any]) -> Any:
    from botocore.exceptions import ProfileNotFound
    from botocore.session import Session

    session = Session(profile=options.get("profile"))
    try:
        session.get_scoped_config()
    except ProfileNotFound as error:
        raise no_credentials("s3://", str(error)) from error
    return session
