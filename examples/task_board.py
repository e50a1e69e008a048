"""A task board for any number of workers. Each task is done once, even if its worker is killed.

python task_board.py tasks-board add "Build API" "Write tests"
python task_board.py tasks-board work ann     # in as many terminals as you like
python task_board.py tasks-board show
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import opslog

WAIT_SECONDS = 0.2


def add(store: opslog.Store[dict[str, Any]], titles: list[str]) -> None:
    """One batch: a worker sees all of them, or none."""
    first = len(store) + 1
    with store.batch():
        for number, title in enumerate(titles, start=first):
            store[f"task-{number:03}"] = {"title": title, "status": "open"}


def is_open(task: dict[str, Any] | None) -> bool:
    return task is not None and task["status"] == "open"


def work(store: opslog.Store[dict[str, Any]], name: str, seconds: float) -> None:
    """Do open tasks until none is left.

    :param seconds: how long a claim lasts. If the worker is killed, another one takes the task over after this time.
    """
    leases: dict[str, opslog.Lease] = {}  # kept, because a lease watches another worker's claim from call to call
    while tasks := store.find('status = "open"'):
        done = 0
        for id, task in tasks:
            lease = leases.setdefault(id, opslog.Lease(store, id, seconds))
            if not lease.claim(is_open):  # another worker has it, or has done it meanwhile
                continue
            result = task["title"].upper()  # the work happens here; if it takes long, call lease.renew() meanwhile
            try:
                lease.finish({**task, "status": "done", "result": result, "by": name})
            except opslog.LeaseLostError:
                continue  # it took too long, and another worker has taken it over: nothing was written
            done += 1
            print(name, "did", id)
        if not done:
            time.sleep(WAIT_SECONDS)  # others are working on the rest
        store.refresh()


def show(store: opslog.Store[dict[str, Any]]) -> None:
    for id, task in store.find("exists title"):
        print(id, task["status"], task.get("result", task["title"]), sep="\t")


def main() -> None:
    parser = argparse.ArgumentParser(description="A task board.")
    parser.add_argument("store", help="a directory, or s3://bucket/prefix")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("add").add_argument("titles", nargs="+")
    worker = commands.add_parser("work")
    worker.add_argument("name")
    worker.add_argument("--seconds", type=float, default=30.0)
    commands.add_parser("show")
    options = parser.parse_args()
    if options.command == "show":
        with opslog.open(options.store, read_only=True) as store:
            show(store)
    elif options.command == "add":
        with opslog.open(options.store, agent="planner") as store:
            add(store, options.titles)
    else:
        with opslog.open(options.store, agent=options.name) as store:
            work(store, options.name, options.seconds)


if __name__ == "__main__":
    main()
