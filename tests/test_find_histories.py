"""Random histories with questions, as in `tests/test_state_machine.py`. Agents write, undo, compact, load again and
decide by transactions in between. A question that an index answers has the same answer as a plain filter."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import rule

import opslog
from opslog.store import replica_of
from tests.test_state_machine import AGENTS, IDS, NAMES, for_examples
from tests.test_transaction_histories import AgentsWithTransactions

WHO = st.sampled_from([*NAMES, 0, 1])


class AgentsWithQuestions(AgentsWithTransactions):
    """See the module's docstring."""

    def store_of(self, who: str | int) -> opslog.Store[Any]:
        return self.agents[who] if isinstance(who, str) else self.readers[who]

    def check(self, store: opslog.Store[Any], back: int) -> None:
        """All questions, about a value that was written this many sets ago."""
        value = self.value - back
        everything = [(record.id, record.document, record) for record in store.records()]
        equal = store.find({"value": value})
        assert equal == [(id, document) for id, document, _ in everything if document["value"] == value]
        above = store.find(f"value > {value}")
        assert above == store.filter(lambda document: document["value"] > value)
        for name in NAMES:
            written = [(id, document) for id, document, record in everything if record.author == name]
            assert store.find({"@author": name}) == written
            assert store.count(f"@author = {name}") == len(written)
        newest = sorted(everything, key=lambda item: -item[1]["value"])
        assert store.find(order_by="-value", limit=2) == [(id, document) for id, document, _ in newest[:2]]
        oldest = sorted(everything, key=lambda item: item[2].clock)
        last = store.find(order_by="@clock", limit=1)
        assert last == [(id, document) for id, document, _ in oldest[:1]]
        assert store.find(f"@id in [x, {value}]") == [(id, document) for id, document, _ in everything if id == "x"]
        assert dict(store.group("value")) == {document["value"]: 1 for _, document, _ in everything}

    @rule(who=WHO, back=st.integers(0, 5))
    def ask(self, who: str | int, back: int) -> None:
        store = self.store_of(who)
        self.check(store, back)
        for found in (store.find({"value": 1}), store.find("@author = A"), store.find(order_by="-value", limit=2)):
            assert found.explain.startswith("index on"), "it was made at the latest by the question before"

    @rule(name=AGENTS, ids=st.lists(IDS, max_size=2), deleted=IDS, back=st.integers(0, 5))
    def ask_in_a_batch(self, name: str, ids: list[str], deleted: str, back: int) -> None:
        store = self.agents[name]
        before = dict(store)

        def fail() -> None:
            with store.batch():
                for id in ids:
                    self.value += 1
                    store[id] = {"value": self.value}
                if deleted in store:
                    del store[deleted]
                value = self.value - back
                assert store.find({"value": value}) == store.filter(lambda document: document["value"] == value)
                assert (
                    store.find(order_by="-value", limit=2)
                    == sorted(store.items(), key=lambda item: -item[1]["value"])[:2]
                )
                assert store.count("value > 0") == len(store.filter(lambda document: document["value"] > 0))
                assert sum(group.documents for group in store.group("value")) == len(store)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()
        assert dict(store) == before

    def check_transaction(self, transaction: opslog.Transaction[Any], back: int) -> None:
        """All questions, compared with plain filters of the same transaction, which sees its own writes."""
        value = self.value - back
        everything = [(id, document, transaction.record(id)) for id, document in transaction.items()]
        found = transaction.find({"value": {">=": value}}, order_by="-value")
        assert found == sorted(
            transaction.filter(lambda document: document["value"] >= value), key=lambda item: -item[1]["value"]
        )
        equal = transaction.find({"value": value})
        assert equal == [(id, document) for id, document, _ in everything if document["value"] == value]
        for name in NAMES:
            written = [(id, document) for id, document, record in everything if record and record.author == name]
            assert transaction.find({"@author": name}) == written
            assert transaction.count({"@author": name}) == len(written)
        newest = sorted(everything, key=lambda item: -item[1]["value"])
        assert transaction.find(order_by="-value", limit=2) == [(id, document) for id, document, _ in newest[:2]]
        assert transaction.count({"value": value}) == len(equal)
        assert transaction.count(f"value > {value}") == sum(document["value"] > value for _, document, _ in everything)
        assert dict(transaction.group("value")) == {document["value"]: 1 for _, document, _ in everything}

    @rule(name=AGENTS, ids=st.lists(IDS, max_size=2), deleted=IDS, back=st.integers(0, 5))
    def ask_in_a_transaction(self, name: str, ids: list[str], deleted: str, back: int) -> None:
        def function(transaction: opslog.Transaction[Any]) -> None:
            self.check_transaction(transaction, back)
            for id in ids:
                self.value += 1
                transaction[id] = {"value": self.value}
            if deleted in transaction:
                del transaction[deleted]
            self.check_transaction(transaction, back)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            self.agents[name].transact(function)

    @rule(name=AGENTS, other=AGENTS, ids=st.lists(IDS, max_size=2), back=st.integers(0, 5))
    def ask_in_a_block_while_others_write(self, name: str, other: str, ids: list[str], back: int) -> None:
        """The block sees the state at its beginning, whatever its store has read since."""
        store = self.agents[name]
        if name == other:
            return

        def fail() -> None:
            with store.transaction() as transaction:
                before = dict(transaction)
                self.check_transaction(transaction, back)
                for id in ids:
                    self.value += 1
                    self.agents[other].set(id, {"value": self.value})
                    self.note_commits(other, 1)
                replica_of(store).refresh()
                self.check_transaction(transaction, back)
                assert dict(transaction) == before
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            fail()

    @rule(who=WHO)
    def give_up_the_indexes(self, who: str | int) -> None:
        indexes = replica_of(self.store_of(who)).state.indexes
        if indexes is not None:
            indexes.drop()

    def check_everything(self) -> None:
        for store in [*self.agents.values(), *self.readers]:
            self.check(store, 1)
        super().check_everything()


class AgentsWithQuestionsAndLargeSnapshots(AgentsWithQuestions):
    """The same with runs that stay on storage, and cannot be mapped."""

    scheme = "bucket"
    loaded_bytes = 0


TestQuestions = for_examples(AgentsWithQuestions, 60)
TestQuestionsOfLargeSnapshots = for_examples(AgentsWithQuestionsAndLargeSnapshots, 40)
TestQuestionsForLong = pytest.mark.long(for_examples(AgentsWithQuestions, 200))
TestQuestionsOfLargeSnapshotsForLong = pytest.mark.long(for_examples(AgentsWithQuestionsAndLargeSnapshots, 200))
