"""Errors of opslog that reach the caller through Spark.

An error in a data source or a task reaches the caller as an exception of Spark, whose message contains the whole
traceback of another process. This module has both ends: with `brief`, tasks raise errors with as few lines as possible;
`unwrap` finds the error in the exception.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import wraps
from inspect import isgeneratorfunction
from typing import ParamSpec, TypeVar, cast

from opslog import errors
from opslog.errors import OpslogError

P = ParamSpec("P")
R = TypeVar("R")

# The last line of a Python traceback, or the last lines, up to the text that Spark adds.
_ERROR = re.compile(r"opslog\.errors\.(\w+): (.*?)(?=\s*(?:\n\s*SQLSTATE|\n\s+at |\n\s*\n|\Z))", re.DOTALL)


def unwrap(error: BaseException) -> BaseException:
    """The error of opslog that an exception of Spark reports, with its class and message. If it reports none, the
    exception itself::

        try:
            rows.write.format("opslog").mode("append").save(url)
        except PySparkException as error:
            raise unwrap(error) from None

    Only the message comes from the other process. Attributes that are not part of it, such as the record of a
    `ConflictError`, are empty.
    """
    if isinstance(error, OpslogError):
        return error
    for name, message in reversed(_ERROR.findall(str(error))):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, OpslogError):
            return kind(message)
    return error


def brief(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates a function of a task or a data source. An error of opslog leaves the function without its traceback,
    all of which Spark would print. The message says what is wrong, and where."""
    if isgeneratorfunction(function):

        @wraps(function)
        def generate(*args: P.args, **kwargs: P.kwargs) -> Iterator[object]:
            try:
                yield from cast(Iterator[object], function(*args, **kwargs))
            except OpslogError as error:
                raise error.with_traceback(None) from None

        return cast(Callable[P, R], generate)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except OpslogError as error:
            raise error.with_traceback(None) from None

    return call
