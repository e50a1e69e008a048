"""From a URL to a backend.

A plain path and ``file:///absolute/path`` name a directory, ``memory://name`` a store inside this process. Every other
scheme is looked up among the registered factories and then in the entry-point group ``opslog.backends``, where an
installed distribution announces ``<scheme> = "<module>:<callable>"``.

A factory is a callable ``(url, **options) -> Backend``. Each has options of its own, and all take `create`: whether to
begin a store that does not exist (the default), or to raise `opslog.errors.NotFoundError`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from opslog.backends.contract import Backend
from opslog.errors import InvalidNameError

Factory = Callable[..., Backend]

ENTRY_POINTS = "opslog.backends"

_BUILT_IN = {
    "file": "opslog.backends.local.fs:open_url",
    "memory": "opslog.backends.memory:open_url",
    "s3": "opslog.backends.objects.s3:open_url",
    "gs": "opslog.backends.objects.clouds:open_gs",
    "az": "opslog.backends.objects.clouds:open_az",
    "http": "opslog.backends.remote.backend:open_url",
    "https": "opslog.backends.remote.backend:open_url",
}

# The optional extra of opslog that each scheme needs.
_EXTRAS = {"s3": "s3", "gs": "fast", "az": "fast", "http": "client", "https": "client"}

_registered: dict[str, Factory] = {}


def open_backend(url: str | os.PathLike[str], **options: Any) -> Backend:
    """The storage that `url` names. `options` go to its factory unchanged; see the module's docstring for `create`.

    :raises InvalidNameError: no backend is known for such URLs; the message names the known ones, and what to install.
    :raises NotFoundError: there is no store, and `create` is false.
    """
    text = _text(url)
    return _factory_of(text)(text, **options)


def parameters(url: str | os.PathLike[str]) -> tuple[frozenset[str], bool]:
    """The options that the storage of `url` takes, and whether it takes others besides, unseen from here.

    :raises InvalidNameError: no backend is known for such URLs.
    """
    from inspect import Parameter, signature

    _, *options = signature(_factory_of(_text(url))).parameters.values()
    named = frozenset(each.name for each in options if each.kind is not Parameter.VAR_KEYWORD)
    return named - {"create"}, any(each.kind is Parameter.VAR_KEYWORD for each in options)


def register(scheme: str, factory: Factory) -> None:
    """Let `factory` open the URLs of `scheme` in this process, before any built-in or installed backend."""
    _registered[scheme] = factory


def _text(url: object) -> str:
    """A URL, or a path, as text.

    :raises InvalidNameError: it names nothing.
    """
    text = os.fspath(url) if isinstance(url, os.PathLike) else url
    if not text or not isinstance(text, str):
        raise InvalidNameError(f"{url!r} does not name a store: use a path, or a URL such as memory://name")
    return text


def _factory_of(url: str) -> Factory:
    scheme, separator, _ = url.partition("://")
    return _factory(scheme if separator else "file")


def _factory(scheme: str) -> Factory:
    if scheme in _registered:
        return _registered[scheme]
    if scheme in _BUILT_IN:
        return _load(scheme, _BUILT_IN[scheme])
    # Only here: reading the metadata of all installed distributions takes tens of milliseconds.
    from importlib.metadata import entry_points

    installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
    if scheme in installed:
        return cast(Factory, installed[scheme].load())
    known = ", ".join(sorted({f"{name}://" for name in (*_BUILT_IN, *_registered, *installed)}))
    raise InvalidNameError(f"no backend for {scheme}:// URLs; known are plain paths, {known}. {_how_to_add(scheme)}")


def _load(scheme: str, target: str) -> Factory:
    module, _, name = target.partition(":")
    try:
        return cast(Factory, getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        if scheme not in _EXTRAS:
            raise
        raise InvalidNameError(f"{scheme}:// needs the module {error.name}. {_how_to_add(scheme)}") from error


def _how_to_add(scheme: str) -> str:
    if scheme in _EXTRAS:
        return f"Install it with: pip install 'opslog[{_EXTRAS[scheme]}]'"
    return (
        f"Install a package that announces {scheme!r} in the entry-point group {ENTRY_POINTS!r}, "
        "or call opslog.backends.register"
    )
