"""What a signal handler may do with a store while its own thread is in another call of that store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import opslog
from opslog.store import replica_of
from tests.interrupts.stage import Documents, Stage


@dataclass
class Handled:
    """The outcome of the call that a handler made.

    :ivar written, others: the documents that it has written: to the store itself, and to another one.
    :ivar is_in_batch: whether its writes became a part of the batch that its thread had open, and share the outcome of
        that batch.
    :ivar has_closed: whether it has closed the store.
    :ivar brought: the ids of others' writes that it read.
    :ivar read: the document "x", if it read that.
    :ivar refused: why the store refused the call.
    :ivar error: any other exception of the call.
    """

    written: Documents = field(default_factory=dict)
    others: Documents = field(default_factory=dict)
    is_in_batch: bool = False
    has_closed: bool = False
    brought: frozenset[str] = frozenset()
    read: object = None
    refused: opslog.OpslogError | None = None
    error: Exception | None = None

    def call(self, name: str, stage: Stage) -> None:
        self.is_in_batch = replica_of(stage.store).batches.current is not None
        try:
            HANDLERS[name](self, stage)
        except opslog.OpslogError as error:
            self.refused = error
        except Exception as error:  # noqa: BLE001  (judged)
            self.error = error

    def set(self, stage: Stage) -> None:
        stage.store["inner"] = {"v": 5}
        self.written = {"inner": {"v": 5}}

    def batch(self, stage: Stage) -> None:
        with stage.store.batch():
            stage.store["inner"] = {"v": 5}
            stage.store["within"] = {"v": 5}
        self.written = {"inner": {"v": 5}, "within": {"v": 5}}

    def set_another(self, stage: Stage) -> None:
        stage.write_other("b-inner", 5)
        self.others = {"b-inner": {"v": 5}}

    def get(self, stage: Stage) -> None:
        self.read = stage.store.get("x")

    def items(self, stage: Stage) -> None:
        self.read = dict(stage.store.items()).get("x")
        assert self.read is None or len(stage.store)

    def refresh(self, stage: Stage) -> None:
        commits = stage.store.refresh()
        self.brought = frozenset(record.id for commit in commits for record in commit.records)
        stage.hand_out(commits)

    def flush(self, stage: Stage) -> None:
        stage.store.flush()

    def close(self, stage: Stage) -> None:
        stage.store.close()
        self.has_closed = True


HANDLERS: dict[str, Callable[[Handled, Stage], None]] = {
    "set": Handled.set,
    "batch": Handled.batch,
    "set another": Handled.set_another,
    "get": Handled.get,
    "items": Handled.items,
    "refresh": Handled.refresh,
    "flush": Handled.flush,
    "close": Handled.close,
}
