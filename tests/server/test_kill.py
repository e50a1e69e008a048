"""The server is killed again and again under load, while producers retry: every message is there exactly once."""

from __future__ import annotations

import random
from pathlib import Path
from threading import Event, Thread

import httpx
import orjson
import pytest

from tests.support.servers import Server
from tests.support.waiting import until

PRODUCERS, STREAMS = 6, 2
JSON = {"content-type": "application/json"}


class Producer(Thread):
    """Appends numbered messages to each stream in turn until it is asked to end. It retries each message until it is
    acknowledged.

    :ivar acknowledged: how many messages, per stream.
    """

    def __init__(self, url: str, name: str, end: Event) -> None:
        super().__init__(name=name)
        self.acknowledged = [0] * STREAMS
        self._url = url
        self._end = end

    def run(self) -> None:
        with httpx.Client(timeout=10) as client:
            while not self._end.is_set():
                for number in range(STREAMS):
                    self._append(client, number)

    def _append(self, client: httpx.Client, number: int) -> None:
        seq = self.acknowledged[number]
        headers = JSON | {"producer-id": self.name, "producer-epoch": "0", "producer-seq": str(seq)}
        while True:
            try:
                answer = client.post(
                    f"{self._url}/s{number}", content=orjson.dumps([[self.name, seq]]), headers=headers
                )
            except httpx.TransportError:
                if self._end.wait(0.005):
                    return
                continue
            if answer.status_code in {200, 204}:
                self.acknowledged[number] = seq + 1
                return
            # A server that is about to end may answer 503, and no other error.
            assert answer.status_code == 503, answer.text


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])])
def test_every_acknowledged_message_is_there_exactly_once(tmp_path: Path, kills: int) -> None:
    options = ("--data", str(tmp_path / "data"))
    server = Server(*options, "--shards", "2")
    port = ("--port", str(server.port))
    for number in range(STREAMS):
        assert httpx.put(f"{server.url}/s{number}", headers=JSON).status_code == 201
    end = Event()
    producers = [Producer(server.url, f"p{number}", end) for number in range(PRODUCERS)]
    for producer in producers:
        producer.start()
    seeded = random.Random(7)
    try:
        for _ in range(kills):
            goal = sum(map(sum, (producer.acknowledged for producer in producers))) + seeded.randint(10, 90)
            until(lambda goal=goal: sum(sum(producer.acknowledged) for producer in producers) >= goal)  # type: ignore[misc]
            server.kill()
            server = Server(*options, *port)
        until(lambda: all(min(producer.acknowledged) > 0 for producer in producers))
    finally:
        end.set()
        for producer in producers:
            producer.join()
    for number in range(STREAMS):
        found: list[list[object]] = httpx.get(f"{server.url}/s{number}").json()
        for producer in producers:
            seqs = [seq for name, seq in found if name == producer.name]
            assert seqs == list(range(len(seqs))), "once each, in order"
            # A message that was not acknowledged before the producer ended may be there all the same.
            assert producer.acknowledged[number] <= len(seqs) <= producer.acknowledged[number] + 1
    assert server.stop() != 0
