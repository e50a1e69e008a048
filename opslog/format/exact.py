"""JSON decoded exactly or not at all. Pure.

Decoders differ in what they silently change. If an object has a name twice, one decoder takes the first value and
another the last. An integer beyond 64 bits becomes a float in one and an error in another. This module refuses
everything that two programs could read differently, so all readers of a store have the same documents.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NoReturn

import msgspec
import orjson

# The errors of msgspec for bytes that it cannot decode; the last one for objects that are nested too deeply.
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class InexactError(ValueError):
    """The reason why some bytes are not exactly one JSON value.

    :ivar offset: the offset of the bad byte, if the decoder knows it, or 0.
    """

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.offset = offset


class NotJsonError(InexactError):
    """The bytes are not JSON in UTF-8 at all, such as the rest of a line that was cut off."""


def loads(data: bytes) -> Any:
    """The JSON value in `data`. Integers of any size stay integers.

    The standard library's decoder is used because only it shows the pairs of an object before they become a dict,
    which is needed to find duplicate names.

    :raises InexactError: no JSON, no UTF-8, half of a surrogate pair (which has no UTF-8 form), a name twice in one
        object, NaN and Infinity, numbers beyond the range of a double, or nested too deeply.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotJsonError("not UTF-8", error.start) from error
    try:
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise InexactError("half of a surrogate pair, which no UTF-8 text can hold") from error
    except json.JSONDecodeError as error:
        raise NotJsonError(f"not JSON: {error.msg}", len(text[: error.pos].encode("utf-8"))) from error
    except RecursionError as error:
        raise InexactError("nested too deeply") from error
    except InexactError:
        raise
    except ValueError as error:  # an integer with more digits than Python converts
        raise InexactError(str(error)) from error
    return value


def load_document(text: bytes) -> dict[str, Any]:
    """The JSON object in `text`, as a document holds it: integers fit in 64 bits, and it nests 254 levels at most.

    If encoding the result gives the same bytes again, the text was decoded exactly. This is true of nearly all
    documents, and encoding costs a sixth of decoding. Other documents, written by other programs or people, are decoded
    slowly.

    :raises InexactError: it is no JSON object, or not exactly one.
    """
    try:
        document = orjson.loads(text)
        if type(document) is dict and orjson.dumps(document) == text:
            return document
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        pass  # the slow way gives better reasons
    document = loads(text)
    if type(document) is not dict:
        raise InexactError("it is not a JSON object")
    try:
        orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        raise InexactError(f"beyond what a document holds: {error}") from error
    return document


def load_documents(texts: Sequence[bytes | msgspec.Raw]) -> list[dict[str, Any]] | None:
    """`load_document` of each of these JSON values, in half the time. None: they cannot be decoded together; call
    `load_document` for each."""
    text = b"[%b]" % b",".join(texts)
    try:
        documents = orjson.loads(text)
        if orjson.dumps(documents) == text and all(type(document) is dict for document in documents):
            return documents  # type: ignore[no-any-return]
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        pass
    return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InexactError(f"an object has the name {twice!r} twice, and only one of the values could be kept")
    return result


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InexactError(f"the number {text:.40} is beyond the range of a double")
    return number


def _refuse_constant(text: str) -> NoReturn:
    raise InexactError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_refuse_constant)
