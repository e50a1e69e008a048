"""Options of `opslog.open`: a name that is none is refused, with the nearest one."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import register
from opslog.backends.memory import MemoryBackend
from opslog.options import OPEN


@pytest.mark.parametrize(
    ("url", "given", "message"),
    [
        ("directory", "agnet", "opslog.open has no option 'agnet': did you mean 'agent'?"),
        ("directory", "segment_byte", "did you mean 'segment_bytes'?"),
        ("memory://x", "segment_bytes", "This storage takes now"),
        ("directory", "qqqq", "it has agent, as_of, buffer_bytes"),
        ("lenient://x", "durabilty", "did you mean 'durability'?"),
        ("lenient://x", "create", "opslog.open has no option 'create'"),
    ],
)
def test_a_name_that_is_none_is_refused_with_the_nearest(tmp_path: Path, url: str, given: str, message: str) -> None:
    register("lenient", lambda url, **options: MemoryBackend(url, create=True))
    options: dict[str, Any] = {given: 1}
    with pytest.raises(opslog.UsageError) as raised:
        opslog.open(str(tmp_path / url) if url == "directory" else url, **options)
    assert message in str(raised.value)
    assert not (tmp_path / url).exists(), "nothing is made"


def test_a_storage_gets_what_only_it_knows() -> None:
    got: dict[str, object] = {}

    def open_url(url: str, **options: object) -> MemoryBackend:
        got.update(options)
        return MemoryBackend(url, create=True)

    register("knowing", open_url)
    options: dict[str, Any] = {"shelf_marks": 3}
    opslog.open("knowing://x", **options).close()
    assert got == {"shelf_marks": 3, "create": True}


def test_the_options_for_type_checkers_are_those_there_are() -> None:
    parameters = inspect.signature(opslog.open).parameters.values()
    assert {each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY} == OPEN


def test_type_checkers_see_a_wrong_name() -> None:
    """`make check` would complain of a ``type: ignore`` that is not needed."""
    with pytest.raises(opslog.UsageError, match="agent"):
        opslog.open("memory://x", agnet="a")  # type: ignore[call-overload]
    with pytest.raises(opslog.UsageError, match="agent"):
        opslog.aio.open("memory://x", agnet="a")._open_store()  # type: ignore[call-overload]
