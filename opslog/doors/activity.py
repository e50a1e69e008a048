"""Who did what in a store lately: a summary of its commits. Pure.

Two agents have a conflict if both write a document, and neither has read the other's write. The order of stamps then
decides which write counts. The other one is lost, although it may be the later one. Commits do not say what their
authors had read. So this module counts a write as lost if the document's next write, in the order of stamps, is in
another log and was made no later: under the same clock, or at a time that is not after. If the clocks of machines
differ, a write may be listed here although the agent that overwrote it had read it.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from opslog.format.commits import Commit, Seal, Stamp

# How many ids are named of a commit, and of an agent.
_IDS, _AGENT_IDS = 10, 3
# For how many documents the last write is remembered, to compare the next one with it.
_DOCUMENTS = 100_000
_AGENTS = 200


class Noted(msgspec.Struct, frozen=True):
    """A commit.

    :ivar op: set, delete, batch or undo.
    :ivar ids: some of the documents that it wrote; for an undo, those that it restored.
    :ivar more_ids: how many others.
    """

    stamp: str
    author: str
    ts: str
    op: str
    ids: list[str]
    more_ids: int = 0


class Winner(msgspec.Struct, frozen=True):
    """The write that counts instead of a lost one."""

    stamp: str
    author: str
    ts: str


class Lost(msgspec.Struct, frozen=True):
    """A write that lost.

    :ivar id: the document.
    :ivar to: the write that counts instead.
    """

    id: str
    stamp: str
    author: str
    ts: str
    to: Winner


class AgentActivity(msgspec.Struct):
    """What an agent did, as far as its commits are retained.

    :ivar clock: of its newest commit.
    :ivar ts: the time of that commit, by the agent's clock: its last sign of life. None: it is not retained.
    :ivar commits: how many it made.
    :ivar writes: how many sets and deletes these have.
    :ivar undos: how many of the commits are undos.
    :ivar lost: how many of its writes lost.
    :ivar ids: the documents that it wrote last, the newest first.
    """

    name: str
    clock: int
    ts: str | None = None
    commits: int = 0
    writes: int = 0
    undos: int = 0
    lost: int = 0
    ids: list[str] = []


class Activity(msgspec.Struct, frozen=True):
    """Who did what in a store lately.

    :ivar commits: the newest commits, the newest first.
    :ivar retained: how many commits are retained.
    :ivar agents: the agents that write, the one that wrote last first.
    :ivar more_agents: how many other agents wrote before these.
    :ivar lost: writes that lost, the newest first.
    """

    commits: list[Noted]
    retained: int
    agents: list[AgentActivity]
    more_agents: int
    lost: list[Lost]

    def limited(self, limit: int) -> Activity:
        """The same, with at most `limit` commits and lost writes."""
        return msgspec.structs.replace(self, commits=self.commits[:limit], lost=self.lost[:limit])


class _Kept(NamedTuple):
    """What is remembered of a commit. Its documents are not, because they may be long."""

    stamp: Stamp
    author: str
    ts: str
    op: str
    ids: tuple[str, ...]
    more_ids: int


def activity(commits: Iterable[Commit], clocks: Mapping[str, int], most: int) -> Activity:
    """A summary of these commits. Holds `most` of them in memory, and the last write of each recent document.

    :param commits: all retained commits, in the order of their stamps.
    :param clocks: for each agent the clock of its newest commit, retained or not.
    """
    newest: deque[_Kept] = deque(maxlen=most)
    lost: deque[Lost] = deque(maxlen=most)
    last: OrderedDict[str, _Kept] = OrderedDict()
    agents: dict[str, AgentActivity] = {}
    retained = 0
    for commit in commits:
        if isinstance(commit, Seal):
            continue
        retained += 1
        ids = commit.ids
        kept = _Kept(commit.stamp, commit.author, commit.ts, commit.op, ids[:_IDS], max(0, len(ids) - _IDS))
        newest.append(kept)
        agent = agents.get(commit.author)
        if agent is None:
            agent = agents[commit.author] = AgentActivity(commit.author, commit.clock)
        agent.clock, agent.ts = commit.clock, commit.ts
        agent.commits += 1
        if commit.op == "undo":
            agent.undos += 1
            continue
        agent.writes += len(ids)
        agent.ids = list(dict.fromkeys((*ids[:_AGENT_IDS], *agent.ids)))[:_AGENT_IDS]
        for id in ids:
            before = last.pop(id, None)
            if before is not None and _lost(before, kept):
                lost.append(_lost_to(id, before, kept))
                agents[before.author].lost += 1
            last[id] = kept
            if len(last) > _DOCUMENTS:
                last.popitem(last=False)
    for name, clock in clocks.items():
        known = agents.setdefault(name, AgentActivity(name, clock))
        known.clock = max(known.clock, clock)
    ordered = sorted(agents.values(), key=lambda agent: (-agent.clock, agent.name))
    return Activity(
        [
            Noted(str(each.stamp), each.author, each.ts, each.op, list(each.ids), each.more_ids)
            for each in reversed(newest)
        ],
        retained,
        ordered[:_AGENTS],
        max(0, len(ordered) - _AGENTS),
        list(reversed(lost)),
    )


def _lost(write: _Kept, by: _Kept) -> bool:
    """Whether a write lost to the one that follows it in the order of stamps."""
    (clock, agent), (by_clock, by_agent) = write.stamp, by.stamp
    return agent != by_agent and (clock == by_clock or write.ts >= by.ts)


def _lost_to(id: str, write: _Kept, by: _Kept) -> Lost:
    return Lost(id, str(write.stamp), write.author, write.ts, Winner(str(by.stamp), by.author, by.ts))
