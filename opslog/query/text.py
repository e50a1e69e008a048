"""The filter language as text. Pure.

    condition   = all *( "or" all )
    all         = one *( "and" one )
    one         = "not" one | "(" condition ")" | "exists" path
                | path ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) value
                | path [ "not" ] "in" array
    value       = a JSON value | word

A word is a string without quotes. It has no spaces and none of the characters ``( ) [ ] { } , " ' = < > !``. Keywords
are written in lower case or in capitals. A field whose name is a keyword is written in quotes.
"""

from __future__ import annotations

import math
import re
from typing import Any

from opslog.query.conditions import And, Condition, Exists, Not, OneOf, Or, Range
from opslog.query.faults import Fault
from opslog.query.paths import Path, scan_path, scan_string
from opslog.query.values import key_of

# No real query has so many levels. Much deeper ones would overflow Python's stack.
DEPTH_MAX = 100

_SPACE = re.compile(r"\s*")
_OPERATOR = re.compile(r"!=|<=|>=|=|<|>")
_WORD = re.compile(r"""[^\s()\[\]{},"'=<>!]+""")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_CONSTANTS = {"true": True, "false": False, "null": None}
_OPERATORS = "=, !=, <, <=, >, >=, in or not in"
# How operators of other languages are written here; for messages.
_OTHER_SIGNS = {"==": "=", "<>": "!=", "=<": "<=", "=>": ">="}
_OTHER_WORDS = {
    "is": "is null is written as = null (true also where the field is missing), and is not null as != null",
    "like": "no operator tests a part of a text; SQL does (sql in Python, opslog query in a shell)",
    "between": "between is written with two conditions, as in: hours >= 3 and hours <= 8",
    "order": "the order is no part of a condition; order_by gives it, or --sort in a shell",
    "limit": "the limit is no part of a condition; limit gives it, or --limit in a shell",
}
_OTHER_WORDS["ilike"] = _OTHER_WORDS["like"]


def parse_text(text: str) -> Condition:
    """Parse a condition given as a text.

    :raises QueryError: it is not a condition; the error points at the place.
    """
    try:
        return _Reader(text).read()
    except Fault as fault:
        raise fault.in_text(text) from None


