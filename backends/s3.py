"""A store on S3: ``s3://bucket/prefix``.

`opslog.open("s3://bucket/prefix")` takes credentials from where the AWS tools take them; everything else is a
keyword: ``endpoint_url=`` for MinIO, Ceph, R2 and the like, ``key=``, ``secret=``, ``profile=``, ``client_kwargs=``,
and whatever `s3fs.S3FileSystem` takes or fsspec's configuration files say.

Two drivers send the requests: obstore where it is installed and understands the settings (it costs a fraction of the
time), and s3fs; ``?driver=s3fs`` asks for one of them. All that matters for a store is above them, in
`opslog.backends.objects`, and is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from opslog.backends.objects import Driver, ObjectBackend
from opslog.errors import InvalidNameError


def open_url(url: str, *, create: bool = True, **options: Any) -> ObjectBackend:
    """The backend of ``s3://bucket/prefix``.

    :param create: does nothing here: an empty prefix is a store that does not exist, and costs nothing to look at.
    :param options: as of `s3fs.S3FileSystem`.
    """
    parts = urlsplit(url)
    if not parts.netloc:
        raise InvalidNameError(f"{url!r} names no bucket: write s3://bucket/prefix")
    asked = dict(parse_qsl(parts.query))
    driver = asked.pop("driver", None)
    if asked or parts.fragment or driver not in (None, *_DRIVERS):
        raise InvalidNameError(
            f"{url!r}: nothing may stand after the prefix but ?driver=s3fs or ?driver=obstore; settings are keywords "
            "of opslog.open"
        )
    prefix = parts.path.strip("/")
    return ObjectBackend(
        _DRIVERS[driver or _fastest(options)](parts.netloc, options),
        f"s3://{parts.netloc}/{prefix}".rstrip("/"),
        f"{prefix}/" if prefix else "",
    )


def _fastest(options: dict[str, Any]) -> str:
    """obstore where it is installed and understands all of the settings, otherwise s3fs."""
    if find_spec("obstore") is None:
        return "s3fs"
    from opslog.backends.s3_fast import UNDERSTOOD

    return "obstore" if options.keys() <= UNDERSTOOD and options.get("client_kwargs", {}).keys() <= _PLACE else "s3fs"


def _open_obstore(bucket: str, options: dict[str, Any]) -> Driver:
    from opslog.backends.s3_fast import ObstoreDriver

    return ObstoreDriver(bucket, options)


def _open_s3fs(bucket: str, options: dict[str, Any]) -> Driver:
    from opslog.backends.s3_s3fs import S3fsDriver

    return S3fsDriver(bucket, options)


_DRIVERS: dict[str, Callable[[str, dict[str, Any]], Driver]] = {"obstore": _open_obstore, "s3fs": _open_s3fs}
_PLACE = {"region_name", "endpoint_url"}
