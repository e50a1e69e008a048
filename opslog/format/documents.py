"""Documents: exactly the JSON objects that are read back unchanged. Pure.

A document that is read back equals the one that was written, with the same types, the same order of keys, and integers
of up to 64 bits. Values that JSON or orjson would silently change (NaN to null, a tuple to a list, a UUID to a string)
or cannot represent are refused.
"""

from __future__ import annotations

import builtins
import dataclasses
import marshal
import math
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec
import orjson

from opslog.errors import (
    CorruptError,
    InvalidDocumentError,
    InvalidNameError,
    SchemaMismatchError,
    SchemaVersionError,
    UsageError,
)
from opslog.format.commits import CLOCK_MAX, Batch, Commit, DeleteOp, Record, Set, SetOp
from opslog.format.prepared import prepare
from opslog.kernel import encode as encode_plain

T = TypeVar("T")

Document = dict[str, Any]
# Called with a document and the older schema version under which it was written; returns it in the current form.
Migrate = Callable[[Document, int], Document]

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
# orjson writes at most this many levels.
_DEPTH_MAX = 254
# A message shows the beginning and the end of a longer place.
_PLACE_SHOWN = 120


def check_version(version: object) -> int:
    """The schema version itself, if a line can hold it.

    :raises UsageError: otherwise.
    """
    if isinstance(version, int) and not isinstance(version, bool) and 1 <= version <= CLOCK_MAX:
        return version
    raise UsageError(f"a schema version is an integer from 1 to {CLOCK_MAX}, not {version!r:.60}")


def check_type(type: Any) -> None:
    """Refuse a type whose values are not JSON objects; otherwise, prepare it: see `opslog.format.prepared`.

    :raises UsageError: documents cannot be of this type.
    """
    if type is None or type is dict:
        return
    from msgspec import inspect  # only needed for stores with types

    try:
        fits = not isinstance(type, str) and _is_object(inspect.type_info(type))
        if fits:
            prepare(type)
    except (TypeError, NameError, AttributeError) as error:
        raise UsageError(f"documents cannot be of type {type_name(type)}: {error}") from error
    if not fits:
        raise UsageError(
            f"type is a dataclass, a TypedDict or a msgspec.Struct, because documents are JSON objects; it is not "
            f"{type_name(type)}. For plain dicts leave it out"
        )


def _is_object(info: Any) -> bool:
    """Whether each value of a type is a JSON object."""
    from msgspec import inspect

    match info:
        case inspect.Metadata():
            return _is_object(info.type)
        case inspect.UnionType():
            return all(map(_is_object, info.types))
        case inspect.StructType():
            return not info.array_like
    return isinstance(info, inspect.DataclassType | inspect.TypedDictType | inspect.DictType)


def type_name(type: Any) -> str:
    """The name of a type in messages."""
    return type.__name__ if isinstance(type, builtins.type) else repr(type)[:80]


def plain_id(id: Any) -> Any:
    """An id as a plain `str`: a subclass of it may compare and hash in its own way, which would confuse a dict of
    documents. Other values are returned unchanged; no document has them as its id."""
    return str.__str__(id) if isinstance(id, str) else id


def check_id(id: object) -> str:
    """The id as a `str`, if a document can have it: any string that is valid Unicode.

    :raises InvalidNameError: otherwise.
    """
    if not isinstance(id, str):
        raise InvalidNameError(f"a document's id is a string, not {type(id).__name__}: {id!r}")
    if type(id) is not str:
        id = str.__str__(id)
    if not id.isascii():
        try:
            id.encode()
        except UnicodeEncodeError as error:
            raise InvalidNameError(
                f"id {id!r} has a lone surrogate at {error.start}, which UTF-8 cannot carry"
            ) from None
    return id


def encode(document: object) -> bytes:
    """The JSON text of a document.

    The check is to read the text back and compare, which costs as much as writing the text. No other check covers
    everything that Python or orjson may do in future, and traversing the document in Python would cost several times as
    much. Equality accepts types that compare as equal (an IntEnum and its number); marshal, which knows only the plain
    types, does not. In C, traversing the document costs a tenth; if it has only JSON's own types, it is then encoded
    without further checks.

    :raises InvalidDocumentError: it is not a JSON object, or something in it would not be read back unchanged; names
        the place.
    """
    if encode_plain is not None and (plain := encode_plain(document, orjson.dumps)) is not None:
        return plain
    try:
        text = orjson.dumps(document)
        # Version 2 is the last that does not search for objects that occur twice.
        marshal.dumps(document, 2)  # type: ignore[arg-type]  # this checks whether it can
        if text.startswith(b"{") and orjson.loads(text) == document:
            # A copy, because orjson's result keeps all of the 4 KiB buffer that it began to write into.
            return b"%b" % text
    except (orjson.JSONEncodeError, RecursionError, ValueError):
        pass
    reason, place = _find_fault(document, "$", {}) or ("it does not come back as it was written", "$")
    shown = place
    if len(place) > _PLACE_SHOWN:
        shown = f"{place[: _PLACE_SHOWN // 2]} … {place[-_PLACE_SHOWN // 4 :]}"
    raise InvalidDocumentError(f"the document cannot be stored exactly: at {shown}, {reason}", place)


