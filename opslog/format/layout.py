"""Names of files in a store, and the valid names for agents and periods. Pure: strings in, strings out.

    manifests/00000000000000000007.json
    snapshots/00000000000000000007-<nonce>/part-00000.jsonl   and   part-00000.index
    ops/<agent>/00000000000000000001.jsonl
    archive/<period>/<nonce>.jsonl                             and   <nonce>.index
    store.json                                                 which store this is
    locks/<name>                                               the storage's own
    staging/<nonce>/<name>                                     rows of a Spark job, until it succeeds or fails
    removed/<nonce>/<former path>                              what `opslog verify --repair` moved aside
    <any of these>.tmp-<nonce>                                 a file that is being created, or never was

Numbers have 20 digits, so that the order of names is the order of numbers. The kind of a file follows from its whole
path (`kind_of`), since the name of an agent or a period may resemble any other name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import Enum
from functools import cache, lru_cache

from opslog.errors import InvalidNameError

MANIFESTS = "manifests/"
SNAPSHOTS = "snapshots/"
OPS = "ops/"
ARCHIVE = "archive/"
LOCKS = "locks/"
REMOVED = "removed/"
STAGING = "staging/"
STORE = "store.json"

# The log of all agents' transactions, which has many writers (`Backend.append_at`). No agent can have its name.
TRANSACTIONS = "transactions"

# The longest name that an agent can have, as the next pattern says.
AGENT_CHARACTERS_MAX = 128
_NAME = r"(?a)[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_MANIFEST = r"(?a)manifests/([0-9]{20})\.json"
_RUN = r"(?a)snapshots/(([0-9]{20})-[A-Za-z0-9]+)/part-[0-9]{5}\.(?:jsonl|index)"
_SEGMENT = r"(?a)ops/([A-Za-z0-9][A-Za-z0-9._-]{0,127})/([0-9]{20})\.jsonl"
_ARCHIVE = r"(?a)archive/([A-Za-z0-9][A-Za-z0-9._-]{0,127})/([A-Za-z0-9]+)\.(jsonl|index)"
_TEMPORARY = r"(?as)(?:.*/)?[^/]+\.tmp-[A-Za-z0-9]+"


@cache
def _is(pattern: str) -> Callable[[str], re.Match[str] | None]:
    """A function that matches the whole of a text. A pattern is compiled at its first use: a program that opens a store
    and reads needs only two of them, and would wait for all."""
    return re.compile(pattern).fullmatch


class Kind(Enum):
    """The kind of a file below a store's root."""

    MANIFEST = "manifest"
    # A part of a run, or its index.
    PART = "part"
    SEGMENT = "segment"
    # Archived documents, or their index.
    ARCHIVE = "archive"
    # A lock, a lease, or the storage's clock.
    LOCK = "lock"
    # The store's id.
    STORE = "store"
    # A file that a repair moved aside.
    REMOVED = "removed"
    # A file that a backend is still creating under another name, or gave up creating.
    TEMPORARY = "temporary"
    # A file that a job staged.
    STAGED = "staged"
    # Nothing of opslog's.
    FOREIGN = "foreign"


def check_name(name: object, what: str) -> str:
    """The name itself, if it can name an agent or a period (`what` says which, for the message).

    :raises InvalidNameError: otherwise. The rule keeps names inside their folder on every storage.
    """
    if not isinstance(name, str) or not _is(_NAME)(name):
        raise InvalidNameError(
            f"{what} {name!r} is not a valid name: use 1 to 128 of A-Z a-z 0-9 . _ -, beginning with a letter or digit"
        )
    return name


def check_agent(name: object) -> str:
    """The name itself, if an agent may have it.

    :raises InvalidNameError: otherwise.
    """
    agent = check_name(name, "agent")
    if agent == TRANSACTIONS:
        raise InvalidNameError(
            f"no agent is called {TRANSACTIONS!r}: that is the log of all agents' transactions. Choose another name"
        )
    return agent


