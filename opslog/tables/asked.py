"""The tables and columns that a query needs. Pure; DuckDB has parsed the query.

Making a column of a million documents takes time, so a table has only the columns that its query names. If these
cannot be determined for certain, all columns of all tables are made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from opslog.tables.arrow import DATA

# The parts of a query in which a column has effect only where its name or a star is.
_EXPRESSIONS = frozenset(
    (
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "LAMBDA",
        "OPERATOR",
        "PARAMETER",
        "STAR",
        "SUBQUERY",
        "TYPE",
        "WINDOW",
    )
)
_PARTS = frozenset(
    (
        "SELECT_NODE",
        "SET_OPERATION_NODE",
        "RECURSIVE_CTE_NODE",
        "CTE_NODE",
        "BASE_TABLE",
        "EMPTY",
        "EXPRESSION_LIST",
        "JOIN",
        "SUBQUERY",
        "TABLE_FUNCTION",
        "DISTINCT_MODIFIER",
        "LIMIT_MODIFIER",
        "LIMIT_PERCENT_MODIFIER",
        "ORDER_MODIFIER",
        "ASCENDING",
        "DESCENDING",
        "ORDER_DEFAULT",
    )
)
_TABLE_FUNCTIONS = frozenset(("range", "generate_series", "unnest"))
_DOCUMENTS = "documents"


class Asked(NamedTuple):
    """The tables and columns that a query names.

    :ivar tables: names of tables, in lower case; a superset if that is not certain.
    :ivar names: every name that may be a column, in lower case.
    :ivar takes_all: whether it needs all columns, except for `data` if that is not in `names`.
    :ivar others: the names of tables that are not ours, in lower case. What they are is for DuckDB to say.
    """

    tables: frozenset[str]
    names: frozenset[str]
    takes_all: bool
    others: frozenset[str] = frozenset()


def asked(parsed: dict[str, Any], query: str, tables: frozenset[str]) -> Asked:
    """The tables and columns that a query names.

    :param parsed: DuckDB's ``json_serialize_sql`` of it.
    :param tables: the existing ones.
    """
    # DuckDB serializes only SELECT; running the query shows whether it is an error at all.
    if parsed["error"] or not all(map(_is_plain, _nodes(parsed["statements"]))):
        return everything(query, tables)
    texts: set[str] = set()
    named_tables: set[str] = set()
    aliases: set[str] = set()
    names: set[str] = set()
    firsts: set[str] = set()
    takes_all = False
    for node in _nodes(parsed["statements"]):
        texts.update(text.casefold() for text in _texts(node))
        if node.get("type") == "BASE_TABLE":
            named_tables.add(node["table_name"].casefold())
            aliases.add(node["alias"].casefold())
        elif node.get("class") == "COLUMN_REF":
            firsts.add(node["column_names"][0].casefold())
            names.update(name.casefold() for name in node["column_names"])
        elif node.get("class") == "STAR":
            takes_all = True
            names.update(text.casefold() for part in _nodes(node) for text in _texts(part))
        names.update(name.casefold() for name in node.get("using_columns", ()))
        takes_all |= node.get("ref_type") == "NATURAL"
        # Names for columns by position.
        takes_all |= bool(node.get("column_name_alias"))
    # A table's name in the position of a column is a whole row.
    takes_all |= bool(firsts & (named_tables | aliases))
    return Asked(tables & texts, frozenset(names), takes_all, frozenset(named_tables - tables))


def everything(query: str, tables: frozenset[str]) -> Asked:
    """All that a query can need."""
    return Asked(tables, words(query), takes_all=True)


def words(query: str) -> frozenset[str]:
    """The words of a query in lower case; a superset of the names in it that have no special characters."""
    return frozenset(re.findall(r"\w+", query.casefold()))


def leave_data_out(parsed: dict[str, Any]) -> bool:
    """Change each star of a query so that it does not stand for `data` of documents.

    :returns: whether any was changed.
    """
    if parsed["error"] or len(parsed["statements"]) > 1:
        return False
    nodes = list(_nodes(parsed["statements"]))
    if any(str(node.get("key")).casefold() == _DOCUMENTS for node in nodes):
        return False  # the query has a table of its own with this name
    found = False
    for select in nodes:
        if select.get("type") != "SELECT_NODE":
            continue
        aliases = {(table["alias"] or table["table_name"]).casefold() for table in _documents_in(select["from_table"])}
        for star in _stars(select) if aliases else ():
            relation = star["relation_name"].casefold()
            for alias in sorted(aliases if not relation else aliases & {relation}):
                star["qualified_exclude_list"].append({"catalog": "", "schema": "", "table": alias, "column": DATA})
                found = True
    return found


def _documents_in(source: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The places of the table of documents in a FROM clause, without those in subqueries or with other columns."""
    if source["type"] == "JOIN":
        yield from _documents_in(source["left"])
        yield from _documents_in(source["right"])
    elif (
        source["type"] == "BASE_TABLE"
        and source["table_name"].casefold() == _DOCUMENTS
        and not source["column_name_alias"]
    ):
        yield source


def _stars(select: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The stars of a SELECT that do not name `data` themselves, without those of subqueries."""
    waiting: list[Any] = [value for name, value in select.items() if name != "from_table"]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict) and value.get("type") != "SELECT_NODE":
            waiting += value.values()
            if value.get("class") == "STAR" and value["expr"] is None and not _names_data(value):
                yield value


def _names_data(star: dict[str, Any]) -> bool:
    return any(DATA in map(str.casefold, _texts(node)) for node in _nodes(star))


def _is_plain(node: dict[str, Any]) -> bool:
    """Whether this part of a query, without the parts in it, is one whose columns can be found by their names."""
    if (kind := node.get("class")) is not None:
        return kind in _EXPRESSIONS
    kind = node.get("type")
    if not isinstance(kind, str):
        return True
    if kind == "TABLE_FUNCTION":
        return node["function"]["function_name"].casefold() in _TABLE_FUNCTIONS
    return kind in _PARTS and not node.get("schema_name")


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
