"""Documents as Arrow tables, and SQL over them. Importing this needs no extra; calling its functions does."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from opslog.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    import msgspec
    import pyarrow as pa

    from opslog.format.commits import Set
    from opslog.replica.replica import Replica
    from opslog.tables.tables import Tables

T = TypeVar("T")


def tables_of(replica: Replica[T]) -> Tables[T]:
    """The tables of an open store.

    :raises UsageError: the extra is not installed.
    """
    with _extra():
        from opslog.tables.tables import Tables
    return Tables(replica)


def table_of(text: Callable[[Set], bytes | msgspec.Raw], records: Iterable[Set]) -> pa.Table:
    """Documents as a table, in this order.

    :param text: returns the JSON text of a record.
    :raises UsageError: the extra is not installed.
    """
    with _extra():
        from opslog.tables.tables import table_of
    return table_of(text, records)


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise UsageError(f"tables and SQL are an extra: pip install 'opslog[query]' ({error})") from error
