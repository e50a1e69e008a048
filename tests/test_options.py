"""Options of `opslog.open`: an unknown name is refused, and the error names the nearest option."""

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
    """`make check` would report a ``type: ignore`` that is not needed."""
    with pytest.raises(opslog.UsageError, match="agent"):
        opslog.open("memory://x", agnet="a")  # type: ignore[call-overload]
    with pytest.raises(opslog.UsageError, match="agent"):
        opslog.aio.open("memory://x", agnet="a")._open_store()  # type: ignore[call-overload]


def test_settings_of_another_type_are_refused_with_an_example(tmp_path: Path) -> None:
    settings: Any = {"grace_seconds": 9}
    with pytest.raises(opslog.UsageError, match=r"as in settings=opslog.Settings\(grace_seconds=60\), not \{'grace"):
        opslog.open(tmp_path / "store", settings=settings)
    assert not (tmp_path / "store").exists(), "nothing is made"


@pytest.mark.parametrize("url", [None, 3, b"tasks", ""])
@pytest.mark.parametrize("options", [{}, {"segment_bytes": 1000}])
def test_what_is_no_path_and_no_url_is_refused(url: Any, options: dict[str, Any]) -> None:
    with pytest.raises(opslog.InvalidNameError, match=rf"{url!r} does not name a store: use a path, or a URL"):
        opslog.open(url, **options)


# -- options that contradict each other, or what is there


def test_an_agent_name_for_a_view_of_the_past_is_refused(tmp_path: Path) -> None:
    opslog.open(tmp_path, agent="a").close()
    with pytest.raises(opslog.UsageError, match=r"view of the past: leave out agent='a', or as_of"):
        opslog.open(tmp_path, agent="a", as_of=0)
    opslog.open(tmp_path, as_of=0).close()


def test_writing_to_what_was_opened_for_reading_says_how_to_open_it(tmp_path: Path) -> None:
    opslog.open(tmp_path).close()
    with (
        opslog.open(tmp_path, read_only=True) as store,
        pytest.raises(opslog.ReadOnlyError, match=r"with read_only=True: .* open it with an agent name"),
    ):
        store["x"] = {}
    with opslog.open(tmp_path, as_of=0) as past, pytest.raises(opslog.ReadOnlyError, match="as_of a point in the past"):
        past["x"] = {}


@pytest.mark.parametrize("how", [{}, {"read_only": True}, {"as_of": 0}], ids=["write", "read", "past"])
def test_settings_that_an_existing_store_does_not_have_are_refused(tmp_path: Path, how: dict[str, Any]) -> None:
    settings = opslog.Settings(undo_window=5, grace_seconds=60)
    opslog.open(tmp_path, settings=settings).close()
    with pytest.raises(opslog.UsageError, match=r"undo_window is 5, not 7; grace_seconds is 60(\.0)?, not 61"):
        opslog.open(tmp_path, settings=opslog.Settings(undo_window=7, grace_seconds=61), **how)
    opslog.open(tmp_path, settings=settings, **how).close()
    opslog.open(tmp_path, **how).close()


def test_settings_stay_right_when_a_compaction_changed_how_long_history_is_kept(tmp_path: Path) -> None:
    settings = opslog.Settings(undo_window=5)
    with opslog.open(tmp_path, settings=settings) as store:
        store.compact(keep_history="forever")
    opslog.open(tmp_path, settings=settings).close()
    with pytest.raises(opslog.UsageError, match=r"keep_history_seconds is None, not 60.*`compact` with keep_history"):
        opslog.open(tmp_path, settings=opslog.Settings(undo_window=5, keep_history_seconds=60))
