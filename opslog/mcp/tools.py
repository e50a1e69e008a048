"""Tools: each has a name, a description for models, and a function on plain structs. Nothing here knows the protocol,
which `opslog.mcp.server` speaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from opslog.doors.arguments import converted
from opslog.errors import UsageError
from opslog.format.prepared import prepare

_FIELD = re.compile(r":ivar (\w+):")


class Hints(msgspec.Struct, frozen=True):
    """What a client may tell its user before a tool is called.

    :ivar read_only: it changes nothing.
    :ivar destructive: it may replace or delete something.
    :ivar idempotent: another call with the same arguments changes nothing more.
    """

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False


READS = Hints(read_only=True, idempotent=True)


class Tool(msgspec.Struct, frozen=True):
    """One tool.

    :ivar call: what it does. Called in threads, many at once.
    :ivar text: turns its result into text, for people, and for models that read only text; None: as JSON.
    """

    name: str
    title: str
    description: str
    input: type[msgspec.Struct]
    output: type[msgspec.Struct]
    hints: Hints
    call: Callable[[Any], msgspec.Struct]
    text: Callable[[Any], str] | None = None

    def run(self, arguments: Mapping[str, Any] | None) -> msgspec.Struct:
        """Call it, and return its result.

        :raises UsageError: the arguments do not fit `input`.
        """
        return self.call(converted(arguments or {}, self.input, self.name))


def tool(
    call: Callable[[Any], msgspec.Struct],
    title: str,
    input: type[msgspec.Struct],
    output: type[msgspec.Struct],
    hints: Hints,
    *,
    text: Callable[[Any], str] | None = None,
) -> Tool:
    """A tool made of a method: it has the method's name, and its docstring as its description."""
    prepare(input)
    description = " ".join((call.__doc__ or "").split())
    return Tool(call.__name__, title, description, input, output, hints, call, text)


def schema_of(type: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a struct. Its root is an object, as the protocol demands."""
    (root,), components = msgspec.json.schema_components([type], ref_template="#/$defs/{name}")
    described = {name: _described(schema) for name, schema in components.items()}
    schema = described.pop(root["$ref"].rpartition("/")[2])
    return schema | ({"$defs": described} if described else {})


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a struct, with descriptions from its docstring: of the struct, and of each field."""
    described = {key: value for key, value in schema.items() if key not in ("title", "description")}
    text, *of_fields = _FIELD.split(" ".join(schema.get("description", "").split()))
    if text.strip():
        described["description"] = text.strip()
    properties = described["properties"] = {name: dict(each) for name, each in schema.get("properties", {}).items()}
    for name, what in zip(of_fields[::2], of_fields[1::2], strict=True):
        properties[name].setdefault("description", what.strip())
    return described


def chosen(tools: Sequence[Tool], names: Sequence[str] | None, *, read_only: bool) -> list[Tool]:
    """The tools that a server offers.

    :param names: only these; None: all.
    :param read_only: only tools that change nothing.
    :raises UsageError: a tool does not exist, or writes although `read_only` is set.
    """
    known = {tool.name: tool for tool in tools}
    if names is None:
        return [tool for tool in tools if tool.hints.read_only or not read_only]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no tool {name!r}; there are {', '.join(known)}")
        if read_only and not known[name].hints.read_only:
            raise UsageError(f"{name!r} writes: leave out either it or the option to read only")
    return [tool for tool in tools if tool.name in names]
