"""The protocol: the tools of `opslog.mcp.tools`, and documents as resources, as a server of the official SDK.

Tools run in threads, many at once. An error of the store is a result that says what to do next, because the model can
act on it. A request for a tool or resource that does not exist is an error of the protocol.

No request can name a path or an address. The store is chosen when the server starts, and the address of a resource
(``opslog:///documents/ID``) is looked up as an id in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import anyio.to_thread
import msgspec
from mcp import MCPError, types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS

from opslog import __version__
from opslog.doors.access import Asked, request_of, working_for
from opslog.doors.metrics import DoorMetrics
from opslog.doors.operations import Operations
from opslog.doors.problems import Problem, problem_of
from opslog.environment import REAL
from opslog.errors import NotFoundError, OpslogError
from opslog.mcp.admission import TokenUser
from opslog.mcp.tools import Tool, schema_of
from opslog.store import replica_of

# How many resources a page of their list has.
_RESOURCES = 100
_SCHEME = "opslog:///documents/"
_JSON = "application/json"
# The protocol's error code for a resource that does not exist.
_NO_RESOURCE = -32002

# For how many sessions one process remembers their names, and the leases of others that they have seen.
_SESSIONS = 1000

# A document may nest 254 levels, but the parsers of clients give up earlier (jiter at 200, with the whole message).
# Then the client waits for the answer for ever.
_LEVELS_MAX = 150
_TOO_DEEP = Problem(
    code="unreadable",
    message=f"the result nests deeper than {_LEVELS_MAX} levels, which clients cannot read",
    next="Ask for its fields by `fields`, or read it as a resource",
)
_NOT_SHOWN = (
    f"data is left out, because the document nests deeper than {_LEVELS_MAX} levels, which clients cannot read: get "
    "its fields by `fields`, or read it as a resource"
)

Context = ServerRequestContext[Any, Any]


class Client(NamedTuple):
    """The sender of requests.

    :ivar session: the id of its session over HTTP; empty: requests without one; None: the client at stdin and stdout.
    :ivar agent: the first part of the name that it writes under; None: the server's.
    :ivar writes: whether it may write.
    """

    session: str | None
    agent: str | None = None
    writes: bool = True


class Session(msgspec.Struct, frozen=True):
    """What a client can use.

    :ivar store: the name of the store in logs and figures.
    :ivar tools: by name, in the order of their list.
    """

    store: str
    operations: Operations
    tools: dict[str, Tool]

    def problem(self, error: OpslogError) -> Problem:
        """What the client learns of an error: as over the other doors, the store's name in place of its URL."""
        problem = problem_of(error)
        url = replica_of(self.operations.store).backend.url
        return msgspec.structs.replace(problem, message=problem.message.replace(url, self.store))


