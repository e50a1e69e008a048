"""The tools of the protocol's reference memory server (entities, relations, observations), on a store. Inputs and
outputs are the same, so its users change one line of their configuration. Each call is one transaction, so concurrent
writes of several agents are kept.

    entity/NAME                     {"name": …, "entityType": …, "observations": […], "created": …}
    relation/[FROM,TYPE,TO]         {"from": …, "to": …, "relationType": …, "created": …}
    memory/taken-in                 {"nodes": …, "created": …}: the file of a reference server was imported

Results are in the order of `created`, the oldest first, as the reference server returns them. Other documents of the
store are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import orjson

from opslog.doors.operations import Documents, Operations
from opslog.environment import REAL, Environment, format_ts
from opslog.errors import NotFoundError, UsageError
from opslog.format.documents import Document
from opslog.format.prepared import prepare
from opslog.mcp.tools import READS, Hints, Tool, tool

N = TypeVar("N", bound=msgspec.Struct)

_ENTITY, _RELATION = "entity/", "relation/"
# Records that a file was imported, so that it is not imported again, whatever is deleted later.
_TAKEN_IN = "memory/taken-in"


class Entity(msgspec.Struct, frozen=True, rename="camel"):
    """:ivar name: The name of the entity
    :ivar entityType: The type of the entity
    :ivar observations: An array of observation contents associated with the entity
    """

    name: str
    entity_type: str
    observations: list[str]

    @property
    def id(self) -> str:
        return _ENTITY + self.name


class Relation(msgspec.Struct, frozen=True, rename={"from_": "from", "relation_type": "relationType"}):
    """:ivar from: The name of the entity where the relation starts
    :ivar to: The name of the entity where the relation ends
    :ivar relationType: The type of the relation
    """

    from_: str
    to: str
    relation_type: str

    @property
    def id(self) -> str:
        return _RELATION + orjson.dumps([self.from_, self.relation_type, self.to]).decode()


prepare(Entity, Relation)


class Entities(msgspec.Struct, frozen=True):
    entities: list[Entity]


class Relations(msgspec.Struct, frozen=True):
    relations: list[Relation]


class Graph(msgspec.Struct, frozen=True):
    entities: list[Entity]
    relations: list[Relation]


class Added(msgspec.Struct, frozen=True, rename="camel"):
    """:ivar entityName: The name of the entity to add the observations to
    :ivar contents: An array of observation contents to add
    """

    entity_name: str
    contents: list[str]


class AddIn(msgspec.Struct, frozen=True):
    observations: list[Added]


class AddedTo(msgspec.Struct, frozen=True, rename="camel"):
    entity_name: str
    added_observations: list[str]


class AddOut(msgspec.Struct, frozen=True):
    results: list[AddedTo]


class DeleteEntitiesIn(msgspec.Struct, frozen=True, rename="camel"):
    """:ivar entityNames: An array of entity names to delete"""

    entity_names: list[str]


class Deletion(msgspec.Struct, frozen=True, rename="camel"):
    """:ivar entityName: The name of the entity containing the observations
    :ivar observations: An array of observations to delete
    """

    entity_name: str
    observations: list[str]


class DeletionsIn(msgspec.Struct, frozen=True):
    deletions: list[Deletion]


class Deleted(msgspec.Struct, frozen=True):
    success: bool
    message: str


class SearchIn(msgspec.Struct, frozen=True):
    """:ivar query: The search query to match against entity names, types, and observation content"""

    query: str


class OpenIn(msgspec.Struct, frozen=True):
    """:ivar names: An array of entity names to retrieve"""

    names: list[str]


class Nothing(msgspec.Struct, frozen=True):
    pass


class Memory:
    """The nine tools. Safe to use from many threads."""

    def __init__(self, operations: Operations, environment: Environment = REAL) -> None:
        self._operations = operations
        self._environment = environment

    # -- writing

    def create_entities(self, asked: Entities) -> Entities:
        """Create multiple new entities in the knowledge graph"""

        def decide(documents: Documents) -> Entities:
            return Entities([each for each in asked.entities if self._add(documents, each)])

        return self._operations.decide(decide)[0]

    def create_relations(self, asked: Relations) -> Relations:
        """Create multiple new relations between entities in the knowledge graph. Relations should be in active voice"""

        def decide(documents: Documents) -> Relations:
            return Relations([each for each in asked.relations if self._add(documents, each)])

        return self._operations.decide(decide)[0]

    def _add(self, documents: Documents, node: Entity | Relation) -> bool:
        if node.id in documents:
            return False
        documents[node.id] = msgspec.to_builtins(node) | {"created": format_ts(self._environment.time())}
        return True

    def add_observations(self, asked: AddIn) -> AddOut:
        """Add new observations to existing entities in the knowledge graph"""

        def decide(documents: Documents) -> AddOut:
            results = []
            for each in asked.observations:
                entity = documents.get(_ENTITY + each.entity_name)
                if entity is None:
                    raise NotFoundError(f"Entity with name {each.entity_name} not found")
                there = _read(Entity, _ENTITY + each.entity_name, entity).observations
                new = [content for content in each.contents if content not in there]
                if new:
                    documents[_ENTITY + each.entity_name] = entity | {"observations": [*there, *new]}
                results.append(AddedTo(each.entity_name, new))
            return AddOut(results)

        return self._operations.decide(decide)[0]

    def delete_entities(self, asked: DeleteEntitiesIn) -> Deleted:
        """Delete multiple entities and their associated relations from the knowledge graph"""
        names = asked.entity_names

        def decide(documents: Documents) -> None:
            touching = {"or": [{"from": {"in": names}}, {"to": {"in": names}}]}
            for id, _ in documents.find({"and": [_below(_RELATION), touching]}):
                del documents[id]
            for name in names:
                documents.pop(_ENTITY + name, None)

        self._operations.decide(decide)
        return Deleted(True, "Entities deleted successfully")

    def delete_observations(self, asked: DeletionsIn) -> Deleted:
        """Delete specific observations from entities in the knowledge graph"""

        def decide(documents: Documents) -> None:
            for each in asked.deletions:
                entity = documents.get(_ENTITY + each.entity_name)
                if entity is not None:
                    there = _read(Entity, _ENTITY + each.entity_name, entity).observations
                    kept = [content for content in there if content not in each.observations]
                    if kept != there:
                        documents[_ENTITY + each.entity_name] = entity | {"observations": kept}

        self._operations.decide(decide)
        return Deleted(True, "Observations deleted successfully")

    def delete_relations(self, asked: Relations) -> Deleted:
        """Delete multiple relations from the knowledge graph"""

        def decide(documents: Documents) -> None:
            for each in asked.relations:
                documents.pop(each.id, None)

        self._operations.decide(decide)
        return Deleted(True, "Relations deleted successfully")

    # -- reading

    def read_graph(self, asked: Nothing | None = None) -> Graph:
        """Read the entire knowledge graph"""
        store = self._operations.store
        self._operations.refresh()
        found = [(id, document) for id, document in store.items() if id.startswith((_ENTITY, _RELATION))]
        found.sort(key=lambda pair: str(pair[1].get("created", "")))
        return Graph(
            [_read(Entity, id, document) for id, document in found if id.startswith(_ENTITY)],
            [_read(Relation, id, document) for id, document in found if id.startswith(_RELATION)],
        )

    def search_nodes(self, asked: SearchIn) -> Graph:
        """Search for nodes in the knowledge graph based on a query"""
        text = asked.query.lower()
        return _part(
            self.read_graph(),
            lambda entity: any(
                text in each.lower() for each in (entity.name, entity.entity_type, *entity.observations)
            ),
        )

    def open_nodes(self, asked: OpenIn) -> Graph:
        """Open specific nodes in the knowledge graph by their names"""
        names = set(asked.names)
        return _part(self.read_graph(), lambda entity: entity.name in names)

    # -- what was kept before

    def take_in(self, path: Path) -> int:
        """Take in the file of a reference server, once, unless there is something already: how many nodes were taken
        over. One transaction.

        :raises UsageError: it cannot be read.
        """
        self._operations.refresh()
        if _TAKEN_IN in self._operations.store:
            return 0  # what became of the file since does not matter
        try:
            lines = [orjson.loads(line) for line in path.read_bytes().splitlines() if line.strip()]
            nodes = [_node(line) for line in lines]
        except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
            raise UsageError(f"{path} is no file of a memory server: {error}") from error

        def decide(documents: Documents) -> int:
            if _TAKEN_IN in documents:
                return 0
            has_some = documents.find(_below(_ENTITY), limit=1) or documents.find(_below(_RELATION), limit=1)
            count = 0 if has_some else sum(self._add(documents, node) for node in nodes)
            documents[_TAKEN_IN] = {"nodes": count, "created": format_ts(self._environment.time())}
            return count

        return self._operations.decide(decide)[0]

    def tools(self) -> list[Tool]:
        """All nine, with the words of the reference server, which models know."""
        creates, deletes = Hints(), Hints(destructive=True, idempotent=True)
        return [
            tool(
                self.create_entities,
                "Create Entities",
                Entities,
                Entities,
                creates,
                text=lambda result: _text(result.entities),
            ),
            tool(
                self.create_relations,
                "Create Relations",
                Relations,
                Relations,
                creates,
                text=lambda result: _text(result.relations),
            ),
            tool(
                self.add_observations,
                "Add Observations",
                AddIn,
                AddOut,
                creates,
                text=lambda result: _text(result.results),
            ),
            tool(self.delete_entities, "Delete Entities", DeleteEntitiesIn, Deleted, deletes, text=_message),
            tool(self.delete_observations, "Delete Observations", DeletionsIn, Deleted, deletes, text=_message),
            tool(self.delete_relations, "Delete Relations", Relations, Deleted, deletes, text=_message),
            tool(self.read_graph, "Read Graph", Nothing, Graph, READS, text=_text),
            tool(self.search_nodes, "Search Nodes", SearchIn, Graph, READS, text=_text),
            tool(self.open_nodes, "Open Nodes", OpenIn, Graph, READS, text=_text),
        ]


def _node(line: Document) -> Entity | Relation:
    """A line of the file of a reference server."""
    return msgspec.convert(line, Entity) if line["type"] == "entity" else msgspec.convert(line, Relation)


def _below(prefix: str) -> dict[str, Any]:
    """The condition for ids that begin with a prefix that ends in a slash; the next character after that is a zero."""
    return {"@id": {">=": prefix, "<": prefix[:-1] + "0"}}


def _read(kind: type[N], id: str, document: Document) -> N:
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"document {id!r} is none of the memory's ({error}): ids that begin with {_ENTITY} and {_RELATION} are for "
            "it; correct or delete it"
        ) from error


def _part(graph: Graph, is_wanted: Callable[[Entity], bool]) -> Graph:
    entities = [entity for entity in graph.entities if is_wanted(entity)]
    names = {entity.name for entity in entities}
    return Graph(entities, [each for each in graph.relations if each.from_ in names or each.to in names])


def _text(result: Any) -> str:
    return orjson.dumps(msgspec.to_builtins(result), option=orjson.OPT_INDENT_2).decode()


def _message(result: Deleted) -> str:
    return result.message