def with_lists(value: Any, depth: int = _DEPTH_MAX) -> Any:
    """A value with its tuples turned into lists, down to `depth` levels: `msgspec.to_builtins` leaves tuples."""
    if depth <= 0:
        return value
    if isinstance(value, list | tuple):
        return [with_lists(item, depth - 1) for item in value]
    if isinstance(value, dict):
        return {name: with_lists(item, depth - 1) for name, item in value.items()}
    return value


def _find_fault(value: object, place: str, above: dict[int, str]) -> tuple[str, str] | None:
    """(problem, place) of the first value in `value` that JSON cannot represent exactly, or None.

    :param above: the places of the dicts and lists that contain `value`, by their identity.
    """
    if not above and type(value) is not dict:
        hint = f": open the store with type={type(value).__name__}" if _is_typed(value) else ""
        return f"a document is a JSON object (a dict), not {type(value).__name__}{hint}", place
    if type(value) is not dict and type(value) is not list:
        fault = _scalar_fault(value)
        return (fault, place) if fault else None
    if id(value) in above:
        return f"it contains itself: this is the same {type(value).__name__} as at {above[id(value)]}", place
    if len(above) == _DEPTH_MAX:
        return f"it is nested more than {_DEPTH_MAX} levels deep", place
    above[id(value)] = place
    found = _find_fault_within(value, place, above)
    del above[id(value)]
    return found


def _find_fault_within(
    value: dict[object, object] | list[object], place: str, above: dict[int, str]
) -> tuple[str, str] | None:
    if type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                return f"the key {key!r} is not a string but {type(key).__name__}", place
            if fault := _string_fault(key):
                return f"the key {key!r} {fault}", place
            if found := _find_fault(item, f"{place}.{key}", above):
                return found
        return None
    for number, item in enumerate(value):
        if found := _find_fault(item, f"{place}[{number}]", above):
            return found
    return None


def _is_typed(value: object) -> bool:
    return isinstance(value, msgspec.Struct) or (dataclasses.is_dataclass(value) and not isinstance(value, type))


def _scalar_fault(value: object) -> str | None:
    if value is None or type(value) is bool:
        return None
    if type(value) is int:
        return None if _INT_MIN <= value <= _INT_MAX else f"the integer {value} does not fit in 64 bits"
    if type(value) is float:
        return None if math.isfinite(value) else f"{value} is not a JSON number"
    if type(value) is str:
        fault = _string_fault(value)
        return f"the string {fault}" if fault else None
    hint = ". Give the store a type= that has it, or make it a dict" if _is_typed(value) else ""
    return f"{type(value).__name__} is not a JSON type: {value!r:.80}{hint}"


def _string_fault(text: str) -> str | None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"has a lone surrogate at {error.start}, which UTF-8 cannot carry"
    return None


