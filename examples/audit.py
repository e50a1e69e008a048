"""Settings that several people change. Every change names its author, and each person can undo their own.

python audit.py settings set ann report '{"image": "report:4"}'
python audit.py settings undo ann
python audit.py settings log report
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import opslog


@dataclass
class Job:
    """The type of the documents. A document that is not a Job is refused, and the error names the wrong field."""

    image: str
    memory_mb: int = 256


def change(store: opslog.Store[Job], id: str, fields: dict[str, Any]) -> None:
    """Change some fields of a job, or create it. If somebody else writes the job meanwhile, the change is made again on
    the new document, so nothing is lost."""

    def changed(job: Job | None) -> Job:
        old: dict[str, Any] = {} if job is None else vars(job)
        try:
            return Job(**{**old, **fields})
        except TypeError:
            text = f"no such job: {json.dumps(fields)}. A job needs an image, and may have memory_mb"
            raise SystemExit(text) from None

    store.modify(id, changed)


def log(store: opslog.Store[Job], id: str) -> None:
    """Print the history of one job, oldest first. It goes back as far as the store keeps history: see main."""
    for revision in store.history(id):
        record = revision.record
        what = bytes(record.data).decode() if isinstance(record, opslog.Set) else "deleted"
        print(record.author, what, "(undone)" if revision.undone else "", sep="\t")


def main() -> None:
    parser = argparse.ArgumentParser(description="Settings that several people change.")
    parser.add_argument("store", help="a directory, or s3://bucket/prefix")
    commands = parser.add_subparsers(dest="command", required=True)
    setter = commands.add_parser("set")
    setter.add_argument("person")
    setter.add_argument("id")
    setter.add_argument("fields", type=json.loads, help="an object in JSON")
    commands.add_parser("undo").add_argument("person")
    commands.add_parser("log").add_argument("id")
    options = parser.parse_args()
    if options.command == "log":
        with opslog.open(options.store, read_only=True, type=Job) as store:
            log(store, options.id)
        return
    settings = opslog.Settings(keep_history_seconds=timedelta(days=365).total_seconds())
    with opslog.open(options.store, agent=options.person, type=Job, settings=settings) as store:
        if options.command == "undo":
            print("undone" if store.undo() else "nothing to undo")
            return
        try:
            change(store, options.id, options.fields)
        except opslog.InvalidDocumentError as error:
            raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
