"""Sections that no thread enters twice, and bells that wake one thread."""

from __future__ import annotations

import threading

import pytest

from opslog.concurrency.locking import Bell, Section, made_once
from opslog.errors import UsageError


def test_a_section_refuses_the_thread_that_is_in_it() -> None:
    section = Section()

    def again() -> None:
        with pytest.raises(UsageError, match="signal handler"):
            section.run(pytest.fail, "it was let in")

    section.run(again)
    assert section.run(lambda: "free") == "free"


def test_a_section_makes_other_threads_wait() -> None:
    section, entered, may_leave, seen = Section(), threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        entered.set()
        assert may_leave.wait(60)
        seen.append("first")

    threads = [threading.Thread(target=section.run, args=(first,))]
    threads[0].start()
    assert entered.wait(60)
    assert section.holder == threads[0].ident
    threads.append(threading.Thread(target=section.run, args=(seen.append, "second")))
    threads[1].start()
    may_leave.set()
    for thread in threads:
        thread.join(60)
    assert seen == ["first", "second"]


def test_an_exception_leaves_a_section_free() -> None:
    section = Section()

    def fail() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        section.run(fail)
    assert section.holder is None
    done = threading.Thread(target=section.run, args=(lambda: None,))
    done.start()
    done.join(60)
    assert not done.is_alive()


def test_a_bell_that_was_rung_before_is_heard_once() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait()
    assert not bell.wait(0.001)


def test_a_bell_wakes_its_waiters() -> None:
    bell, heard = Bell(), list[bool]()
    waiting = threading.Thread(target=lambda: heard.append(bell.wait(float("inf"))))
    waiting.start()
    bell.ring()
    waiting.join(60)
    assert heard == [True]


def test_all_threads_get_the_object_that_is_made_once() -> None:
    both = threading.Barrier(2)

    class Owner:
        @made_once
        def made(self) -> object:
            """Made when it is needed."""
            both.wait()  # both threads come first
            return object()

    owner, found = Owner(), list[object]()
    threads = [threading.Thread(target=lambda: found.append(owner.made)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [owner.made] * 2
