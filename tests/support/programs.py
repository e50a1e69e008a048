"""Agents in processes of their own: `tests.support.processes.start` runs this file as a script.

A program talks in JSON lines: `say` writes one to standard output, at once; `hear` waits for a line on standard input.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Any

import opslog
from opslog.backends import open_backend, posix
from opslog.compaction import compact as compaction
from opslog.errors import (
    CommitUnknownError,
    ConflictError,
    LockedError,
    ReopenError,
    RetryError,
    WriteFailedError,
)

Document = dict[str, Any]
Changes = dict[str, Document | None]
"""The documents after a commit, for each document that it touches; None: deleted."""


def say(value: object) -> None:
    # One write, so that after a kill the pipe holds only whole lines.
    os.write(1, json.dumps(value).encode() + b"\n")


def hear() -> str:
    return sys.stdin.readline().strip()


def write(url: str, agent: str, commits: int, options: dict[str, Any]) -> None:
    """Open when asked, set `commits` documents, and report all documents when asked again."""
    say("ready")
    hear()
    with opslog.open(url, agent=agent, **options) as store:
        for number in range(commits):
            store[f"{agent}-{number}"] = {"agent": agent, "number": number}
        say("written")
        hear()
        store.refresh()
        say(dict(store.items()))


def compact(url: str, options: dict[str, Any]) -> None:
    """Compact without a pause until standard input ends, every third time fully. Reports how many times that changed
    something."""
    done = threading.Event()

    def listen() -> None:
        hear()
        done.set()

    published = 0
    with opslog.open(url, agent="compactor", compact_after=None, **options) as store:
        threading.Thread(target=listen, daemon=True).start()
        say("ready")
        turn = 0
        while not done.is_set():
            turn += 1
            # An agent's own compaction, the lease of a killed one, or a server that is too busy to answer in time.
            with suppress(opslog.RetryError):
                published += store.compact(full=turn % 3 == 0).number is not None
    say(published)


def journal(url: str, kind: str, start: int, options: dict[str, Any]) -> None:
    """Commit until killed. Each commit is announced before the call and acknowledged after it.

    :param kind: "set", "batch", or "undo" (two sets, then one undo).
    """
    with opslog.open(url, agent="writer", **options) as store:
        number = start
        while True:
            number += 1
            if kind == "undo" and number % 3 == 0:
                say({"undo": True})
                store.undo()
            else:
                changes = planned(store, kind, number)
                say({"changes": changes})
                carry_out(store, changes, atomic=kind == "batch")
            say({"done": number})


def planned(store: opslog.Store[Document], kind: str, number: int) -> Changes:
    ids = [f"doc-{(7 * number + place) % 20}" for place in range(5 if kind == "batch" else 1)]
    return {id: None if (number + len(id)) % 4 == 0 and id in store else {"number": number, "id": id} for id in ids}


def carry_out(store: opslog.Store[Document], changes: Changes, *, atomic: bool) -> None:
    def each() -> None:
        for id, document in changes.items():
            if document is None:
                del store[id]
            else:
                store[id] = document

    if not atomic:
        each()
        return
    with store.batch():
        each()


def write_numbered(url: str, agent: str) -> None:
    """Set documents until asked to stop, or refused. Say each number that is acknowledged; at the end say how many
    those were, and what refused the next one."""
    asked = threading.Event()

    def listen() -> None:
        hear()
        asked.set()

    threading.Thread(target=listen, daemon=True).start()
    count, refusal = 0, None
    with opslog.open(url, agent=agent, compact_after=None) as store:
        while not asked.is_set() and refusal is None:
            try:
                store[f"{agent}-{count}"] = {"number": count}
            except ReopenError as error:
                refusal = type(error).__name__
            else:
                count += 1
                say(count)
    say({"agent": agent, "count": count, "refusal": refusal})
    asked.wait()


def work(url: str, agent: str, kind: str, start: int) -> None:
    """Write commit number `start` and those after it, until killed. Say each number that is acknowledged.

    :param kind: see `made`, or "compact": do that without a pause.
    """
    durability: Any = "buffered" if kind == "buffered" else "fsync"
    with opslog.open(url, agent=agent, durability=durability, compact_after=40 if kind == "set" else None) as store:
        number = start
        while True:
            if kind == "compact":
                with suppress(opslog.LockedError):
                    store.compact(full=number % 3 == 0)
            else:
                with store.batch():
                    for id, document in made(kind, agent, number).items():
                        store[id] = document
            if kind == "archive" and number % 4 == 0:
                store.archive(lambda document: document["agent"] == agent, "2026-Q4")
            if kind != "buffered":
                say(number)
            elif number % 16 == 0:
                store.flush()
                say(number)
            number += 1


def made(kind: str, agent: str, number: int) -> dict[str, Document]:
    """The documents that a numbered commit sets. Each "archive" has one document of its own, each "batch" four."""
    document = {"agent": agent, "number": number}
    if kind == "archive":
        return {f"{agent}-{number}": document}
    return {f"{agent}-{(5 * number + place) % 20}": document for place in range(4 if kind == "batch" else 1)}


def create(url: str, agent: str) -> None:
    """Open one new store after the other, and write to it. Say how many are done."""
    number = 0
    while True:
        with opslog.open(f"{url}/{number}/new/store", agent=agent) as store:
            store[agent] = {"number": number}
        number += 1
        say(number)


def hold(url: str, agent: str) -> None:
    """Hold an agent's name until standard input ends."""
    with opslog.open(url, agent=agent) as store:
        store["held"] = {"pid": os.getpid()}
        say(os.getpid())
        hear()


