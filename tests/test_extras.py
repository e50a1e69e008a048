"""A missing extra is reported by its name."""

from __future__ import annotations

import subprocess
import sys

import pytest

import opslog


@pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
def test_spark_that_is_not_installed_is_named_with_its_extra(missing: str) -> None:
    program = f"""
import sys
sys.modules[{missing!r}] = None
try:
    import opslog.spark
except ModuleNotFoundError as error:
    print(error, error.name)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == f"opslog.spark needs {missing}: pip install 'opslog[spark]' {missing}\n"


def test_a_store_that_is_not_there_is_an_error_of_its_own_with_the_place() -> None:
    with pytest.raises(opslog.MissingStoreError, match="no store at memory://nowhere") as caught:
        opslog.open("memory://nowhere", read_only=True)
    assert caught.value.url == "memory://nowhere"
    assert isinstance(caught.value, KeyError)