class Schema(msgspec.Struct, Generic[T], frozen=True):
    """A program's view of documents: their type, and their schema version.

    :ivar type: the class `T`: a dataclass, a TypedDict or a msgspec.Struct; None for plain dicts.
    :ivar version: the current schema version, written with each document. None: any version, for tools that do not
        know the schema; documents are returned unchanged, and a set keeps the version of the record that it replaces.
    :ivar migrate: brings a document of an older version forward when it is read; None: it is returned unchanged.
    """

    type: type[T] | None = None
    version: int | None = 1
    migrate: Migrate | None = None

    @property
    def reads_replaced(self) -> bool:
        """Whether a set needs the record that it replaces: to keep its version, or because of `check_known`."""
        return self.type is not None or self.version is None

    def check_known(self, data: bytes, replaced: Set | None) -> None:
        """Check that replacing this record by `data`, from `encode`, deletes no field that the type does not know.

        :raises InvalidDocumentError: it does; names the field.
        :raises SchemaVersionError: the record was written under a newer version, of which the type knows nothing.
        """
        if self.type is None or replaced is None:
            return
        from opslog.format.known_fields import lost_field  # only needed for stores with types

        try:
            old = self.current(replaced)
        except CorruptError:
            return  # nobody can read its content, and this set repairs it
        name = type_name(self.type)
        try:
            place = lost_field(self.type, old, orjson.loads(data))
        except RecursionError:
            raise InvalidDocumentError(
                f"document {replaced.id!r} is nested too deeply to find out whether to set it would delete fields that "
                f"{name} does not know. Delete it first; or open the store without `type`",
                "$",
            ) from None
        if place is not None:
            raise InvalidDocumentError(
                f"to set document {replaced.id!r} would delete {place}, which {name} does not know: "
                f"another version of this program (agent {replaced.agent}) has written it. Add the field to the type; "
                "or, to remove the field, raise `version` and let `migrate` remove it; or open the store without "
                "`type`",
                place,
            )

    def check_again(self, commit: Commit, find: Callable[[str], Set | None]) -> None:
        """Check a plain commit as `check_known` does, set by set: more may have been read since it was prepared.

        :param find: returns the record of a document, as the store has it now.
        """
        if self.type is None:
            return
        written: dict[str, Set | None] = {}
        ops: Iterable[Record | SetOp | DeleteOp] = commit.ops if isinstance(commit, Batch) else commit.records
        for op in ops:
            id = op.id
            if isinstance(op, Set | SetOp):
                self.check_known(bytes(op.data), written[id] if id in written else find(id))
                written[id] = Set("", 0, "", id, op.data, op.v)
            else:
                written[id] = None

    def encode(self, value: T) -> bytes:
        """:raises InvalidDocumentError: as of `encode`; or the value is not of the store's type."""
        if self.type is None:
            if encode_plain is not None and (text := encode_plain(value, orjson.dumps)) is not None:
                return text  # as `encode`, without its call
            return encode(value)
        try:
            plain = with_lists(msgspec.to_builtins(value))
            msgspec.convert(plain, self.type)
        except (msgspec.ValidationError, TypeError) as error:
            raise InvalidDocumentError(f"the document is not a valid {type_name(self.type)}: {error}") from error
        except RecursionError:
            return encode(value)  # it raises an error that names the place
        return encode(plain)

    def decode(self, record: Set) -> T:
        """:raises SchemaVersionError: written under a newer version.
        :raises SchemaMismatchError: not of the store's type.
        """
        if self.type is None and self.is_current(record):
            return record.document  # type: ignore[return-value]  # the same as the next line, but faster
        return self.typed(self.current(record), record)

    def typed(self, document: Document, record: Set) -> T:
        """The value that `decode` returns for a record whose document `current` gave. Consumes the document.

        :raises CorruptError: not of the store's type.
        """
        if self.type is None:
            return document  # type: ignore[return-value]  # T is Document where no type was given
        try:
            return msgspec.convert(document, self.type)
        except msgspec.ValidationError as error:
            raise SchemaMismatchError(self._mismatch(record, str(error)), record.id, record.v) from error

    def _mismatch(self, record: Set, fault: str) -> str:
        name = type_name(self.type)
        written = f"document {record.id!r}, written by {record.author} at clock {record.clock} under version {record.v}"
        if self.version is None or record.v == self.version:
            return (
                f"{written} of the schema, does not fit {name}: {fault}. It is not damaged: another type, or a program "
                "without one, wrote it. Give fields that were added a default; or raise `version` and pass `migrate`; "
                "or open the store without `type` to see the document"
            )
        if self.migrate is None:
            return (
                f"{written} of the schema, does not fit {name}, which is version {self.version}: {fault}. It is not "
                f"damaged: `migrate` is missing. Pass migrate= a function to opslog.open; it is called with the "
                f"document and its version ({record.v}), and returns the document in the form of {self.version}"
            )
        return (
            f"{written} of the schema, does not fit {name}, which is version {self.version}, after `migrate`: {fault}. "
            "It is not damaged: correct what `migrate` returns for this version"
        )

    @property
    def migrates(self) -> bool:
        """Whether `text` of a document may differ from the stored text."""
        return self.version is not None and self.migrate is not None

    def is_current(self, record: Set) -> bool:
        """Whether a document is returned as it is stored: it has the current version, or the schema has no version."""
        return self.version is None or record.v == self.version

    def text(self, record: Set) -> bytes | msgspec.Raw:
        """A document's JSON text in the form of the current version. Errors as of `current`; without `migrate`, a
        document of a newer version is returned as it is."""
        if self.migrate is None or self.is_current(record):
            return record.data
        return orjson.dumps(self.current(record))

    def current(self, record: Set) -> Document:
        """The document as JSON in the form of the current version, decoded anew.

        :raises SchemaVersionError: written under a newer version.
        :raises SchemaMismatchError: `migrate` returned something else than a document.
        """
        if self.is_current(record):
            return record.document
        return self._migrate(record.document, record)

    def _migrate(self, document: Document, record: Set) -> Document:
        assert self.version is not None
        if record.v > self.version:
            raise SchemaVersionError(
                f"document {record.id!r} was written under schema version {record.v} by {record.agent}, and this "
                f"program knows versions up to {self.version}: upgrade this program",
                record.id,
                record.v,
            )
        if self.migrate is None:
            return document
        current = self.migrate(document, record.v)
        if not isinstance(current, dict):  # otherwise the document would seem to be absent
            raise SchemaMismatchError(
                f"document {record.id!r}, written by {record.author} at clock {record.clock} under version {record.v} "
                f"of the schema, is not damaged: correct what `migrate` returns for this version. It returned "
                f"{type_name(type(current))}, and has to return the document, a dict, even if it changes it in place",
                record.id,
                record.v,
            )
        return current