def hold_lease(url: str, agent: str, id: str, seconds: float) -> None:
    """Claim a document for some seconds. When asked, finish it, and report whether that worked."""
    with opslog.open(url, agent=agent) as store:
        lease = opslog.Lease(store, id, seconds)
        say(lease.claim(_is_open))
        hear()
        try:
            lease.finish({"status": "done", "by": agent})
        except opslog.LeaseLostError as error:
            say({"lost to": error.record.author if error.record else None})
        else:
            say("finished")


def opened(url: str, agent: str) -> opslog.Store[Document]:
    """Open a store as soon as its server is there."""
    while True:
        try:
            return opslog.open(url, agent=agent)
        except RetryError:
            time.sleep(0.05)


def share_out(url: str, agent: str, seconds: float) -> None:
    """Do open documents, with leases of some seconds, until none is left. Report each claim, each finish and each
    loss."""
    chosen = random.Random(agent)
    leases: dict[str, opslog.Lease] = {}
    with opened(url, agent) as store:
        while tasks := [id for id, _ in store.filter(_is_open)]:
            id = chosen.choice(tasks)
            lease = leases.setdefault(id, opslog.Lease(store, id, seconds))
            try:
                if not lease.claim(_is_open):
                    continue
                say({"claimed": id})
                lease.set(f"{id}/part", {"by": agent})
                lease.finish({"status": "done", "by": agent})
            except opslog.LeaseLostError:
                say({"lost": id})
            except opslog.LockedError:  # somebody was paused while appending
                say({"locked out of": id})
            else:
                say({"finished": id})
    say("none is left")


def _is_open(document: Document | None) -> bool:
    return document is not None and document.get("status") == "open"


def measure(action: str, url: str) -> None:
    """Report by how many bytes the peak of this process's memory grows when it opens a store ("open"), or compacts one
    ("compact", "full")."""
    warm_up()
    before = peak_bytes()
    if action == "open":
        with opslog.open(url, read_only=True) as store:
            assert len(store)
            say(peak_bytes() - before)
        return
    backend = open_backend(url)
    done = compaction.compact(backend, opslog.Environment(), full=action == "full")
    assert done.number is not None
    say(peak_bytes() - before)


def warm_up() -> None:
    """Load all code first, because it does not count as memory of a store."""
    with opslog.open("memory://warm-up", agent="a", compact_after=None) as store:
        for number in range(50):
            store[str(number)] = {"number": number}
        store.compact(full=True)


def peak_bytes() -> int:
    """The peak memory of this program. (What `getrusage` reports starts with the memory of the parent process.)"""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM:"))


def increment(document: Document | None) -> Document:
    assert document is not None
    return {"number": document["number"] + 1}


