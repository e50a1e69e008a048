"""Stores on S3 where threads are missing: after the end of the main thread, and where no more threads can start."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import Any

import pytest

pytest.importorskip("s3fs", reason="needs opslog[fast]")
pytest.importorskip("obstore", reason="needs opslog[fast]")

import opslog
from tests.support.s3_server import S3Server

AFTER_THE_MAIN_THREAD = """
import concurrent.futures.thread, json, sys, threading, time
import opslog

url, options = sys.argv[1], json.loads(sys.argv[2])
settings = opslog.Settings(undo_window=0, grace_seconds=0)
store, other = (opslog.open(url, agent=agent, settings=settings, **options) for agent in "ab")

def work():
    while not concurrent.futures.thread._shutdown:
        time.sleep(0.001)
    for number in range(3):
        other[f"{number}"] = {"number": number}
    store.refresh()
    store.modify("0", lambda document: {"number": 7})
    assert store.compact().commits
    opslog.open(url, read_only=True, **options).close()
    store.close()
    other.close()

if "pool" in sys.argv:  # until its worker has ended, the main thread counts as alive
    concurrent.futures.ThreadPoolExecutor().submit(work)
else:
    threading.Thread(target=work).start()
"""


AT_EXIT = """
import json, sys, opslog

url, options = sys.argv[1], json.loads(sys.argv[2])
store = opslog.open(url, agent="a", durability="buffered", buffer_seconds=3600, **options)
for number in range(3):
    store[f"{number}"] = {"number": number}
"""


def run(server: S3Server, program: str, driver: str, *arguments: str) -> dict[str, Any]:
    """Run a program that writes three documents. Returns the documents that are in the store then."""
    url, options = f"s3://bucket/{driver}?driver={driver}", server.options()
    # A name has to be resolved, for each request if the driver allows that.
    options["endpoint_url"] = server.url.replace("127.0.0.1", "localhost")
    if driver == "s3fs":
        options["config_kwargs"] = {"connector_args": {"keepalive_timeout": 0, "use_dns_cache": False}}
    command = [sys.executable, "-W", "ignore::ResourceWarning", "-c", program, url, json.dumps(options), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    with opslog.open(url, read_only=True, **server.options()) as fresh:
        return dict(fresh.items())


@pytest.mark.parametrize("driver", ["s3fs", "obstore"])
@pytest.mark.parametrize("worker", ["thread", "pool"])
def test_a_store_works_after_the_main_thread_has_ended(driver: str, worker: str) -> None:
    with S3Server() as server:
        found = run(server, AFTER_THE_MAIN_THREAD, driver, worker)
    assert found == {"0": {"number": 7}, "1": {"number": 1}, "2": {"number": 2}}


@pytest.mark.parametrize("driver", ["s3fs", "obstore"])
def test_a_buffer_is_written_at_exit(driver: str) -> None:
    with S3Server() as server:
        found = run(server, AT_EXIT, driver)
    assert found == {f"{number}": {"number": number} for number in range(3)}


def test_requests_are_sent_one_after_the_other_where_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with S3Server() as server:
        url, start = "s3://bucket/limit?driver=obstore", threading.Thread.start
        options = {"settings": opslog.Settings(undo_window=0, grace_seconds=0), **server.options()}

        def refuse(thread: threading.Thread) -> None:
            if "process_request" in thread.name:  # the server's own
                start(thread)
            else:
                raise RuntimeError("can't start new thread")

        with (
            opslog.open(url, agent="a", **options) as store,
            opslog.open(url, agent="b", **options) as other,
        ):
            for number in range(3):
                other[f"{number}"] = {}
            monkeypatch.setattr(threading.Thread, "start", refuse)
            assert len(store.refresh()) == 3
            assert len(list(store.changes())) == 3
            assert store.compact().commits == 3
        with opslog.open(url, read_only=True, **server.options()) as fresh:
            assert set(fresh) == {"0", "1", "2"}
        monkeypatch.undo()
