from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

import opslog
from opslog.backends import Announces, Backend, ListsWithLogs, open_backend, register, registry
from opslog.backends.local.fs import FsBackend
from opslog.backends.memory import MemoryBackend
from opslog.backends.objects.urls import split_url
from opslog.errors import InvalidNameError, NotFoundError, WriteFailedError


@pytest.fixture(autouse=True)
def _registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def test_paths_and_file_urls_are_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_backend(tmp_path / "a store").create("locks/x", b"1")
    for url in [
        str(tmp_path / "a store"),
        "a store",
        "./a store",
        f"file://{tmp_path}/a%20store",
        f"file://localhost{tmp_path}/a%20store",
    ]:
        backend = open_backend(url)
        assert isinstance(backend, FsBackend)
        assert backend.read("locks/x") == b"1"
        assert backend.url == str(tmp_path / "a store")


def test_a_relative_path_means_the_directory_at_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    backend = open_backend("store")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    backend.create("x", b"1")
    assert (tmp_path / "store" / "x").read_bytes() == b"1"


def test_memory_urls_share_a_storage_by_name() -> None:
    one, other = open_backend("memory://shared by two"), open_backend("memory://shared by two")
    one.create("x", b"1")
    one.close()
    assert other.read("x") == b"1"
    assert open_backend("memory://shared by nobody").list("") == []
    private = open_backend("memory://")
    private.create("x", b"1")
    assert open_backend("memory://").list("") == []
    assert isinstance(private, MemoryBackend)


def test_a_missing_store_is_only_begun_with_create(tmp_path: Path) -> None:
    for url in [str(tmp_path / "no" / "store"), f"file://{tmp_path}/no/store", "memory://begun by nobody", "memory://"]:
        with pytest.raises(NotFoundError, match="no store at"):
            open_backend(url, create=False)
    assert os.listdir(tmp_path) == []
    for url in [str(tmp_path / "no" / "store"), "memory://begun by nobody"]:
        open_backend(url)
        open_backend(url, create=False).create("x", b"")


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for create in (True, False):
        with pytest.raises(InvalidNameError, match="not a directory"):
            open_backend(tmp_path / "file", create=create)
    with pytest.raises(WriteFailedError, match="a file stands where"):
        open_backend(tmp_path / "file" / "below")


@pytest.mark.parametrize("url", ["", "file://host/path", "file://relative"])
def test_urls_that_name_nothing(url: str) -> None:
    with pytest.raises(InvalidNameError):
        open_backend(url)


def test_an_unknown_scheme_names_the_known_ones_and_the_way_to_add_one() -> None:
    with pytest.raises(
        InvalidNameError, match=r"gopher://.*file://, gs://, http://, https://, memory://.*'gopher'.*'opslog\.backends'"
    ):
        open_backend("gopher://a")


def test_a_scheme_with_an_extra_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_EXTRAS", {"later": "an-extra", "broken": "another"})
    with pytest.raises(InvalidNameError, match=r"pip install 'opslog\[an-extra\]'"):
        open_backend("later://a")
    monkeypatch.setattr(registry, "_BUILT_IN", {"broken": "opslog_has_no_such_module:open_url"})
    with pytest.raises(InvalidNameError, match=r"needs the module opslog_has_no_such_module.*'opslog\[another\]'"):
        open_backend("broken://a")


def test_a_registered_factory_gets_the_url_and_the_options() -> None:
    backend = MemoryBackend()
    calls: list[tuple[str, dict[str, object]]] = []

    def factory(url: str, **options: object) -> MemoryBackend:
        calls.append((url, options))
        return backend

    register("mine", factory)
    assert open_backend("mine://a/b?c", create=False, depth=3) is backend
    assert calls == [("mine://a/b?c", {"create": False, "depth": 3})]
    register("memory", factory)
    assert open_backend("memory://x") is backend


@pytest.fixture
def distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An installed distribution that announces the scheme ``fake`` for a module of this name."""
    (tmp_path / "fake_backend.py").write_text(
        "from opslog.backends.memory import MemoryBackend\n"
        "def open_fake(url, *, create=True):\n"
        "    return MemoryBackend(url, create=create)\n"
    )
    info = tmp_path / "fake_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[opslog.backends]\nfake = fake_backend:open_fake\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "fake_backend"
    sys.modules.pop("fake_backend", None)


def test_an_installed_backend_is_found_by_its_entry_point(distribution: str) -> None:
    assert distribution not in sys.modules
    backend = open_backend("fake://somewhere")
    assert backend.url == "memory://fake://somewhere"
    assert distribution in sys.modules
    with pytest.raises(InvalidNameError, match=r"fake://, file://, gs://, http://, https://, memory://"):
        open_backend("gopher://a")


def test_importing_the_package_loads_no_backend_and_no_backend_loads_what_only_some_calls_need() -> None:
    program = (
        "import sys, opslog.backends;"
        "print(*sorted({'opslog.backends.local.fs', 'opslog.backends.memory'} & set(sys.modules)));"
        "import opslog.backends.local.fs, opslog.backends.memory;"
        "print(*sorted({'pytest', 'portalocker', 'opslog.backends.testing'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == ["", ""]


@pytest.mark.parametrize("prefix", ["..", "../other", "a/../../other", "a/./b", "a//b", "a/%2e%2e\0"])
def test_a_prefix_cannot_leave_its_bucket(prefix: str) -> None:
    with pytest.raises(InvalidNameError, match="not a path inside a store"):
        split_url(f"s3://bucket/{prefix}/x")


class Required:
    """A storage with the methods that `Backend` requires, and no others."""

    segments_grow = MemoryBackend.segments_grow

    def __init__(self, url: str) -> None:
        inner = MemoryBackend(url, create=True)
        self.url = url
        for name, member in vars(Backend).items():
            if inspect.isfunction(member) and not name.startswith("_"):
                setattr(self, name, getattr(inner, name))

    @property
    def requests(self) -> int:
        return 0


def test_a_backend_with_the_required_methods_alone_is_enough(tmp_path: Path) -> None:
    backend = Required("required://store")
    assert not isinstance(backend, ListsWithLogs | Announces)
    register("required", lambda url, **_: cast(Backend, backend))
    with opslog.open("required://store", agent="a") as store, opslog.open("required://store", agent="b") as other:
        store["x"] = {"n": 1}
        other.refresh()
        other.modify("x", lambda document: {"n": document["n"] + 1 if document else 0})
        commit = next(store.watch(0.01))
        assert commit.author == "b"
        assert store["x"] == {"n": 2}
        assert store.compact() is not None
