"""The commits between two states of a store that was loaded again, for callers that follow the store."""

from __future__ import annotations

from contextlib import suppress

import msgspec

from opslog.backends import Backend
from opslog.errors import MissingFileError
from opslog.format.commits import Commit, Undo
from opslog.format.manifest import START, Cut, Manifest
from opslog.log.reader import Cursor, Segment, list_log
from opslog.log.survey import Survey, survey
from opslog.merge.undo import Reachable
from opslog.replica.state import State
from opslog.snapshot.manifests import ManifestStore


def read_between(backend: Backend, old: dict[str, Cursor], state: State, skip: str | None) -> tuple[list[Commit], bool]:
    """Read the commits from the `old` cursors up to those of a newly loaded state. Also returns whether these are all:
    some may have been compacted and collected before they could be read.

    :param skip: the agent whose log is left out.
    """

    def begin(_: Manifest) -> dict[str, Cursor]:
        # Copies, so that another attempt begins at the same cursors if this one fails half-way.
        return {agent: msgspec.structs.replace(old.get(agent) or Cursor(agent)) for agent in state.cursors}

    def read(found: Survey) -> tuple[list[Commit], bool]:
        commits: list[Commit] = []
        complete = True
        for agent, end in state.cursors.items():
            start = found.cursors[agent]
            if agent != skip and end.commits > start.commits:
                first = found.manifest.cut.get(agent, START)
                some, all_there = _read_between(backend, start, end, first, found.segments[agent])
                _note_ids(backend, agent, first, some, found.manifest.settings.undo_window)
                commits += some
                complete = complete and all_there
        return commits, complete

    # As long as the same manifest is the oldest one, nothing after its cut is collected.
    manifests = ManifestStore(backend)
    return survey(manifests, read, choose=manifests.oldest, begin=begin)


def _read_between(
    backend: Backend, start: Cursor, end: Cursor, first: Cut, segments: list[Segment]
) -> tuple[list[Commit], bool]:
    """:param first: the cut of the oldest manifest. Segments before it may come from a delayed write that used an old
    number again.
    """
    seen = start.commits
    if start.segment >= first.segment:
        with suppress(MissingFileError):
            return [
                commit for position, commit in start.read(backend, segments) if position.commits < end.commits
            ], True
    # Some segments were collected: take the rest, and count commits from the end.
    retained: list[Commit] = []
    with suppress(MissingFileError):
        cursor = Cursor(start.agent, max(first.segment, segments[0].number if segments else end.segment))
        retained = [commit for at, commit in cursor.read(backend, segments) if at.position < end.position]
    collected = end.commits - len(retained)
    return retained[max(0, seen - collected) :], collected <= seen


def _note_ids(backend: Backend, agent: str, first: Cut, commits: list[Commit], window: int) -> None:
    """Note in each undo among these commits which documents it gave back. Its target may come before all of them, and
    before the cut `first`, in the same segment."""
    undos = {commit.clock: commit for commit in commits if isinstance(commit, Undo)}
    if not undos:
        return
    reachable, start = Reachable(window), Cut(first.segment, 0, 0, first.there)
    with suppress(MissingFileError):  # collected meanwhile: then the ids stay unknown
        for _, commit in Cursor.at(agent, start).read(backend, list_log(backend, agent)):
            reachable.note(commit)
            if isinstance(commit, Undo) and commit.clock in undos:
                undos[commit.clock].note_ids(commit.ids)
