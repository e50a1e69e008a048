"""Errors of opslog that come by way of Spark.

What a data source or a task raises reaches the caller as an exception of Spark's own, whose message has the whole
traceback of another process in it. Here are both ends of that way: tasks raise with as few lines as possible, and
`unwrap` finds the error again.
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

# The last line of a Python traceback, or the last lines, up to what Spark adds to them.
_ERROR = re.compile(r"opslog\.errors\.(\w+): (.*?)(?=\s*(?:\n\s*SQLSTATE|\n\s+at |\n\s*\n|\Z))", re.DOTALL)


def unwrap(error: BaseException) -> BaseException:
    """The error of opslog that an exception of Spark reports, with its class and message, or, if it reports none, the
    exception itself::

        try:
            rows.write.format("opslog").mode("append").save(url)
        except PySparkException as error:
            raise unwrap(error) from None

    The message comes from another process, and its attributes do not: those that are no part of the message, such as
    the record of a `ConflictError`, are empty.
    """
    if isinstance(error, OpslogError):
        return error
    for name, message in reversed(_ERROR.findall(str(error))):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, OpslogError):
            return kind(message)
    return error


def brief(function: Callable[P, R]) -> Callable[P, R]:
    """Of what a task or a data source does: let an error of opslog leave it without the frames behind it, all of which
    Spark would print. Its message says what is wrong and where."""
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
