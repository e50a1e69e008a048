"""Streams of JSON messages keep their text."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslog.server.protocol import json_mode
from opslog.server.protocol.refusals import Refused

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(values, st.sampled_from([None, 1]), st.booleans())
def test_json_comes_back_as_it_was(value: object, indent: int | None, ascii: bool) -> None:
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=ascii).encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return
    if re.search(rb"\\ud[89a-f]", text):
        return
    record = json_mode.record(text)
    expected = value if isinstance(value, list) else [value]
    assert json.loads(json_mode.array([record] if record else [])) == expected
    ends = list(json_mode.boundaries(record)) if record else [0]
    assert len(ends) == len(expected) + 1
    assert ends[-1] == len(record)
    if record:
        assert list(json_mode._divided(record)) == list(json_mode.messages(record))
    for count, end in enumerate(ends):
        assert json.loads(json_mode.array([record[:end]] if end else [])) == expected[:count]


def levels(value: object) -> int:
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return 1 + max(map(levels, inner), default=0)
    return 0


texts = st.text(alphabet='[]{}",\\a')
nested = st.recursive(
    texts, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3), max_leaves=30
)


@given(nested, st.integers(1, 5))
def test_the_levels_of_a_message_are_counted(value: object, limit: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_mode, "LEVELS_MAX", limit)
        text = json.dumps(value).encode()
        assert json_mode._is_too_deep(text) is (levels(value) > limit)


@pytest.mark.parametrize("around", [(b"", b""), (b"[1,", b"]")])
@pytest.mark.parametrize("begin", [b"[", b'{"]":', b'["\\"[",', b"[1,"])
def test_a_message_has_a_limit_of_levels(begin: bytes, around: tuple[bytes, bytes]) -> None:
    before, after = around
    end = b"}" if begin.startswith(b"{") else b"]"
    is_list = begin.startswith(b"[") and not before  # its elements are the messages, so it counts for nothing
    most = json_mode.LEVELS_MAX + is_list
    assert json_mode.record(before + begin * most + b"1" + end * most + after)
    for more in (most + 1, 960, 5000):
        with pytest.raises(Refused, match="more than 500 arrays and objects inside each other"):
            json_mode.record(before + begin * more + b"1" + end * more + after)


def test_messages_of_more_levels_that_an_earlier_version_took_are_divided() -> None:
    found = [b"[" * 2000 + b"]" * 2000, b'{"a,\\"[": [' * 900 + b"1" + b"] }" * 900, b'"],"', b" 1 "]
    assert list(json_mode.messages(b"".join(b"%b," % message for message in found))) == found
