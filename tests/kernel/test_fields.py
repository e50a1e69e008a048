"""The kernel reads the same fields out of lines as Python, or leaves a line to Python."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from opslog.errors import CorruptError
from opslog.format.commits import CLOCK_MAX, Delete, Record, Set, decode_records, encode_commit
from opslog.query import rows
from opslog.query.rows import Reader
from opslog.query.values import MISSING
from tests.support.leaks import growth_of

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")

TS = "2026-11-24T12:00:00.123456Z"
NAMES = ("a", "b", "", "ü", 'q"', "a.b")
SMALL = st.sampled_from([*NAMES, "c", "aa", "\\", "\n", "\ud7ff", "🚀", "\x7f"])
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=20)
    | st.sampled_from(
        [0, -1, -0.0, 2**53, 10**17, 10**18, -(10**18), 2**63, 1e22, 1e300, 5e-324, 1.7976931348623157e308]
    )
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(SMALL, inner, max_size=4), max_leaves=10
)
DOCUMENTS = st.dictionaries(SMALL, VALUES, max_size=6)
# Lines of other programs and people, and damaged ones.
ODD = [
    *(b'{"a":1,"a":1}', b'{"c":1,"c":2}', b'{"a":{"x":1,"x":2}}', b'{"c":[{"x":1,"x":2}]}', b'{"a":1,"\\u0061":2}'),
    *(b'{"c":{"x":{"y":1},"y":{"x":1}}}', b'{"c":[{"x":1},{"x":1}],"x":1}', b'{"\\u0061":1}', b'{"a":"\\u00e9"}'),
    *(b'{"a":1e400}', b'{"c":1e400}', b'{"a":-1e999}', b'{"a":1e99}', b'{"a":1e-400}', b'{"a":1E5}', b'{"a":1.0e+05}'),
    *(b'{"a":-0}', b'{"c":-0}', b'{"a":-0.0}', b'{"a":0.0}', b'{"a":00}', b'{"a":01}', b'{"a":-}', b'{"a":1.}'),
    *(b'{"a":.5}', b'{"a":1e}', b'{"a":1e+}', b'{"a":+1}', b'{"a":0x1}', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":nul}'),
    *(b'{"a":18446744073709551615}', b'{"a":18446744073709551616}', b'{"c":18446744073709551616}'),
    *(
        b'{"a":-9223372036854775808}',
        b'{"c":-9223372036854775809}',
        b'{"a":999999999999999999}',
        b'{"a":1' + b"0" * 400,
    ),
    *(b'{"a":0.' + b"1" * 60 + b"}", b'{"c":' + b"9" * 310 + b".0}", b'{"c":' + b"9" * 308 + b".0}"),
    *(b'{"a":"\xff"}', b'{"a":"\xc0\x80"}', b'{"c":"\xed\xa0\x80"}', b'{"a":"\xf4\x90\x80\x80"}', b'{"\xff":1}'),
    *(b'{"a":"\\ud83d\\ude80"}', b'{"c":"\\ud83d\\ude80"}', b'{"a":"\\ud83d"}', b'{"c":"\\udc00"}', b'{"\\ud800":1}'),
    *(b'{"a":"\x01"}', b'{"c":"\x1f"}', b'{"a":"\x7f\x00"}', b'{"a":"\\x"}', b'{"c":"\\u12"}', b'{"a":"', b'{"a":"x'),
    *(b'{ "a":1}', b'{"a" :1}', b'{"a": 1}', b'{"a":1 }', b'{"a":[1, 2]}', b'{"c":[1 ]}', b'{"a":1,}', b'{"a":[1,]}'),
    *(
        b"{}",
        b"{,}",
        b"{",
        b"[]",
        b"1",
        b"null",
        b'"a"',
        b"",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1,"b"}',
        b'{"a":1}}',
        b'{"a":1]',
    ),
    *(b'{"":1,"a.b":2}', b'{"a":[]}', b'{"a":{}}', b'{"a":[[],{}]}', b'{"a":{"":{"":[]}}}', b'{"a":[}', b'{"a":{]}'),
    *(b'{"a":true,"b":false}', b'{"a":tru}', b'{"a":True}', b'{"a":truefalse}', b'{"a":nullx}', b'{"c":fals'),
    b"{" + b",".join(b'"k%d":%d' % (number, number) for number in range(300)) + b',"a":1}',
    *(
        b'{"a":' * 254 + b"1" + b"}" * 254,
        b'{"a":' * 255 + b"1" + b"}" * 255,
        b'{"c":' + b"[" * 254 + b"]" * 254 + b"}",
    ),
    *(b'{"a":' + b"[" * 253 + b"]" * 253 + b"}", b'{"c":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
]


def line_of(data: bytes, v: int = 1, by: str = "", tx: str = "", id: str = "x") -> bytes:
    return encode_commit(Set(TS, 7, "planner", id, msgspec.Raw(data), v, by=by, tx=tx))


def decoded(line: bytes) -> Record | None:
    try:
        (record,) = decode_records(line, "lines", 0)
    except CorruptError:
        return None
    return record


def check(line: bytes, names: tuple[str, ...] = NAMES, version: int = 0) -> bool:
    """Whether the kernel takes a line. It must not take a line for which Python has another result."""
    ids, columns, others = _kernel.fields(line, names, version, MISSING)
    if others:
        assert (ids, columns, others) == ([], [[] for _ in names], [0])
        return False
    record = decoded(line)
    assert type(record) is Set
    assert [record.id] == ids
    assert version in (0, record.v)
    document = record.document  # this may raise
    assert repr([column for (column,) in columns]) == repr([document.get(name, MISSING) for name in names])
    return True


def is_plain(document: Any) -> bool:
    """Whether the kernel can read the document without Python."""
    if type(document) is dict:
        plain = all(json.dumps(name, ensure_ascii=False) == f'"{name}"' for name in document)
        return plain and all(map(is_plain, document.values()))
    if type(document) is list:
        return all(map(is_plain, document))
    if type(document) is str:
        return json.dumps(document, ensure_ascii=False) == f'"{document}"'
    if type(document) is float:
        exponent = repr(document).partition("e")[2]
        return len(exponent.lstrip("+-")) <= 2
    return type(document) is not int or abs(document) < 10**17


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # the first inputs are slow on a busy machine
@given(
    document=DOCUMENTS,
    id=st.text(st.characters(codec="utf-8"), max_size=5),
    v=st.sampled_from([1, 2, 4096, CLOCK_MAX]),
    by=st.sampled_from(["", "planner", "ü", 'x"']),
    version=st.sampled_from([0, 1, 2]),
)
def test_fields_of_any_document(document: dict[str, Any], id: str, v: int, by: str, version: int) -> None:
    line = line_of(orjson.dumps(document), v, by, by and "5f0c", id)
    is_taken = check(line, version=version)
    if is_plain([document, id, by]) and version in (0, v):
        assert is_taken, f"the kernel leaves {line!r}, which is of the usual form"


@pytest.mark.parametrize("data", ODD, ids=lambda data: repr(data[:30]))
def test_documents_of_any_form(data: bytes) -> None:
    line = line_of(data)
    is_taken = check(line)
    record = decoded(line)
    if is_taken:
        return
    # With rows around it, the results are the same.
    text = b"".join((line_of(b'{"a":1}', id="w"), line, line_of(b'{"a":"z"}', id="y")))
    assert _kernel.fields(text, ("a",), 0, MISSING) == (["w", "y"], [[1, "z"]], [1])
    if record is None:
        with pytest.raises(CorruptError, match=f"lines: byte {100 + text.index(line)}"):
            Reader(("a",), None).lines(text, "lines", 100)
    else:
        read = Reader(("a",), None).lines(text, "lines", 100)
        assert list(read.others) == [record]
        assert [found.id for found in read.sets([1, 0])] == ["y", "w"]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=DOCUMENTS.map(orjson.dumps) | st.sampled_from(ODD[:60]),
    damage=st.lists(st.tuples(st.integers(0), st.binary(max_size=3) | st.sampled_from([b'"', b"\\", b",", b"0"]))),
)
@example(data=b'{"a":1}', damage=[])
def test_damaged_lines(data: bytes, damage: list[tuple[int, bytes]]) -> None:
    line = line_of(data, 2, "planner", "5f")
    for place, new in damage:
        at = place % len(line)
        line = line[:at] + new + line[at + 1 :]
    check(line.replace(b"\n", b"") + b"\n")


def test_a_line_ends_where_it_ends() -> None:
    line = line_of(b'{"a":{"b":[1.5,"\xc3\xbc",true,null]},"c":-12}', 3, "planner", "5f0c")
    assert _kernel.fields(line, ("c",), 3, MISSING) == (["x"], [[-12]], [])
    for cut in range(1, len(line)):
        others = [0, 1] if cut < len(line) - 1 else [1]
        assert _kernel.fields(line[:cut] + b"\n" + line[cut:-1] + b"\n", (), 0, MISSING)[2] == others
    for cut in range(1, len(line)):  # the buffer ends in the middle of anything
        assert _kernel.fields(line[:cut], ("a",), 0, MISSING) is None
        assert check(line[:cut] + b"\n", ("a",)) is (cut == len(line) - 1)


def test_what_is_no_set_is_left() -> None:
    delete = encode_commit(Delete(TS, 1, "planner", "x"))
    joined = line_of(b"{}").replace(b"}\n", b',"joined":true}\n')
    unknown = line_of(b"{}").replace(b'"op"', b'"more":1,"op"')
    badly_timed = line_of(b"{}").replace(b"T12", b"t12")
    clocks = [line_of(b"{}").replace(b'"clock":7', b'"clock":' + clock) for clock in (b"0", b"07", b"-1", b"9" * 19)]
    for line in (delete, joined, unknown, badly_timed, *clocks, b"\n", b"{}\n", line_of(b"{}", id="\n")):
        assert check(line) is False


def test_calls_that_are_none() -> None:
    line = line_of(b'{"a":1}')
    assert _kernel.fields(b"", ("a",), 0, MISSING) is None
    assert _kernel.fields(line[:-1], ("a",), 0, MISSING) is None
    assert _kernel.fields(line, tuple(map(str, range(17))), 0, MISSING) is None
    assert _kernel.fields(line, tuple(map(str, range(16))), 0, MISSING)[0] == ["x"]
    for arguments in ((line, ["a"], 0, None), (line, (1,), 0, None), ("x", (), 0, None), (line, ())):
        with pytest.raises(TypeError):
            _kernel.fields(*arguments)
    assert _kernel.fields(line, ("a", "\ud800"), 0, MISSING) is None


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    documents=st.lists(st.tuples(DOCUMENTS.map(orjson.dumps) | st.sampled_from(ODD[:40]), st.sampled_from([1, 2]))),
    version=st.none() | st.sampled_from([1, 2]),
)
def test_a_reader_has_the_same_with_and_without_the_kernel(
    documents: list[tuple[bytes, int]], version: int | None
) -> None:
    lines = [line_of(data, v, id=f"{number:03}") for number, (data, v) in enumerate(documents)]
    lines = [line for line in lines if decoded(line) is not None] or [line_of(b"{}", 2)]
    assert seen(b"".join(lines), version) == seen_without_kernel(b"".join(lines), version)


def seen(text: bytes, version: int | None) -> list[tuple[Record, str]]:
    """Each record, with its fields."""
    read = Reader(NAMES, version).lines(text, "lines", 0)
    sets = read.sets(range(len(read.ids)))
    assert [record.id for record in sets] == list(read.ids)
    found: list[tuple[Record, str]] = []
    for number, record in enumerate(sets):
        assert version in (None, record.v)
        found.append((record, repr([column[number] for column in read.columns.values()])))
    for other in read.others:
        assert isinstance(other, Set)
        found.append((other, "another version" if version not in (None, other.v) else fields_of(other)))
    return sorted(found, key=lambda item: item[0].id)


def fields_of(record: Set) -> str:
    try:
        document = record.document
    except CorruptError:
        return "no document"
    return repr([document.get(name, MISSING) for name in NAMES])


def seen_without_kernel(text: bytes, version: int | None) -> list[tuple[Record, str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows, "fields", None)
        return seen(text, version)


def test_nothing_is_leaked() -> None:
    value = b'{"a":[1,"two",{"three":[null,4.5,true]}],"b":{"c":{}},"":"x"}'
    text = line_of(value) + line_of(b'{"a":[[1,"two"],{"b":1,"b":2}]}') + line_of(b'{"a":"x","b":"\\u0041"}')

    def work() -> None:
        assert _kernel.fields(text, NAMES, 0, MISSING)[2] == [1, 2]
        assert _kernel.fields(text, NAMES, 5, MISSING)[2] == [0, 1, 2]

    assert growth_of(work) < 20_000


# Objects with few names, so that names change places from one to the next, and some come twice.
MEMBERS = st.tuples(st.sampled_from("abc"), st.sampled_from([b"1", b'{"a":1}', b'{"b":{"c":2},"c":3}', b'[{"a":1}]']))
OBJECTS = st.lists(MEMBERS, max_size=4).map(
    lambda some: b"{%b}" % b",".join(b'"%b":%b' % (n.encode(), v) for n, v in some)
)


@given(st.lists(OBJECTS, min_size=1, max_size=8))
@example([b'{"a":1,"b":1,"c":1}', b'{"a":1,"c":1,"c":1}', b'{"a":1,"c":1,"b":1}'])
@example([b'{"a":1,"b":1}', b'{"b":1}', b'{"b":1,"b":1}', b"{}", b'{"a":{"b":1},"b":1,"a":1}'])
def test_a_document_is_read_as_if_it_were_alone(objects: list[bytes]) -> None:
    """Names are compared with those of the document before."""
    lines = [
        encode_commit(Set(TS, number + 1, "planner", str(number), msgspec.Raw(data)))
        for number, data in enumerate(objects)
    ]
    ids, (some, others), left = _kernel.fields(b"".join(lines), ("c", "a"), 0, MISSING)
    read = dict(zip(ids, zip(some, others, strict=True), strict=True))
    for number, line in enumerate(lines):
        names, (values, more), _ = _kernel.fields(line, ("c", "a"), 0, MISSING)
        assert (number in left) == (not names)
        if names:
            assert read[str(number)] == (values[0], more[0])
            assert _kernel.columns(line, ("c", "a"), 1) is not None
    assert (_kernel.columns(b"".join(lines), ("c", "a"), len(lines)) is None) == bool(left)
