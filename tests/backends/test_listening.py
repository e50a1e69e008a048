"""Notifications of writes from a server, where a signal handler subscribes or closes while its own thread does."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from opslog.backends.remote.channel import Channel
from opslog.backends.remote.listening import Listener
from opslog.environment import REAL
from tests.interrupts.places import Place, at_places
from tests.support.waiting import until


class Events:
    """A response that does not end, with one write after the other."""

    @contextmanager
    def listen(self) -> Iterator[Any]:
        yield SimpleNamespace(iter_lines=self.lines, extensions={})

    def lines(self) -> Iterator[str]:
        while True:
            yield "event: written"
            time.sleep(0.001)


class Subscriber:
    """:ivar heard: set by each call."""

    def __init__(self, listener: Listener) -> None:
        self.heard = threading.Event()
        self.changed = self.heard.set
        self._listener = listener

    def subscribe(self) -> None:
        self._listener.subscribe(self.changed)

    def unsubscribe(self) -> None:
        self._listener.unsubscribe(self.changed)

    def hear(self) -> None:
        self.heard.clear()
        until(self.heard.is_set)


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "opslog-listener"]


@pytest.mark.parametrize("inner", ["subscribe", "watch", "close"])
@pytest.mark.parametrize("outer", ["subscribe", "unsubscribe", "close"])
def test_a_handler_subscribes_or_closes_while_its_thread_does(outer: str, inner: str) -> None:
    listener = Listener(cast("Channel", Events()), REAL)
    ours, handlers = Subscriber(listener), Subscriber(listener)

    def watch() -> None:
        handlers.subscribe()
        handlers.unsubscribe()

    outers = {"subscribe": ours.subscribe, "unsubscribe": ours.unsubscribe, "close": listener.close}
    inners = {"subscribe": handlers.subscribe, "watch": watch, "close": listener.close}

    for number in itertools.count(1):
        came: list[Place] = []

        def handle(place: Place, number: int = number, came: list[Place] = came) -> None:
            if place.number == number:
                came.append(place)
                inners[inner]()

        if outer != "subscribe":
            ours.subscribe()
            ours.hear()
        at_places(outers[outer], handle)
        if came and outer == "subscribe" and inner != "close":
            ours.hear()
        if came and outer != "close" and inner == "subscribe":
            handlers.hear()
        ours.unsubscribe()
        handlers.unsubscribe()
        until(lambda: not readers())
        if not came:
            break
    assert number > 3


def test_after_an_interrupted_subscription_the_next_one_works(monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(cast("Channel", Events()), REAL)
    interrupted, next_one = Subscriber(listener), Subscriber(listener)

    def interrupt(thread: threading.Thread) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            interrupted.subscribe()
    next_one.subscribe()
    next_one.hear()
    assert not interrupted.heard.is_set()
    listener.close()
