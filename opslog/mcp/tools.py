"""What a tool is: a name, how it is described to a model, and what it does with plain structs. Nothing here knows the
protocol; `opslog.mcp.server` speaks it.
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
    :ivar destructive: it may replace or delete what is there.
    :ivar idempotent: to call it once more with the same arguments changes nothing more.
    """

    read_only: bool = False
    destructive: bool = False
    idempotent: bool = False


READS = Hints(read_only=True, idempotent=True)


class Tool(msgspec.Struct, frozen=True):
    """One tool.

    :ivar call: what it does; called in a thread, from many at once.
    :ivar text: its result for people and for models that read text alone; None: the result as JSON.
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
        """Its result.

        :raises UsageError: the arguments are not those that `input` describes.
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
    """The tool that a method is: its name, and as its description what its docstring says."""
    prepare(input)
    description = " ".join((call.__doc__ or "").split())
    return Tool(call.__name__, title, description, input, output, hints, call, text)


def schema_of(type: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a struct, with an object at its root, as the protocol demands."""
    (root,), components = msgspec.json.schema_components([type], ref_template="#/$defs/{name}")
    described = {name: _described(schema) for name, schema in components.items()}
    schema = described.pop(root["$ref"].rpartition("/")[2])
    return schema | ({"$defs": described} if described else {})


def _described(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a struct with what its docstring says: of the whole, and of each field."""
    described = {key: value for key, value in schema.items() if key not in ("title", "description")}
    text, *of_fields = _FIELD.split(" ".join(schema.get("description", "").split()))
    if text.strip():
        described["description"] = text.strip()
    properties = described["properties"] = {name: dict(each) for name, each in schema.get("properties", {}).items()}
    for name, what in zip(of_fields[::2], of_fields[1::2], strict=True):
        properties[name].setdefault("description", what.strip())
    return described


def chosen(tools: Sequence[Tool], names: Sequence[str] | None, *, read_only: bool) -> list[Tool]:
    """Those tools that a server offers.

    :param names: which ones; None: all.
    :param read_only: only those that change nothing.
    :raises UsageError: there is no such tool, or it writes where nothing is to be written.
    """
    known = {tool.name: tool for tool in tools}
    if names is None:
        return [tool for tool in tools if tool.hints.read_only or not read_only]
    for name in names:
        if name not in known:
            raise UsageError(f"there is no tool {name!r}; there are {', '.join(known)}")
        if read_only and not known[name].hints.read_only:
            raise UsageError(f"{name!r} writes: leave it, or the option to read only, out")
    return [tool for tool in tools if tool.name in names]
