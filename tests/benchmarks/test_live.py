"""The measurement of the page, small."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import live


@pytest.mark.long
def test_it_measures_what_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    live.build(tmp_path / "store", 60)
    live.measure(tmp_path / "store", 2)
    assert "2 changes were drawn after: median" in capsys.readouterr().out