class Door:
    """Answers the requests of clients.

    :param begin: makes the session of a new client.
    :param metrics: count the calls of each tool, with ``ok`` or the code of the problem as status.
    """

    def __init__(self, begin: Callable[[Client], Session], metrics: DoorMetrics) -> None:
        self._begin = begin
        self._metrics = metrics
        self._sessions: OrderedDict[Client, Session] = OrderedDict()

    def server(self, name: str, instructions: str | None, *, resources: bool) -> Server[Any]:
        """The server of the SDK.

        :param resources: whether documents are resources, too.
        """
        more: dict[str, Any] = {}
        if resources:
            more = {
                "on_list_resources": self.list_resources,
                "on_list_resource_templates": self.list_templates,
                "on_read_resource": self.read_resource,
            }
        return Server(
            name,
            version=__version__,
            instructions=instructions,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            **more,
        )

    def _session(self, context: Context) -> Session:
        """The session of this request. Requests of one agent without a session share one."""
        client = _client_of(context)
        session = self._sessions.get(client)
        if session is None:
            session = self._sessions[client] = self._begin(client)
        self._sessions.move_to_end(client)
        while len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)
        return session

    # -- tools

    async def list_tools(self, context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_shown(tool) for tool in self._session(context).tools.values()])

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        session = self._session(context)
        tool = session.tools.get(params.name)
        if tool is None:
            there = ", ".join(session.tools)
            raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name!r}; there are {there}")
        asked, began = Asked("mcp", session.store, tool.name), REAL.monotonic()
        try:
            with _working_for(context, asked):
                result = await _in_thread(partial(tool.run, params.arguments))
        except OpslogError as error:
            problem = session.problem(error)
            self._count(asked, problem.code, began)
            return _refused(problem)
        self._count(asked, "ok", began)
        structured = msgspec.to_builtins(result)
        if not _fits(structured, _LEVELS_MAX):
            if tool.hints.read_only:
                return _refused(_TOO_DEEP)
            # What was written or claimed stays so. A refusal would say otherwise, and lose the key of a claim.
            result = msgspec.structs.replace(result, data=None, note=_NOT_SHOWN)
            structured = msgspec.to_builtins(result)
        text = tool.text(result) if tool.text is not None else msgspec.json.encode(result).decode()
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=structured)

    def _count(self, asked: Asked, outcome: str, began: float) -> None:
        self._metrics.requests[*asked, outcome] += 1
        self._metrics.seconds[asked[:2]].observe(REAL.monotonic() - began)

    # -- resources

    async def list_resources(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        session = self._session(context)
        cursor = None if params is None else params.cursor
        page = await _translated(session, partial(session.operations.find, limit=_RESOURCES, cursor=cursor, fields=[]))
        return types.ListResourcesResult(
            resources=[
                types.Resource(name=item.id, uri=_SCHEME + quote(item.id, safe=""), mime_type=_JSON)
                for item in page.items
            ],
            next_cursor=page.cursor,
        )

    async def list_templates(
        self, context: Context, params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        template = types.ResourceTemplate(
            name="document",
            uri_template=_SCHEME + "{id}",
            mime_type=_JSON,
            description="A document of the store as JSON, with its id, stamp, author and time.",
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        uri = str(params.uri)
        if not uri.startswith(_SCHEME):
            raise MCPError(_NO_RESOURCE, f"there is no resource {uri!r}: they are {_SCHEME}ID", {"uri": uri})
        try:
            id = unquote(uri.removeprefix(_SCHEME), errors="strict")
        except UnicodeDecodeError:
            raise MCPError(_NO_RESOURCE, f"there is no resource {uri!r}: its id is not UTF-8", {"uri": uri}) from None
        session = self._session(context)
        entry = await _translated(session, partial(session.operations.get, id), uri)
        text = msgspec.json.encode(entry).decode()
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=_JSON, text=text)])


def _client_of(context: Context) -> Client:
    request = context.request
    if request is None:
        return Client(None)
    # The SDK checks that the session exists only if there was a handshake. Otherwise a client could invent one.
    has_session = context.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS
    session = request.headers.get("mcp-session-id", "") if has_session else ""
    user = request.scope.get("user")
    if not isinstance(user, TokenUser):
        return Client(session)
    return Client(session, user.agent, writes=user.agent is not None)


def _working_for(context: Context, asked: Asked) -> AbstractContextManager[None]:
    """For a request over HTTP: a block in which logged lines have its id. Its own line names the operation."""
    if context.request is None:
        return nullcontext()
    request = request_of(context.request.scope)
    request.asked = asked
    return working_for(request)


def _fits(value: Any, levels: int) -> bool:
    """Whether a value nests no deeper than so many levels."""
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return levels > 0 and all(_fits(each, levels - 1) for each in inner)


async def _in_thread(call: Callable[[], Any]) -> Any:
    return await anyio.to_thread.run_sync(call)


async def _translated(session: Session, call: Callable[[], Any], uri: str | None = None) -> Any:
    """The result of a call, with errors of the store as errors of the protocol."""
    try:
        return await _in_thread(call)
    except NotFoundError as error:
        raise MCPError(_NO_RESOURCE, session.problem(error).message, {"uri": uri}) from error
    except OpslogError as error:
        problem = session.problem(error)
        raise MCPError(types.INVALID_PARAMS, f"{problem.code}: {problem.message}. {problem.next}") from error


def _shown(tool: Tool) -> types.Tool:
    hints = tool.hints
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=schema_of(tool.input),
        output_schema=schema_of(tool.output),
        annotations=types.ToolAnnotations(
            title=tool.title,
            read_only_hint=hints.read_only,
            destructive_hint=hints.destructive,
            idempotent_hint=hints.idempotent,
            open_world_hint=False,
        ),
    )


def _refused(problem: Problem) -> types.CallToolResult:
    text = msgspec.json.encode(problem).decode()
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}