def count(url: str, agent: str, times: int) -> None:
    """Increment one counter this many times, when asked."""
    with opslog.open(url, agent=agent) as store:
        say("ready")
        hear()
        for _ in range(times):
            store.modify("counter", increment)
        say("done")


class Refused(Exception):
    """The result of a function does not allow the intended write."""


def transact(url: str, agent: str, journal: str, work: tuple[int, int, int], options: dict[str, Any]) -> None:
    """Try to claim each task once, in an order of one's own. In between transfer, increment and set. A file records the
    beginning and outcome of each, with the time by the machine's monotonic clock.

    :param journal: the file. :param work: how many tasks, how many other actions, and the number to continue from after
        a kill.
    """
    tasks, others, first = work
    rng = random.Random(agent)
    todo = ["claim"] * tasks + [rng.choice(["transfer", "increment", "modify", "plain"]) for _ in range(others)]
    rng.shuffle(todo)
    order = rng.sample(range(tasks), tasks)
    plan = [(kind, order.pop() if kind == "claim" else rng.randrange(1 << 30)) for kind in todo]
    number = first
    # One write for each line, so that after a kill the file holds only whole lines.
    with open(journal, "ab", buffering=0) as file:

        def note(**noted: object) -> None:
            file.write(json.dumps({"at": time.monotonic(), **noted}).encode() + b"\n")

        while number < len(plan):
            with (
                suppress(ReopenError, CommitUnknownError, RetryError),
                opslog.open(url, agent=agent, **options) as store,
            ):
                if number == first:
                    say("open")
                    hear()
                while number < len(plan):
                    kind, argument = plan[number]
                    token = f"{agent}:{number}"
                    number += 1
                    note(token=token, kind=kind, on=argument)
                    outcome = "unknown"
                    try:
                        outcome = attempt(store, kind, argument, token)
                    except (Refused, ConflictError):  # an existing document is a conflict, too
                        outcome = "refused"
                    except CommitUnknownError:
                        raise
                    except (WriteFailedError, LockedError, RetryError):
                        outcome = "failed"
                    except ReopenError:
                        outcome = "failed"
                        raise
                    finally:
                        note(token=token, outcome=outcome)
    say("done")


def attempt(store: opslog.Store[Document], kind: str, argument: int, token: str) -> str:
    """Do one of the actions of `transact`. Its writes carry this token, and the token of what they replace."""

    def claim(task: Document | None) -> Document:
        assert task is not None
        if task["owner"] is not None:
            raise Refused
        return {"owner": token, "token": token, "was": task["token"]}

    def replace(document: Document | None) -> Document:
        assert document is not None
        number = document.get("number", 0) + 1
        return {"number": number, "token": token, "was": document["token"]}

    def transfer(transaction: opslog.Transaction[Document]) -> None:
        giver, taker = random.Random(argument).sample(range(5), 2)
        for account, amount in ((giver, -(argument % 40 + 1)), (taker, argument % 40 + 1)):
            document = transaction[f"account-{account}"]
            if document["balance"] + amount < 0:
                raise Refused
            balance = document["balance"] + amount
            transaction[f"account-{account}"] = {"balance": balance, "token": token, "was": document["token"]}

    match kind:
        case "claim" if argument % 2:
            store.create(f"task-{argument}", {"owner": token, "token": token, "was": None})
        case "claim":
            store.modify(f"task-{argument}", claim)
        case "transfer":
            store.transact(transfer)
        case "increment":
            store.modify("counter", replace)
        case "modify":
            store.modify("board", replace)
        case _:
            store.refresh()
            store["board"] = {"token": token}
    return "done"


def stop_inside(url: str, agent: str) -> None:
    """Stop while holding the lock of the shared log, with the line of an increment written and not yet on disk."""
    with opslog.open(url, agent=agent) as store:
        datasync = posix.datasync

        def stop(descriptor: int) -> None:
            posix.datasync = datasync
            os.kill(os.getpid(), signal.SIGSTOP)
            datasync(descriptor)

        posix.datasync = stop
        say("ready")
        store.modify("counter", increment)
        say("done")


if __name__ == "__main__":
    if "lossy+" in sys.argv[2]:
        importlib.import_module("served_storage")  # a file beside this one, which registers such stores
    globals()[sys.argv[1]](*json.loads(sys.argv[2]))