class _Reader:
    """A recursive-descent parser of one text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0

    def read(self) -> Condition:
        condition = self._any()
        if self._at < len(self._text):
            raise self._fault(self._other_word() or "and, or, or the end is expected here")
        return condition

    def _fault(self, reason: str, at: int | None = None) -> Fault:
        at = self._at if at is None else at
        if self._text[at : at + 1] == "'":
            reason = 'write strings in double quotes: "…"'
        return Fault(reason, at)

    def _other_word(self) -> str | None:
        """If the next word is one of another language, how to write it here."""
        return _OTHER_WORDS.get((self._word() or "").lower())

    def _any(self) -> Condition:
        parts = [self._all()]
        while self._takes("or"):
            parts.append(self._all())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _all(self) -> Condition:
        parts = [self._one()]
        while self._takes("and"):
            parts.append(self._one())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _one(self) -> Condition:
        self._skip_space()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._fault(f"this is nested more than {DEPTH_MAX} levels deep")
        if self._takes("not"):
            condition: Condition = Not(self._one())
        elif self._takes_sign("("):
            condition = self._any()
            if not self._takes_sign(")"):
                raise self._fault("and, or, or ) is expected here")
        elif self._takes("exists"):
            condition = Exists(self._path())
        else:
            condition = self._comparison()
        self._depth -= 1
        return condition

    def _comparison(self) -> Condition:
        path = self._path()
        if self._takes("in"):
            return self._one_of(path)
        if self._takes("not"):
            if not self._takes("in"):
                raise self._fault(self._other_word() or "in is expected here, as in: status not in [done, blocked]")
            return Not(self._one_of(path))
        match = _OPERATOR.match(self._text, self._at)
        if match is None:
            raise self._fault(self._other_word() or f"after {path}, {_OPERATORS} is expected here")
        self._at = match.end()
        if (other := match[0] + self._text[self._at : self._at + 1]) in _OTHER_SIGNS:
            raise self._fault(f"{other} is written {_OTHER_SIGNS[other]}")
        value = self._value()
        if match[0] == "=":
            return OneOf(path, frozenset((key_of(value),)))
        if match[0] == "!=":
            return Not(OneOf(path, frozenset((key_of(value),))))
        return Range(path, match[0], value)

    def _one_of(self, path: Path) -> OneOf:
        self._skip_space()
        start = self._at
        values = self._value()
        if not isinstance(values, list):
            raise self._fault("after in, an array is expected, as in: status in [active, blocked]", start)
        return OneOf(path, frozenset(map(key_of, values)))

    def _path(self) -> Path:
        self._skip_space()
        word = self._word()
        if word is not None and _plain(word) in _RESERVED:
            raise self._fault(f'{word} is a word of the language; the field of this name is written "{word}"')
        if self._at == len(self._text):
            raise self._fault("a condition is expected here, as in: status = active")
        path, self._at = scan_path(self._text, self._at)
        self._skip_space()
        return path

    def _value(self) -> Any:
        self._skip_space()
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._fault(f"this is nested more than {DEPTH_MAX} levels deep")
        if self._takes_sign("["):
            value: Any = self._items()
        elif self._takes_sign("{"):
            value = self._pairs()
        elif self._text[self._at : self._at + 1] == '"':
            value, self._at = scan_string(self._text, self._at)
        else:
            value = self._word_value()
        self._depth -= 1
        self._skip_space()
        return value

    def _items(self) -> list[Any]:
        items: list[Any] = []
        if self._takes_sign("]"):
            return items
        while True:
            items.append(self._value())
            if self._takes_sign("]"):
                return items
            if not self._takes_sign(","):
                raise self._fault(", or ] is expected here")

    def _pairs(self) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        if self._takes_sign("}"):
            return pairs
        while True:
            self._skip_space()
            if self._text[self._at : self._at + 1] != '"':
                raise self._fault('a name in double quotes is expected here, as in {"year": 2026}')
            start = self._at
            name, self._at = scan_string(self._text, start)
            if name in pairs:
                raise self._fault("this name occurs twice", start)
            if not self._takes_sign(":"):
                raise self._fault(": is expected here")
            pairs[name] = self._value()
            if self._takes_sign("}"):
                return pairs
            if not self._takes_sign(","):
                raise self._fault(", or } is expected here")

    def _word_value(self) -> Any:
        word = self._word()
        if word is None:
            raise self._fault('a value is expected here: a number, "text", true, false, null, [ or {')
        start, plain = self._at, _plain(word)
        self._at += len(word)
        if plain in _CONSTANTS:
            return _CONSTANTS[plain]
        if plain in _RESERVED or word in ("True", "False", "None"):
            hint = {"True": "true", "False": "false", "None": "null"}.get(word, f'"{word}"')
            raise self._fault(f"a value is expected here; write {hint}", start)
        match = _NUMBER.fullmatch(word)
        if match is None:
            return word
        try:
            number: int | float = float(word) if match[1] or match[2] else int(word)
        except ValueError:  # thousands of digits
            number = math.inf
        if not math.isfinite(number):
            raise self._fault("this number is beyond the range of a double", start)
        return number

    def _word(self) -> str | None:
        match = _WORD.match(self._text, self._at)
        return match[0] if match else None

    def _takes(self, keyword: str) -> bool:
        """Skip a keyword if it comes next. Returns whether it did."""
        self._skip_space()
        word = self._word()
        if word is None or _plain(word) != keyword:
            return False
        self._at += len(word)
        self._skip_space()
        return True

    def _takes_sign(self, sign: str) -> bool:
        self._skip_space()
        if self._text[self._at : self._at + 1] != sign:
            return False
        self._at += 1
        return True

    def _skip_space(self) -> None:
        match = _SPACE.match(self._text, self._at)
        assert match is not None
        self._at = match.end()


_RESERVED = frozenset({"and", "or", "not", "in", "exists", *_CONSTANTS})


def _plain(word: str) -> str:
    """A keyword in lower case. A word of mixed case is no keyword and stays as it is."""
    return word.lower() if word.isupper() else word
