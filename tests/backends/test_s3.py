"""S3 through its drivers, on a server in this process: the contract, the meaning of responses, and a store from end to
end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("s3fs", reason="needs opslog[fast]")
pytest.importorskip("obstore", reason="needs opslog[fast]")
pytest.register_assert_rewrite("opslog.backends.testing")

import opslog  # noqa: E402  (after the rewrite is registered)
from opslog.backends import Backend, Range, open_backend  # noqa: E402
from opslog.backends.objects.backend import Driver, Put  # noqa: E402
from opslog.backends.objects.obstore_driver import ObstoreDriver  # noqa: E402
from opslog.backends.objects.s3 import open_url  # noqa: E402
from opslog.backends.objects.s3fs_driver import S3fsDriver  # noqa: E402
from opslog.backends.testing import ODD_PATHS, BackendContract  # noqa: E402
from opslog.errors import InvalidNameError, MissingFileError, RetryError, UsageError, WriteFailedError  # noqa: E402
from opslog.verify.verify import verify  # noqa: E402
from tests.support.s3_server import PAGE, Fault, S3Server  # noqa: E402


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


class TestS3fs(BackendContract):
    @pytest.fixture(autouse=True)
    def with_server(self, server: S3Server) -> None:
        self.server = server

    def open_backend(self, space: Path) -> Backend:
        return open_url(f"s3://bucket{space}?driver=s3fs", **self.server.options())


class TestObstore(BackendContract):
    odd_paths = tuple(path for path in ODD_PATHS if "\n" not in path)

    @pytest.fixture(autouse=True)
    def with_server(self, server: S3Server) -> None:
        self.server = server

    def open_backend(self, space: Path) -> Backend:
        return open_url(f"s3://bucket{space}?driver=obstore", **self.server.options())


@pytest.fixture(params=["s3fs", "obstore"])
def driver(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path) -> Iterator[Driver]:
    backend = open_url(f"s3://{tmp_path.name}?driver={request.param}", **server.options())
    yield backend.driver
    backend.close()


# -- what answers mean


def test_put_if_absent(driver: Driver) -> None:
    assert driver.put_new("x", b"1") is Put.CREATED
    assert driver.put_new("x", b"2") is Put.EXISTS
    assert driver.get("x", 0, None) == b"1"
    driver.put("x", b"3")
    assert driver.get("x", 0, None) == b"3"
    assert driver.requests == 5


def test_the_driver_is_the_fastest_that_understands_the_settings(server: S3Server) -> None:
    def chosen(url: str, **options: Any) -> type:
        backend = open_url(url, **{**server.options(), **options})
        backend.close()
        return type(backend.driver)

    assert chosen("s3://b/x") is ObstoreDriver
    assert chosen("s3://b/x", requester_pays=True) is S3fsDriver
    assert chosen("s3://b/x", client_kwargs={"verify": False}) is S3fsDriver
    assert chosen("s3://b/x", config_kwargs={"max_pool_connections": 8}) is S3fsDriver
    assert chosen("s3://b/x", config_kwargs={"read_timeout": 8}) is ObstoreDriver
    assert chosen("s3://b/x?driver=s3fs") is S3fsDriver
    with pytest.raises(UsageError, match=r"does not understand the setting client_kwargs\['verify'\]: leave it out"):
        chosen("s3://b/x?driver=obstore", client_kwargs={"verify": False})


@pytest.mark.parametrize("driver", ["s3fs", "obstore"])
def test_credentials_come_from_the_environment(server: S3Server, monkeypatch: pytest.MonkeyPatch, driver: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-north-1")
    backend = open_url(f"s3://bucket/env?driver={driver}", endpoint_url=server.url)
    before = len(server.headers)
    backend.create(f"by-{driver}", b"")
    backend.close()
    assert all("Credential=from-env/" in headers["Authorization"] for headers in server.headers[before:])
    assert all("/eu-north-1/s3/" in headers["Authorization"] for headers in server.headers[before:])
    assert len(server.headers) > before


def test_a_put_is_one_round_trip(server: S3Server, driver: Driver) -> None:
    """botocore would first ask whether the body is welcome, and wait for the answer."""
    before = len(server.headers)
    driver.put_new("x", b"1")
    assert [headers["Expect"] for headers in server.headers[before:]] == [None]


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("status", [0, 409, 429, 500, 502, 503, 504])
def test_statuses_that_leave_the_outcome_of_a_put_open(
    server: S3Server, driver: Driver, status: int, done: bool
) -> None:
    with server.failing(lambda request: Fault(status, done)):
        assert driver.put_new("x", b"1") is Put.UNKNOWN
    assert driver.put_new("x", b"1") is (Put.EXISTS if done else Put.CREATED)


@pytest.mark.parametrize("status", [400, 403, 404])
def test_statuses_that_refuse_a_put(server: S3Server, driver: Driver, status: int) -> None:
    with server.failing(lambda request: Fault(status)):
        with pytest.raises(WriteFailedError, match="could not be written"):
            driver.put_new("x", b"1")
        with pytest.raises(WriteFailedError, match="could not be"):
            driver.put("x", b"1")
        if status != 404:  # a missing object counts as deleted
            with pytest.raises(WriteFailedError, match="could not be"):
                driver.delete(["x"])


@pytest.mark.parametrize("status", [0, 403, 500, 503])
def test_reading_that_fails(server: S3Server, driver: Driver, status: int) -> None:
    driver.put_new("x", b"1")
    with server.failing(lambda request: Fault(status)):
        for read in (
            lambda: driver.get("x", 0, None),
            lambda: driver.get_many([Range("x")]),
            lambda: driver.list("", ""),
        ):
            with pytest.raises(RetryError, match="could not be read"):
                read()
    assert driver.get("x", 0, None) == b"1"


@pytest.mark.parametrize("name", ["s3fs", "obstore"])
def test_a_server_that_says_nothing(server: S3Server, name: str) -> None:
    """The request times out, and then counts like any other lost response."""
    backend = open_url(f"s3://silent?driver={name}", **server.options(), config_kwargs={"read_timeout": 0.1})
    driver = backend.driver
    for key, done in (("a", False), ("b", True)):
        with server.failing(lambda request, done=done: Fault(-1, done)):  # type: ignore[misc]
            assert driver.put_new(key, b"1") is Put.UNKNOWN
            with pytest.raises(RetryError, match="could not be read"):
                driver.get(key, 0, None)
            with pytest.raises(WriteFailedError, match="could not be"):
                driver.delete([key])
    answers = iter([Fault(-1, done=True)])
    with server.failing(lambda request: next(answers, None)):
        backend.create("c", b"1")
    assert driver.get("c", 0, None) == b"1"
    backend.close()


def test_reading(driver: Driver) -> None:
    driver.put_new("x", b"0123456789")
    driver.put_new("empty", b"")
    assert [driver.get("x", *part) for part in ((0, 3), (3, None), (9, 99), (10, None), (4, 4), (0, 0))] == [
        b"012",
        b"3456789",
        b"9",
        b"",
        b"",
        b"",
    ]
    assert driver.get("empty", 0, 5) == b""
    with pytest.raises(MissingFileError):
        driver.get("y", 0, 1)
    with pytest.raises(MissingFileError):
        driver.get("y", 3, 3)
    assert driver.get_many([Range("x", 1, 2), Range("y"), Range("empty"), Range("x", 1, 2)]) == [b"1", None, b"", b"1"]
    assert driver.get_many([]) == []


def test_listing_goes_from_page_to_page(server: S3Server, driver: Driver, tmp_path: Path) -> None:
    count = PAGE * 2 + 7
    with server.mutex:
        for number in range(count):
            server.objects[f"{tmp_path.name}/many/{number:05}"] = (b"x" * (number % 3), 1_000_000.5)
    before = driver.requests
    page, more = driver.list("many/", "")
    assert (len(page), more) == (PAGE, True)
    assert {one.modified for one in page} == {1_000_000.5}
    found = [one.key for one in page]
    while more:
        page, more = driver.list("many/", found[-1])
        found += [one.key for one in page]
    assert driver.requests - before == 3
    assert found == [f"many/{number:05}" for number in range(count)]
    driver.delete(found)
    assert driver.list("", "") == ([], False)


# -- a store


@pytest.mark.parametrize("driver", ["", pytest.param("?driver=s3fs", marks=pytest.mark.long), "?driver=obstore"])
def test_a_store_from_end_to_end(server: S3Server, driver: str) -> None:
    url, options = f"s3://bucket/a/store{driver[-4:]}{driver}", server.options()
    with (
        opslog.open(url, agent="a", compact_after=None, **options) as a,
        opslog.open(url, agent="b", durability="buffered", **options) as b,
    ):
        for number in range(40):
            a[f"é/{number:02}"] = {"number": number}
        b["b"] = {}
        b.flush()
        before = len(server.requests)
        a["one"] = {}
        assert [(request.method, request.conditional) for request in server.requests[before:]] == [("PUT", True)]
        assert a.compact().commits == 9
        a.undo()
        b.refresh()
        a.refresh()
        expected = dict(a.items())
        assert dict(b.items()) == expected
        assert len(expected) == 41
    with opslog.open(url, read_only=True, **options) as reader:
        assert dict(reader.items()) == expected
    backend = open_backend(url, **options)
    assert verify(backend).problems == []


def test_a_forked_child_opens_stores_of_its_own(server: S3Server, forked: Callable[[Callable[[], None]], None]) -> None:
    url, options = "s3://bucket/forked", server.options()
    with opslog.open(url, agent="parent", **options) as store:
        store["a"] = {}

        def child() -> None:
            with opslog.open(url, agent="child", **options) as own:
                own["b"] = {}
            try:
                opslog.open(f"{url}?driver=obstore", agent="child", **options)
            except opslog.UsageError as error:
                assert "start it with spawn" in str(error)  # noqa: PT017  (pytest's own way needs its machinery)
            else:
                raise AssertionError("obstore was used in a forked child")

        forked(child)
        assert [commit.agent for commit in store.refresh()] == ["child"]
        store["c"] = {}
        assert set(store) == {"a", "b", "c"}


def test_a_missing_store(server: S3Server) -> None:
    with pytest.raises(opslog.NotFoundError, match="no store at s3://bucket/nowhere"):
        opslog.open("s3://bucket/nowhere", read_only=True, **server.options())


@pytest.mark.parametrize("url", ["s3://", "s3:///x", "s3://bucket/x?y=1", "s3://bucket/x#y", "s3://b/x?driver=z"])
def test_urls_without_a_prefix_are_refused(url: str) -> None:
    with pytest.raises(InvalidNameError, match="s3://"):
        opslog.open(url, agent="a")


@pytest.mark.parametrize("driver", ["s3fs", "obstore"])
@pytest.mark.parametrize("says_so", [False, True])
def test_a_server_without_put_if_absent_is_refused(driver: str, says_so: bool) -> None:
    with S3Server() as other:
        other.honours_conditions, other.refuses_conditions = says_so, says_so
        with pytest.raises(opslog.UsageError, match=r"does not honour put-if-absent .* Known to work: Amazon S3"):
            opslog.open(f"s3://bucket/store?driver={driver}", agent="a", **other.options())
        assert other.objects == {}
        with other.failing(lambda request: Fault(403)), pytest.raises(WriteFailedError):
            opslog.open(f"s3://bucket/store?driver={driver}", agent="a", **other.options())
