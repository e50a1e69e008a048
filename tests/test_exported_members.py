"""One page is the public surface: its imports and its list of exports are the same."""

from __future__ import annotations

from types import ModuleType

import pytest

import opslog
import opslog.backends


@pytest.mark.parametrize("module", [opslog, opslog.backends], ids=lambda module: module.__name__)
def test_all_is_the_public_namespace(module: ModuleType) -> None:
    for name in module.__all__:
        getattr(module, name)  # some are imported at first use
    public = {
        name for name, value in vars(module).items() if not name.startswith("_") and not isinstance(value, ModuleType)
    }
    assert public == set(module.__all__)


@pytest.mark.parametrize("module", [opslog, opslog.backends], ids=lambda module: module.__name__)
def test_all_is_sorted_and_has_nothing_twice(module: ModuleType) -> None:
    assert module.__all__ == sorted(set(module.__all__))


def test_dir_shows_the_public_names_alone() -> None:
    shown = [name for name in dir(opslog) if not name.startswith("__")]
    assert shown == sorted([*opslog.__all__, "aio"])