# Names that may be in the directory of a new store: hidden files, descriptions, and files that systems put anywhere.
_TOLERATED = (
    r"(?ai)\..*|lost\+found|CACHEDIR\.TAG|Thumbs\.db|desktop\.ini|@eaDir"
    r"|(?:README|LICEN[CS]E|COPYING|NOTICE)(?:\.[A-Za-z]+)?"
)


def foreign_names(names: Iterable[str]) -> list[str]:
    """The names in a directory which show that it is used for something else, so that no store should be created there.
    None of them if there is a store already, or the beginning of one. Pure."""
    found = set(names)
    if found & {MANIFESTS[:-1], LOCKS[:-1], STORE}:
        return []
    folders = {folder[:-1] for folder in (OPS, SNAPSHOTS, ARCHIVE, REMOVED, STAGING)}
    return sorted(name for name in found - folders if not _is(_TOLERATED)(name))


def manifest_path(number: int) -> str:
    return f"{MANIFESTS}{number:020d}.json"


def manifest_number(path: str) -> int | None:
    """The number in a manifest's path, None for any other path."""
    match = _is(_MANIFEST)(path)
    return int(match[1]) if match else None


def run_name(number: int, nonce: str) -> str:
    """The name of a run written for manifest `number`."""
    return f"{number:020d}-{nonce}"


def part_path(run: str, part: int) -> str:
    return f"{SNAPSHOTS}{run}/{_part_name(part)}"


def part_paths(run: str, count: int) -> list[str]:
    """`part_path` of each of the first `count` parts."""
    folder = f"{SNAPSHOTS}{run}/"
    return [folder + name for name in _part_names(count)]


def _part_name(part: int) -> str:
    return f"part-{part:05d}.jsonl"


@lru_cache(maxsize=8)
def _part_names(count: int) -> list[str]:
    """The names of the first `count` parts. Cached, since opening or following a large store waits for them."""
    return list(map(_part_name, range(count)))


def index_path(data_path: str) -> str:
    """The block index that lies beside a part or an archive."""
    return data_path.removesuffix(".jsonl") + ".index"


def run_of(path: str) -> tuple[str, int] | None:
    """(run name, number of the manifest it was written for) of a part's or index's path, None for any other path."""
    match = _is(_RUN)(path)
    return (match[1], int(match[2])) if match else None


def log_prefix(agent: str) -> str:
    """The common beginning of the paths of all segments of a log."""
    return f"{OPS}{agent}/"


def segment_path(agent: str, number: int) -> str:
    return f"{OPS}{agent}/{number:020d}.jsonl"


def segment_of(path: str) -> tuple[str, int] | None:
    """(agent, segment number) of a segment's path, None for any other path."""
    match = _is(_SEGMENT)(path)
    return (match[1], int(match[2])) if match else None


def archive_path(period: str, nonce: str) -> str:
    return f"{ARCHIVE}{period}/{nonce}.jsonl"


def archive_of(path: str) -> tuple[str, str, str] | None:
    """(period, nonce, "jsonl" or "index") of an archive file's path, None for any other path."""
    match = _is(_ARCHIVE)(path)
    return (match[1], match[2], match[3]) if match else None


def temporary_path(path: str, nonce: str) -> str:
    """The name under which a backend writes a file before the file gets its own. `nonce`: letters and digits."""
    return f"{path}.tmp-{nonce}"


def kind_of(path: str) -> Kind:
    """The kind of the file at a path. No file has two kinds. A segment, part, index, manifest, archive or lock is never
    a temporary file, whatever the names of agents and periods contain: none of their basenames ends in
    ``.tmp-<nonce>``."""
    if manifest_number(path) is not None:
        return Kind.MANIFEST
    if run_of(path) is not None:
        return Kind.PART
    if segment_of(path) is not None:
        return Kind.SEGMENT
    if archive_of(path) is not None:
        return Kind.ARCHIVE
    if path == STORE:
        return Kind.STORE
    if path.startswith(LOCKS):
        return Kind.LOCK
    if path.startswith(REMOVED):
        return Kind.REMOVED
    if _is(_TEMPORARY)(path):
        return Kind.TEMPORARY
    return Kind.STAGED if path.startswith(STAGING) else Kind.FOREIGN
