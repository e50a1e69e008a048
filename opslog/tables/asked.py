"""The tables and columns that a query needs. Pure; DuckDB has parsed the query.

Making a column of a million documents takes time, so a table has only the columns that its query names. If these
cannot be determined for certain, all columns are made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """The tables and columns that a query names.

    :ivar tables: names of tables, in lower case; a superset if that is not certain.
    :ivar names: every name that may be a column, in lower case. None: all columns are needed.
    """

    tables: frozenset[str]
    names: frozenset[str] | None

    def wants(self, table: str) -> bool:
        return table in self.tables


def asked(parsed: dict[str, Any], tables: frozenset[str]) -> Asked:
    """The tables and columns that a query names.

    :param parsed: DuckDB's ``json_serialize_sql`` of it.
    :param tables: the existing ones.
    """
    if parsed["error"]:  # DuckDB serializes only SELECT; running the query shows whether it is an error at all
        return Asked(tables, None)
    texts: set[str] = set()
    named_tables: set[str] = set()
    names: set[str] = set()
    firsts: set[str] = set()
    takes_all = False
    for node in _nodes(parsed["statements"]):
        texts.update(text.casefold() for text in _texts(node))
        if node.get("type") == "BASE_TABLE":
            named_tables.update(text.casefold() for text in (node["table_name"], node["alias"]))
        elif node.get("class") == "COLUMN_REF":
            firsts.add(node["column_names"][0].casefold())
            names.update(name.casefold() for name in node["column_names"])
        names.update(name.casefold() for name in node.get("using_columns", ()))
        takes_all |= node.get("class") == "STAR" or node.get("ref_type") == "NATURAL"
        # Names for columns by position.
        takes_all |= bool(node.get("column_name_alias"))
    # A table's name in the position of a column is a whole row.
    takes_all |= bool(firsts & named_tables)
    return Asked(tables & texts, None if takes_all else frozenset(names))


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _nodes(item)
    elif isinstance(value, list):
        for item in value:
            yield from _nodes(item)


def _texts(node: dict[str, Any]) -> Iterator[str]:
    for value in node.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, str))
