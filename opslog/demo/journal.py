"""An agent's notes beside the store: each call before it is made, and its outcome as soon as it has returned.

The operating system has each line before the agent goes on, so a SIGKILL loses none of them. If a session was killed,
its last call may have no end: it was under way, and may or may not have happened. One file per session:

    {"line":"begin","kind":"set","changes":[{"id":"shared-3","data":{"by":"agent-1","number":17}}]}
    {"line":"end","done":true,"clocks":[42]}
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

# The last four are for tasks; see `opslog.demo.tasks`.
Kind = Literal["set", "delete", "batch", "rollback", "undo", "refresh", "create", "claim", "renew", "finish"]


class Change(msgspec.Struct, frozen=True):
    """The effect of a call on one document.

    :ivar data: its new value, None to delete it.
    """

    id: str
    data: dict[str, Any] | None


class Begin(msgspec.Struct, frozen=True, tag_field="line", tag="begin"):
    """A call that is about to be made.

    :ivar changes: none for an undo and a refresh; leases are not listed.
    :ivar task: the task whose lease is claimed, renewed or released.
    """

    kind: Kind
    changes: list[Change] = []
    task: str = ""


class End(msgspec.Struct, frozen=True, tag_field="line", tag="end"):
    """The outcome of a call.

    :ivar done: False if the store returned that there is nothing to do (no such document, nothing to undo, rolled back,
        others have the task).
    :ivar clocks: the clocks of the commits that came into the agent's own log meanwhile, and of the one in the shared
        log.
    :ivar seen: how many commits of others a refresh brought.
    :ivar conflicts: documents changed since its last refresh both by this agent and, unseen by it, by others.
    """

    done: bool
    clocks: list[int] = []
    seen: int = 0
    conflicts: int = 0


@dataclass(frozen=True)
class Call:
    """A call as the journal has it.

    :ivar end: None if the process was killed before it noted one.
    """

    begin: Begin
    end: End | None


class Journal:
    """The journal of a session, open for appending."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb", buffering=0)

    def write(self, line: Begin | End) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")

    def close(self) -> None:
        self._file.close()


def journal_path(folder: Path, agent: str, session: int) -> Path:
    return folder / f"{agent}.{session:03}.jsonl"


def read_journals(folder: Path) -> dict[str, list[Call]]:
    """The calls of each agent, in order, over all its sessions."""
    calls: dict[str, list[Call]] = {}
    for path in sorted(folder.iterdir()):
        calls.setdefault(path.name.partition(".")[0], []).extend(_read(path))
    return calls


def _read(path: Path) -> list[Call]:
    whole_lines = path.read_bytes().rpartition(b"\n")[0]
    calls: list[Call] = []
    for line in msgspec.json.Decoder(Begin | End).decode_lines(whole_lines):
        if isinstance(line, Begin):
            calls.append(Call(line, None))
        else:
            calls[-1] = Call(calls[-1].begin, line)
    return calls
