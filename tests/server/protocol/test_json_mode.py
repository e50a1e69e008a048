"""Streams of JSON messages keep their text."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from opslog.server.protocol import json_mode

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
