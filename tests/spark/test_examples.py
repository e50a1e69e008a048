"""The examples of docs/spark.md run, and print what the page shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.documents import ROOT, run_examples


@pytest.mark.long
def test_examples_run_and_print_what_is_shown(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_examples(ROOT / "docs" / "spark.md", tmp_path, monkeypatch, spark=spark)
