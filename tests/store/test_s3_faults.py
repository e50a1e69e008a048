"""Whole stores on an S3 server that fails on request: through each driver, every kind of failure, at every request of
writing, compacting and collecting, one at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

pytest.importorskip("s3fs", reason="needs opslog[fast]")
pytest.importorskip("obstore", reason="needs opslog[fast]")

import opslog
from opslog.backends import open_backend
from opslog.verify.verify import verify
from tests.support.s3_server import Fault, Request, S3Server
from tests.support.sessions import act

FAULTS = {
    "silent": Fault(-1),
    "silent, and done": Fault(-1, done=True),
    "dropped": Fault(0),
    "dropped, and done": Fault(0, done=True),
    "dropped, and done late": Fault(0, late=2),
    "forbidden": Fault(403),
    "conflict": Fault(409),
    "too many": Fault(429),
    "error": Fault(500),
    "error, and done": Fault(500, done=True),
    "busy": Fault(503),
    "busy, and done": Fault(503, done=True),
    "busy, and done late": Fault(503, late=2),
}
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


def check(server: S3Server, driver: str, fault: Fault, place: int) -> bool:
    """A run with one fault, at the request with this number. Returns whether there was such a request."""
    url = f"s3://bucket/faults-{next(_numbers)}?driver={driver}"
    options = {**server.options(), "lease_seconds": 1.0}
    if fault.status < 0:
        options["config_kwargs"] = {"read_timeout": 0.5}
    first = len(server.requests)
    hit: list[Request] = []

    def inject(request: Request) -> Fault | None:
        if request.number != first + place:
            return None
        hit.append(request)
        return fault

    with server.failing(inject):
        known, unknown = act(url, 2, **options)
    with opslog.open(url, read_only=True, **options) as store:
        found = dict(store.items())
    assert known.items() <= found.items(), f"lost: {fault} at {hit}"
    assert set(found) - set(known) <= unknown, f"refused, and there: {fault} at {hit}"
    backend = open_backend(url, **options)
    errors = [str(problem) for problem in verify(backend).problems if problem.severity == "error"]
    backend.close()
    assert errors == [], f"{fault} at {hit}"
    assert len(known) >= 2, f"{fault} at {hit} ends one session, not all"
    return bool(hit)


@pytest.mark.parametrize(
    "driver", [pytest.param("s3fs", marks=pytest.mark.slow), pytest.param("obstore", marks=pytest.mark.long)]
)
def test_a_fault_at_every_request(server: S3Server, driver: str) -> None:
    """Each kind in turn; `test_every_fault_at_every_request` has all of them at each request."""
    kinds = itertools.cycle(FAULTS.values())
    count = next(place for place in itertools.count() if not check(server, driver, next(kinds), place))
    assert count > 30


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("driver", ["s3fs", "obstore"])
def test_every_fault_at_every_request(server: S3Server, driver: str, kind: str) -> None:
    count = next(place for place in itertools.count() if not check(server, driver, FAULTS[kind], place))
    assert count > 30
